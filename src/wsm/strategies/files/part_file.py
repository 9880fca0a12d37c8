"""Opening one file of a shard as what it is: safetensors, or a pickle that is refused unless it is allowed.

The format is told from the content, not from the place or the name: FastDeploy reads some places in one
format and some in the other, and its old files can be read in neither (a pickle under a safetensors name).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from wsm.strategies import errors
from wsm.strategies.errors import UnreadableFileError
from wsm.strategies.files.pickle_file import PickleFile
from wsm.strategies.files.safetensors_file import SafetensorsFile
from wsm.strategies.files.safetensors_header import PREFIX_BYTES, SafetensorsHeader
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.tensor import TensorSpec

_SNIFF_BYTES = PREFIX_BYTES + 1
_PICKLE_PROTOCOLS = range(2, 6)


class PartFile(Protocol):
    """An open file of a shard."""

    @property
    def path(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def nbytes(self) -> int:
        """Size of the file, in bytes."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """The writer's remarks."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Tensor bytes that the open file itself holds in memory."""
        ...

    def specs(self) -> Iterator[TensorSpec]:
        """Iterate over its tensors, in the order in which they lie in the file."""
        ...

    def readers(self) -> Iterator[tuple[TensorSpec, Callable[[int, memoryview], None]]]:
        """Iterate over its tensors, each with ``read_into(offset, destination)``."""
        ...

    def close(self) -> None:
        """Close it. Idempotent."""
        ...


def open_part(
    directory: SnapshotDirectory,
    name: str,
    *,
    allow_pickle: bool,
    expected: tuple[bytes, SafetensorsHeader] | None = None,
) -> PartFile:
    """Open `name` and check its header. Blocks on metadata only, unless it is an allowed pickle.

    Parameters
    ----------
    directory : SnapshotDirectory
        Where it lies.
    name : str
        Its name there.
    allow_pickle : bool
        Whether a pickle may be read.
    expected : tuple of (bytes, Header), optional
        The header that it has if all is well; see
        :class:`wsm.strategies.files.safetensors_file.SafetensorsFile`.

    Raises
    ------
    BadInputError
        If it is a pickle and these are not allowed.
    wsm.strategies.errors.BadInputError
        If it cannot be opened, or is no valid file of its format.
    """
    path = directory.locate(name)
    try:
        descriptor = directory.open(name)
    except FileNotFoundError as error:
        raise UnreadableFileError(file=path, reason="it vanished, or is a link to nothing") from error
    try:
        pickled = is_pickle(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise UnreadableFileError(file=path, reason=str(error)) from error
    if not pickled:
        return SafetensorsFile(descriptor, path, expected)
    if not allow_pickle:
        os.close(descriptor)
        raise errors.pickle_refused(file=path)
    return PickleFile(descriptor, path)


def is_pickle(descriptor: int) -> bool:
    """Whether an open file begins as a pickle and could be no safetensors file; OSError if unreadable."""
    head = os.pread(descriptor, _SNIFF_BYTES, 0)
    if len(head) < 2 or head[0] != 0x80 or head[1] not in _PICKLE_PROTOCOLS:
        return False
    # A safetensors header of 1152 bytes begins with 80 04 as well; only that one goes on with '{' and fits.
    fits = int.from_bytes(head[:PREFIX_BYTES], "little") <= os.fstat(descriptor).st_size
    return not (head[PREFIX_BYTES:] == b"{" and fits)
