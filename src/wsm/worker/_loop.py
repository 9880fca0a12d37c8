"""The slow path of a rank: look at the words, do one thing, tell the protocol what came of that.

Between :mod:`wsm.states` (what next?), :mod:`._group_words` (words in and out) and :mod:`._run` (the work of
one command). :class:`RankLoop` owns everything that a rank remembers between two looks, and is alone in
changing it; what is to be done the tables say. The embedding loop sees only :class:`wsm.worker.Worker`, which
calls :meth:`RankLoop.turn` whenever there is more to do than serving.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from wsm.actions.surfaces import progress_of
from wsm.clock import Clock
from wsm.config import Deadlines
from wsm.errors import InternalError
from wsm.report import STEP, FailureReport, RankReport
from wsm.shortage import shortage_of
from wsm.signals.segment import Segment
from wsm.signals.waiting import WordsRead
from wsm.states import phases
from wsm.states import rank as protocol
from wsm.states.holding import event_to
from wsm.states.machine import LifeCycle
from wsm.states.phases import Event, Happened, Move, Phase, RankState, Todo
from wsm.states.view import View, failed_inside, never_ready
from wsm.states.vocabulary import Admission, KVPolicy
from wsm.states.words import Operation, StatusCode, StepKind, StepWord, step_in_word
from wsm.status.facts import named
from wsm.status.rank_progress import not_parked, not_ready
from wsm.worker._command import CommandReader, Work
from wsm.worker._group_words import GroupWords, Reports
from wsm.worker._run import Run
from wsm.worker._watchdog import ActionWatch
from wsm.worker.errors import (
    ActionDeadlineError,
    FlipFailedError,
    NotServingError,
    TeardownFailedError,
    WaitExpiredError,
    action_interrupted,
    command_aborted,
    peer_failed,
    peer_never_ready,
)
from wsm.worker.recording import Recorder

#: How long one turn waits at most when there is nothing to do, in seconds.
IDLE_WAIT_S = 0.001

#: Looks at the words within one turn while nothing but words was written; more only in a broken protocol.
_LOOKS_PER_TURN = 16

#: What is no action of a plan: the rank looks again within the same turn, since peers wait for what it says.
_GOES_ON = frozenset({Todo.FINISH, Todo.COMMIT})

#: How long a rank that leaves its epoch waits for its staging thread to end, in seconds.
_LEAVE_S = 1.0


class RankLoop:
    """One rank, with real words, real work and a real clock.

    Parameters
    ----------
    segment : Segment
        The group's segment, attached.
    rank : int
        The participant.
    work : Work
        What it does in a command.
    deadlines : Deadlines
        As configured.
    clock : Clock
        For deadlines, and for the seconds in records and receipts.
    recorder : Recorder
        Journal and log.

    Attributes
    ----------
    state : RankState
        What the protocol remembers.
    life : LifeCycle
        The state machines.
    words : GroupWords
        The segment, seen by this rank.
    watch : ActionWatch
        Which action this rank is inside of.
    reader : CommandReader
        Makes runs of commands; remembers what is resident between them.
    run : Run or None
        The work of the command at hand, once it has begun.
    """

    def __init__(
        self,
        segment: Segment,
        rank: int,
        *,
        work: Work,
        deadlines: Deadlines,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self.state = RankState(rank=rank, epoch=0)
        self.life = LifeCycle()
        self.words = GroupWords(segment, rank, clock)
        # Written where this rank shows progress, by the loop's own thread: never by a timer.
        self.words.presence.beside = progress_of(work.runner)
        self.watch = ActionWatch(rank, self.words.presence, work.plans, clock)
        self.recorder = recorder
        self.reader = CommandReader(
            self.words, work, life=self.life, clock=clock, recorder=recorder, watch=self.watch
        )
        self.run: Run | None = None
        self._leaving: Run | None = None  # gives back what was held in an epoch that has ended
        self._reports = Reports(segment, rank, self.watch.declaration())
        self._requests = work.runner.requests
        self._deadlines = deadlines
        self._clock = clock
        self._phase_since_ns = clock.monotonic_ns()
        self._told_late = False  # that this phase lasts too long
        self._paused_since_ns: int | None = None  # since when this rank cannot serve
        self._may_enter = False  # whether the last turn said that a step may be entered
        self._stepped = False  # whether a step was entered since the last turn
        self._begins_late = 0  # the sequence whose arguments were missing at a look
        #: What a step raised, until BROKEN is stored; the worker sets it before it does anything about it.
        self.raised: BaseException | None = None
        self._unsaid: Callable[[], None] | None = None  # a failure that could not be said when it came
        self._doing: Todo | None = None
        self._work: dict[Todo, Callable[[View], None]] = {
            Todo.REJOIN: self._rejoin,
            Todo.ACCEPT: self._accept,
            Todo.RUN: self._act,
            Todo.LEAVE_VOTE: self._leave_vote,
            Todo.FINISH: self._finish,
            Todo.COMMIT: self._commit,
            Todo.UNDO: self._undo,
            Todo.KEEP: lambda _view: self._settle(Run.keep),
            Todo.DROP: lambda _view: self._settle(Run.drop),
        }
        self._beside = {Todo.BEGIN: self._begin, Todo.DRAIN: self._drain, Todo.STAGE: self._stage}

    @property
    def version(self) -> str | None:
        """The committed version that is resident; None while an epoch is left, which releases it."""
        return None if self._leaving is not None else self.reader.resident.version

    @property
    def is_leaving(self) -> bool:
        """Whether what was resident in an ended epoch is being released."""
        return self._leaving is not None

    def turn(self) -> Todo:
        """Look once, do one thing; return SERVE or JOIN if the loop may or must step, else WAIT.

        Waits at most 1 ms, and only if there is nothing to do until a word changes. A process that is out of
        descriptors, memory or threads does not end over it: what it was doing for a command has failed, and
        what has no other outcome (a commit, the way out of a command or an epoch) is tried again by the next
        turn.
        """
        self._doing = None
        try:
            self.words.beat()
            idle, self._stepped = not self._stepped, False
            if self.raised is not None:
                self.broke_step(self.raised)
            if self._unsaid is not None:
                self._unsaid()
                todo = Todo.WAIT
            else:
                if self._leaving is None and self.watch.stalled is not None:
                    self._expire_command()
                todo = self._next(idle=idle)
        except (MemoryError, OSError, RuntimeError) as error:
            if shortage_of(error) is None:
                raise
            self._reports.was_cut_short()
            if self._doing in phases.FAILS_WHEN_CUT_SHORT:
                self._broke_off(error)
            self.recorder.cut_short(error)
            self.recorder.write()
            time.sleep(IDLE_WAIT_S)  # there is no word to wait for
            todo = Todo.WAIT
        finally:
            self.recorder.write()
        self._may_enter = todo is not Todo.WAIT
        return todo

    def join(self) -> None:
        """Enter the epoch that the command word names; nothing is resident in it."""
        view, rank = self.words.view(), self.words.rank
        steps = rank < len(view.steps)
        step = view.steps[rank] if steps else StepWord.unpack(0)
        held = view.committed.held
        move = protocol.join(rank, view.command, step, view.statuses[rank], steps=steps, held=held)
        self._reports.attached(move.state.epoch)
        self._take(move, view)
        event = event_to(self.life.admission, held=held)
        if event is not None:
            cause = "its epoch begins as the group was decided to be"
            at_ns = self._clock.monotonic_ns()
            self.recorder.transition(
                self.life.fire(event, at_ns=at_ns, epoch=move.state.epoch, sequence=0, cause=cause)
            )
        if held:
            self.watch.wake()  # as behind a commit
        self.recorder.write()

    def close(self) -> None:
        """Stop what runs beside the loop; the rank leaves its group. Blocks a second at most."""
        if self.run is not None:
            self.run.stop_staging(wait_s=_LEAVE_S)
        self.recorder.close()

    # -- steps that are opened the slow way --------------------------------------------------------

    def enter_step(self, *, said_so: bool = False) -> tuple[int, str]:
        """Store RUNNING for the next step; return the word and the version that makes the step.

        Parameters
        ----------
        said_so : bool
            Whether the step may be entered although the last turn did not say so: nothing has changed since
            steps could be opened without this object.

        Raises
        ------
        NotServingError
            If this rank may not step now.
        """
        state, life, version = self.state, self.life, self.version
        if state.broken:
            raise NotServingError(rank=state.rank, why=f"step {state.step} raised")
        if not life.serving or version is None or state.accepted or not state.holds:
            held = ", held" if life.admission is Admission.HELD else ""
            why = f"weights {life.weights.name}, KV cache {life.kv.name}, {state.phase.value}{held}"
            raise NotServingError(rank=state.rank, why=why)
        if not (self._may_enter or said_so):
            # A rank that stands for a command and steps all the same would step beside ranks that accept it.
            raise NotServingError(
                rank=state.rank, why=f"the last poll() did not say so ({state.phase.value})"
            )
        self._may_enter = False
        self._stepped = True
        word = StepWord(state.epoch, state.done, StepKind.RUNNING, step_in_word(state.step + 1)).pack()
        self._tell(Event.ENTERED)  # last: a step whose word is stored must be entered
        return word, version

    def stepped_to(self, step: int) -> None:
        """Take in that steps up to number `step` were opened without this object."""
        self._stepped = True
        self._tell(Event.ENTERED, step=step)

    def broke_step(self, error: BaseException) -> None:
        """Store BROKEN: the step raised, so it is unknown which of its collectives were run."""
        self.raised = error
        self.recorder.step_raised(self.state.epoch, self.state.step, error)
        self._tell(Event.BROKE)
        self.raised = None
        self.recorder.step_broken(self.state.epoch, self.state.step, error)
        if self.state.phase is not Phase.IDLE and protocol.may_fail(self.state):
            self._fail(STEP, error)
        self.recorder.write()

    # -- a look, and what takes effect -------------------------------------------------------------

    def _next(self, *, idle: bool) -> Todo:
        """Look until something was done; `idle`: the loop has not stepped since the last turn.

        What goes on beside steps is done before a step is joined, too.
        """
        for _ in range(_LOOKS_PER_TURN):
            self._doing = None
            read = self.words.read()
            view = read.view
            move = protocol.advance(self.state, view)
            self._take(move, view)
            self._doing = move.todo
            todo, joins = move.todo, move.todo is Todo.JOIN
            if joins:
                todo = protocol.before_joining(self.state, view, idle=idle)
            if todo in self._beside:
                todo = self._beside[todo](view)
                if joins and todo is not Todo.LOOK:  # a peer waits in that step; LOOK: it has come further
                    todo = Todo.JOIN
            if todo is Todo.LOOK:
                continue
            if todo in (Todo.SERVE, Todo.JOIN):
                if idle and todo is Todo.SERVE and self.state.phase is not Phase.IDLE:
                    self._wait(read)  # else an idle loop would turn as fast as it can
                return todo
            if todo is Todo.WAIT:
                self._expire(view)
                self._wait(read)
                return Todo.WAIT
            self._work[todo](view)
            if todo not in _GOES_ON:
                return Todo.WAIT
        return Todo.WAIT

    def _wait(self, read: WordsRead) -> None:
        self.recorder.write()
        self.words.wait(read, IDLE_WAIT_S)

    def _take(self, move: Move, source: View | Happened) -> None:
        """Write a move's words, and remember its state; `source` is the input that it answers.

        In this order: where a shortage cuts it short, the same move follows from what is remembered still,
        and is made again.
        """
        if move.state.phase is not self.state.phase:
            self._phase_since_ns, self._told_late = self._clock.monotonic_ns(), False
        self.words.write(move)
        before, self.state = self.state, move.state
        if move.step is not None and move.step.kind is StepKind.PARKED and self.life.serving:
            self._paused_since_ns = self._clock.monotonic_ns()
        self.recorder.took(before, source, move)

    def _tell(
        self,
        event: Event,
        *,
        collective: tuple[bool, ...] = (),
        touched: bool = False,
        serves: bool = True,
        held: bool | None = None,
        step: int = 0,
        report: RankReport | None = None,
        loads: bool = False,
    ) -> None:
        """Tell the protocol what happened, with the machines' present codes, and take what follows.

        A report is written before the word that announces it.
        """
        weights, kv = int(self.life.weights), int(self.life.kv)
        happened = Happened(
            event,
            weights,
            kv,
            collective=collective,
            touched=touched,
            serves=serves,
            step=step,
            held=held,
        )
        move = protocol.take_in(self.state, happened)
        if report is not None and move.status is not None:
            self._reports.reached(self.state, move.status.code, report, loads=loads)
        self._take(move, happened)

    @property
    def _at_work(self) -> Run:
        """The work of the command at hand.

        Raises
        ------
        InternalError
            If there is none: the protocol asked for something that cannot be.
        """
        if self.run is None:
            raise InternalError(f"rank {self.state.rank} has no command at hand in {self.state.phase.value}")
        return self.run

    # -- the good path of a command ----------------------------------------------------------------

    def _begin(self, _view: View) -> Todo:
        """Read what is asked, and check that it is legal here."""
        state = self.state
        data = self.reader.arguments(state)
        if data is None:
            if self._begins_late != state.sequence:
                self._begins_late = state.sequence
                self.watch.wake()  # no plan was taken up, and the command may be abandoned already
            return Todo.WAIT
        self.recorder.command_seen(state.epoch, state.sequence, state.operation.name)
        try:
            self.run = self.reader.commanded(state, data)
            collective = self.run.begin()
        except Exception as error:  # noqa: BLE001 - whatever it is: the command is refused, with its cause
            self._refuse(error)
        else:
            self._tell(Event.BEGAN, collective=collective)
        return Todo.LOOK

    def _drain(self, view: View) -> Todo:
        """Serve on until the in-flight policy is satisfied, then park."""
        try:
            settled = self._at_work.drained()
        except Exception as error:
            if not protocol.may_fail(self.state):
                if shortage_of(error) is not None:
                    raise  # the group has decided, and nothing was flipped yet: it is tried again
                self._broke_in_flip(error)
            self._fail(self._at_work.doing, error)
            return Todo.LOOK
        if settled:
            self._tell(Event.DRAINED)
            return Todo.LOOK
        self._expire(view)
        return protocol.meanwhile(self.state, view)

    def _stage(self, view: View) -> Todo:
        """Serve on until everything stands beside what is served, then say PREPARED."""
        try:
            staged = self._at_work.stage()
        except Exception as error:  # noqa: BLE001 - whatever staging raises fails the command
            self._fail_action(error)
            return Todo.LOOK
        if staged:
            self._tell(Event.STAGED, report=self._at_work.report())
            return Todo.LOOK
        return protocol.meanwhile(self.state, view)

    def _accept(self, _view: View) -> None:
        try:
            self._at_work.accept()
        except Exception as error:  # noqa: BLE001 - an illegal transition is this command's failure
            self._fail(self._at_work.doing, error)
            return
        self._tell(Event.ACCEPTED)

    def _act(self, _view: View) -> None:
        run = self._at_work
        try:
            run.act(self.state.action)
        except Exception as error:  # noqa: BLE001 - whatever an action raises fails the command
            self._fail_action(error)
            return
        self._tell(Event.ACTION_DONE, touched=run.touched)

    def _finish(self, _view: View) -> None:
        """Report, then say that everything which can fail is behind this rank; a clear ends here."""
        run = self._at_work
        run.finish()
        report = run.report()
        if self.state.operation is Operation.CLEAR:
            blocks_kept = report.facts.get("kv_policy") == KVPolicy.KEEP.value
            self.reader.resident.settled(self.life, blocks_kept=blocks_kept)
        self._tell(Event.FINISHED, report=report)
        if self.state.phase is Phase.IDLE:
            self.run = None

    def _commit(self, _view: View) -> None:
        """Serve the new version, or hold what has come where something is missing still.

        What an ordinary commit raises goes to the embedding loop: a bug there. For want of memory,
        descriptors or threads it is tried again by the next turn, a flip too whose own work was not begun.

        Raises
        ------
        FlipFailedError
            If the flip of a hot update raised.
        """
        run = self._at_work
        try:
            run.commit()
        except Exception as error:
            if run.is_mixed and not (run.may_go_on and shortage_of(error)):
                self._broke_in_flip(error)
            raise
        since_ns, serves = self._paused_since_ns, self.life.serving  # None: the rank never could serve
        pause_s = 0.0 if since_ns is None else (self._clock.monotonic_ns() - since_ns) / 1e9
        report = run.report(pause_s=pause_s)
        self.reader.committed(report, set_aside=run.sets_aside)
        of_admission = self.state.operation.is_of_admission
        self._tell(
            Event.COMMITTED, serves=self.life.whole, held=run.held, report=report, loads=self.reader.loads
        )
        self.run = None
        if serves:
            self._paused_since_ns = None
        if serves and report.version is not None:
            self.recorder.served(self.state.epoch, self.state.done, report.version)
        if self.state.held:
            self.watch.wake()  # a lease may have to be ended
        if not of_admission:  # what is pinned is pinned: a held group may be owed more than it has
            self.reader.keep_pinned(report.version, *report.bases)

    # -- the ways out ------------------------------------------------------------------------------

    def _undo(self, _view: View) -> None:
        """Stop, and take back what can be taken back."""
        touched = self.run.undo() if self.run is not None else False
        self._tell(Event.STOPPED, touched=touched)

    def _settle(self, way_out: Callable[[Run], Event | None]) -> None:
        """Bring an aborted command to the end that the group has found; a teardown takes several calls."""
        run = self.run = self.run or self.reader.ending(self.state)
        event = way_out(run)
        if event is None:
            return
        if self.life.serving:
            self._paused_since_ns = None
        kept = event is not Event.KEPT and run.report().facts.get("kv_policy") == KVPolicy.KEEP.value
        self.reader.resident.settled(self.life, blocks_kept=kept)
        self._tell(event)
        self.run = None
        self.reader.keep_committed()

    def _rejoin(self, _view: View) -> None:
        """A new epoch has begun: what this rank held belonged to the old one, and is given back first.

        One action per call. No word is written before all of it is given back.

        Raises
        ------
        TeardownFailedError
            If it could not be given back, from this call on: the rank joins no epoch any more.
        MemoryError, OSError, RuntimeError
            If that was for want of memory, descriptors or threads; the next call tries again.
        """
        if self._leaving is None:
            if self.life.serving:
                self._paused_since_ns = self._clock.monotonic_ns()
            if self.run is not None:
                self.run.stop_staging(wait_s=_LEAVE_S)
            self._leaving = self.reader.leaving(self.state)
        came = self._leaving.leave()
        if came is Event.FAULTED:
            raise TeardownFailedError(
                rank=self.state.rank, epoch=self.state.epoch
            ) from self._leaving.teardown_failure
        if came is None:
            return
        self._leaving.lose()
        self.reader.lost()
        self.run = self._leaving = None
        self.join()

    # -- failures: the report first, then the word; the group's decision leads out -----------------

    def _broke_off(self, error: Exception) -> None:
        """Take in that a shortage broke off what was done for the command, before its end was remembered.

        How far that came is unknown, so it counts as failed. A failure that is unsaid stays the cause.
        """
        doing = self.state.phase.value if self.run is None else self.run.doing
        self._unsaid = self._unsaid or (lambda: self._fail(doing, error))

    def _refuse(self, error: BaseException) -> None:
        """Report why the command cannot even begin here, then say REFUSED."""
        self._unsaid = lambda: self._refuse(error)
        self._report("begin", error, StatusCode.REFUSED)
        self._tell(Event.REFUSED)
        self._unsaid = None

    def _fail(self, doing: str, error: BaseException) -> None:
        """Report why, then say FAILED."""
        self._unsaid = lambda: self._fail(doing, error)
        failure = self._report(doing, error, StatusCode.FAILED)
        touched = False
        if self.run is not None:
            self.run.fail(f"{doing}: {failure.message}")
            touched = self.run.touched
        self._tell(Event.FAILED, touched=touched)
        self._unsaid = None

    def _broke_in_flip(self, error: BaseException) -> NoReturn:
        """Store BROKEN and why: the flip of a hot update raised, after the group had decided for it.

        No rank steps beside a broken one, so no token is made by mixed weights; only a new epoch leads out.
        The status word stays PREPARED, which nothing but the decision may follow.

        Raises
        ------
        FlipFailedError
            Always, for the embedding loop.
        """
        run = self._at_work
        doing = run.doing
        failure = self._report(doing, error, StatusCode.FAILED)
        run.fail(f"{doing}: {failure.message}")
        self._tell(Event.BROKE)
        raise FlipFailedError(rank=self.state.rank, action=doing, cause=failure.message) from error

    def _fail_action(self, error: Exception) -> None:
        """Take in that the action at hand raised: by itself, or because the group or the watchdog ended it.

        Without its communicators this rank cannot run another step with the others, so it says BROKEN, too.
        """
        rank, action = self.state.rank, self._at_work.doing
        why = self.watch.interruption
        ended = self.watch.stalled_in(self.state.sequence)
        if why is not None:
            ended = action_interrupted(rank=rank, action=action, why=why, deadline_s=self.watch.deadline_s)
            self._tell(Event.BROKE)
        elif isinstance(error, ActionDeadlineError):
            ended = None
        elif ended is None and (peers := self._failed_in_it(error)):
            ended = peer_failed(rank=rank, action=action, peers=peers, cause=str(error))
        elif ended is None and self.words.called_off(self.state.epoch):
            ended = command_aborted(rank=rank, action=action)
        if ended is not None:
            if ended is not error:
                ended.__cause__ = error
            error = ended
        self._fail(action, error)

    def _failed_in_it(self, error: Exception) -> list[int]:
        """Return the peers whose failure in the collective action at hand may be why it raised here, too.

        What this process lacks itself is no consequence of that.
        """
        state, plan = self.state, self._at_work.plan
        inside = state.phase is not Phase.STAGING and plan.actions[state.action].collective
        if not inside or shortage_of(error) is not None:
            return []
        return [peer for peer in failed_inside(self.words.view(), state.action) if peer != state.rank]

    def _leave_vote(self, view: View) -> None:
        """Take in that a peer will never be ready for the collective action at hand."""
        state = self.state
        action = self._at_work.plan.actions[state.action].name
        peers = never_ready(view, state.action)
        self._fail(action, peer_never_ready(rank=state.rank, action=action, peers=peers))

    def _expire(self, view: View) -> None:
        """Report a wait that has passed its deadline, once per phase; fail the command where that may be."""
        state = self.state
        if state.phase is Phase.VOTING:
            limit_s = None if self.run is None else self.run.plan.actions[state.action].deadline_s
        else:
            name = phases.DEADLINES.get(state.phase)
            limit_s = None if name is None else float(getattr(self._deadlines, name))
        waited_s = (self._clock.monotonic_ns() - self._phase_since_ns) / 1e9
        if self._told_late or limit_s is None or waited_s < limit_s:
            return
        self._told_late = True
        error = WaitExpiredError(
            rank=state.rank,
            wait=state.phase.value,
            seconds=waited_s,
            waiting_for=_waiting_for(state, view, self._requests.in_flight),
        )
        self.recorder.wait_expired(state.epoch, state.sequence, error)
        if protocol.may_fail(state):
            self._fail(state.phase.value, error)

    def _expire_command(self) -> None:
        """Fail a command whose controller is stopped and whose deadline has passed, if that may be."""
        state = self.state
        error = self.watch.stalled_in(state.sequence)
        if error is not None and protocol.may_fail(state):
            self.recorder.wait_expired(state.epoch, state.sequence, error)
            self._fail(state.phase.value, error)

    def _report(self, doing: str, error: BaseException, code: StatusCode) -> FailureReport:
        state = self.state
        failure = FailureReport.of(state.rank, doing, error)
        self._reports.failed(state, code, failure)
        self.recorder.command_failed(state.epoch, state.sequence, failure)
        return failure


def _waiting_for(state: RankState, view: View, in_flight: Callable[[], int]) -> str:
    """Name what the rank waits for in its phase."""
    if state.phase is Phase.PARKING:
        late = not_parked(view.steps, sequence=state.sequence, step=state.step)
        return f"{named(late)} to park"
    if state.phase is Phase.VOTING:
        return f"{named(not_ready(view.statuses, action=state.action))} to be ready"
    if state.phase is Phase.STOPPED:
        return "the other ranks to stop"
    if state.phase is Phase.DRAINING:
        return f"{in_flight()} requests to finish"
    if state.phase is Phase.BEGINNING:
        return "the command's arguments, and rank 0's word which version they mean if they name none"
    return "the controller's decision"
