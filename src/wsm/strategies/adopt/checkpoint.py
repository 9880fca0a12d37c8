"""A directory that a trainer has written, held open while it is adopted.

Every file is opened once, below the declared directories, and everything else is done with what was opened:
a trainer may delete the directory meanwhile. What is written meanwhile is found by size and time of
modification, or, where those say nothing, by the digests when it is loaded. Content is what the safetensors
files hold; marker files, tokenizers and configurations are none. Knows no versions.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wsm.errors import BadInputError
from wsm.own_descriptor import path_of
from wsm.shared_directory import open_below
from wsm.strategies import documents
from wsm.strategies import errors as strategies_errors
from wsm.strategies.adopt import errors
from wsm.strategies.digest import running_digest
from wsm.strategies.documents import is_plain_file_name
from wsm.strategies.errors import UnreadableFileError
from wsm.strategies.files.safetensors import SafetensorsFile
from wsm.strategies.tensor import TensorSpec

_SUFFIX = ".safetensors"
_INDEX_SUFFIX = ".safetensors.index.json"
_MAX_INDEX_BYTES = 1 << 26
_MAX_FILES = 10_000
_CHUNK_BYTES = 1 << 21


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
            raise errors.checkpoint_changed(file=self.path, problem=problem)

    def digests(self) -> list[str]:
        """Return the digest of every tensor, in the order of the file. Blocks; reads it whole.

        Raises
        ------
        BadInputError (``checkpoint-changed``)
            If it ends early, or was written meanwhile.
        UnreadableFileError
            If reading fails.
        """
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        found = []
        for spec, read_into in self.content.readers():
            digest = running_digest()
            for offset in range(0, spec.nbytes, _CHUNK_BYTES):
                chunk = buffer[: min(_CHUNK_BYTES, spec.nbytes - offset)]
                try:
                    read_into(offset, chunk)
                except UnreadableFileError:
                    raise
                except BadInputError as error:
                    raise errors.checkpoint_changed(file=self.path, problem="it ends early") from error
                digest.update(chunk)
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
        (``no-checkpoint``), or not those of its index (``incomplete-checkpoint``); or if a file is damaged.
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
        try:
            names = sorted(os.listdir(directory))  # noqa: PTH208 - a Path cannot list a descriptor
        except OSError as error:
            raise UnreadableFileError(file=where, reason=error.strerror or str(error)) from error
        weight_map = _index(directory, where, names, roots)
        files = [name for name in names if name.endswith(_SUFFIX)]
        chosen = files if weight_map is None else sorted(set(weight_map.values()))
        if not chosen:
            raise errors.no_checkpoint(path=where, present=names)
        if len(chosen) > _MAX_FILES:
            raise errors.incomplete_checkpoint(path=where, problem=f"it has more than {_MAX_FILES} files")
        absent = [name for name in chosen if name not in names]
        if absent:
            found = strategies_errors.listed(absent)
            raise errors.incomplete_checkpoint(path=where, problem=f"its index names {found}, not there")
        parts = tuple(_part(directory, where, name, roots, stack) for name in chosen)
        _check_index(where, weight_map or {}, parts)
        yield Checkpoint(where, parts, tuple(name for name in files if name not in chosen))


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
        raise errors.checkpoint_missing(path=shown) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableFileError(file=shown, reason=reason or str(error)) from error
    stack.callback(os.close, descriptor)
    return descriptor


def _part(
    directory: int, where: str, name: str, roots: Sequence[Path | str], stack: ExitStack
) -> CheckpointPart:
    descriptor = _opened(name, roots, stack, at=directory, where=where)
    status = os.fstat(descriptor)
    content = SafetensorsFile(os.dup(descriptor), f"{where}/{name}")
    stack.callback(content.close)
    return CheckpointPart(content.path, descriptor, content, status.st_size, status.st_mtime_ns)


def _index(
    directory: int, where: str, names: Sequence[str], roots: Sequence[Path | str]
) -> Mapping[str, str] | None:
    """Return which file holds each tensor, as the directory says itself; None if it does not."""
    found = [name for name in names if name.endswith(_INDEX_SUFFIX)]
    if not found:
        return None
    if len(found) > 1:
        raise errors.incomplete_checkpoint(path=where, problem=f"it has {len(found)} indexes")
    with ExitStack() as stack:
        descriptor = _opened(found[0], roots, stack, at=directory, where=where)
        try:
            data = os.pread(descriptor, _MAX_INDEX_BYTES + 1, 0)
        except OSError as error:
            raise UnreadableFileError(
                file=f"{where}/{found[0]}", reason=error.strerror or str(error)
            ) from error
    try:
        fields = documents.parse(data) if len(data) <= _MAX_INDEX_BYTES else None
    except documents.StrictJsonError as error:
        problem = f"in {found[0]}, {error}"
        raise errors.incomplete_checkpoint(path=where, problem=problem) from error
    about = fields.get("metadata") if isinstance(fields, dict) else None
    if isinstance(about, dict) and "delta_encoding" in about:
        raise errors.delta_checkpoint(path=where, encoding=str(about["delta_encoding"]))
    said = fields.get("weight_map") if isinstance(fields, dict) else None
    if (
        not isinstance(said, dict)
        or not said
        or not all(isinstance(file, str) and is_plain_file_name(file) for file in said.values())
    ):
        problem = f"{found[0]} has no weight_map of tensors to files beside it"
        raise errors.incomplete_checkpoint(path=where, problem=problem)
    return said


def _check_index(where: str, weight_map: Mapping[str, str], parts: Sequence[CheckpointPart]) -> None:
    held = {(spec.name, Path(part.path).name) for part in parts for spec in part.content.specs()}
    absent = sorted(name for name, file in weight_map.items() if (name, file) not in held)
    if absent:
        problem = f"its index names tensors that their files do not hold: {strategies_errors.listed(absent)}"
        raise errors.incomplete_checkpoint(path=where, problem=problem)


def specs_of(checkpoint: Checkpoint) -> list[TensorSpec]:
    """Return all tensors, file by file, under the trainer's names."""
    return [spec for part in checkpoint.parts for spec in part.content.specs()]
