"""Copying bytes in memory without holding the interpreter's lock, as slices would. Knows no tensors."""

from __future__ import annotations

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
