"""Where faults strike: wsm's own seams, wrapped inside the victim's process, so that a kill is exact.

A rank passes a point with every line of its journal (``started:load_weights``, ``word:PREPARED``,
``transition:weights.CLEARED`` ...), with the begin and the end of every action's own work (``begin:``,
``done:``), with each tensor that is written (``write``) and inside its steps (``step``); ``line`` is any line
of wsm after the first journal line since the order (:class:`LineCounter`). A controller passes one
before and after each of its words. Nothing of wsm is changed but what these wrappers add.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import wsm
from campaign.environment import DIRECTORY_VARIABLE
from campaign.fault import Act, Fault, Fired, OrderBook
from wsm.actions._weights import WatchedTarget
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError
from wsm.controller.group_view import GroupView
from wsm.journal import entry as kinds
from wsm.journal.entry import Journal, JournalEntry
from wsm.states.words import CommandWord, CommittedWord
from wsm.strategies.applier.memory_target import StagedMemory
from wsm.strategies.tensor import WeightTarget

#: What orders call the next line.
LINE = "line"

_PACKAGE = str(Path(wsm.__file__).resolve().parent)

_STRANGE = "the campaign ordered this failure: 失败"


class OrderedFailureError(Exception):
    """What a victim raises on order; no type that wsm knows."""


class Trap:
    """The orders of one victim, looked at whenever it passes a point.

    Parameters
    ----------
    orders : OrderBook
        Where they lie.
    victim : str
        Whose.
    """

    def __init__(self, orders: OrderBook, victim: str) -> None:
        self._orders = orders
        self._victim = victim
        self._path = orders.order_path(victim)
        self._fault: Fault | None = None
        self._stamp = 0
        self._left = 0
        self._lines = LineCounter(self._strike)
        self._counting = False

    def passes(self, point: str, *acts: Act) -> Act | None:
        """Obey the order for this point, if there is one and it is its turn.

        Parameters
        ----------
        point : str
            Where the victim is.
        *acts : Act
            Those that the caller carries out itself; they are returned.

        Raises
        ------
        OrderedFailureError
            On order.
        """
        self._orders.passed(self._victim, point)
        fault = self._fault if self._ordered(point) else None
        if fault is None:
            if ":" in point and self._ordered(LINE) and not self._counting:
                self._counting = True
                self._lines.begin(self._left)
            return None
        if fault.act in (Act.LIE, Act.DENY) and fault.act not in acts:
            return None
        self._left -= 1
        if self._left:
            return None
        return self._obey(fault)

    def _strike(self) -> None:
        """Obey an order that counts lines, unless it was withdrawn meanwhile."""
        fault, self._fault = self._fault, None
        if fault is not None and self._path.exists():
            self._obey(fault)

    def _obey(self, fault: Fault) -> Act:
        self._fault = None
        self._orders.obeyed(self._victim, Fired(time.monotonic_ns(), os.getpid()))
        if fault.act is Act.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.act in (Act.STOP, Act.FREEZE, Act.HANG):
            # To this very thread: to the process, another thread might take it while this one goes on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif fault.act is Act.STARVE:
            _starve()
        elif fault.act is Act.RAISE:
            raise OrderedFailureError(_STRANGE)
        elif fault.act is Act.EXHAUST:
            raise MemoryError(_STRANGE)
        return fault.act

    def is_next(self, point: str) -> bool:
        """Whether the next passage of the point is the one that is ordered."""
        return self._ordered(point) and self._left == 1

    def _ordered(self, point: str) -> bool:
        try:
            stamp = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if stamp != self._stamp:
            self._stamp, self._fault = stamp, self._orders.read(self._victim)
            self._left = self._fault.nth if self._fault is not None else 0
            self._counting = False
        return self._fault is not None and self._fault.point == point


def _starve() -> None:
    """Leave this process no descriptor but those that it has: up to the first that is free all are taken."""
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def trap_rank(rank: int) -> Trap:
    """Wrap the seams of a rank's process, which must not have a worker yet; return its trap."""
    trap = trap_participant(f"rank{rank}")
    trap_writes(StagedMemory, trap)
    begin = WatchedTarget.__init__

    @wraps(begin)
    def begin_trapped(watched: WatchedTarget, target: WeightTarget, context: ActionContext) -> None:
        begin(watched, target, context)
        writable = watched.writable  # its own: what a target can do is told by what it has

        def write_and_pass(name: str) -> memoryview:
            memory = writable(name)
            trap.passes("write")
            return memory

        watched.writable = write_and_pass

    _wrap(WatchedTarget, "__init__", begin_trapped)
    return trap


def trap_participant(victim: str) -> Trap:
    """Wrap what every participant has, journal and actions; return its trap."""
    trap = victim_trap(victim)
    append = Journal.append

    @wraps(append)
    def append_and_pass(journal: Journal, found: JournalEntry) -> None:
        append(journal, found)
        trap.passes(point_of(found))

    _wrap(Journal, "append", append_and_pass)
    for action in _concrete(Action):  # type: ignore[type-abstract]  # the root of a search, never made
        _trap_action(action, trap)
    return trap


def trap_writes(target: type[WeightTarget], trap: Trap) -> None:
    """Pass the point ``write`` with each tensor whose bytes a load is given."""
    writable = target.writable

    @wraps(writable)
    def write_and_pass(weights: WeightTarget, name: str) -> memoryview:
        memory = writable(weights, name)
        trap.passes("write")
        return memory

    _wrap(target, "writable", write_and_pass)


def trap_controller(victim: str = "controller") -> Trap:
    """Wrap the writers of a controller's words in this process; return its trap."""
    trap = victim_trap(victim)
    write_command, write_committed = GroupView.write_command, GroupView.write_committed

    def command(group: GroupView, word: CommandWord) -> None:
        what = word.operation.name.lower()
        trap.passes(f"before:{what}")
        write_command(group, word)
        trap.passes(f"after:{what}")

    def committed(group: GroupView, word: CommittedWord) -> None:
        trap.passes("before:committed")
        write_committed(group, word)
        trap.passes("after:committed")

    _wrap(GroupView, "write_command", command)
    _wrap(GroupView, "write_committed", committed)
    return trap


def point_of(found: JournalEntry) -> str:
    """Name the line of a journal."""
    facts = found.facts
    if found.kind == kinds.TRANSITION:
        return f"transition:{facts['machine']}.{facts['dest']}"
    if found.kind == kinds.WORD_WRITTEN:
        return f"word:{facts['code']}"
    what = facts.get("name", facts.get("operation", ""))
    kind = {
        kinds.ACTION_STARTED: "started",
        kinds.ACTION_FINISHED: "finished",
        kinds.ACTION_UNDONE: "undone",
    }.get(found.kind, found.kind)
    return f"{kind}:{what}" if what else kind


def victim_trap(victim: str) -> Trap:
    """Return the trap of a victim that wraps its seams itself."""
    return Trap(OrderBook(Path(os.environ[DIRECTORY_VARIABLE]) / "orders"), victim)


def _wrap(owner: type, name: str, wrapper: object) -> None:
    """Put a wrapper in the place of a method, in this process alone."""
    setattr(owner, name, wrapper)


def _concrete(kind: type[Action]) -> Iterator[type[Action]]:
    for below in kind.__subclasses__():
        yield from _concrete(below)
        if "run" in vars(below) or "probe" in vars(below):
            yield below


def _trap_action(kind: type[Action], trap: Trap) -> None:
    if "run" in vars(kind) and not getattr(kind.run, "__isabstractmethod__", False):
        _wrap(kind, "run", _trapped_run(kind.run, trap))
    if "run" in vars(kind) or "probe" in vars(kind):
        _wrap(kind, "probe", _trapped_probe(kind.probe, trap))


def _trapped_run(
    run: Callable[[Any, ActionContext], None], trap: Trap
) -> Callable[[Any, ActionContext], None]:
    @wraps(run)
    def trapped(action: Action, context: ActionContext) -> None:
        if trap.passes(f"begin:{action.name}", Act.LIE) is Act.LIE:
            return
        run(action, context)

    return trapped


def _trapped_probe(
    probe: Callable[[Any, ActionContext], None], trap: Trap
) -> Callable[[Any, ActionContext], None]:
    if getattr(probe, "trapped_by_the_campaign", False):
        return probe

    @wraps(probe)
    def trapped(action: Action, context: ActionContext) -> None:
        if trap.passes(f"done:{action.name}", Act.DENY) is Act.DENY:
            raise PostconditionError(action=action.name, expected="the work done", found=_STRANGE)
        probe(action, context)

    trapped.trapped_by_the_campaign = True  # type: ignore[attr-defined]  # a mark for subclasses that inherit it
    return trapped


class LineCounter:
    """Calls back at the n-th line of wsm that any thread executes from now on.

    For moments that no journal line, action or tensor marks: inside an action, between two writes of words.
    Slow, so it begins with the first journal line after such an order was given, and ends with the order.

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
