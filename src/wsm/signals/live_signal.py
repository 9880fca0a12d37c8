"""FastDeploy's ``worker_healthy_live_signal``: when each worker of an engine was last seen at work.

Its engine answers ``/health`` by the age of these times, and its cache process takes a worker for dead by
them. A worker inside a long action writes none by itself. Written where wsm shows progress, never by a timer.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import final

from wsm.signals._memory import SharedFile, opened
from wsm.signals.errors import SegmentAccessError, SegmentMissingError
from wsm.signals.names import SHARED_MEMORY_DIRECTORY, check_name

_NAME = "worker_healthy_live_signal"
_INT32_BYTES = 4
#: FastDeploy has so many places at most on a host.
_PLACES = 8


@final
class LiveSignal:
    """One worker's place in the signal of its part; attached when it is there.

    Parameters
    ----------
    suffix : str or int
        What follows the name: the engine worker queue port of that data-parallel part.
    rank : int
        The worker's rank within the part.
    directory : path or None
        Where it lies; ``/dev/shm`` by default.

    Raises
    ------
    SegmentNameError
        If the suffix is none.
    """

    def __init__(
        self, suffix: str | int, rank: int, *, directory: str | os.PathLike[str] | None = None
    ) -> None:
        self._path = Path(directory or SHARED_MEMORY_DIRECTORY) / f"{_NAME}.{check_name(str(suffix))}"
        self._rank = rank
        self._memory: SharedFile | None = None
        self._times: memoryview[int] | None = None
        self._second = 0

    def beat(self) -> None:
        """Write the present second, once; does nothing while the engine has no such signal. Never raises."""
        second = int(time.time())
        if second == self._second:
            return
        self._second = second
        if self._memory is not None and self._memory.is_replaced():
            self.close()
        if self._times is None:
            self._attach()
        if self._times is not None:
            self._times[self._rank % _PLACES % len(self._times)] = second

    def seen(self) -> int | None:
        """Return the second, of the epoch, in which the worker was last seen; None: nothing says it."""
        if self._times is None:
            self._attach()
        return None if self._times is None else self._times[self._rank % _PLACES % len(self._times)] or None

    def close(self) -> None:
        """Unmap. Does nothing the second time."""
        times, self._times = self._times, None
        memory, self._memory = self._memory, None
        if times is not None:
            times.release()
        if memory is not None:
            memory.close()

    def _attach(self) -> None:
        try:
            with opened(self._path) as (descriptor, size):
                length = size // _INT32_BYTES * _INT32_BYTES
                if length:
                    self._memory = SharedFile(descriptor, self._path, length)
                    self._times = self._memory.cast("i")
        except (SegmentMissingError, SegmentAccessError, OSError, ValueError):
            return  # ValueError: it has become shorter meanwhile
