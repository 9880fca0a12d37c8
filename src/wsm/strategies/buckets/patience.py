"""Waiting for another process's mark, which wakes no waiter: briefly at first, then longer, then on a socket.

Two sides that copy at the speed of memory wait for each other for microseconds, many times in a second; to be
put to sleep and woken each time would take longer than the copies. A side that has waited for a while sleeps
until a message comes, or for a moment. Knows neither marks nor messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# How often a wait only lets others run, and how often it naps then: some hundred microseconds together.
_TURNS = 50
_NAPS = 20
_NAP_S = 20e-6
# Then it sleeps, each time twice as long.
_FIRST_SLEEP_S = 1e-3


class PeerWait:
    """One wait; use a new one for the next.

    Parameters
    ----------
    poll : callable
        ``poll(seconds)`` sleeps until a message is there, so long at most, and says whether one is.
    longest_s : float
        The longest sleep.
    """

    def __init__(self, poll: Callable[[float], bool], longest_s: float) -> None:
        self._poll = poll
        self._longest_s = longest_s
        self._waits = 0
        self._sleep_s = _FIRST_SLEEP_S

    def wait(self) -> bool:
        """Wait a little, longer each time; whether a message is there, which is not looked at at first."""
        self._waits += 1
        if self._waits <= _TURNS + _NAPS:
            time.sleep(0 if self._waits <= _TURNS else _NAP_S)  # a mark is set without a word
            return False
        sleep_s = min(self._sleep_s, self._longest_s)
        self._sleep_s = sleep_s * 2
        return self._poll(sleep_s)
