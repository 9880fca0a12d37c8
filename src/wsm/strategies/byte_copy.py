"""Copying bytes in memory without holding the interpreter's lock, as slices would, and digesting them.

Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Callable

from wsm.strategies.digest import RunningDigest

#: Bytes that are copied and digested at a time: small enough to stay in a core's cache between the two, large
#: enough that two threads seldom meet at the interpreter's lock, where one is put to sleep.
CHUNK_BYTES = 1 << 20

# Fewer bytes are copied sooner than another thread could have taken the lock.
_HELD_BELOW = 1 << 16


def copy_bytes(source: memoryview, destination: memoryview | bytearray) -> None:
    """Copy `source` over `destination`; other threads run meanwhile. Blocks.

    Parameters
    ----------
    source, destination : memoryview
        Flat views of bytes, of one length; the destination may be a bytearray. They may overlap.

    Raises
    ------
    ValueError
        If their lengths differ, or one of them is not contiguous.
    TypeError
        If `destination` is read-only.
    """
    written = memoryview(destination)
    if len(written) < _HELD_BELOW or len(source) != len(written) or written.readonly:
        written[:] = source  # which says what is wrong
        return
    import numpy as np  # noqa: PLC0415 - a tenth of a second for those who never copy much

    np.copyto(np.frombuffer(written, np.uint8), np.frombuffer(source, np.uint8))


def copy_and_digest(
    source: memoryview,
    destination: memoryview,
    digest: RunningDigest,
    between: Callable[[int], None] | None = None,
) -> None:
    """Copy `source` over `destination`, both flat and of one length, and feed it to `digest`. Blocks.

    What is digested is the source: other processes may write where a copy lies.

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
        chunk = source[begin : begin + CHUNK_BYTES]
        copy_bytes(chunk, destination[begin : begin + len(chunk)])
        digest.update(chunk)
        if between is not None:
            between(len(chunk))
