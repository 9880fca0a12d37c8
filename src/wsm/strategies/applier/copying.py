"""Copying bytes and digesting them in one pass, while they are hot in the cache. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable

from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.digest import RunningDigest

#: Bytes that are copied and digested at a time: small enough to stay in a core's cache between the two, large
#: enough that two threads seldom meet at the interpreter's lock, where one is put to sleep.
CHUNK_BYTES = 1 << 20


def copy_and_digest(
    source: memoryview,
    destination: memoryview,
    digest: RunningDigest,
    between: Callable[[int], None] | None = None,
) -> None:
    """Copy `source` over `destination`, both flat and of one length, and feed it to `digest`. Blocks.

    Parameters
    ----------
    source, destination : memoryview
        Flat views of bytes.
    digest : RunningDigest
        Takes in every byte.
    between : callable, optional
        ``between(bytes of this chunk)`` is called after each chunk; what it raises ends the copy.
    """
    for begin in range(0, len(source), CHUNK_BYTES):
        chunk = destination[begin : begin + CHUNK_BYTES]
        copy_bytes(source[begin : begin + CHUNK_BYTES], chunk)
        digest.update(chunk)
        if between is not None:
            between(len(chunk))
