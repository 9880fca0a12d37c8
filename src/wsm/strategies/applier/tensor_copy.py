"""Bringing one tensor's bytes into memory, and digesting them in the same pass while the cache has them.

Any thread may do it, with :class:`Steps` of its own. Knows no targets and no order of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from wsm.strategies.applier.copying import CHUNK_BYTES
from wsm.strategies.applier.finite import first_not_finite
from wsm.strategies.digest import RunningDigest, running_digest
from wsm.strategies.errors import DigestMismatchError, NotFiniteError
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import ITEM_BYTES
from wsm.strategies.transposing import TransposedMemory, block_bytes


class Steps(Protocol):
    """Who is told of every chunk."""

    def go_on(self) -> None:
        """Raise if the next chunk of a tensor is no longer wanted."""
        ...

    def moved(self, nbytes: int) -> None:
        """Take in that a chunk is where it belongs."""
        ...


class NoSteps:
    """Steps of a read whose caller neither ends nor follows it."""

    def go_on(self) -> None:
        """Go on."""

    def moved(self, nbytes: int) -> None:
        """Count nothing."""


def copy_tensor(tensor: OfferedTensor, memory: memoryview, steps: Steps) -> str:
    """Read a tensor into `memory` (flat, of its size) and return the digest of what came. Blocks.

    Raises
    ------
    DigestMismatchError, NotFiniteError
        If that is not what was promised.
    """
    length = len(memory)
    digest = running_digest()
    bad = None
    if length <= (tensor.piece_bytes or CHUNK_BYTES) and length <= CHUNK_BYTES:
        # Most tensors of most models are small, and what is done for each of them adds up.
        if length:
            tensor.read_into(0, memory)
            digest.update(memory)
            if tensor.finite:
                bad = _first_bad(tensor, 0, memory, None)
            if tensor.check_chunk is not None:
                tensor.check_chunk(length, digest)
            steps.moved(length)
        return _verified(tensor, digest.hexdigest(), bad)
    if not (tensor.piece_bytes or tensor.finite or tensor.check_chunk):
        _copy_plain(tensor, memory, digest, steps)
        return _verified(tensor, digest.hexdigest(), None)
    return _digest(tensor, steps, lambda begin, end: memory[begin:end])


def _copy_plain(tensor: OfferedTensor, memory: memoryview, digest: RunningDigest, steps: Steps) -> None:
    """Copy and digest, and do nothing else between the two.

    Threads that copy let go of the interpreter's lock in both calls. What they do between holding it another
    may have to be put to sleep for, and woken, which takes as long as copying a chunk.
    """
    read_into, update, moved, go_on = tensor.read_into, digest.update, steps.moved, steps.go_on
    for begin in range(0, len(memory), CHUNK_BYTES):
        if begin:
            moved(CHUNK_BYTES)
            go_on()
        chunk = memory[begin : begin + CHUNK_BYTES]
        read_into(begin, chunk)
        update(chunk)
    moved(len(chunk))


def copy_transposed(tensor: OfferedTensor, memory: memoryview, steps: Steps) -> str:
    """Read a tensor into `memory` with its last two axes exchanged; return the digest of what came. Blocks.

    Takes :func:`wsm.strategies.transposing.block_bytes` besides.

    Raises
    ------
    DigestMismatchError, NotFiniteError
        If that is not what was promised.
    """
    there = TransposedMemory(memory, tensor.spec)
    size = block_bytes(tensor.spec)
    block = memoryview(bytearray(size))

    def put(begin: int, end: int) -> None:
        if end % size == 0 or end == len(memory):
            first = begin - begin % size
            there.put(first, block[: end - first])

    return _digest(
        tensor,
        steps,
        lambda begin, end: block[begin % size : begin % size + end - begin],
        put=put,
        block=size,
    )


def digest_tensor(tensor: OfferedTensor, kept: memoryview, steps: Steps) -> str:
    """Digest a tensor where it lies and return the digest. Blocks.

    Raises
    ------
    DigestMismatchError, NotFiniteError
        If it is not what was promised.
    """
    return _digest(tensor, steps, lambda begin, end: kept[begin:end], reads=False)


def check_finite_promise(tensor: OfferedTensor, data: memoryview) -> None:
    """See that bytes whose digest is right are finite, if that was promised. Blocks.

    Raises
    ------
    NotFiniteError
        If they are not.
    """
    bad = first_not_finite(tensor.spec.dtype, data) if tensor.finite else None
    if bad is not None:
        raise NotFiniteError(tensor=tensor.spec.name, origin=tensor.origin, index=bad)


def digest_source(tensor: OfferedTensor, steps: Steps) -> str:
    """Read a tensor that is not kept, through memory of one chunk, and return its digest. Blocks.

    Raises
    ------
    DigestMismatchError
        If it is not what was promised.
    """
    buffer = memoryview(bytearray(min(tensor.spec.nbytes, CHUNK_BYTES)))
    return _digest(replace(tensor, finite=False), steps, lambda begin, end: buffer[: end - begin])


def _digest(
    tensor: OfferedTensor,
    steps: Steps,
    chunk_at: Callable[[int, int], memoryview],
    *,
    reads: bool = True,
    put: Callable[[int, int], None] | None = None,
    block: int | None = None,
) -> str:
    """Read a tensor chunk by chunk and digest it; return its digest, verified. Blocks.

    `chunk_at` says where a chunk belongs, or lies already if nothing `reads`; `put` is told when it is there.
    """
    digest = running_digest()
    bad = None
    for begin, end in _chunks(tensor.spec.nbytes, tensor.piece_bytes, steps, block):
        chunk = chunk_at(begin, end)
        if reads:
            tensor.read_into(begin, chunk)
        digest.update(chunk)
        if tensor.finite:
            bad = _first_bad(tensor, begin, chunk, bad)
        if tensor.check_chunk is not None:
            tensor.check_chunk(end, digest)
        if put is not None:
            put(begin, end)
        steps.moved(end - begin)
    return _verified(tensor, digest.hexdigest(), bad)


def _first_bad(tensor: OfferedTensor, begin: int, chunk: memoryview, known: int | None) -> int | None:
    """Return the index of the first element that is not finite, of the chunks up to this one."""
    if known is not None:
        return known
    found = first_not_finite(tensor.spec.dtype, chunk)
    return None if found is None else found + begin // ITEM_BYTES[tensor.spec.dtype]


def _verified(tensor: OfferedTensor, digest: str, bad: int | None) -> str:
    """Damage is told before NaN, which damage may look like."""
    if tensor.digest is not None and digest != tensor.digest:
        raise DigestMismatchError(
            tensor=tensor.spec.name, origin=tensor.origin, expected=tensor.digest, actual=digest
        )
    if bad is not None:
        raise NotFiniteError(tensor=tensor.spec.name, origin=tensor.origin, index=bad)
    return digest


def _chunks(
    length: int, piece_bytes: int, steps: Steps, block: int | None = None
) -> Iterator[tuple[int, int]]:
    """Cut a tensor so that no chunk is too long for the cache or lies in two pieces, or blocks."""
    begin = 0
    while begin < length:
        if begin:
            steps.go_on()
        end = min(begin + CHUNK_BYTES, length)
        if piece_bytes:
            end = min(end, begin - begin % piece_bytes + piece_bytes)
        if block is not None:
            end = min(end, begin - begin % block + block)
        yield begin, end
        begin = end
