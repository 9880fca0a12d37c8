"""A directory that a trainer has written, held open while it is adopted.

Every file is opened once, below the declared directories, and everything else is done with what was opened:
a trainer may delete the directory meanwhile. What is written meanwhile is found by size and time of
modification, or, where those say nothing, by the digests when it is loaded. Content is what the safetensors
files hold; marker files, tokenizers and configurations are none. Knows no versions.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from wsm.errors import BadInputError, RefusedError, UnfitError, coded, remedy
from wsm.own_descriptor import path_of, reopened
from wsm.shared_directory import EVERY_USER, ForeignPathError, require, trusted_in
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import UnreadableFileError, listed, reading
from wsm.strategies.files.safetensors import SafetensorsFile
from wsm.strategies.promise import FileName, read_json
from wsm.strategies.snapshot.slice_digests import SliceDigests

_SUFFIX = ".safetensors"
_SHARD = re.compile(r"(.+)-([0-9]{1,9})-of-([0-9]{1,9})\.safetensors")
_INDEX_SUFFIX = ".safetensors.index.json"
_MAX_INDEX_BYTES = 1 << 26
_MAX_FILES = 10_000
_CHUNK_BYTES = 1 << 21


@coded("no-checkpoint")
def no_checkpoint(*, path: str, present: Sequence[str]) -> BadInputError:
    """A directory has no safetensors file; marker files alone are no content."""
    seen = f"; it holds {listed(present)}" if present else "; it is empty"
    return UnfitError(
        f"{path} holds no safetensors file{seen}; write the weights there before they are adopted",
        present=tuple(present),
    )


@coded("incomplete-checkpoint")
def incomplete_checkpoint(*, path: str, problem: str) -> BadInputError:
    """The files of a directory are not what its index, their names or their headers say; or not yet."""
    return UnfitError(
        f"the checkpoint in {path} is not whole: {problem}; let the trainer finish it, then adopt it",
        retryable=True,
    )


@coded("checkpoint-changed")
def checkpoint_changed(*, file: str, problem: str) -> BadInputError:
    """A file was written while it was adopted."""
    return UnfitError(
        f"{file} changed while it was adopted: {problem}; let the trainer finish it, then adopt it"
    )


@coded("bad-placements")
def bad_placements(*, hook: str, problem: str) -> BadInputError:
    """What should say how tensors lie on the ranks cannot be used."""
    return UnfitError(
        f"{hook} does not say how tensors lie on the ranks: {problem}; name MODULE:FUNCTION, which returns a "
        "placement for each of the tensors that it is given"
    )


class _Index(msgspec.Struct):
    """An index of the directory: which file each tensor is in, and what trainers say besides."""

    weight_map: dict[str, FileName] = {}
    metadata: Any = None


@dataclass(frozen=True)
class CheckpointPart:
    """One safetensors file of a checkpoint, open.

    Parameters
    ----------
    path : str
        Its name, for messages.
    descriptor : int
        Open for reading; closed with the checkpoint.
    content : SafetensorsFile
        Its header, checked against its size.
    size, mtime_ns : int
        As it was opened.
    """

    path: str
    descriptor: int
    content: SafetensorsFile
    size: int
    mtime_ns: int

    def require_unchanged(self) -> None:
        """Refuse a file that was written since it was opened.

        Raises
        ------
        BadInputError (``checkpoint-changed``)
            If its size or time of modification is another.
        """
        now = os.fstat(self.descriptor)
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            problem = f"{self.size} bytes are {now.st_size} now"
            if now.st_size == self.size:
                problem = "it was written in place"
            raise checkpoint_changed(file=self.path, problem=problem)

    def digests(self, slices: Sequence[SliceDigests] = ()) -> list[str]:
        """Return the digest of every tensor, in the order of the file. Blocks; reads it whole.

        `slices`, if any are given, take in the bytes of one tensor each.

        Raises
        ------
        BadInputError (``checkpoint-changed``)
            If it ends early, or was written meanwhile.
        UnreadableFileError
            If reading fails.
        """
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        found = []
        for index, (spec, read_into) in enumerate(self.content.readers()):
            digest, row = running_digest(), slices[index].row_bytes if slices else 0
            step = _CHUNK_BYTES // row * row if 0 < row <= _CHUNK_BYTES else _CHUNK_BYTES
            for offset in range(0, spec.nbytes, step):
                chunk = buffer[: min(step, spec.nbytes - offset)]
                try:
                    read_into(offset, chunk)
                except UnreadableFileError:
                    raise
                except BadInputError as error:
                    raise checkpoint_changed(file=self.path, problem="it ends early") from error
                digest.update(chunk)
                if slices:
                    slices[index].update(chunk)
            found.append(digest.hexdigest())
        self.require_unchanged()
        return found


@dataclass(frozen=True)
class Checkpoint:
    """The open files of a directory.

    Parameters
    ----------
    path : str
        Where the directory lies, links resolved.
    parts : tuple of CheckpointPart
        Its safetensors files, by their names; those of its index, if it has one.
    left_out : tuple of str
        Names of other safetensors files.
    """

    path: str
    parts: tuple[CheckpointPart, ...]
    left_out: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(part.size for part in self.parts)


@contextmanager
def open_checkpoint(path: Path | str, roots: Sequence[Path | str]) -> Iterator[Checkpoint]:
    """Open a directory and its files. Blocks on metadata only.

    Parameters
    ----------
    path : path or str
        What a caller names.
    roots : sequence of path or str
        The directories below which it must lie, and every file of it.

    Raises
    ------
    BadInputError
        If there is none (``checkpoint-missing``), it lies elsewhere (``outside-roots``), holds no weights
        (``no-checkpoint``), not all of them or not yet (``incomplete-checkpoint``), or says two things
        (``stale-index``).
    RefusedError
        If it holds changes alone (``delta-checkpoint``).
    ForeignPathError
        If another user could have made it, or it is a pipe, a device or the like.
    UnreadableFileError
        If the operating system refuses.
    """
    with ExitStack() as stack:
        directory = _opened(path, roots, stack, kind=stat.S_IFDIR)
        where = path_of(directory)
        with reading(where):
            names = sorted(os.listdir(directory))  # noqa: PTH208 - a Path cannot list a descriptor
        index, weight_map = _index(directory, where, names, roots)
        files = [name for name in names if name.endswith(_SUFFIX)]
        chosen = files if index is None else sorted(set(weight_map.values()))
        if not chosen:
            raise no_checkpoint(path=where, present=names)
        if len(chosen) > _MAX_FILES:
            raise incomplete_checkpoint(path=where, problem=f"it has more than {_MAX_FILES} files")
        absent = [name for name in chosen if name not in names] or absent_shards(chosen)
        if absent:
            problem = f"{listed(absent)} {'are' if len(absent) > 1 else 'is'} not there"
            raise incomplete_checkpoint(path=where, problem=problem)
        parts = tuple(_part(directory, where, name, roots, stack) for name in chosen)
        held = {(spec.name, Path(part.path).name) for part in parts for spec in part.content.specs()}
        lost = sorted(name for name, file in weight_map.items() if (name, file) not in held)
        if lost:
            problem = f"its index names tensors that their files do not hold: {listed(lost)}"
            raise incomplete_checkpoint(path=where, problem=problem)
        left_out = tuple(name for name in files if name not in chosen)
        for name in left_out:
            try:
                specs = _part(directory, where, name, roots, stack).content.specs()
            except BadInputError as error:
                if error.code != "dtype-not-moved":  # such a file is good, and no model that wsm can load
                    raise
                continue
            both = [spec.name for spec in specs if spec.name in weight_map]
            if both:
                raise UnfitError(
                    f"the checkpoint in {where} says two things: {index} names other files for "
                    f"{listed(both)}, which {name} holds, too; remove whichever of {index} "
                    f"and {name} is old, then adopt it",
                    code="stale-index",
                    path=where,
                    index=index or "",
                    file=name,
                    tensors=tuple(both),
                )
        yield Checkpoint(where, parts, left_out)


def absent_shards(names: Collection[str]) -> list[str]:
    """Return the files that are not among `names`, which say ``N-of-M`` of themselves, from 0 or 1 on."""
    sets: dict[tuple[str, str], dict[int, int]] = {}
    for name in names:
        found = _SHARD.fullmatch(name)
        if found is not None and int(found[3]) <= _MAX_FILES:
            sets.setdefault((found[1], found[3]), {})[int(found[2])] = len(found[2])
    return [
        f"{begin}-{number:0{max(numbers.values())}d}-of-{count}{_SUFFIX}"
        for (begin, count), numbers in sets.items()
        for number in (range(int(count)) if 0 in numbers else range(1, int(count) + 1))
        if number not in numbers
    ]


def _opened(
    path: Path | str,
    roots: Sequence[Path | str],
    stack: ExitStack,
    *,
    kind: int = stat.S_IFREG,
    at: int | None = None,
    where: str = "",
) -> int:
    shown = f"{where}/{path}" if where else str(path)
    try:
        descriptor = open_below(path, roots, kind=kind, at=at)
    except FileNotFoundError as error:
        raise UnfitError(
            f"there is nothing at {shown}; correct the path, which must be absolute, or ask for a directory "
            "before its trainer deletes it",
            code="checkpoint-missing",
            path=shown,
        ) from error
    except ForeignPathError:
        if kind != stat.S_IFDIR or not Path(path).is_file():
            raise
        problem = f"{shown} is a file; name the directory that it lies in"
        raise UnfitError(problem, code="checkpoint-missing", path=shown) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            raise checkpoint_changed(file=shown, problem=str(error.strerror)) from error
        raise UnreadableFileError(file=shown, reason=str(error), fix=remedy(error)) from error
    stack.callback(os.close, descriptor)
    return descriptor


def _part(
    directory: int, where: str, name: str, roots: Sequence[Path | str], stack: ExitStack
) -> CheckpointPart:
    descriptor = _opened(name, roots, stack, at=directory, where=where)
    status = os.fstat(descriptor)
    try:
        content = SafetensorsFile(os.dup(descriptor), f"{where}/{name}")
    except BadInputError as error:  # its reader's advice is for what wsm published
        if error.code not in ("bad-file-size", "bad-safetensors"):
            raise
        said = error.context
        problem = said.get("problem") or f"it has {said['actual']} bytes instead of {said['expected']}"
        raise incomplete_checkpoint(path=where, problem=f"of {name}, {problem}") from error
    stack.callback(content.close)
    return CheckpointPart(content.path, descriptor, content, status.st_size, status.st_mtime_ns)


def _index(
    directory: int, where: str, names: Sequence[str], roots: Sequence[Path | str]
) -> tuple[str | None, Mapping[str, str]]:
    """Return the index of the directory, if there is one, and by that the file of each tensor."""
    found = [name for name in names if name.endswith(_INDEX_SUFFIX)]
    if not found:
        return None, {}
    if len(found) > 1:
        raise incomplete_checkpoint(path=where, problem=f"it has {len(found)} indexes")
    with ExitStack() as stack:
        descriptor = _opened(found[0], roots, stack, at=directory, where=where)
        with reading(f"{where}/{found[0]}"):
            data = os.pread(descriptor, _MAX_INDEX_BYTES + 1, 0)
    try:
        index = read_json(_Index, data[:_MAX_INDEX_BYTES])
    except ValueError as error:
        problem = f"in {found[0]}, {error}"
        raise incomplete_checkpoint(path=where, problem=problem) from error
    about = index.metadata
    if isinstance(about, dict) and "delta_encoding" in about:
        raise RefusedError(
            f"{where} holds the changes since the version before it (delta_encoding "
            f"{about['delta_encoding']}), and no whole checkpoint: no rank could prove what it would hold, "
            "for they name no digest of what they were made from; let the trainer write whole checkpoints "
            "(slime: --update-weight-mode full), or publish_delta",
            code="delta-checkpoint",
            path=where,
            encoding=str(about["delta_encoding"]),
        )
    if not index.weight_map:
        problem = f"{found[0]} has no weight_map of tensors to files beside it"
        raise incomplete_checkpoint(path=where, problem=problem)
    return found[0], index.weight_map


def open_below(
    path: Path | str, roots: Sequence[Path | str], *, kind: int = stat.S_IFREG, at: int | None = None
) -> int:
    """Open for reading what a caller names, if it lies below a declared directory. Does not wait.

    Links are followed first, and what they lead to is looked for again from the declared directory down,
    following none: what changes in between is refused. Where every user can make names on the way, what
    is found there must be ours. `at` is the directory that a relative path begins in.

    Raises
    ------
    FileNotFoundError, ForeignPathError
        If there is none; if it is not of `kind` (``stat.S_IF*``), or another user's.
    BadInputError (``outside-roots``)
        If it lies below none of them.
    OSError
        If it is exchanged while it is opened (``ESTALE``), or the operating system refuses otherwise.
    """
    named = [os.path.realpath(root) for root in roots]
    with ExitStack() as stack:
        held = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=at)
        stack.callback(os.close, held)
        leads_to = path_of(held)
        root = next((each for each in named if os.path.commonpath((each, leads_to)) == each), None)
        if root is None:
            below = ", ".join(named) or "no directory at all"
            raise BadInputError(
                f"{path} leads to {leads_to}, and only what lies below {below} is opened; "
                "write it there, or declare the directory that it lies in",
                code="outside-roots",
                path=str(path),
                leads_to=leads_to,
                roots=tuple(named),
            )
        require(Path(root), Path(root).lstat(), stat.S_IFDIR, also=trusted_in(Path(root).parent))
        found = os.open(root, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        stack.callback(os.close, found)
        names = Path(leads_to).relative_to(root).parts
        for depth, name in enumerate(names, 1):
            also = trusted_in(found)
            found = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=found)
            stack.callback(os.close, found)
            expected = kind if depth == len(names) else stat.S_IFDIR
            require(Path(root, *names[:depth]), os.fstat(found), expected, also=also)
        require(Path(leads_to), os.fstat(found), kind, also=EVERY_USER)
        if not os.path.samestat(os.fstat(found), os.fstat(held)):
            raise OSError(errno.ESTALE, "it was exchanged while it was opened", str(path))
        return reopened(found, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
