"""All ranks of one group and its controller in the caller's thread, by one clock that a test can foresee.

Real workers, words and plans; only the processes are missing. So a surface that waits inside a call for its
peers (a real communicator) cannot be used with more than one rank here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, final

from wsm.actions.base import ActionContext, Loaded, LoadFunction
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import BareRunner, KnownAdmission, completed
from wsm.clock import ManualClock
from wsm.config import WsmConfig
from wsm.controller import Controller, Pending
from wsm.controller.recovery import Recovery
from wsm.errors import WsmError
from wsm.group_segment import own_new_group
from wsm.journal.replay import replay
from wsm.labels import version_id
from wsm.receipt import Receipt
from wsm.signals.waiting import ViewReader
from wsm.states.group import GroupTodo
from wsm.states.vocabulary import InFlightPolicy, OnFailure, Tag
from wsm.strategies.tensor import StagedTarget, WeightTarget
from wsm.testing._faults import HANGS_AFTER_S, PAUSE_S, Fault, HeldLoad, Instrument
from wsm.worker import HOLD, JOIN, SERVE, StepPermit, Turn, Worker
from wsm.worker.errors import TeardownFailedError


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


_Given = TypeVar("_Given")


class ControllerDied(BaseException):
    """A controller was to die between two words: what is left of it is what it has written."""


class _RankRaised(BaseException):
    """What a rank raised while a command waited: it must not pass for the error of that command."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@final
class LocalGroup:
    """Workers and controller of one group, in this thread.

    Wherever a command waits, every rank moves once; where that changed no word, the clock goes on by as long
    as the command would have waited. So deadlines pass and no test waits for them, and all of it happens in
    the same order each time. What a hot update stages has a thread of its own, in which time is real.

    Parameters
    ----------
    make_runner : callable
        ``make_runner(rank)``: the engine of a rank.
    directory : path
        Where the group's segment lies; empty.
    ranks : int
        How many.
    load : callable or None
        As of :class:`wsm.Worker`; no load of a configured strategy (None) can be held.
    plan_options : callable
        ``plan_options(runner)``: as of :class:`wsm.Worker`.
    configuration : mapping or None
        Other options of :class:`wsm.WsmConfig`.
    meanwhile : callable or None
        ``meanwhile(seconds)``: what happens wherever a command waits; None: :meth:`turn`.
    loop : callable or None
        ``loop(worker, runner)``: one turn of the engine's own loop, by which a rank then moves. It polls, and
        makes a whole step where it may. None: a rank that moves polls alone.

    Attributes
    ----------
    config : wsm.WsmConfig
        The group's.
    clock : wsm.clock.ManualClock
        Of all ranks and of the controller.
    runners, workers : list
        By rank.
    in_step : dict
        The permits of the ranks that are inside of a step, by rank.
    segment : wsm.signals.segment.Segment
        The group's memory.
    controller : wsm.Controller
        The group's; what is begun with it is over when the call returns. An ordinary one of the same name and
        directory waits in a thread of its own: :meth:`run` what it has begun.
    """

    def __init__(
        self,
        make_runner: Callable[[int], BareRunner],
        directory: str | Path,
        *,
        ranks: int = 2,
        load: LoadFunction | None = load_bytes,
        plan_options: Callable[[BareRunner], PlanOptions] = PlanOptions.from_runner,
        configuration: Mapping[str, Any] | None = None,
        meanwhile: Callable[[float], object] | None = None,
        loop: Callable[[Worker, Any], object] | None = None,
    ) -> None:
        self.config = config = WsmConfig(**{"name": "tested", "ranks": ranks, **(configuration or {})})
        self.clock = ManualClock()
        self._instruments = [Instrument(rank, self.clock) for rank in range(ranks)]
        self.runners: list[BareRunner] = []
        self.workers: list[Worker] = []
        self.in_step: dict[int, StepPermit] = {}
        self._last_step = [0] * ranks
        self._stopped: dict[int, float] = {}  # turns that are left, by rank
        self._held_loads: dict[int, HeldLoad] = {}
        self._dead = set[int]()
        self.segment = own_new_group(config, directory=directory)
        self._reader = ViewReader(self.segment)

        def load_held(context: ActionContext, target: WeightTarget) -> Any:
            if context.rank in self._held_loads:
                self._held_loads[context.rank].stand()
            return (load or load_bytes)(context, target)

        def start(rank: int) -> tuple[BareRunner, Worker]:
            runner, instrument = make_runner(rank), self._instruments[rank]
            options = plan_options(runner)
            instrument.inner = options.around
            return runner, Worker(
                config,
                runner,
                rank=rank,
                plan_options=replace(options, around=instrument.around),
                load=None if load is None else load_held,
                clock=instrument.clock,
                meanwhile=lambda _: None,
                directory=directory,
            )

        self._start = start
        self._plays = meanwhile or self.turn
        self._loop = loop
        self._late_s = math.inf
        self._dies_in: int | None = None  # moments between words
        with ExitStack() as undo:
            undo.callback(self.segment.close)
            undo.callback(self.segment.unlink)
            undo.callback(self._close_workers)
            for rank in range(ranks):
                runner, worker = start(rank)
                self.runners.append(runner)
                self.workers.append(worker)
            self.controller = Controller(
                config.name, clock=self.clock, meanwhile=self._meanwhile, directory=directory
            )
            undo.callback(self.controller.close)
            self._undo = undo.pop_all()

    # -- commands ----------------------------------------------------------------------------------

    def update(self, version: str | int | None = None, **options: Any) -> Receipt:
        """Update the group, and return once every rank is at rest. As :meth:`wsm.Controller.update`.

        An update that fails leaves the group as its outcome is, unless `on_failure` says otherwise.

        Parameters
        ----------
        fault : Fault or None
            What fails in it.
        dies_after : int or None
            How many words of it the controller writes before it dies, and :class:`ControllerDied` is raised.
            With 0 it has stored the arguments alone. The next command ends what was left.
        """
        asked = {"on_failure": OnFailure.CLEAR, **options}
        return self._carry_out(partial(self.controller.update, version), **asked)

    def clear(self, **options: Any) -> Receipt:
        """Clear the group, as :meth:`wsm.Controller.clear`; the rest is as for :meth:`update`."""
        return self._carry_out(self.controller.clear, **options)

    def hold(self, **options: Any) -> Receipt:
        """Hold the group, as :meth:`wsm.Controller.hold`; the rest is as for :meth:`update`."""
        return self._carry_out(self.controller.hold, **options)

    def release(self, **options: Any) -> Receipt:
        """End the group's hold, as :meth:`wsm.Controller.release`; the rest is as for :meth:`update`."""
        return self._carry_out(self.controller.release, **options)

    def command(self, command: Command, *, fault: Fault | None = None) -> Receipt:
        """Give one of :data:`COMMANDS`, without what comes before it."""
        give = self.update if command.updates else self.clear
        return give(fault=fault, **command.options)

    # -- what ranks do -----------------------------------------------------------------------------

    def turn(self, seconds: float = 0.02) -> None:
        """Let every rank move once; where that changed no word, let the clock go on by `seconds`."""
        if self._moved():
            return
        if self._reader.read().view.command.operation.is_hot:
            time.sleep(PAUSE_S)  # for what is staged beside a rank's loop
            seconds = min(seconds, PAUSE_S)
        self.clock.advance(seconds)

    def run(self, pending: Pending) -> Receipt:
        """Let the ranks move until a command is over that a controller has begun which waits by itself."""
        self._late_s = time.monotonic() + HANGS_AFTER_S
        while not pending.over:
            if not self._moved():
                time.sleep(PAUSE_S)
            self._require_progress()
        self._moved()
        return pending.result()

    def move(self, rank: int, *, works: bool = False) -> Turn:
        """Let one rank look once, and enter a step where it may and `works`, or must; return what it may do.

        A rank that is stopped or dead does nothing. One that is in a step leaves it once all others have been
        in it; where one of those is dead, the step raises. A rank whose group has a `loop` goes through it
        once, and HOLD is returned.
        """
        if rank in self._dead:
            return HOLD
        if rank in self._stopped:
            self._stopped[rank] -= 1
            if self._stopped[rank] <= 0:
                del self._stopped[rank]
            return HOLD
        if rank in self.in_step:
            late = {one for one, step in enumerate(self._last_step) if step < self._last_step[rank]}
            if not late or late & self._dead:
                error = ConnectionError(f"rank {min(late)} of this step is gone") if late else None
                self.leave_step(rank, error)
            return HOLD
        held, poll = self._held_loads.get(rank), partial(self._poll, rank)
        turn = poll() if held is None else held.poll(poll)
        if held is not None and held.goes_on.is_set():
            self._held_loads.pop(rank).close()
        if turn is JOIN or (works and turn is SERVE):
            self.enter_step(rank)
        return turn

    def enter_step(self, rank: int) -> StepPermit:
        """Let a rank enter its next step, and stay in it; it leaves as :meth:`move` says.

        Raises
        ------
        NotServingError
            If its last move did not say that it may.
        """
        permit = self.workers[rank].step().__enter__()
        self._last_step[rank], self.in_step[rank] = permit.step, permit
        return permit

    def leave_step(self, rank: int, error: BaseException | None = None) -> None:
        """Let a rank leave the step that it is in, by an error where one is given."""
        self.in_step.pop(rank).__exit__(None if error is None else type(error), error, None)

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
        versions = {self.enter_step(rank).version for rank in range(len(self.workers))}
        for rank in range(len(self.workers)):
            self.leave_step(rank)
        assert len(versions) == 1, f"ranks made one step with versions {sorted(map(str, versions))}"
        return versions.pop()

    # -- what befalls ranks ------------------------------------------------------------------------

    def stop(self, rank: int, *, turns: float = math.inf) -> None:
        """Let a rank do nothing, as a process that is stopped; for so many moves, or until :meth:`resume`."""
        self._stopped[rank] = turns

    def hold_load(self, rank: int) -> None:
        """Let the next load of a rank stand where it begins, and the rank in it, until :meth:`resume`."""
        self._held_loads[rank] = HeldLoad()

    def resume(self, rank: int) -> None:
        """Let a rank go on that is stopped, or whose load stands."""
        self._stopped.pop(rank, None)
        if rank in self._held_loads:
            self._held_loads[rank].goes_on.set()

    def die(self, rank: int) -> None:
        """Let a rank be gone as if its process had been killed: what it wrote stays, and it writes no more.

        Peers that are in a step with it find that out by an error. :meth:`replace` begins a new epoch.
        """
        self.resume(rank)
        self._dead.add(rank)
        self.in_step.pop(rank, None)
        self.workers[rank].close()

    def expect(self, fault: Fault | None) -> None:
        """Let this fail in the command that is begun next."""
        for instrument in self._instruments:
            instrument.expect(fault)

    def replace(self, rank: int) -> None:
        """End a rank as by :meth:`die`, and start another engine for it in a new epoch.

        The others give back what they hold and join, or are replaced, too, if they cannot; then the group
        loads what it is to serve, which is the version that was decided last, or stays CLEARED. So it goes on
        after :class:`wsm.FlipFailedError`.
        """
        recovery = Recovery(self.segment)
        recovery.group.meanwhile = self._meanwhile

        def restore() -> None:
            gone = {rank, *self._dead}
            while not recovery.ends:
                for one in gone - recovery.dead:
                    self.die(one)
                recovery.dead |= gone
                todo, gone = recovery.turn(), set()
                if recovery.own is not None:
                    recovery.drive.wait(recovery)
                elif todo is GroupTodo.GIVE_ROLE_BACK:
                    return
                elif not recovery.ends:
                    for one in recovery.dead:
                        self.runners[one], self.workers[one] = self._start(one)
                    recovery.dead.clear()
                    self._dead.clear()
                    gone = {one for one in range(len(self.workers)) if not self._lives_on(one)}
                self._require_progress()
            error = recovery.ends[-1].error
            if error is not None:
                raise error

        try:
            self._carry_out(restore)
        finally:
            recovery.close()

    # -- what is seen ------------------------------------------------------------------------------

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

    def _moved(self) -> bool:
        """Let every rank move once; return whether that changed a word; steps of a loop do not count."""
        before = self._reader.read()
        for rank in range(len(self.workers)):
            self.move(rank)
        after = self._reader.read()
        if self._loop is None:
            return after is not before
        return (after.command, after.statuses, after.view.committed) != (
            before.command,
            before.statuses,
            before.view.committed,
        )

    def _poll(self, rank: int) -> Turn:
        if self._loop is None:
            return self.workers[rank].poll()
        self._loop(self.workers[rank], self.runners[rank])
        return HOLD

    def _lives_on(self, rank: int) -> bool:
        if rank in self.in_step:
            self.leave_step(rank, ConnectionError("the epoch of this step has ended"))
        try:
            self.move(rank)
        except TeardownFailedError:  # what broke with a peer cannot be let go alone
            return False
        return True

    def _close_workers(self) -> None:
        for held in self._held_loads.values():
            held.close()
        for worker in self.workers:
            worker.close()

    def _carry_out(
        self,
        give: Callable[..., _Given],
        *,
        fault: Fault | None = None,
        dies_after: int | None = None,
        **options: Any,
    ) -> _Given:
        """Carry a command out: wherever its controller waits, the ranks move."""
        self.expect(fault)
        self._late_s = time.monotonic() + HANGS_AFTER_S
        # One moment is before each word, and one behind it.
        self._dies_in = None if dies_after is None else max(2 * dies_after, 1)
        try:
            given = give(**options)
        except _RankRaised as raised:
            raise raised.error from raised.error.__cause__
        except WsmError:
            self._come_to_rest()
            raise
        self._come_to_rest()
        return given

    def _come_to_rest(self) -> None:
        """Let the ranks act on the decision, which is final before every one has."""
        self._plays(PAUSE_S)

    def _meanwhile(self, seconds: float) -> None:
        if seconds == 0.0:
            if self._dies_in is not None:
                self._dies_in -= 1
                if self._dies_in == 0:
                    raise ControllerDied
            return
        try:
            self._plays(seconds)
            self._require_progress()
        except BaseException as error:
            raise _RankRaised(error) from error

    def _require_progress(self) -> None:
        assert time.monotonic() < self._late_s, f"the group hangs: {self.controller.status()}"
