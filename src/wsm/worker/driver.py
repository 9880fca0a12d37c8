"""The slow path of a rank: look at the words, do one thing, tell the protocol what came of it.

Between :mod:`wsm.protocol` (what next?), :mod:`.group_words` (words in and out) and :mod:`.execution` (the
work of one command). It decides nothing itself and knows no action by name. The embedding loop sees
only :class:`wsm.worker.Worker`, which calls :meth:`RankDriver.turn` whenever there is more to do than
serving.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wsm.clock import Clock
from wsm.errors import InternalError
from wsm.protocol import rank as protocol
from wsm.protocol.phases import may_step
from wsm.protocol.rank_state import Move, Phase, RankState, Todo
from wsm.protocol.view import View
from wsm.protocol.votes import never_ready
from wsm.report import FailureReport
from wsm.signals.word import Operation, StatusCode, StepKind, StepWord
from wsm.states.machine import LifeCycle
from wsm.worker.errors import (
    CommandAbortedError,
    NotServingError,
    PeerNeverReadyError,
    TeardownFailedError,
)
from wsm.worker.execution import Execution
from wsm.worker.execution_factory import ExecutionFactory
from wsm.worker.group_words import GroupWords
from wsm.worker.patience import Patience
from wsm.worker.pause import Pause
from wsm.worker.recording import Recorder
from wsm.worker.reporting import Reporter

#: How long one turn waits at most when there is nothing to do, in seconds.
IDLE_WAIT_S = 0.001

#: Looks at the words within one turn while nothing but words was written; more only in a broken protocol.
_LOOKS_PER_TURN = 16


class RankDriver:
    """The protocol's rank, with real words, real work and a real clock.

    Parameters
    ----------
    words : GroupWords
        The segment, seen by this rank.
    life : LifeCycle
        This rank's state machines.
    executions : ExecutionFactory
        Makes the work of a command.
    reporter : Reporter
        This rank's payload slots.
    patience : Patience
        For this rank's waits.
    clock : Clock
        For times in records and receipts.
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
        life: LifeCycle,
        executions: ExecutionFactory,
        reporter: Reporter,
        patience: Patience,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self.life = life
        self.state = RankState(rank=words.rank, epoch=0)
        self.version: int | None = None
        self._words = words
        self._executions = executions
        self._reporter = reporter
        self._patience = patience
        self._clock = clock
        self._recorder = recorder
        self._pause = Pause(clock)
        self._execution: Execution | None = None
        self._may_enter = False
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
        todo = self._next()
        self._may_enter = todo is not Todo.WAIT
        return todo

    def _next(self) -> Todo:
        for _ in range(_LOOKS_PER_TURN):
            watches = self._words.watches()
            view = self._words.view()
            move = protocol.advance(self.state, view)
            self._take(move)
            todo = self._drain(view) if move.todo is Todo.DRAIN else move.todo
            if todo in (Todo.SERVE, Todo.JOIN):
                return todo
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
        self._reporter.attached(move.state.epoch)
        self._take(move)

    def enter_step(self) -> tuple[int, int]:
        """Store RUNNING for the next step; return the word and the version that makes the step.

        Raises
        ------
        NotServingError
            If this rank may not step now.
        """
        state = self.state
        if state.broken:
            raise NotServingError(rank=state.rank, why=f"step {state.step} raised")
        if not self.life.serving or self.version is None or state.accepted or not state.holds:
            why = f"weights {self.life.weights.name}, KV cache {self.life.kv.name}, {state.phase.value}"
            raise NotServingError(rank=state.rank, why=why)
        if not self._may_enter:
            # A rank that stands for a command and steps all the same would step beside ranks that accept it.
            raise NotServingError(
                rank=state.rank, why=f"the last poll() did not say so ({state.phase.value})"
            )
        move = protocol.entered(state)
        self._may_enter = False
        self._take(move)
        return StepWord(state.epoch, state.done, StepKind.RUNNING, move.state.step).pack(), self.version

    def stepped_to(self, step: int) -> None:
        """Take in that steps up to number `step` were opened without this object."""
        self.state = replace(self.state, step=step, parked=False)

    def break_step(self, error: BaseException) -> None:
        """Store BROKEN: the step raised, so nobody knows which of its collectives were run."""
        self._take(protocol.broke(self.state))
        self._recorder.step_broken(self.state.epoch, self.state.step, error)
        if self.state.phase is not Phase.IDLE and protocol.may_fail(self.state):
            self._fail("step", error)

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
        """A new epoch has begun: whatever this rank held belonged to the old one, and is given back first.

        Raises
        ------
        TeardownFailedError
            If it could not be given back: nobody may take this rank for an empty one.
        """
        state = self.state
        execution = self._executions.ending(state)
        while (released := execution.drop()) is None:
            self._words.beat()
        if not released:
            raise TeardownFailedError(rank=state.rank, epoch=state.epoch)
        for record in self.life.lose(
            at_ns=self._clock.monotonic_ns(), epoch=state.epoch, sequence=state.sequence
        ):
            self._recorder.transition(record)
        self.version = self._execution = None
        self.join()

    def _begin(self, view: View) -> None:
        state = self.state
        data = self._executions.arguments_of(state)
        if data is None:
            self._expire(view)
            self._words.wait([], IDLE_WAIT_S)
            return
        self._recorder.command_seen(state.epoch, state.sequence, state.operation.name)
        try:
            self._execution = self._executions.commanded(state, data)
            collective = self._execution.begin()
        except Exception as error:  # noqa: BLE001 - whatever it is: the command is refused, with its cause
            self._fail("begin", error, refuse=True)
            return
        self._take(protocol.began(self._shown(), collective))

    @property
    def _at_work(self) -> Execution:
        if self._execution is None:
            raise InternalError(f"rank {self.state.rank} has no command at hand in {self.state.phase.value}")
        return self._execution

    def _drain(self, view: View) -> Todo:
        """Serve on until the in-flight policy is satisfied, then park."""
        try:
            settled = self._at_work.drained()
        except Exception as error:  # noqa: BLE001 - whatever the scheduler raises fails the command
            self._fail("drain", error)
            return Todo.LOOK
        if settled:
            self._take(protocol.drained(self._shown()))
            return Todo.LOOK
        self._expire(view)
        serves = self.state.phase is Phase.DRAINING and may_step(self.state, view)
        return Todo.SERVE if serves else Todo.WAIT

    def _accept(self, _view: View) -> None:
        if self.life.serving:
            self._pause.begin()
        try:
            self._at_work.accept()
        except Exception as error:  # noqa: BLE001 - an illegal transition is this command's failure
            self._fail(self._at_work.doing, error)
            return
        self._take(protocol.accepted(self._shown()))

    def _run(self, _view: View) -> None:
        execution, index = self._at_work, self.state.action
        try:
            execution.run(index)
        except Exception as error:  # noqa: BLE001 - whatever an action raises fails the command
            self._fail(execution.doing, self._cause_of(error, execution.doing))
            return
        self._take(protocol.action_finished(self._shown(), touched=execution.touched))

    def _cause_of(self, error: Exception, action: str) -> Exception:
        """Tell an action that failed from one that was stopped because the group had decided so already."""
        if not self._words.called_off(self.state.epoch):
            return error
        stopped = CommandAbortedError(rank=self.state.rank, action=action)
        stopped.__cause__ = error
        return stopped

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
        self._reporter.reached(self.state, done, report)
        self._take(protocol.finished(self._shown()))
        if done is StatusCode.DONE_CLEARED:
            self._execution = None

    def _commit(self, _view: View) -> None:
        execution = self._at_work
        execution.commit()
        report = execution.report()
        self.version = report.version
        report = replace(report, pause_s=self._pause.end())
        self._reporter.reached(self.state, StatusCode.DONE_COMMITTED, report)
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
        execution = self._execution = self._execution or self._executions.ending(self.state)
        done = execution.drop() if dropping else execution.keep()
        if done is None:
            return
        if self.life.serving:
            self._pause.end()
        else:
            self.version = None
        ended = StatusCode.DONE_CLEARED if dropping else StatusCode.DONE_KEPT
        code = ended if done else StatusCode.DONE_FAULTED
        self._execution = None
        self._take(protocol.settled(self._shown(), code))

    def _fail(self, doing: str, error: BaseException, *, refuse: bool = False) -> None:
        """Report why, then say FAILED or REFUSED; the group's decision leads out."""
        state = self.state
        code = StatusCode.REFUSED if refuse else StatusCode.FAILED
        failure = FailureReport.of(state.rank, doing, error)
        self._reporter.failed(state, code, failure)
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
