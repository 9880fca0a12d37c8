"""Adopting: what a trainer has written becomes a version that a group loads, in one call.

The directory's tensors are described and digested first, and nothing is written if a version of that label
and digest stands already. Else its files are linked or copied into ``versions/``, and announced, as every
publication is. The digests are checked again by every load.

The files of a checkpoint as the one shard of a version: cloned, linked or copied, a manifest beside them.

A whole model is a version for one rank. Groups of other numbers of ranks read their slices of it, by the
placements in its manifest, and models with loaders of their own get it whole. A linked file is the trainer's
very file under a second name: it stays when the trainer deletes its own, and what the trainer writes into it
in place is found by the digests. A copy is ours, begins with a header of ours, and may have other names.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias

import msgspec

from wsm import log
from wsm.errors import BadInputError, RefusedError, WsmError
from wsm.printable import counted, size_text
from wsm.shared_directory import FileLock, create_ours
from wsm.strategies import errors as strategies_errors
from wsm.strategies.adopt.checkpoint import (
    Checkpoint,
    CheckpointPart,
    bad_placements,
    checkpoint_changed,
    no_checkpoint,
    open_checkpoint,
)
from wsm.strategies.adopt.record import (
    AdoptedContent,
    AdoptionRecord,
    Decision,
    Relabel,
    decide,
    known_labels,
    label_for,
    mtimes_of,
)
from wsm.strategies.digest import shard_digest
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.atomic_file import write_all, write_new
from wsm.strategies.files.safetensors import lay_out
from wsm.strategies.files.shard_source import ShardSource
from wsm.strategies.files.snapshot_names import VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import announced_version, write_version
from wsm.strategies.promise import PromisedTensor, ShardIdentity
from wsm.strategies.snapshot.manifest import PartEntry, ShardManifest, VersionManifest, part_metadata
from wsm.strategies.snapshot.placement import Placement, bad_placement, runs, whole_shape
from wsm.strategies.snapshot.publish import SnapshotPublisher, StagedVersion
from wsm.strategies.snapshot.slice_digests import SliceDigests, write_slice_promises
from wsm.strategies.strategy import Sections, Strategy
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.publications import published_last
from wsm.strategies.trainer.retention import KEEP_TWO, Retention, take_publisher_lock
from wsm.strategies.training_names import TrainingNames
from wsm.strategies.transports.by_version import Gdr
from wsm.typed import Count, CountFrom0, typed

_CHUNK_BYTES = 1 << 21
_FICLONE: Final = 0x40049409  # <linux/fs.h>
# Kernels, file systems and sandboxes without copy_file_range, and files that lie on two file systems.
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)


def _all(make: Callable[[int, Path], None], parts: Sequence[CheckpointPart], paths: Sequence[Path]) -> bool:
    """Make all files, or none: readers take the parts of one version for all of one kind."""
    try:
        for part, path in zip(parts, paths, strict=True):
            make(part.descriptor, path)
    except OSError:  # another file system, another user's file, a file whose last name is gone, ...
        for path in paths:
            with suppress(FileNotFoundError):
                path.unlink()
        return False
    return True


def _copy(
    part: CheckpointPart, path: Path, specs: Sequence[TensorSpec], identity: ShardIdentity, *, durable: bool
) -> None:
    header = part.content.header
    destination = create_ours(path, mode=None)
    try:
        write_all(destination, lay_out(specs, part_metadata(identity))[0])
        _copy_bytes(part, header.data_begin, header.data_bytes, destination)
        if durable:
            os.fsync(destination)
    finally:
        os.close(destination)


def _copy_bytes(part: CheckpointPart, begin: int, count: int, destination: int) -> None:
    end, in_kernel = begin + count, True
    while begin < end:
        if in_kernel:
            try:
                moved = os.copy_file_range(part.descriptor, destination, end - begin, offset_src=begin)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                in_kernel = False
                continue
        else:
            data = os.pread(part.descriptor, min(_CHUNK_BYTES, end - begin), begin)
            write_all(destination, data)
            moved = len(data)
        if not moved:
            raise checkpoint_changed(file=part.path, problem="it ends early")
        begin += moved


def _link(descriptor: int, path: Path) -> None:
    """Give the very file that is open another name, whatever lies under its own by now.

    OSError if it is another user's, of another file system, or without a name left.
    """
    # Python asks the kernel to follow the link in /proc only if it is given a directory, too.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)


def _clone(descriptor: int, path: Path, *, durable: bool) -> None:
    """Make a file of our own that shares the blocks of one that is open, until either is written.

    OSError if the file system cannot; an empty file may be left.
    """
    made = create_ours(path, mode=None)
    try:
        fcntl.ioctl(made, _FICLONE, descriptor)
        if durable:
            os.fsync(made)
    finally:
        os.close(made)


#: Says of each tensor of a whole model, by its name, how it lies on the ranks; refuses what is no such model.
PlacementHook: TypeAlias = Callable[[Mapping[str, TensorSpec]], Mapping[str, Placement]]

_log = log.logger("strategies")


class AdoptWay(enum.Enum):
    """How bytes are taken in.

    LINK: hard links, copies where the file system has none. COPY: copies. Either shares blocks until one side
    is written (a reflink, which counts as a copy) where the file system can. NONE: not at all; only the label
    is taken from the directory, and the version comes as the group's strategy brings it.
    """

    LINK = "link"
    COPY = "copy"
    NONE = "none"


@typed
@dataclass(frozen=True)
class AdoptSettings:
    """Into what and how directories are adopted.

    Parameters
    ----------
    into : path or str
        The directory in whose ``versions/`` they are published.
    roots : sequence of path or str
        The directories below which trainers write; nothing else is opened.
    way : AdoptWay
        How bytes are taken in.
    relabel : Relabel
        What happens to other content under a label that was used before.
    ranks : int or None
        Of the group that loads; None where every rank gets the whole model, for its own loaders.
    placements : callable, optional
        How a whole model lies on the ranks; needed for more than one.
    names : TrainingNames, optional
        What the trainer calls the model's tensors. A file with other names than the model's is copied.
    device_id : int
        The one in the names of rank 0's files.
    retain : Retention
        Which older versions stay.
    durable : bool
        Whether an adopted version must survive a power cut; what is linked, as far as its trainer saw to it.
    """

    into: Path | str
    roots: Sequence[Path | str]
    way: AdoptWay = AdoptWay.LINK
    relabel: Relabel = Relabel.MARK
    ranks: Count | None = None
    placements: PlacementHook | None = None
    names: TrainingNames | None = None
    device_id: CountFrom0 = 0
    retain: Retention = KEEP_TWO
    durable: bool = True


@dataclass(frozen=True)
class Adoption:
    """What a directory was adopted as.

    Parameters
    ----------
    label : str
        The version to load.
    asked : str
        What it was asked to be called; another label if that was other content's.
    source : str
        The directory, links resolved.
    digest : str or None
        Digest of its tensors; None if it was not looked at (``none``).
    already : bool
        Whether it was there, so that nothing was written.
    way : AdoptWay
        How its bytes were taken in; COPY also where links were wanted and are not needed, or cannot be made.
    files, bytes : int
        How many files it has, and their size.
    left_out : tuple of str
        Safetensors files of the directory that its index does not name.
    seconds : float
        How long it took.
    retired : tuple of str
        Older versions that were removed.
    """

    label: str
    asked: str
    source: str
    digest: str | None
    already: bool
    way: AdoptWay
    files: int
    bytes: int
    left_out: tuple[str, ...]
    seconds: float
    retired: tuple[str, ...] = ()

    @property
    def reused(self) -> bool:
        """Whether the label that was asked for had been other content's."""
        return self.label != self.asked

    def sentence(self) -> str:
        """Return what happened, for a person."""
        if self.digest is None:
            return f"version {self.label}: nothing adopted"
        what = f"{counted(self.files, 'file')}, {size_text(self.bytes)}, digest {self.digest}"
        taken = "linked" if self.way is AdoptWay.LINK else "copied"
        done = "is there already" if self.already else taken
        return f"version {self.label}: {done} ({what})"

    @property
    def warning(self) -> str | None:
        """What a person should know besides, in one line; None if nothing."""
        said = []
        if self.reused:
            said.append(f"label reused: {self.asked} was other content; this is {self.label}")
        if self.left_out:
            said.append(f"left out: the index does not name {strategies_errors.listed(self.left_out)}")
        if self.way is AdoptWay.LINK and not self.already:
            said.append(
                f"linked: what is written into the files of {self.source} in place is written into version "
                f"{self.label}, which no rank can load or restore then (digest-mismatch); let the trainer "
                "write new files, or adopt copies (--adopt copy)"
            )
        return "; ".join(said) or None


@typed
def adopt(
    source: Path | str,
    settings: AdoptSettings,
    *,
    version: str | int | None = None,
) -> Adoption:
    """Take in a directory of safetensors files as a version. Blocks; reads every byte once.

    Touches no group, and may be called while one serves. Nothing is written into the directory.

    Parameters
    ----------
    source : path or str
        The directory.
    settings : AdoptSettings
        Into what, and how.
    version : str or int, optional
        Its label; else the number at the end of the directory's name, else that name.

    Raises
    ------
    BadInputError
        If there is no such directory (``checkpoint-missing``), it lies elsewhere (``outside-roots``), holds
        no whole checkpoint (``no-checkpoint``, ``incomplete-checkpoint``), changes meanwhile
        (``checkpoint-changed``), or does not fit the group's model or number of ranks.
    RefusedError
        If the label was other content's and must not be (``label-reused``), nothing says how the model is
        divided (``placements-unknown``), it holds what changed alone (``delta-checkpoint``), or another user
        could have made it (``foreign-path``).
    PublisherBusyError, StorageError
        If it cannot be published now.
    """
    begun_s = time.monotonic()
    if settings.way is AdoptWay.NONE:
        asked = label_for(_below(source, settings.roots), version)
        return Adoption(asked, asked, str(source), None, False, AdoptWay.NONE, 0, 0, (), 0.0)
    with open_checkpoint(source, settings.roots) as checkpoint:
        described = _Described(
            checkpoint, settings, label_for(_below(checkpoint.path, settings.roots), version)
        )
        decision, into = described.decided(), Path(settings.into)
        taken: tuple[AdoptWay, tuple[str, ...]] = settings.way, ()
        if not decision.already or _is_unannounced(into, decision.label):
            lock = take_publisher_lock(into / VERSIONS_DIRECTORY, directory=into)
            try:
                decision = described.decided()  # another process may have adopted something meanwhile
                if not decision.already:
                    taken = described.taken(decision, lock)
                elif _is_unannounced(into, decision.label):
                    write_version(into, decision.label, durable=settings.durable, alone=True)
            finally:
                lock.release()
        adoption = Adoption(
            label=decision.label,
            asked=described.asked,
            source=checkpoint.path,
            digest=described.digest,
            already=decision.already,
            way=taken[0],
            files=len(checkpoint.parts),
            bytes=checkpoint.nbytes,
            left_out=checkpoint.left_out,
            seconds=time.monotonic() - begun_s,
            retired=taken[1],
        )
    if adoption.warning is not None:
        _log.warning("adopted", version=adoption.label, warning=adoption.warning)
    return adoption


class _Described:
    """A checkpoint whose tensors are known, by name, digest and place: it was read whole, once it fitted."""

    def __init__(self, checkpoint: Checkpoint, settings: AdoptSettings, asked: str) -> None:
        self.checkpoint, self.settings, self.asked = checkpoint, settings, asked
        described = _specs(checkpoint, settings)
        self.placements = placements = _placed(checkpoint, described, settings)
        self.tensors: list[list[tuple[TensorSpec, str]]] = []
        self.slices: list[tuple[SliceDigests, str]] = []
        for specs, part in zip(described, checkpoint.parts, strict=True):
            cuts = [
                SliceDigests(spec, placement, settings.ranks)
                for spec in specs
                if (placement := placements[spec]) is not None and settings.ranks not in (None, 1)
            ]
            digests = part.digests(cuts)
            self.tensors.append(list(zip(specs, digests, strict=True)))
            self.slices += zip(cuts, digests, strict=False)
        self.digest = shard_digest(row for rows in self.tensors for row in rows)

    def decided(self) -> Decision:
        """Say what it is adopted as, by what is published and remembered now."""
        known = known_labels(Path(self.settings.into), self.placements, self.settings.device_id)
        return decide(self.asked, self.digest, known, self.settings.relabel)

    def taken(self, decision: Decision, lock: FileLock) -> tuple[AdoptWay, tuple[str, ...]]:
        """Publish the files under the lock; return how they were taken in, and which older versions went."""
        settings, into = self.settings, Path(self.settings.into)
        publisher = SnapshotPublisher(
            into, retain=settings.retain, replace=decision.replace, durable=settings.durable
        )
        with StagedVersion(publisher, decision.label, lock=lock) as staged:
            with staged.shard(0) as directory:
                manifest, linked = self._put(directory, staged.identity(0))

            def remember(path: Path, publication: VersionManifest) -> None:
                # Before it is visible: an adoption that is killed in between is known for what it is.
                if self.slices:
                    write_slice_promises(
                        path, publication, self.slices, settings.ranks or 1, durable=settings.durable
                    )
                times = mtimes_of(path, manifest.parts)
                content = AdoptedContent(decision.label, self.asked, self.digest, times)
                record = AdoptionRecord.of(into)
                if decision.label != self.asked:
                    record = record.with_used(self.asked)
                record.with_one(content).write(into, durable=settings.durable)

            report = staged.seal({0: manifest.seal}, keep_standing=False, before_showing=remember)
        return AdoptWay.LINK if linked else AdoptWay.COPY, report.retired

    def _put(self, directory: Path, identity: ShardIdentity) -> tuple[ShardManifest, bool]:
        """Put the files and their manifest into a directory where no reader looks yet. Blocks.

        Files whose names are the model's are taken as they are. A file system that can lets the version share
        their blocks until either is written, which is as good as a copy and costs nothing; else they are
        linked, if they may be. The second of what is returned says whether they were, so that what their
        trainer writes into them is written into the version.
        """
        parts, device_id, durable = self.checkpoint.parts, self.settings.device_id, self.settings.durable
        base = snapshot_names.shard_base(0, device_id)
        paths = [directory / snapshot_names.part_name(base, index) for index, _ in enumerate(parts)]
        whole = not self._is_renamed
        cloned = whole and _all(partial(_clone, durable=durable), parts, paths)
        linked = whole and not cloned and self.settings.way is AdoptWay.LINK and _all(_link, parts, paths)
        if not cloned and not linked:
            for part, path, held in zip(parts, paths, self.tensors, strict=True):
                _copy(part, path, [spec for spec, _ in held], identity, durable=durable)
        for part in parts:
            part.require_unchanged()
        manifest = ShardManifest.with_tensors(
            (
                PromisedTensor(spec, digest, self.placements[spec])
                for held in self.tensors
                for spec, digest in held
            ),
            **msgspec.structs.asdict(identity),
            device_id=device_id,
            parts=tuple(
                PartEntry(path.name, path.stat().st_size, len(held))
                for path, held in zip(paths, self.tensors, strict=True)
            ),
        )
        write_new(directory / manifest.name, manifest.encode(), durable=durable)
        return manifest, linked

    @property
    def _is_renamed(self) -> bool:
        """Whether the model calls a tensor otherwise than its file does."""
        return any(
            spec != own
            for part, rows in zip(self.checkpoint.parts, self.tensors, strict=True)
            for spec, (own, _) in zip(part.content.specs(), rows, strict=True)
        )


def _is_unannounced(into: Path, label: str) -> bool:
    """Whether a version that stands was published last, and who published it died before it was announced."""
    with suppress(BadInputError):  # a version.yaml that cannot be read announces nothing
        if announced_version(into) == label:
            return False
    return published_last(into, deltas=True) == label


def _below(path: Path | str, roots: Sequence[Path | str]) -> str:
    """Return what names a directory below the root that it lies in; of a root itself, its whole path."""
    for root in roots:
        for each in (Path(root), Path(root).resolve()):
            if each in PurePath(path).parents:
                return str(PurePath(path).relative_to(each))
    return str(path)


def _specs(checkpoint: Checkpoint, settings: AdoptSettings) -> list[list[TensorSpec]]:
    """Return the tensors of each file under the model's names; an error if two have one name."""
    own = (lambda name: name) if settings.names is None else settings.names.of_inference
    described = [
        [TensorSpec(own(spec.name), spec.dtype, spec.shape) for spec in part.content.specs()]
        for part in checkpoint.parts
    ]
    counts = Counter(spec.name for specs in described for spec in specs)
    duplicate = sorted(name for name, count in counts.items() if count > 1)
    if duplicate:
        raise _not_covered(checkpoint, described, {"duplicate": duplicate})
    if not counts:
        raise no_checkpoint(path=checkpoint.path, present=["safetensors files without tensors"])
    return described


def _not_covered(
    checkpoint: Checkpoint, described: Sequence[Sequence[TensorSpec]], lists: Mapping[str, Sequence[str]]
) -> BadInputError:
    """Say which tensors are not the model's, in which files, and what the trainer's directory needs."""
    missing, unknown, duplicate = (lists.get(each, ()) for each in ("missing", "unknown", "duplicate"))
    wrong = {*unknown, *duplicate}
    files = {
        part.path: {spec.name for spec in specs}
        for part, specs in zip(checkpoint.parts, described, strict=True)
    }
    others = [Path(path).name for path, names in files.items() if names and names <= {*unknown}]
    fix = "let the trainer write this model, each tensor once, and say what it calls them (names)"
    if others and not missing:
        fix = f"move {strategies_errors.listed(others)} away, or write an index of the model's own files"
    origins = [path for path, names in files.items() if names & wrong or not wrong]
    return strategies_errors.not_covered(
        missing=missing, unknown=unknown, duplicate=duplicate, origins=origins, fix=fix
    )


def _placed(
    checkpoint: Checkpoint, described: Sequence[Sequence[TensorSpec]], settings: AdoptSettings
) -> dict[TensorSpec, Placement | None]:
    """Return how each tensor lies on the ranks; an error if one cannot be divided by their number."""
    specs = [spec for part in described for spec in part]
    hook, ranks = settings.placements, settings.ranks
    if ranks is None or (ranks == 1 and hook is None):
        return dict.fromkeys(specs)
    if hook is None:
        raise RefusedError(
            f"{checkpoint.path} holds a whole model, and nothing says how its tensors lie on {ranks} ranks; "
            "name a function that does (--placements MODULE:FUNCTION), or load it through the models' "
            "loaders (strategy gdr)",
            code="placements-unknown",
            path=checkpoint.path,
            ranks=ranks,
        )
    named = getattr(hook, "__qualname__", repr(hook))
    try:
        said = dict(hook({spec.name: spec for spec in specs}))
    except WsmError as error:
        if error.code != "not-covered":
            raise
        raise _not_covered(checkpoint, described, error.context) from error
    except Exception as error:  # a function of the user's own, given what a trainer wrote
        problem = f"{type(error).__name__}: {error}"
        raise bad_placements(hook=named, problem=problem) from error
    for spec in specs:
        if spec.name not in said:
            raise bad_placement(tensor=spec.name, problem="has no placement")
        whole_shape(spec.name, said[spec.name], spec.shape, 0, 1)
        runs(spec.name, said[spec.name], spec.shape, 0, ranks)
    return {spec: said[spec.name] for spec in specs}


@typed
def adopt_settings(
    strategy: Strategy,
    sections: Sections,
    ranks: Count,
    *,
    roots: Sequence[str | Path],
    way: AdoptWay = AdoptWay.LINK,
    **options: Any,
) -> AdoptSettings:
    """Return how directories are adopted for a group.

    Parameters
    ----------
    strategy : Strategy
        By which the group loads.
    sections : Sections
        What its configuration says to that.
    ranks : int
        How many it has.
    roots, way, **options
        As for :class:`wsm.strategies.adopt.adopt.AdoptSettings`: `relabel`, `placements`, `names`, `retain`.

    Raises
    ------
    RefusedError (``nothing-to-adopt-into``)
        If it loads no published files, and bytes are to be taken in; or if several groups share its files.
    """
    into = strategy.retired_from(sections)
    source = strategy.source(sections, 0, ranks) if into is not None else None
    shared = isinstance(source, ShardSource) and source.world_size is None
    if way is not AdoptWay.NONE and (into is None or shared):
        raise RefusedError(
            f"versions come by {type(strategy).__name__} here, which loads no files that could be adopted; "
            "name the version alone (--adopt none), or configure strategy: ipc_snapshot, or gdr with "
            "transport: files",
            code="nothing-to-adopt-into",
            strategy=type(strategy).__name__,
        )
    # With more ranks than one nothing is called after their devices.
    device_id = source.resolved_device_id() if ranks == 1 and isinstance(source, ShardSource) else 0
    return AdoptSettings(
        into=into or "",
        roots=roots,
        way=way,
        ranks=None if isinstance(strategy, Gdr) else ranks,
        device_id=device_id,
        **options,
    )
