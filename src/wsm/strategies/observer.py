"""How a caller follows and steers a load, whatever strategy brings the weights. Knows no bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def no_taint() -> None:
    """Stand in where nobody keeps account of touched weights."""


def no_progress(_done: int, _total: int) -> None:
    """Stand in where nobody watches."""


def never_cancelled() -> bool:
    """Stand in where nobody changes their mind."""
    return False


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

    taint: Callable[[], None] = no_taint
    progress: Callable[[int, int], None] = no_progress
    cancelled: Callable[[], bool] = never_cancelled


#: Nobody follows.
UNOBSERVED = LoadObserver()
