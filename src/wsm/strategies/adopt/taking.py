"""The files of a checkpoint as the one shard of a version: cloned, linked or copied, a manifest beside them.

A whole model is a version for one rank. Groups of other numbers of ranks read their slices of it, by the
placements in its manifest, and models with loaders of their own get it whole. A linked file is the trainer's
very file under a second name: it stays when the trainer deletes its own, and what the trainer writes into it
in place is found by the digests. A copy is ours, begins with a header of ours, and may have other names.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from wsm.shared_directory import create_ours
from wsm.strategies.adopt.checkpoint import Checkpoint, CheckpointPart, checkpoint_changed
from wsm.strategies.errors import StorageError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.atomic_file import write_all, write_new
from wsm.strategies.files.safetensors import lay_out
from wsm.strategies.promise import PromisedTensor, ShardIdentity
from wsm.strategies.snapshot.manifest import PartEntry, ShardManifest, part_metadata
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.tensor import TensorSpec

_CHUNK_BYTES = 1 << 21
_FICLONE: Final = 0x40049409  # <linux/fs.h>
# Kernels, file systems and sandboxes without copy_file_range, and files that lie on two file systems.
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)


def take_in(
    directory: Path,
    identity: ShardIdentity,
    checkpoint: Checkpoint,
    tensors: Sequence[Sequence[tuple[TensorSpec, str]]],
    placements: Mapping[TensorSpec, Placement | None],
    *,
    device_id: int,
    whole: bool,
    link: bool,
    durable: bool,
) -> tuple[ShardManifest, bool]:
    """Put the files and their manifest into a directory. Blocks.

    Parameters
    ----------
    directory : Path
        No reader looks there yet.
    identity : ShardIdentity
        Of the one rank of the version.
    checkpoint : Checkpoint
        The open files.
    tensors : sequence of sequence of (TensorSpec, str)
        For each file its tensors, under the model's names and in the order of the file, with their digests.
    placements : mapping of TensorSpec to Placement
        How each lies on the ranks; None where that is not said.
    device_id : int
        The one in the file names.
    whole : bool
        Whether the files can be taken as they are: their names are the model's. A file system that can lets
        the version share their blocks until either is written, which is as good as a copy and costs nothing.
    link : bool
        Whether they may be linked otherwise; where the file system refuses it, they are copied.
    durable : bool
        Whether manifests and copies must survive a power cut. What is linked is the trainer's to write down.

    Returns
    -------
    manifest : ShardManifest
        What was put beside them.
    linked : bool
        Whether they were linked, so that what their trainer writes into them is written into the version.

    Raises
    ------
    BadInputError (``checkpoint-changed``)
        If a file was written meanwhile.
    StorageError
        If the file system refuses.
    """
    base = snapshot_names.shard_base(0, device_id)
    paths = [directory / snapshot_names.part_name(base, index) for index, _ in enumerate(checkpoint.parts)]
    try:
        cloned = whole and _all(partial(clone_opened, durable=durable), checkpoint.parts, paths)
        linked = link and whole and not cloned and _all(link_opened, checkpoint.parts, paths)
        if not cloned and not linked:
            for part, path, held in zip(checkpoint.parts, paths, tensors, strict=True):
                _copy(part, path, [spec for spec, _ in held], identity, durable=durable)
        for part in checkpoint.parts:
            part.require_unchanged()
        manifest = ShardManifest.with_tensors(
            (PromisedTensor(spec, digest, placements[spec]) for held in tensors for spec, digest in held),
            version=identity.version,
            rank=identity.rank,
            world_size=identity.world_size,
            device_id=device_id,
            publication=identity.publication,
            parts=tuple(
                PartEntry(path.name, path.stat().st_size, len(held))
                for path, held in zip(paths, tensors, strict=True)
            ),
        )
        write_new(directory / manifest.name, manifest.encode(), durable=durable)
    except OSError as error:
        raise StorageError(path=directory, error=error) from error
    return manifest, linked


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


def link_opened(descriptor: int, path: Path) -> None:
    """Give the very file that is open another name, whatever lies under its own by now.

    OSError if it is another user's, of another file system, or without a name left.
    """
    # Python asks the kernel to follow the link in /proc only if it is given a directory, too.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)


def clone_opened(descriptor: int, path: Path, *, durable: bool) -> None:
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
