"""The slow path of a rank: look at the words, do one thing, tell the protocol what came of it.

Between :mod:`wsm.protocol` (what next?), :mod:`.group_words` (words in and out) and :mod:`.execution` (the
work of one command). It decides nothing itself and knows no action by name. The embedding loop sees
only :class:`wsm.worker.Worker`, which calls :meth:`RankDriver.turn` whenever there is more to do than
serving.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wsm.actions.base import ActionContext
from wsm.actions.sequence import Plans
from wsm.actions.surfaces import Runner
from wsm.clock import Clock
from wsm.command import ARGUMENTS_KIND, CommandArguments
from wsm.config import Deadlines
from wsm.errors import InternalError
from wsm.protocol import rank as protocol
from wsm.protocol.rank_state import Move, Phase, RankState, Todo
from wsm.protocol.view import View
from wsm.protocol.votes import never_ready
from wsm.report import MAX_REPORT_BYTES, FailureReport, RankReport
from wsm.signals.word import Operation, StatusCode, StepKind, StepWord
from wsm.states.machine import LifeCycle
from wsm.worker.errors import (
    CommandAbortedError,
    CommandIllegalError,
    NotServingError,
    PeerNeverReadyError,
    StepBrokenError,
)
from wsm.worker.execution import Execution, Load, Request
from wsm.worker.group_words import GroupWords
from wsm.worker.patience import Patience
from wsm.worker.recording import Recorder

#: How long one turn waits at most when there is nothing to do, in seconds.
IDLE_WAIT_S = 0.001

#: Looks at the words within one turn while nothing but words was written; more only in a broken protocol.
_LOOKS_PER_TURN = 16

_REQUESTS = {Operation.CLEAR: Request.CLEAR, Operation.UPDATE: Request.UPDATE}


class RankDriver:
    """The protocol's rank, with real words, real work and a real clock.

    Parameters
    ----------
    words : GroupWords
        The segment, seen by this rank.
    runner : Runner
        The engine's surfaces.
    plans : Plans
        Of this engine.
    load : callable
        What a load action loads with.
    deadlines : Deadlines
        For this rank's waits.
    clock : Clock
        For deadlines and seconds.
    recorder : Recorder
        Journal and log.

    Attributes
    ----------
    life : LifeCycle
        The state machines.
    state : RankState
        What the protocol remembers.
    version : int or None
        The committed version that is held.
    """

    def __init__(
        self,
        *,
        words: GroupWords,
        runner: Runner,
        plans: Plans,
        load: Load,
        deadlines: Deadlines,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self.life = LifeCycle()
        self.state = RankState(rank=words.rank, epoch=0)
        self.version: int | None = None
        self._words = words
        self._runner = runner
        self._plans = plans
        self._load = load
        self._patience = Patience(deadlines, clock, runner.requests)
        self._clock = clock
        self._recorder = recorder
        self._execution: Execution | None = None
        self._served_until_ns: int | None = None
        self._work: dict[Todo, Callable[[View], None]] = {
            Todo.REJOIN: self._rejoin,
            Todo.BEGIN: self._begin,
            Todo.ACCEPT: self._accept,
            Todo.RUN: self._run,
            Todo.FORSAKEN: self._forsaken,
            Todo.FINISH: self._finish,
            Todo.COMMIT: self._commit,
            Todo.UNDO: self._undo,
            Todo.KEEP: self._settle,
            Todo.DROP: self._settle,
        }

    def turn(self) -> Todo:
        """Look once, do one thing; return SERVE or JOIN if the loop may or must step, else WAIT.

        Waits at most 1 ms, and only if there is nothing to do until a word changes.
        """
        self._words.beat()
        for _ in range(_LOOKS_PER_TURN):
            watches = self._words.watches()
            view = self._words.view()
            move = protocol.advance(self.state, view)
            self._take(move)
            todo = move.todo
            if todo in (Todo.SERVE, Todo.JOIN):
                return todo
            if todo is Todo.DRAIN:
                return self._drain()
            if todo is Todo.WAIT:
                self._expire(view)
                self._words.wait(watches, IDLE_WAIT_S)
                return Todo.WAIT
            if todo is not Todo.LOOK:
                self._work[todo](view)
                return Todo.WAIT
        return Todo.WAIT

    def join(self) -> None:
        """Enter the epoch that the command word names; this rank holds nothing in it."""
        view, rank = self._words.view(), self._words.rank
        move = protocol.join(rank, view.command, view.steps[rank], view.statuses[rank])
        # The controller compares it: ranks with other plans would wait for each other in other collectives.
        plans = "\n".join(f"{plan.name}: {' '.join(plan.names())}" for plan in self._plans)
        self._words.segment.report(rank).write(
            move.state.epoch, 0, StatusCode.ATTACHED, plans.encode()[:MAX_REPORT_BYTES]
        )
        self._take(move)

    def enter_step(self) -> tuple[int, int]:
        """Store RUNNING for the next step; return the word and the version that makes the step.

        Raises
        ------
        NotServingError
            If this rank may not step now.
        """
        state = self.state
        if not self.life.serving or self.version is None or state.accepted or not state.holds:
            why = f"weights {self.life.weights.name}, KV cache {self.life.kv.name}, {state.phase.value}"
            raise NotServingError(rank=state.rank, why=why)
        if state.broken:
            raise NotServingError(rank=state.rank, why=f"step {state.step} raised")
        move = protocol.entered(state)
        self._take(move)
        return StepWord(state.epoch, state.done, StepKind.RUNNING, move.state.step).pack(), self.version

    def stepped_to(self, step: int) -> None:
        """Take in that steps up to number `step` were opened without this object."""
        self.state = replace(self.state, step=step, parked=False)

    def break_step(self, error: BaseException) -> None:
        """Store BROKEN: the step raised, so nobody knows which of its collectives were run."""
        self._take(protocol.broke(self.state))
        self._recorder.step_broken(self.state.epoch, self.state.step, error)

    def _take(self, move: Move) -> None:
        if move.state.phase is not self.state.phase:
            self._patience.begin()
        self.state = move.state
        self._words.write(move)
        if move.status is not None or (move.step is not None and move.step.kind is not StepKind.RUNNING):
            self._recorder.wrote(move)

    def _shown(self) -> RankState:
        """Return the state with the machines' present codes, for the next status word."""
        return replace(self.state, weights=int(self.life.weights), kv=int(self.life.kv))

    def _rejoin(self, _view: View) -> None:
        """A new epoch has begun: whatever this rank held belonged to the old one."""
        state = self.state
        for record in self.life.lose(
            at_ns=self._clock.monotonic_ns(), epoch=state.epoch, sequence=state.sequence
        ):
            self._recorder.transition(record)
        self._runner.weights.release()
        self.version = self._execution = None
        self.join()

    def _begin(self, view: View) -> None:
        state = self.state
        data = self._words.segment.arguments(state.sequence).read(state.epoch, state.sequence, ARGUMENTS_KIND)
        if data is None:
            self._expire(view)
            return
        self._recorder.command_seen(state.epoch, state.sequence, state.operation.name)
        try:
            collective = self._execution_for(data).begin()
        except Exception as error:  # noqa: BLE001 - whatever it is: the command is refused, with its cause
            self._fail("begin", error, refuse=True)
            return
        self._take(protocol.began(self._shown(), collective))

    def _execution_for(self, data: bytes) -> Execution:
        state = self.state
        arguments = CommandArguments.from_bytes(data)
        request = _REQUESTS.get(state.operation)
        if state.broken:
            raise StepBrokenError(rank=state.rank, step=state.step)
        if request is None:
            raise CommandIllegalError(
                rank=state.rank,
                command=state.operation.name,
                weights=self.life.weights.name,
                kv=self.life.kv.name,
                why="this worker cannot stage weights beside the ones it serves",
            )
        return self._execution_of(request, arguments)

    def _execution_of(self, request: Request, arguments: CommandArguments) -> Execution:
        state = self.state
        context = ActionContext(
            runner=self._runner,
            rank=state.rank,
            world_size=len(self._words.steps),
            epoch=state.epoch,
            sequence=state.sequence,
            version=arguments.version,
            in_flight=arguments.in_flight,
            kv_policy=arguments.kv_policy,
            from_normal=self.life.serving,
            load=self._load,
            progress=self._words.beat,
            cancelled=lambda: self._words.view().command.operation.is_abort,
        )
        self._execution = Execution(
            request,
            arguments,
            plans=self._plans,
            life=self.life,
            context=context,
            clock=self._clock,
            recorder=self._recorder,
        )
        return self._execution

    @property
    def _at_work(self) -> Execution:
        if self._execution is None:
            raise InternalError(f"rank {self.state.rank} has no command at hand in {self.state.phase.value}")
        return self._execution

    def _drain(self) -> Todo:
        """Serve on until the in-flight policy is satisfied, then park."""
        try:
            settled = self._at_work.drained()
        except Exception as error:  # noqa: BLE001 - whatever the scheduler raises fails the command
            self._fail("drain", error)
            return Todo.WAIT
        if settled:
            self._take(protocol.drained(self._shown()))
            return Todo.WAIT
        self._expire(self._words.view())
        serves = self.state.phase is Phase.DRAINING and self.state.holds and not self.state.broken
        return Todo.SERVE if serves else Todo.WAIT

    def _accept(self, _view: View) -> None:
        if self.life.serving:
            self._served_until_ns = self._clock.monotonic_ns()
        try:
            self._at_work.accept()
        except Exception as error:  # noqa: BLE001 - an illegal transition is this command's failure
            self._fail("accept", error)
            return
        self._take(protocol.accepted(self._shown()))

    def _run(self, _view: View) -> None:
        execution, index = self._at_work, self.state.action
        try:
            execution.run(index)
        except Exception as error:  # noqa: BLE001 - whatever an action raises fails the command
            # The words are read again: an action that was told to stop read them later than this turn did.
            aborted = self._words.view().command.operation.is_abort
            cause = CommandAbortedError(rank=self.state.rank, action=execution.doing) if aborted else error
            self._fail(execution.doing, cause)
            return
        self._take(protocol.action_finished(self._shown(), touched=execution.touched))

    def _forsaken(self, view: View) -> None:
        action = self._at_work.plan.actions[self.state.action].name
        peers = never_ready(view, self.state.action)
        self._fail(action, PeerNeverReadyError(rank=self.state.rank, action=action, peers=peers))

    def _finish(self, _view: View) -> None:
        """Report, then say that everything which can fail is behind this rank."""
        done = StatusCode.PREPARED
        if self.state.operation is Operation.CLEAR:
            done = StatusCode.DONE_CLEARED
            self.version = None
        report = self._at_work.finish()
        self._report(done, report)
        self._take(protocol.finished(self._shown()))
        if done is StatusCode.DONE_CLEARED:
            self._execution = None

    def _commit(self, _view: View) -> None:
        execution = self._at_work
        execution.commit()
        report = execution.report()
        self.version = report.version
        self._report(StatusCode.DONE_COMMITTED, replace(report, pause_s=self._pause_s()))
        self._served_until_ns = None
        self._execution = None
        self._take(protocol.committed(self._shown()))
        if self.version is not None:
            self._recorder.served(self.state.epoch, self.state.done, self.version)

    def _undo(self, _view: View) -> None:
        touched = self._execution.undo() if self._execution is not None else False
        self._take(protocol.stopped(self._shown(), touched=touched))

    def _settle(self, _view: View) -> None:
        """Bring an aborted command to the end that the group has found."""
        dropping = self.state.touched
        execution = self._execution or self._nothing_began()
        done = execution.drop() if dropping else execution.keep()
        if done is None:
            return
        code = StatusCode.DONE_FAULTED if not done else StatusCode.DONE_CLEARED
        if done and not dropping:
            code = StatusCode.DONE_KEPT
            self._served_until_ns = None if self.life.serving else self._served_until_ns
        else:
            self.version = None
        self._execution = None
        self._take(protocol.settled(self._shown(), code))

    def _nothing_began(self) -> Execution:
        """Return the work of a command that was aborted before this rank saw what it asked for."""
        return self._execution_of(Request.CLEAR, CommandArguments(request_id="aborted before it was seen"))

    def _pause_s(self) -> float:
        if self._served_until_ns is None:
            return 0.0
        return (self._clock.monotonic_ns() - self._served_until_ns) / 1e9

    def _report(self, code: StatusCode, report: RankReport) -> None:
        state = self.state
        slot = self._words.segment.report(state.rank)
        slot.write(state.epoch, state.sequence, code, report.to_bytes())

    def _fail(self, doing: str, error: BaseException, *, refuse: bool = False) -> None:
        """Report why, then say FAILED or REFUSED; the group's decision leads out."""
        state = self.state
        code = StatusCode.REFUSED if refuse else StatusCode.FAILED
        failure = FailureReport.of(state.rank, doing, error)
        self._words.segment.error(state.rank).write(state.epoch, state.sequence, code, failure.to_bytes())
        self._recorder.command_failed(state.epoch, state.sequence, failure)
        if refuse:
            self._take(protocol.refused(self._shown()))
            return
        touched = False
        if self._execution is not None:
            self._execution.fail(f"{doing}: {failure.message}")
            touched = self._execution.touched
        self._take(protocol.failed(self._shown(), touched=touched))

    def _expire(self, view: View) -> None:
        """Report a wait that has passed its deadline, once; fail the command where a rank still may."""
        error = self._patience.expired(self.state, view, self._execution)
        if error is None:
            return
        self._recorder.wait_expired(self.state.epoch, self.state.sequence, error)
        if protocol.may_fail(self.state):
            self._fail(self.state.phase.value, error)
