"""A load that a test holds in the middle, lets go on, or makes fail: the staging thread's other side."""

from __future__ import annotations

import threading
from typing import Any

from lone_rank import load

from wsm.actions.base import ActionContext
from wsm.strategies.tensor import WeightTarget

PATIENCE_S = 60.0


class CalledOffError(Exception):
    """The load saw that nobody wants it any more."""


class SteeredLoad:
    """Loads as :func:`lone_rank.load`; the points in the middle are the test's.

    Attributes
    ----------
    inside : threading.Event
        Set once half of the version is staged.
    error : Exception or None
        Raised there.
    hears : bool
        Whether it asks, while it is held, if it is wanted still.
    """

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.error: Exception | None = None
        self.hears = True
        self.lies = False
        self.target: WeightTarget | None = None
        self.threads: set[str] = set()
        self._go_on = threading.Event()
        self._go_on.set()

    def hold(self) -> None:
        """Stop the next load in its middle."""
        self.inside.clear()
        self._go_on.clear()

    def release(self) -> None:
        """Let a held load go on."""
        self._go_on.set()

    def __call__(self, context: ActionContext, target: WeightTarget) -> dict[str, Any]:
        self.threads.add(threading.current_thread().name)
        self.target = target
        facts = load(context, target)
        self.inside.set()
        for _ in range(int(PATIENCE_S / 0.01)):
            if self.hears and context.cancelled():
                raise CalledOffError("nobody wants it any more")
            if self._go_on.wait(0.01):
                break
        if self.error is not None:
            raise self.error
        if self.lies:
            facts["digest"] = "0" * 32
        return facts
