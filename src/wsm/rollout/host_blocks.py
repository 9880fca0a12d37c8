"""The host's side of a KV cache: memory for blocks that ranks would swap out, in a process of its own.

The reference engine never swaps, so the blocks have no content; their memory comes and goes with every
command, as that of FastDeploy's cache transfer manager does. Knows no words and no ranks.
"""

from __future__ import annotations

import mmap


class HostBlocks:
    """Anonymous memory; a :class:`wsm.actions.surfaces.KeepingKVCacheSurface`. It starts without memory.

    Parameters
    ----------
    nbytes : int
        Bytes that it takes while it is there.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._memory: mmap.mmap | None = None

    def rebuild(self) -> int:
        """Take the memory, every page of it; return its bytes. Idempotent."""
        if self._memory is None:
            self._memory = mmap.mmap(-1, self._nbytes)
            self._memory.write(bytes(self._nbytes))
        return self._nbytes

    def release(self) -> int:
        """Give the memory back; return the bytes let go. Idempotent."""
        freed = self.allocated_bytes()
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        return freed

    def forget(self) -> None:
        """There is no content to forget."""

    def forget_idle(self) -> int:
        """No request keeps a block here."""
        return 0

    def keep_all(self) -> int:
        """No block has content."""
        return 0

    def allocated_bytes(self) -> int:
        """Bytes held now."""
        return 0 if self._memory is None else self._nbytes
