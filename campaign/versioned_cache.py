"""The KV cache of an engine in plain memory. It knows whose weights computed its blocks."""

from __future__ import annotations

from typing import final

from wsm.testing import InMemoryKVCache, InMemoryRequests


@final
class VersionedCache(InMemoryKVCache):
    """A cache with two kinds of blocks: those of running requests, and idle prefixes.

    Parameters
    ----------
    requests : InMemoryRequests
        Whose blocks are held; once none of them runs or waits frozen, its blocks are idle.
    """

    def __init__(self, requests: InMemoryRequests) -> None:
        super().__init__()
        self._requests = requests
        self._idle: set[int] = set()
        self._running: set[int] = set()

    def compute(self, version: int) -> None:
        """Take in a step: what it computed is a running request's, and a prefix for others."""
        self._let_go()
        self._running.add(version)
        self._idle.add(version)

    def foreign(self, version: int) -> tuple[int, int]:
        """Return a version other than this one that computed idle blocks, and held ones; this if none did."""
        idle, running = (min(found - {version}, default=version) for found in (self._idle, self._running))
        return idle, running

    def release(self) -> int:
        """Let the memory go, with all that is in it."""
        self.forget()
        return super().release()

    def forget(self) -> None:
        """Drop all blocks."""
        self._idle.clear()
        self._running.clear()
        super().forget()

    def forget_idle(self) -> int:
        """Drop what no request holds."""
        self._let_go()
        self._idle.clear()
        return super().forget_idle()

    def findable_blocks(self) -> int:
        """Count what new requests would find: one block per version."""
        return len(self._idle)

    def _let_go(self) -> None:
        if not (self._requests.running or self._requests.frozen):
            self._running.clear()
