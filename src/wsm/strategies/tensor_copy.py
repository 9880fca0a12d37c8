"""Bringing one tensor's bytes into memory, and digesting them in the same pass while the cache has them.

Any thread may do it, with :class:`Steps` of its own. Knows no targets and no order of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from wsm.strategies.copying import CHUNK_BYTES
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.offer import OfferedTensor


class Steps(Protocol):
    """Who is told of every chunk."""

    def go_on(self) -> None:
        """Raise if the next chunk of a tensor is no longer wanted."""
        ...

    def moved(self, nbytes: int) -> None:
        """Take in that a chunk is where it belongs."""
        ...


def copy_tensor(tensor: OfferedTensor, memory: memoryview, steps: Steps) -> str:
    """Read a tensor into `memory` (flat, of its size) and return the digest of what came. Blocks.

    Raises
    ------
    DigestMismatchError
        If that is not the promised one.
    """
    length = len(memory)
    digest = running_digest()
    if length <= (tensor.piece_bytes or CHUNK_BYTES) and length <= CHUNK_BYTES:
        # Most tensors of most models are small, and what is done for each of them adds up.
        if length:
            tensor.read_into(0, memory)
            digest.update(memory)
            if tensor.witness is not None:
                tensor.witness(length, digest)
            steps.moved(length)
        return _verified(tensor, digest.hexdigest())
    for begin, end in _chunks(length, tensor.piece_bytes, steps):
        chunk = memory[begin:end]
        tensor.read_into(begin, chunk)
        digest.update(chunk)
        if tensor.witness is not None:
            tensor.witness(end, digest)
        steps.moved(end - begin)
    return _verified(tensor, digest.hexdigest())


def digest_tensor(tensor: OfferedTensor, kept: memoryview, steps: Steps) -> str:
    """Digest a tensor where it lies and return the digest. Blocks.

    Raises
    ------
    DigestMismatchError
        If it is not the promised one.
    """
    digest = running_digest()
    for begin, end in _chunks(len(kept), tensor.piece_bytes, steps):
        digest.update(kept[begin:end])
        if tensor.witness is not None:
            tensor.witness(end, digest)
        steps.moved(end - begin)
    return _verified(tensor, digest.hexdigest())


def _verified(tensor: OfferedTensor, digest: str) -> str:
    if tensor.digest is not None and digest != tensor.digest:
        raise DigestMismatchError(
            tensor=tensor.spec.name, origin=tensor.origin, expected=tensor.digest, actual=digest
        )
    return digest


def _chunks(length: int, piece_bytes: int, steps: Steps) -> Iterator[tuple[int, int]]:
    """Cut a tensor so that no chunk is too long for the cache or lies in two pieces of its source."""
    begin = 0
    while begin < length:
        if begin:
            steps.go_on()
        end = min(begin + CHUNK_BYTES, length)
        if piece_bytes:
            end = min(end, begin - begin % piece_bytes + piece_bytes)
        yield begin, end
        begin = end
