"""What a caller says of its prepared command to the thread that drives it, and what that tells the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from wsm.clock import Clock
from wsm.receipt import Receipt


class HeldDecision:
    """What a caller says of its prepared command to the thread that drives it. Safe for threads.

    Parameters
    ----------
    clock : Clock
        The clock of that thread, which counts the caller's lease.

    Attributes
    ----------
    prepared : Future of Receipt
        Done once all are PREPARED; or once the command has ended before, in any way.
    said_ns : int or None
        When something was said, by the clock: what was said in time is in time, however late it is heard.
    """

    def __init__(self, clock: Clock) -> None:
        self.prepared: Future[Receipt] = Future()
        self.said_ns: int | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._said: bool | None = None

    @property
    def said(self) -> bool | None:
        """Whether the caller wants it committed; None: it has not said so yet."""
        return self._said

    def say(self, *, commit: bool) -> bool:
        """Say it, unless something was said before; return what counts."""
        with self._lock:
            if self._said is None:
                self.said_ns = self._clock.monotonic_ns()  # first: it is read without the lock
                self._said = commit
            return self._said

    def tell(self, receipt: Receipt) -> None:
        """Tell the caller that all are PREPARED, or that nothing had to be."""
        with self._lock:
            if not self.prepared.done():
                self.prepared.set_result(receipt)

    def told(self, drive: Callable[[], Receipt]) -> Callable[[], Receipt]:
        """Return `drive`, after which the caller is told how it ended, if it was told nothing before."""

        def driven() -> Receipt:
            try:
                receipt = drive()
            except BaseException as error:
                with self._lock:
                    if not self.prepared.done():
                        self.prepared.set_exception(error)
                raise
            self.tell(receipt)
            return receipt

        return driven
