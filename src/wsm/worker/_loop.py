"""The slow path of a rank: look at the words, do one thing, tell the protocol how it ended.

Between :mod:`wsm.states` (what next?), :mod:`._group_words` (words in and out) and :mod:`._run` (the work of
one command). :class:`RankLoop` owns everything that a rank remembers between two looks, and is alone in
changing it; what is to be done the tables say. The embedding loop sees only :class:`wsm.worker.Worker`, which
calls :meth:`RankLoop.turn` whenever there is more to do than serving.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from wsm.actions.surfaces import Runner, progress_of
from wsm.command import STEP, FailureReport, RankReport
from wsm.committed_record import keep_commit
from wsm.config import Deadlines
from wsm.errors import GroupError, InternalError, shortage_of
from wsm.signals.segment import Segment
from wsm.signals.waiting import WordsRead
from wsm.states import command_events, phases
from wsm.states import rank as protocol
from wsm.states.command_events import Asked, Machines, WayOut
from wsm.states.machine import LifeCycle
from wsm.states.phases import Event, Happened, Move, Phase, RankState, Todo
from wsm.states.view import View, failed_inside, never_ready
from wsm.states.vocabulary import Admission, KVPolicy
from wsm.states.words import Operation, StatusCode, StepKind, StepWord, step_in_word
from wsm.status.culprits import not_parked, not_ready
from wsm.status.facts import named
from wsm.worker import errors
from wsm.worker._command import CommandReader, Work
from wsm.worker._group_words import GroupWords
from wsm.worker._run import RankMachines, RankTools, Run
from wsm.worker._watchdog import ActionWatch
from wsm.worker.recording import Recorder

#: How long one turn waits at most when there is nothing to do, in seconds.
IDLE_WAIT_S = 0.001

#: Looks at the words within one turn while nothing but words was written; more only in a broken protocol.
_LOOKS_PER_TURN = 16

#: How long a rank that leaves its epoch waits for its staging thread to end, in seconds.
_LEAVE_S = 1.0


class RankLoop:
    """One rank, with real words, real work and a real clock."""

    def __init__(
        self, segment: Segment, rank: int, work: Work, deadlines: Deadlines, recorder: Recorder
    ) -> None:
        clock = recorder.clock
        self.state = RankState(rank=rank, epoch=0)
        self.life = LifeCycle()
        self.words = GroupWords(segment, rank, clock)
        # Written where this rank shows progress, by the loop's own thread: never by a timer.
        self.words.presence.beside = progress_of(work.runner)
        self.watch = ActionWatch(rank, segment.at_hand[rank], self.words.presence, work.plans, clock)
        self.recorder = recorder
        self._tools = RankTools(work.plans, self.life, self.watch, clock, recorder)
        self.reader = CommandReader(self.words, work, self._tools)
        self.run: Run | None = None
        self._leaving: Run | None = None  # gives back what was held in an epoch that has ended
        self._runner = work.runner
        self._deadlines = deadlines
        self._clock = clock
        self._phase_since_ns = clock.monotonic_ns()
        self._told_late = False  # that this phase lasts too long
        self._paused_since_ns: int | None = None  # since when this rank serves no more, now or last
        self._may_enter = False  # whether the last turn said that a step may be entered
        self._stepped = False  # whether a step was entered since the last turn
        self._begins_late = 0  # the sequence whose arguments were missing at a look
        self._work: dict[Todo, Callable[[View], None]] = {
            Todo.REJOIN: self._rejoin,
            Todo.ACCEPT: self._accept,
            Todo.RUN: self._act,
            Todo.LEAVE_VOTE: self._leave_vote,
            Todo.FINISH: self._finish,
            Todo.COMMIT: self._commit,
            Todo.UNDO: self._undo,
            Todo.KEEP: lambda _view: self._settle(command_events.keep, Event.KEPT),
            Todo.DROP: lambda _view: self._settle(command_events.drop, Event.CLEARED),
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

        Waits at most 1 ms, and only if there is nothing to do until a word changes.
        """
        try:
            self.words.beat()
            idle, self._stepped = not self._stepped, False
            if self._leaving is None and self.watch.stalled is not None:
                self._expire_command()
            todo = self._next(idle=idle)
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
        # What a predecessor has left of the load that the group has committed: before this rank's first word
        # of the epoch, so no peer has read what a predecessor that died just here may have left there.
        keep_commit(self.words.segment, rank)
        self.watch.joins(move.state.epoch)
        self._take(move, view)
        cause = "its epoch begins as the group was decided to be"
        RankMachines(self._tools, epoch=move.state.epoch, sequence=0, cause=cause).admit(held=held)
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

        `said_so`: whether the step may be entered although the last turn did not say so: nothing has changed
        since steps could be opened without this object.

        Raises
        ------
        NotServingError
            If this rank may not step now.
        """
        state, life, version = self.state, self.life, self.version
        held = ", held" if life.admission is Admission.HELD else ""
        why = f"weights {life.weights.name}, KV cache {life.kv.name}, {state.phase.value}{held}"
        serves = life.serving and not state.accepted and state.holds
        if state.broken:
            serves, why = False, f"step {state.step} raised"
        elif serves and not (self._may_enter or said_so):
            # A rank that stands for a command and steps all the same would step beside ranks that accept it.
            serves, why = False, f"the last poll() did not say so ({state.phase.value})"
        if version is None or not serves:
            raise errors.NotServingError(rank=state.rank, why=why)
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
        self.recorder.step_raised(self.state.epoch, self.state.step, error)
        self._tell(Event.BROKE)
        self.recorder.step_broken(self.state.epoch, self.state.step, error)
        if self.state.phase is not Phase.IDLE and protocol.may_fail(self.state):
            self._fail(STEP, error)
        self.recorder.write()

    # -- a look, and what takes effect -------------------------------------------------------------

    def _next(self, *, idle: bool) -> Todo:
        """Look until something was done; `idle`: the loop has not stepped since the last turn."""
        for _ in range(_LOOKS_PER_TURN):
            read = self.words.read()
            do = protocol.step(self.state, read.view, idle=idle)
            self._take(do.move, read.view)
            todo = do.todo
            if todo in self._beside:
                todo = Todo.LOOK if self._beside[todo](read.view) else do.meanwhile
            if todo is Todo.LOOK:
                continue
            if todo in (Todo.SERVE, Todo.JOIN):
                if idle and todo is Todo.SERVE and self.state.phase is not Phase.IDLE:
                    self._wait(read)  # else an idle loop would turn as fast as it can
                return todo
            if todo is Todo.WAIT:
                self._expire(read.view)
                self._wait(read)
                return Todo.WAIT
            self._work[todo](read.view)
            if todo not in (Todo.FINISH, Todo.COMMIT):  # behind these peers wait for what this rank says next
                return Todo.WAIT
        return Todo.WAIT

    def _wait(self, read: WordsRead) -> None:
        self.recorder.write()
        self.words.wait(read, IDLE_WAIT_S)

    def _take(self, move: Move, source: View | Happened) -> None:
        """Write a move's words, and remember its state; `source` is the input that it answers."""
        if move.state.phase is not self.state.phase:
            self._phase_since_ns, self._told_late = self._clock.monotonic_ns(), False
        self.words.write(move)
        before, self.state = self.state, move.state
        if move.step is not None and move.step.kind is StepKind.PARKED and self.life.serving:
            self._paused_since_ns = self._clock.monotonic_ns()
        self.recorder.took(before, source, move)

    def _tell(self, event: Event, *, report: RankReport | None = None, **said: Any) -> None:
        """Tell the protocol what happened, with the machines' present codes, and take what follows.

        `said` are fields of :class:`Happened`. A report is written before the word that announces it.
        """
        happened = Happened(event, int(self.life.weights), int(self.life.kv), **said)
        move = protocol.step(self.state, happened).move
        if report is not None and move.status is not None:
            self.words.reached(self.state, move.status.code, report, loads=self.reader.loads)
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

    def _begin(self, _view: View) -> bool:
        """Read what is asked, and check that it is legal here; return whether that is known."""
        state = self.state
        data = self.reader.arguments(state)
        if data is None:
            if self._begins_late != state.sequence:
                self._begins_late = state.sequence
                self.watch.wake()  # no plan was taken up, and the command may be abandoned already
            return False
        self.recorder.command_seen(state.epoch, state.sequence, state.operation.name)
        try:
            self.run = self.reader.commanded(state, data)
            collective = self.run.begin()
        except Exception as error:  # noqa: BLE001 - whatever it is: the command is refused, with its cause
            self._report("begin", error, StatusCode.REFUSED)
            self._tell(Event.REFUSED)
        else:
            self._tell(Event.BEGAN, collective=collective)
        return True

    def _drain(self, view: View) -> bool:
        """Return whether the in-flight policy is satisfied, so that the rank parks, or that has failed."""
        try:
            settled = self._at_work.drained()
        except Exception as error:  # noqa: BLE001 - whatever it raises: the rank cannot go on to the flip
            if not protocol.may_fail(self.state):
                self._broke_in_flip(error)
            self._fail(self._at_work.doing, error)
            return True
        if settled:
            self._tell(Event.DRAINED)
        else:
            self._expire(view)
        return self.state.phase is not Phase.DRAINING

    def _stage(self, _view: View) -> bool:
        """Return whether everything stands beside what is served, or that has failed."""
        try:
            staged = self._at_work.stage()
        except Exception as error:  # noqa: BLE001 - whatever staging raises fails the command
            self._fail_action(error)
            return True
        if staged:
            self._tell(Event.STAGED, report=self._at_work.report())
        return staged

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
        self._tell(Event.ACTION_DONE, touched=run.done.weights_touched)

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

        What an ordinary commit raises goes to the embedding loop: a bug there. The next turn tries it again.

        Raises
        ------
        FlipFailedError
            If the flip of a hot update raised.
        """
        run = self._at_work
        try:
            run.commit()
        except Exception as error:
            if run.is_mixed:
                self._broke_in_flip(error)
            raise
        since_ns, serves = self._paused_since_ns, self.life.serving  # None: the rank never could serve
        pause_s = 0.0 if since_ns is None else (self._clock.monotonic_ns() - since_ns) / 1e9
        report = run.report(pause_s=pause_s)
        self.reader.committed(report, self.state.sequence, set_aside=run.sets_aside)
        of_admission = self.state.operation.is_of_admission
        self._tell(Event.COMMITTED, serves=self.life.whole, held=run.held, report=report)
        self.run = None
        if serves and report.version is not None:
            content = self.reader.resident.weights.get("content_digest")
            self.recorder.served(self.state.epoch, self.state.done, report.version, content)
        if self.state.held:
            self.watch.wake()  # a lease may have to be ended
        # What is pinned is pinned: a held group may be owed more than it has.
        if not of_admission and self.reader.pins is not None:
            self.reader.pins.keep((report.version, *report.bases))

    # -- the ways out ------------------------------------------------------------------------------

    def _undo(self, _view: View) -> None:
        """Stop, and take back what can be taken back."""
        touched = self.run.undo() if self.run is not None else False
        self._tell(Event.STOPPED, touched=touched)

    def _settle(self, way_out: Callable[[Asked, Machines], WayOut], wanted: Event) -> None:
        """Bring an aborted command to the end that the group has found; a teardown takes several calls."""
        run = self.run = self.run or self.reader.ending(self.state)
        run.stop_staging()
        event = run.end(way_out, wanted)
        if event is None:
            return
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
        """
        if self._leaving is None:
            if self.life.serving:
                self._paused_since_ns = self._clock.monotonic_ns()
            if self.run is not None:
                self.run.stop_staging(wait_s=_LEAVE_S)
            self._leaving = self.reader.leaving(self.state)
        came = self._leaving.end(lambda _asked, machines: command_events.leave(machines), Event.CLEARED)
        if came is Event.FAULTED:
            rank, epoch = self.state.rank, self.state.epoch
            raise errors.TeardownFailedError(
                f"rank {rank} could not give back what it held in epoch {epoch}; "
                "end this process and start another in its place, its journal names the action",
                rank=rank,
                epoch=epoch,
            ) from self._leaving.teardown_failure
        if came is None:
            return
        command_events.lose(self._leaving.machines)
        self.reader.lost()
        self.run = self._leaving = None
        self.join()

    # -- failures: the report first, then the word; the group's decision leads out -----------------

    def _fail(self, doing: str, error: BaseException, *, event: Event = Event.FAILED) -> None:
        """Report why, then say FAILED."""
        self._report(doing, error, StatusCode.FAILED)
        self._tell(event, touched=self.run is not None and self.run.done.weights_touched)

    def _broke_in_flip(self, error: BaseException) -> NoReturn:
        """Store BROKEN and why: the flip of a hot update raised, after the group had decided for it.

        No rank steps beside a broken one, so no token is made by mixed weights; only a new epoch leads out.
        The status word stays PREPARED, which nothing but the decision may follow.

        Raises
        ------
        FlipFailedError
            Always, for the embedding loop.
        """
        rank, doing = self.state.rank, self._at_work.doing
        cause = self._report(doing, error, StatusCode.FAILED).message
        self._tell(Event.BROKE)
        raise errors.FlipFailedError(
            f"{doing} failed on rank {rank} in the middle of the flip: {cause}; what it holds is unknown, "
            "and no rank steps again in this epoch: end this process, a new epoch restores the group",
            rank=rank,
            action=doing,
            cause=cause,
        ) from error

    def _fail_action(self, error: Exception) -> None:
        """Take in that the action at hand raised: by itself, or because the group or the watchdog ended it.

        Without its communicators this rank cannot run another step with the others, so it says BROKEN, too.
        """
        rank, action = self.state.rank, self._at_work.doing
        why = self.watch.interruption
        ended = self.watch.stalled_in(self.state.sequence)
        if why is not None:
            deadline_s = self.watch.deadline_s
            ended = GroupError(
                f"rank {rank} was called out of {action} because {why} (it may take {deadline_s:g} s); its "
                "communicators are broken by that, so the group needs a new epoch: restart it, or let its "
                "supervisor do so",
                code="action-interrupted",
                rank=rank,
                action=action,
                why=why,
                deadline_s=deadline_s,
            )
            self._tell(Event.BROKE)
        elif isinstance(error, errors.ActionDeadlineError):
            ended = None
        elif ended is None and (peers := self._failed_in_it(error)):
            ended = GroupError(
                f"{action} raised on rank {rank} after it had failed on {named(peers)}, whose report has the "
                f"cause; here it was: {error}",
                code="peer-failed",
                rank=rank,
                action=action,
                peers=peers,
                cause=str(error),
            )
        elif ended is None and self.words.called_off(self.state.epoch):
            ended = errors.command_aborted(rank=rank, action=action)
        if ended is not None:
            ended.__cause__ = error
        self._fail(action, ended or error)

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
        never = GroupError(
            f"rank {state.rank} gave {action} up because {named(peers)} will never enter it; the cause is in "
            "that rank's report",
            code="peer-never-ready",
            rank=state.rank,
            action=action,
            peers=peers,
        )
        self._fail(action, never)

    def _expire(self, view: View) -> None:
        """Report a wait that has passed its deadline, once per phase; fail the command where that may be."""
        state = self.state
        name = phases.DEADLINES.get(state.phase)
        limit_s = None if name is None else float(getattr(self._deadlines, name))
        if state.phase is Phase.VOTING:
            limit_s = self._at_work.plan.actions[state.action].deadline_s
        waited_s = (self._clock.monotonic_ns() - self._phase_since_ns) / 1e9
        if self._told_late or limit_s is None or waited_s < limit_s:
            return
        self._told_late = True
        error = errors.WaitExpiredError(
            rank=state.rank,
            wait=state.phase.value,
            seconds=waited_s,
            waiting_for=_waiting_for(state, view, self._runner),
        )
        self.recorder.wait_expired(state.epoch, state.sequence, error)
        if protocol.may_fail(state):
            self._fail(state.phase.value, error, event=Event.EXPIRED)

    def _expire_command(self) -> None:
        """Fail a command whose controller is stopped and whose deadline has passed, if that may be."""
        state = self.state
        error = self.watch.stalled_in(state.sequence)
        if error is not None and protocol.may_fail(state):
            self.recorder.wait_expired(state.epoch, state.sequence, error)
            self._fail(state.phase.value, error, event=Event.EXPIRED)

    def _report(self, doing: str, error: BaseException, code: StatusCode) -> FailureReport:
        """Write why the command failed or was refused, before the word that says so."""
        state = self.state
        failure = FailureReport.of(state.rank, doing, error)
        slot = self.words.segment.errors[state.rank]
        slot.write(state.epoch, state.sequence, code, failure.to_bytes())
        self.recorder.command_failed(state.epoch, state.sequence, failure)
        if code is StatusCode.FAILED and self.run is not None:
            self.run.fail(f"{doing}: {failure.message}")
        return failure


def _waiting_for(state: RankState, view: View, runner: Runner) -> str:
    """Name what the rank waits for in its phase."""
    if state.phase is Phase.PARKING:
        late = not_parked(view.steps, sequence=state.sequence, step=state.step)
        return f"{named(late)} to park"
    if state.phase is Phase.VOTING:
        return f"{named(not_ready(view.statuses, action=state.action))} to be ready"
    if state.phase is Phase.STOPPED:
        return "the other ranks to stop"
    if state.phase is Phase.DRAINING:
        return f"{runner.requests.in_flight()} requests to finish"
    if state.phase is Phase.BEGINNING:
        return "the command's arguments, and rank 0's word which version they mean if they name none"
    return "the controller's decision"
