"""All ranks of one group and its controller in the caller's thread, and faults in any action of any plan.

Real workers, words and plans; only the processes are missing. So a surface that waits inside a call for its
peers (a real communicator) cannot be used with more than one rank here.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from wsm.actions.base import Action, ActionContext, Loaded, LoadFunction
from wsm.actions.errors import PostconditionError
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import BareRunner, KnownAdmission, completed
from wsm.clock import ManualClock
from wsm.config import WsmConfig
from wsm.controller import Controller, Pending
from wsm.controller._command_request import CommandRequest
from wsm.controller._execution import Execution
from wsm.controller.group_view import Look
from wsm.controller.pending import Verdict
from wsm.controller.recovery import Recovery
from wsm.group_segment import own_new_group
from wsm.journal.replay import replay
from wsm.labels import version_id
from wsm.receipt import Receipt
from wsm.states.vocabulary import InFlightPolicy, OnFailure, Tag
from wsm.strategies.tensor import StagedTarget, WeightTarget
from wsm.worker import HOLD, Worker
from wsm.worker.errors import TeardownFailedError

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
_HANGS_AFTER_S = 30.0

_PAUSE_S = 0.001

#: Seconds that a command may take to be written before the ranks are polled for what it waits for.
_BEGINS_S = 1.0


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


def load_bytes(context: ActionContext, target: WeightTarget) -> Loaded:
    """Load a version without any source: every byte of version 7 is 7, and so on (modulo 256)."""
    specs = target.specs()
    for name, spec in specs.items():
        target.writable(name)[:] = bytes([_byte_of(context.version)]) * spec.nbytes
        if isinstance(target, StagedTarget):
            target.written(name)
        context.progress()
    digest = PlanOptions().resident_digest(target, context.progress)
    total = sum(spec.nbytes for spec in specs.values())
    return Loaded(context.version, digest, f"version {context.version}", total, len(specs), "group")


def _byte_of(version: str | None) -> int:
    """Return what every byte of a version is: its number, or what stands for its label, modulo 256."""
    label = version or "0"
    return (int(label) if label.isdecimal() else version_id(label)) % 256


def memory_of(runner: BareRunner) -> dict[str, object]:
    """Say what an engine has up: tensors, caches, graphs, buffer, groups, and whether it admits requests."""
    engine = completed(runner)
    up: dict[str, object] = {"weights": sorted(engine.weights.held())}
    models = [("", engine.kv_cache, engine.graphs)]
    models += [(f"{draft.name}.", draft.kv_cache, draft.graphs) for draft in engine.auxiliaries]
    for place, kv_cache, graphs in models:
        if kv_cache is not None:
            up[f"{place}kv_cache"] = kv_cache.allocated_bytes()
        if graphs is not None:
            up[f"{place}graphs"] = graphs.captured()
    if engine.deepep is not None:
        up["deepep"] = engine.deepep.allocated()
    if engine.groups is not None:
        up["groups"] = {kind.value: engine.groups.alive(kind) for kind in engine.groups.kinds()}
    if isinstance(engine.requests, KnownAdmission):
        up["admits"] = engine.requests.is_admitting()
    return up


class _Instrument:
    """Watches the actions of one rank, and makes the one fail that a fault names."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.clock = ManualClock()
        self.fault: Fault | None = None
        self.undo = ""
        self.begun: list[tuple[str, str]] = []
        self.undone: list[str] = []

    def expect(self, fault: Fault | None) -> None:
        """Begin to watch another command."""
        self.fault = fault if fault is not None and fault.rank == self.rank else None
        self.undo = "" if self.fault is None else self.fault.undo
        self.begun, self.undone = [], []

    def __call__(self, plan: str, action: Action) -> None:
        run, probe, undo = action.run, action.probe, action.undo

        def watched_run(context: ActionContext) -> None:
            self.begun.append((plan, action.name))
            if self._strikes(plan, action, "raises"):
                raise OSError(f"{action.name} was to fail")
            if self._strikes(plan, action, "lacks something"):
                raise _SHORTAGES[len(action.name) % len(_SHORTAGES)]
            if self._strikes(plan, action, "outlasts its deadline"):
                self._outlast(action, context)
            run(context)

        def watched_probe(context: ActionContext) -> None:
            if self._strikes(plan, action, "is not done"):
                raise PostconditionError(action=action.name, expected="work that is done", found="none")
            probe(context)

        def watched_undo(context: ActionContext) -> None:
            self.undone.append(action.name)
            if action.name == self.undo:
                raise OSError(f"the undo of {action.name} was to fail")
            undo(context)

        for name, watched in (("run", watched_run), ("probe", watched_probe), ("undo", watched_undo)):
            setattr(action, name, watched)

    def _outlast(self, action: Action, context: ActionContext) -> None:
        """Let the deadline pass; an action beside the loop then goes on until the loop has noticed."""
        self.clock.advance(action.deadline_s + 1)
        context.progress()
        late = time.monotonic() + _HANGS_AFTER_S
        while not context.cancelled() and time.monotonic() < late:
            threading.Event().wait(_PAUSE_S)
        raise OSError(f"{action.name} was called off")

    def _strikes(self, plan: str, action: Action, way: str) -> bool:
        fault = self.fault
        strikes = fault is not None and (fault.plan, fault.action, fault.way) == (plan, action.name, way)
        if strikes:
            self.fault = None
        return strikes


@dataclass(frozen=True)
class Command:
    """How to come to a plan: the commands before it, and the one that runs it.

    Parameters
    ----------
    options : mapping
        Of :meth:`LocalGroup.update`, or of :meth:`LocalGroup.clear` where `version` is not among them and
        `updates` is false.
    before : tuple of Command
        What is commanded first, from nothing held.
    updates : bool
        Whether it is an update.
    """

    options: Mapping[str, Any]
    before: tuple[Command, ...] = ()
    updates: bool = True


_WEIGHTS, _KV = {"tags": {Tag.WEIGHTS}}, {"tags": {Tag.KV_CACHE}}
_SERVING = Command({"version": 1})
_WITHOUT_WEIGHTS = (_SERVING, Command(_WEIGHTS, updates=False))
_WITHOUT_KV = (_SERVING, Command(_KV, updates=False))

#: The command that runs each plan, by the plan's printed name; discards and rejoins are no command's.
COMMANDS: Final[Mapping[str, Command]] = {
    "clear": Command({}, (_SERVING,), updates=False),
    "clear_weights": Command(_WEIGHTS, (_SERVING,), updates=False),
    "clear_remaining_weights": Command(_WEIGHTS, _WITHOUT_KV, updates=False),
    "clear_kv_cache": Command(_KV, (_SERVING,), updates=False),
    "clear_remaining_kv_cache": Command(_KV, _WITHOUT_WEIGHTS, updates=False),
    "update": Command({"version": 2}),
    "update_weights": Command({"version": 2} | _WEIGHTS, _WITHOUT_WEIGHTS),
    "update_weights_only": Command({"version": 2} | _WEIGHTS),
    "update_in_place": Command({"version": 2}, (_SERVING,)),
    "update_in_place_and_rebuild": Command({"version": 2}, _WITHOUT_KV),
    "update_in_place_only": Command({"version": 2} | _WEIGHTS, _WITHOUT_KV),
    "update_kv_cache": Command(_KV, _WITHOUT_KV),
    "update_kv_cache_only": Command(_KV),
    "hot": Command({"version": 2, "hot": True, "in_flight": InFlightPolicy.ABORT}, (_SERVING,)),
}


def _carries_out_here(controller: Controller, turn: Callable[[], None]) -> None:
    """Let a controller carry its commands out in the calling thread, and give the ranks turns for waiting."""
    group = controller._access.group

    def begin(request: CommandRequest, verdict: Verdict | None = None, *, here: bool = True) -> Pending:  # noqa: ARG001 - always
        name, words = request.arguments.request_id, controller._engine_words
        execution = Execution(controller._access, words, controller._clock, name, verdict)
        return execution.pending.run(lambda: execution.run(request))

    def wait(look: Look, timeout_s: float) -> bool:
        turn()
        if group.look().statuses == look.statuses:
            time.sleep(min(timeout_s, _PAUSE_S))  # what a rank does beside its loop has a thread of its own
        return True

    for owner, name, instead in ((controller, "_begin", begin), (group, "wait", wait)):
        setattr(owner, name, instead)


@final
class LocalGroup:
    """Workers and controller of one group, in this thread.

    Parameters
    ----------
    make_runner : callable
        ``make_runner(rank)``: the engine of a rank.
    directory : path
        Where the group's segment lies; empty.
    ranks : int
        How many.
    load : callable
        As of :class:`wsm.Worker`.
    plan_options : callable
        ``plan_options(runner)``: as of :class:`wsm.Worker`.
    configuration : mapping or None
        Other options of :class:`wsm.WsmConfig`.

    Attributes
    ----------
    runners, workers : list
        By rank.
    controller : wsm.Controller
        The group's.
    """

    def __init__(
        self,
        make_runner: Callable[[int], BareRunner],
        directory: str | Path,
        *,
        ranks: int = 2,
        load: LoadFunction = load_bytes,
        plan_options: Callable[[BareRunner], PlanOptions] = PlanOptions.from_runner,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        config = WsmConfig(**{"name": "tested", "ranks": ranks, **(configuration or {})})
        self._instruments = [_Instrument(rank) for rank in range(ranks)]
        self.runners: list[BareRunner] = []
        self.workers: list[Worker] = []
        self._segment = own_new_group(config, directory=directory)

        def start(rank: int) -> tuple[BareRunner, Worker]:
            runner, instrument = make_runner(rank), self._instruments[rank]
            options = replace(plan_options(runner), instrument=instrument)
            return runner, Worker(
                config,
                runner,
                rank=rank,
                plan_options=options,
                load=load,
                clock=instrument.clock,
                directory=directory,
            )

        self._start = start
        self._late = 0.0
        self._broken: BaseException | None = None
        with ExitStack() as undo:
            undo.callback(self._segment.close)
            undo.callback(self._segment.unlink)
            undo.callback(self._close_workers)
            for rank in range(ranks):
                runner, worker = start(rank)
                self.runners.append(runner)
                self.workers.append(worker)
            self.controller = Controller(config.name, directory=directory)
            undo.callback(self.controller.close)
            self._commanding = Controller(config.name, directory=directory)
            _carries_out_here(self._commanding, self._turn)
            undo.callback(self._commanding.close)
            self._undo = undo.pop_all()

    def update(
        self, version: str | int | None = None, *, fault: Fault | None = None, **options: Any
    ) -> Receipt:
        """Update the group, and return once every rank is at rest. As :meth:`wsm.Controller.update`.

        An update that fails leaves the group as its outcome is, unless `on_failure` says otherwise.
        """
        self._expect(fault)
        asked = {"on_failure": OnFailure.CLEAR, **options}
        return self._carry_out(lambda: self._commanding.begin_update(version, **asked))

    def clear(self, *, fault: Fault | None = None, **options: Any) -> Receipt:
        """Clear the group, and return once every rank is at rest. As :meth:`wsm.Controller.clear`."""
        self._expect(fault)
        return self._carry_out(lambda: self._commanding.begin_clear(**options))

    def hold(self, *, fault: Fault | None = None, **options: Any) -> Receipt:
        """Hold the group, and return once every rank is at rest. As :meth:`wsm.Controller.hold`."""
        self._expect(fault)
        return self._carry_out(lambda: self._commanding.begin_hold(**options))

    def release(self, *, fault: Fault | None = None, **options: Any) -> Receipt:
        """End the group's hold, and return once every rank is at rest. As :meth:`wsm.Controller.release`."""
        self._expect(fault)
        return self._carry_out(lambda: self._commanding.begin_release(**options))

    def command(self, command: Command, *, fault: Fault | None = None) -> Receipt:
        """Give one of :data:`COMMANDS`, without what comes before it."""
        give = self.update if command.updates else self.clear
        return give(fault=fault, **command.options)

    def step(self) -> str | None:
        """Run one step on every rank at once; return the version that made it, None where no rank may step.

        Raises
        ------
        AssertionError
            If one rank may step and another may not, or their versions differ.
        """
        turns = {worker.poll() for worker in self.workers}
        if turns == {HOLD}:
            return None
        assert HOLD not in turns, "one rank may step, and another one may not"
        with ExitStack() as steps:
            versions = {steps.enter_context(worker.step()).version for worker in self.workers}
        assert len(versions) == 1, f"ranks made one step with versions {sorted(map(str, versions))}"
        return versions.pop()

    def replace(self, rank: int) -> None:
        """End a rank as if its process had died, and start another engine for it in a new epoch.

        The others give back what they hold and join, or are replaced, too, if they cannot; then the group
        loads what it is to serve, which is the version that was decided last, or stays CLEARED. So it goes on
        after :class:`wsm.FlipFailedError`.
        """
        self._expect(None)
        recovery, gone = Recovery(self._segment), {rank}
        late = time.monotonic() + _HANGS_AFTER_S
        try:
            while gone or recovery.missing():
                for one in gone:
                    self.workers[one].close()
                recovery.begin(gone, wait_s=_HANGS_AFTER_S)
                for one in gone:
                    self.runners[one], self.workers[one] = self._start(one)
                gone = {one for one, worker in enumerate(self.workers) if not self._lives_on(worker)}
                assert time.monotonic() < late, f"the group hangs: {self.controller.status()}"
            pending = recovery.restore()
            if pending is not None:
                self._run(pending)
        finally:
            recovery.close()

    def begun(self, rank: int) -> list[tuple[str, str]]:
        """Return plan and name of each action that the last command began on a rank."""
        return list(self._instruments[rank].begun)

    def undone(self, rank: int) -> list[str]:
        """Return the names of the actions that the last command undid on a rank."""
        return list(self._instruments[rank].undone)

    def memory(self) -> list[dict[str, object]]:
        """Return what each engine has up (:func:`memory_of`)."""
        return [memory_of(runner) for runner in self.runners]

    def check_journals(self) -> None:
        """See that what each rank did is possible by the tables (AssertionError)."""
        for worker in self.workers:
            impossible = replay(worker.journal).impossible
            assert impossible is None, f"rank {worker.rank}: {impossible}"

    def close(self) -> None:
        """Close workers and controller. Idempotent."""
        self._undo.close()

    def __enter__(self) -> LocalGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _expect(self, fault: Fault | None) -> None:
        for instrument in self._instruments:
            instrument.expect(fault)

    def _lives_on(self, worker: Worker) -> bool:
        try:
            worker.poll()
        except TeardownFailedError:  # what broke with a peer cannot be let go alone
            return False
        return True

    def _close_workers(self) -> None:
        for worker in self.workers:
            worker.close()

    def _carry_out(self, begin: Callable[[], Pending]) -> Receipt:
        """Carry a command out in this thread: wherever its controller waits, every rank has a turn."""
        self._late = time.monotonic() + _HANGS_AFTER_S
        pending = begin()
        error, self._broken = self._broken, None
        if error is not None:
            raise error
        for worker in self.workers:  # a decision is final before every rank has acted on it
            worker.poll()
        return pending.result()

    def _turn(self) -> None:
        try:
            for worker in self.workers:
                worker.poll()
            assert time.monotonic() < self._late, f"the group hangs: {self.controller.status()}"
        except BaseException as error:
            self._broken = error
            raise

    def _poll_until(self, condition: Callable[[], bool]) -> None:
        late = time.monotonic() + _HANGS_AFTER_S
        while not condition():
            for worker in self.workers:
                worker.poll()
            assert time.monotonic() < late, f"the group hangs: {self.controller.status()}"

    def _run(self, pending: Pending) -> Receipt:
        pending.written(_BEGINS_S)  # what ranks do first does not depend on when a thread runs
        self._poll_until(lambda: pending.over)
        for worker in self.workers:  # a decision is final before every rank has acted on it
            worker.poll()
        return pending.result()
