"""How a caller follows and steers a load, whatever strategy brings the weights. Knows no bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wsm.errors import WsmError
from wsm.strategies.errors import LoadCancelledError


def no_progress(_done: int, _total: int) -> None:
    """Stand in where the caller follows no progress."""


class Taint:
    """Says once that the target's memory is about to be asked for, and remembers that it did.

    Parameters
    ----------
    tell : callable
        Called the first time.

    Attributes
    ----------
    touched : bool
        Whether it was.
    """

    def __init__(self, tell: Callable[[], object] = bool) -> None:
        self.touched = False
        self._tell = tell

    def __call__(self) -> None:
        """Say so, if that was not done yet."""
        if not self.touched:
            self._tell()
            self.touched = True


@contextmanager
def stamping(taint: Taint) -> Iterator[None]:
    """Let an error that ends a load say whether the target was touched, and the message what that means."""
    try:
        yield
    except WsmError as error:
        if taint.touched:
            error.followed_by("the load ended part way", touched=True)
        elif isinstance(error, LoadCancelledError):
            error.followed_by("the target is as it was", touched=False)
        else:
            error.context = {**error.context, "touched": False}
            vars(error)["touched"] = False
        raise


@dataclass(frozen=True)
class LoadObserver:
    """How a caller follows and steers a load. All calls come from the loading thread, between chunks.

    Parameters
    ----------
    taint : callable
        Called once, before the target's memory is first asked for.
    progress : callable
        ``progress(bytes applied, bytes in all)``, after each chunk of a MiB at most.
    cancelled : callable
        True ends the load with :class:`LoadCancelledError` before the next chunk, and while a strategy waits
        for the next one.
    """

    taint: Callable[[], object] = bool
    progress: Callable[[int, int], None] = no_progress
    cancelled: Callable[[], bool] = bool

    def stop_if_cancelled(self, tensors: int, *, applied: int = 0) -> None:
        """Raise LoadCancelledError if the load is no longer wanted; so many of its tensors are `applied`."""
        if self.cancelled():
            raise LoadCancelledError(tensors_applied=applied, tensors=tensors)


#: For a load whose caller follows nothing.
UNOBSERVED = LoadObserver()
