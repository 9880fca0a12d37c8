"""What can fail in a group of one thread: an action of a plan, once, in four ways; a load that stands."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from wsm.actions.base import Action, ActionContext, Around
from wsm.actions.errors import PostconditionError
from wsm.clock import ManualClock
from wsm.worker import HOLD, Turn

#: How an action can fail: before its work, after it, for want of something, or by taking too long.
WAYS = ("raises", "is not done", "lacks something", "outlasts its deadline")

#: Those that are tried behind a decision, where no deadline ends an action.
BEHIND_A_DECISION = ("raises", "is not done")

_SHORTAGES = (
    OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    MemoryError(),
    RuntimeError("can't start new thread"),
)

#: Seconds after which a command in a group of one thread hangs.
HANGS_AFTER_S = 30.0

#: Seconds between two looks at what runs beside a rank's loop.
PAUSE_S = 0.001


@dataclass(frozen=True)
class Fault:
    """One action that fails, once.

    Parameters
    ----------
    plan, action : str
        Which; the plan by its printed name.
    way : str
        One of :data:`WAYS`.
    rank : int
        Where.
    undo : str
        An action whose undo fails then, too; empty: none.
    """

    plan: str
    action: str
    way: str = "raises"
    rank: int = 0
    undo: str = ""


class RankClock:
    """The group's clock as one rank reads it, whose own time an action has outlasted.

    The others, and the controller, must not be late with it: they would end the command for another reason.
    """

    def __init__(self, group: ManualClock) -> None:
        self._group = group
        self._ahead_ns = 0

    def monotonic_ns(self) -> int:
        """Return the group's time, and what has passed here alone, in ns."""
        return self._group.monotonic_ns() + self._ahead_ns

    wall_ns = monotonic_ns

    def outlast(self, seconds: float) -> None:
        """Let `seconds` pass here alone."""
        self._ahead_ns += int(seconds * 1e9)


class Instrument:
    """Watches the actions of one rank, and makes the one fail that a fault names."""

    def __init__(self, rank: int, clock: ManualClock) -> None:
        self.inner: Around | None = None  # what the engine has around its actions itself
        self._rank = rank
        self.clock = RankClock(clock)
        self.fault: Fault | None = None
        self.undo = ""
        self.begun: list[tuple[str, str]] = []
        self.undone: list[str] = []

    def expect(self, fault: Fault | None) -> None:
        """Begin to watch another command."""
        self.fault = fault if fault is not None and fault.rank == self._rank else None
        self.undo = "" if self.fault is None else self.fault.undo
        self.begun, self.undone = [], []

    def around(self, action: Action, context: ActionContext, run: Callable[[], None]) -> None:
        """Watch one action, and let it fail where it is to; for ``PlanOptions.around``."""
        self._watch_undo(action)
        self.begun.append((action.plan, action.name))
        if self._strikes(action, "raises"):
            raise OSError(f"{action.name} was to fail")
        if self._strikes(action, "lacks something"):
            raise _SHORTAGES[len(action.name) % len(_SHORTAGES)]
        if self._strikes(action, "outlasts its deadline"):
            self._outlast(action, context)
        if self.inner is None:
            run()
        else:
            self.inner(action, context, run)
        if self._strikes(action, "is not done"):
            raise PostconditionError(action=action.name, expected="work that is done", found="none")

    def _watch_undo(self, action: Action) -> None:
        if "undo" in vars(action):
            return
        undo = action.undo

        def watched(context: ActionContext) -> None:
            self.undone.append(action.name)
            if action.name == self.undo:
                raise OSError(f"the undo of {action.name} was to fail")
            undo(context)

        vars(action)["undo"] = watched

    def _outlast(self, action: Action, context: ActionContext) -> None:
        """Let the deadline pass; an action beside the loop then goes on until the loop has noticed."""
        self.clock.outlast(action.deadline_s + 1)
        context.progress()
        late = time.monotonic() + HANGS_AFTER_S
        while not context.cancelled() and time.monotonic() < late:
            threading.Event().wait(PAUSE_S)
        raise OSError(f"{action.name} was called off")

    def _strikes(self, action: Action, way: str) -> bool:
        fault = self.fault
        strikes = fault is not None and (fault.plan, fault.action, fault.way) == (
            action.plan,
            action.name,
            way,
        )
        if strikes:
            self.fault = None
        return strikes


class HeldLoad:
    """A load that stands where it begins, and the poll that it is in, which has a thread for so long.

    Only one thread moves: the caller of a poll waits until the load stands, or the poll is over.
    """

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self._polls = ThreadPoolExecutor(1, thread_name_prefix="wsm-held-load")
        self._turn: Future[Turn] | None = None
        self._stands = threading.Event()  # or the poll is over

    def stand(self) -> None:
        """Stand until it goes on; for the load, in a rank's loop or beside it."""
        if threading.current_thread().name.startswith("wsm-held-load"):
            self._stands.set()
        self.goes_on.wait()

    def poll(self, poll: Callable[[], Turn]) -> Turn:
        """Poll, or go on with the poll that the load is in; HOLD while it stands."""
        if self._turn is None:
            self._stands = stands = threading.Event()
            self._turn = self._polls.submit(poll)
            self._turn.add_done_callback(lambda _: stands.set())
        if not self.goes_on.is_set():
            self._stands.wait()
            if not self._turn.done():
                return HOLD
        turn, self._turn = self._turn, None
        return turn.result()

    def close(self) -> None:
        """Let the load go on, and end the thread."""
        self.goes_on.set()
        self._polls.shutdown()
