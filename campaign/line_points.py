"""Counts the lines of wsm that a victim executes, so that an order can strike between any two of them.

For moments that no journal line, action or tensor marks: inside an action, between two writes of words. Slow,
so it begins with the first journal line after such an order was given, and ends with the order.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import wsm

#: What orders call the next line.
LINE = "line"

_PACKAGE = str(Path(wsm.__file__).resolve().parent)


class LineCounter:
    """Calls back at the n-th line of wsm that any thread executes from now on.

    Parameters
    ----------
    strike : callable
        Called once, in the thread that executes the line; what it raises is raised there.
    """

    def __init__(self, strike: Callable[[], object]) -> None:
        self._strike = strike
        self._left = 0

    def begin(self, nth: int) -> None:
        """Count from the caller's next line on; a count under way is begun anew."""
        self._left = nth
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self._enter(frame, "call", None)
            frame = frame.f_back

    def end(self) -> None:
        """Count no more."""
        self._left = 0
        sys.settrace(None)
        threading.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._count if self._left and frame.f_code.co_filename.startswith(_PACKAGE) else None

    def _count(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and self._left:
            self._left -= 1
            if not self._left:
                self.end()
                self._strike()
        return self._count
