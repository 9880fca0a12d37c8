"""The slow path of a rank: look at the words, do one thing, tell the protocol what came of it.

Between :mod:`wsm.states` (what next?), :mod:`.group_words` (words in and out) and :mod:`.execution` (the
work of one command). It decides nothing itself and knows no action by name. Here are the ways in which a
command goes on; how it fails is in :mod:`.failing`, how it ends in :mod:`.ending`, how steps are entered in
:mod:`.stepping`. The embedding loop sees only :class:`wsm.worker.Worker`, which calls
:meth:`RankDriver.turn` whenever there is more to do than serving.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wsm.clock import Clock
from wsm.shortage import shortage_of
from wsm.states import rank as protocol
from wsm.states.machine import LifeCycle
from wsm.states.phases import Event, may_step
from wsm.states.rank_state import Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.vocabulary import KVPolicy
from wsm.states.words import Operation, StatusCode, StepWord
from wsm.worker.ending import Ending
from wsm.worker.execution_factory import ExecutionFactory
from wsm.worker.failing import Failing
from wsm.worker.group_words import GroupWords
from wsm.worker.patience import Patience
from wsm.worker.recording import Recorder
from wsm.worker.reporting import Reporter
from wsm.worker.standing import Standing
from wsm.worker.stepping import Stepping
from wsm.worker.watch import ActionWatch

#: How long one turn waits at most when there is nothing to do, in seconds.
IDLE_WAIT_S = 0.001

#: What counts as failed where a shortage has broken it off; all else is done again. None of them ends in a
#: word that only a decision may follow.
_FAIL_WHEN_CUT_SHORT = frozenset({Todo.BEGIN, Todo.ACCEPT, Todo.RUN})

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
    watch : ActionWatch
        Which action this rank is inside of.

    Attributes
    ----------
    life : LifeCycle
        The state machines.
    steps : Stepping
        How this rank enters steps.
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
        watch: ActionWatch,
    ) -> None:
        self.life = life
        self._words = words
        self._executions = executions
        self._reporter = reporter
        self._recorder = recorder
        self._standing = Standing(words=words, life=life, patience=patience, clock=clock, recorder=recorder)
        self._watch = watch
        self._begins_late = 0
        self._failing = Failing(self._standing, reporter, patience, watch)
        self._ending = Ending(
            self._standing, executions, reporter, self._failing, clock=clock, join=self.join
        )
        self.steps = Stepping(self._standing, self._failing.fail)
        self._work: dict[Todo, Callable[[View], None]] = {
            Todo.REJOIN: lambda _view: self._ending.rejoin(),
            Todo.BEGIN: self._begin,
            Todo.ACCEPT: self._accept,
            Todo.RUN: self._run,
            Todo.FORSAKEN: self._failing.forsaken,
            Todo.FINISH: self._finish,
            Todo.COMMIT: lambda _view: self._ending.commit(),
            Todo.UNDO: lambda _view: self._ending.undo(),
            Todo.KEEP: lambda _view: self._ending.settle(),
            Todo.DROP: lambda _view: self._ending.settle(),
        }
        self._beside = {Todo.DRAIN: self._drain, Todo.STAGE: self._stage}
        self._doing: Todo | None = None

    @property
    def state(self) -> RankState:
        """What the protocol remembers."""
        return self._standing.state

    @property
    def version(self) -> int | None:
        """The committed version that is held."""
        return self._standing.version

    def turn(self) -> Todo:
        """Look once, do one thing; return SERVE or JOIN if the loop may or must step, else WAIT.

        Waits at most 1 ms, and only if there is nothing to do until a word changes. A process that is out of
        descriptors, memory or threads does not end over it: what it was doing for a command has failed, and
        what has no other outcome (a commit, the way out of a command) is tried again by the next turn.
        """
        standing, self._doing = self._standing, None
        try:
            self._words.beat()
            idle, standing.stepped = not standing.stepped, False
            todo = Todo.WAIT if self._failing.say_what_is_unsaid() else self._next(idle=idle)
        except (MemoryError, OSError, RuntimeError) as error:
            if shortage_of(error) is None:
                raise
            self._reporter.was_cut_short()
            if self._doing in _FAIL_WHEN_CUT_SHORT:
                self._failing.broke_off(error)
            self._recorder.cut_short(error)
            time.sleep(IDLE_WAIT_S)  # there is no word to wait for
            todo = Todo.WAIT
        standing.may_enter = todo is not Todo.WAIT
        return todo

    def _next(self, *, idle: bool) -> Todo:
        """Look until something was done; `idle`: the loop has not stepped since the last turn."""
        standing = self._standing
        self._failing.expire_command()
        for _ in range(_LOOKS_PER_TURN):
            self._doing = None
            watches = self._words.watches()
            view = self._words.view()
            move = protocol.advance(standing.state, view)
            standing.take(move, view)
            self._doing = move.todo
            todo = self._beside[move.todo](view) if move.todo in self._beside else move.todo
            if todo is Todo.JOIN:
                todo = self._behind(view, idle=idle)
            if todo in (Todo.SERVE, Todo.JOIN):
                if idle and todo is Todo.SERVE and standing.state.phase is not Phase.IDLE:
                    self._words.wait(watches, IDLE_WAIT_S)  # else an idle loop would turn as fast as it can
                return todo
            if todo is Todo.WAIT:
                self._failing.expire(view)
                self._words.wait(watches, IDLE_WAIT_S)
                return Todo.WAIT
            if todo is not Todo.LOOK:
                self._work[todo](view)
                if todo is not Todo.COMMIT:
                    return Todo.WAIT
        return Todo.WAIT

    def join(self) -> None:
        """Enter the epoch that the command word names; this rank holds nothing in it."""
        view, rank = self._words.view(), self._words.rank
        steps = rank < len(view.steps)
        step = view.steps[rank] if steps else StepWord.unpack(0)
        move = protocol.join(rank, view.command, step, view.statuses[rank], steps=steps)
        self._reporter.attached(move.state.epoch, view.committed.sequence)
        self._standing.take(move, view)

    def leave(self) -> None:
        """Stop what still runs beside the loop; the rank leaves its group. Blocks a second at most."""
        self._ending.leave()

    def _begin(self, view: View) -> None:
        standing = self._standing
        state = standing.state
        data = self._executions.may_begin(state)
        if data is None:
            if self._begins_late != state.sequence:
                self._begins_late = state.sequence
                self._watch.wake()  # nobody has taken a plan up, and the command may be abandoned already
            self._failing.expire(view)
            self._words.wait([], IDLE_WAIT_S)
            return
        self._recorder.command_seen(state.epoch, state.sequence, state.operation.name)
        try:
            standing.execution = self._executions.commanded(state, data)
            collective = standing.execution.begin()
        except Exception as error:  # noqa: BLE001 - whatever it is: the command is refused, with its cause
            self._failing.refuse(error)
            return
        standing.take_in(Event.BEGAN, collective=collective)

    def _drain(self, view: View) -> Todo:
        """Serve on until the in-flight policy is satisfied, then park."""
        standing = self._standing
        try:
            settled = standing.at_work.drained()
        except Exception as error:
            if not protocol.may_fail(standing.state):
                if shortage_of(error) is not None:
                    raise  # the group has decided, and nothing was flipped yet: it is tried again
                self._failing.broke_in_flip(error)
            self._failing.fail(standing.at_work.doing, error)
            return Todo.LOOK
        if settled:
            standing.take_in(Event.DRAINED)
            return Todo.LOOK
        self._failing.expire(view)
        serves = standing.state.phase is Phase.DRAINING and may_step(standing.state, view)
        return Todo.SERVE if serves else Todo.WAIT

    def _stage(self, view: View) -> Todo:
        """Serve on until everything stands beside what is served, then say PREPARED."""
        standing = self._standing
        try:
            staged = standing.at_work.stage()
        except Exception as error:  # noqa: BLE001 - whatever staging raises fails the command
            self._failing.failed_action(error)
            return Todo.LOOK
        if staged:
            self._reporter.reached(standing.state, StatusCode.PREPARED, standing.at_work.report())
            standing.take_in(Event.STAGED)
            return Todo.LOOK
        return Todo.SERVE if may_step(standing.state, view) else Todo.WAIT

    def _behind(self, view: View, *, idle: bool) -> Todo:
        """Peers are in a later step, which this rank must join; but first it looks after a hot update.

        Ranks step on while one is begun and staged, so whoever is always a little late would find them ahead
        for ever. To the others it is as if they had entered that step a moment later.
        """
        state = self._standing.state
        if state.phase is Phase.STAGING:
            return Todo.LOOK if self._stage(view) is Todo.LOOK else Todo.JOIN
        begins = state.phase is Phase.BEGINNING and state.operation.is_hot
        return Todo.BEGIN if begins and not idle else Todo.JOIN  # if idle, it has tried since its last step

    def _accept(self, _view: View) -> None:
        standing = self._standing
        try:
            standing.at_work.accept()
        except Exception as error:  # noqa: BLE001 - an illegal transition is this command's failure
            self._failing.fail(standing.at_work.doing, error)
            return
        standing.take_in(Event.ACCEPTED)

    def _run(self, _view: View) -> None:
        standing = self._standing
        execution, index = standing.at_work, standing.state.action
        try:
            execution.run(index)
        except Exception as error:  # noqa: BLE001 - whatever an action raises fails the command
            self._failing.failed_action(error)
            return
        standing.take_in(Event.ACTION_DONE, touched=execution.touched)

    def _finish(self, _view: View) -> None:
        """Report, then say that everything which can fail is behind this rank."""
        standing = self._standing
        done = StatusCode.PREPARED
        if standing.state.operation is Operation.CLEAR:
            done = StatusCode.DONE_CLEARED
        report = standing.at_work.finish()
        if done is StatusCode.DONE_CLEARED:
            holding = self._executions.holding
            holding.settled(self.life, blocks_kept=report.facts.get("kv_policy") == KVPolicy.KEEP.value)
            standing.version = holding.version
        self._reporter.reached(standing.state, done, report)
        standing.take_in(Event.FINISHED)
        if done is StatusCode.DONE_CLEARED:
            standing.execution = None
