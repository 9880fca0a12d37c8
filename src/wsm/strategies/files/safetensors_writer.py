"""Writing one safetensors file, each tensor digested in the pass that writes it. Knows no versions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from wsm.strategies.digest import digest_of, running_digest
from wsm.strategies.files.atomic_file import write_all
from wsm.strategies.files.safetensors_header import build_header
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

_CHUNK_BYTES = 1 << 21  # digested and written while it is in a shared cache
_SMALL_BYTES = 1 << 16  # up to here a tensor is copied, to be written together with its neighbours


def file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Order tensors for one file: widest dtype first, so that each begins at a multiple of its item size."""
    return sorted(specs, key=lambda spec: -ITEM_BYTES[spec.dtype])


def write_safetensors(
    path: Path,
    specs: Sequence[TensorSpec],
    contents: Iterable[memoryview],
    metadata: Mapping[str, str],
    *,
    durable: bool,
) -> tuple[int, list[str]]:
    """Create `path`, which must not exist; return its size and the digests of its tensors. Blocks.

    Parameters
    ----------
    path : path
        The file.
    specs : sequence of TensorSpec
        Its tensors, in their order in the file.
    contents : iterable of memoryview
        Their bytes, flat, in the same order; each is asked for when it is its turn.
    metadata : mapping of str to str
        For the header.
    durable : bool
        Whether it must survive a power cut once the call has returned; its directory is the caller's matter.

    Raises
    ------
    OSError
        If the file system refuses; a partly written file may be left.
    """
    digests = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        gathered = bytearray(build_header(specs, metadata))
        for data in contents:
            if len(data) <= _SMALL_BYTES:
                digests.append(digest_of(data))
                gathered += data
                if len(gathered) >= _CHUNK_BYTES:
                    write_all(descriptor, gathered)
                    gathered.clear()
                continue
            write_all(descriptor, gathered)
            gathered.clear()
            digests.append(_write_large(descriptor, data))
        write_all(descriptor, gathered)
        if durable:
            os.fsync(descriptor)
        return os.fstat(descriptor).st_size, digests
    finally:
        os.close(descriptor)


def _write_large(descriptor: int, data: memoryview) -> str:
    """Write a tensor where the file ends, up to the next boundary of a chunk each time; return its digest.

    A file system gives each write memory of its own size if it begins at a multiple of it, and what lies in
    large pages is read faster.
    """
    digest = running_digest()
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    offset = 0
    while offset < len(data):
        chunk = data[offset : offset + _CHUNK_BYTES - (position + offset) % _CHUNK_BYTES]
        digest.update(chunk)
        write_all(descriptor, chunk)
        offset += len(chunk)
    return digest.hexdigest()
