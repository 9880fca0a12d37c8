"""Memory of this process for one tensor's bytes. Knows no tensors."""

from __future__ import annotations

import mmap
from contextlib import suppress

# From here on numpy asks for large pages, too. In small ones the processor looks up a translation every
# 4 KiB, in a virtual machine through two tables.
_LARGE_BYTES = 4 << 20


def host_memory(nbytes: int) -> memoryview:
    """Return so many zeros, writable, flat, format ``B``; in large pages if they are many.

    Large pages are a request, which the system may not follow. No memory is held before the first write.
    """
    if nbytes < _LARGE_BYTES:
        return memoryview(bytearray(nbytes))
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)
