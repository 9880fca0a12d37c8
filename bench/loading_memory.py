"""How much memory a process takes at most while something happens, as the kernel counts it, from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_EVERY_S = 0.001


class Peak:
    """How much more memory a process held at most than before: of its own, and of what is shared.

    Pages of mapped files belong to the page cache and do not count. The kernel's counters are read
    (``RssAnon``, ``RssShmem``), not ``smaps_rollup``, which adds up the same by walking every page and would
    stop the process meanwhile.
    """

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._before = self._now()
        self._most = self._before

    @property
    def own(self) -> int:
        """Bytes of anonymous pages."""
        return self._most[0] - self._before[0]

    @property
    def shared(self) -> int:
        """Bytes of pages of shared memory, whichever processes have them mapped."""
        return self._most[1] - self._before[1]

    def look(self) -> None:
        """Take in how much it is now."""
        now = self._now()
        self._most = max(self._most[0], now[0]), max(self._most[1], now[1])

    def _now(self) -> tuple[int, int]:
        lines = self._status.read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["RssAnon"].split()[0]) * 1024, int(fields["RssShmem"].split()[0]) * 1024


@contextmanager
def watched(pid: int) -> Iterator[Peak]:
    """Look at a process every millisecond, as far as the machine allows, until the context is left."""
    peak, over = Peak(pid), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_EVERY_S):
            peak.look()

    thread = threading.Thread(target=watch, name="bench-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.look()
