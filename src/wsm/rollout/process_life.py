"""How a process of a rollout group ends: when it is asked to, or when its supervisor is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1


class Stop:
    """Whether the process was asked to end; looked at between two turns of its loop."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def end_with(supervisor: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends, with or without its process.

    Returns only where the supervisor lives; otherwise this process exits.

    Parameters
    ----------
    supervisor : int
        Pid of the process that started this one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        sys.exit("the supervisor died before this process began")
