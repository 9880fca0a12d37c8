"""How a rank says that a command failed: the report first, then the word; and which waits end so.

The group's decision leads out of it; nothing is undone here. What a shortage of memory or descriptors cuts
short is said with the next look.
"""

from __future__ import annotations

from collections.abc import Callable

from wsm.report import FailureReport
from wsm.states import rank as protocol
from wsm.states.phases import Event
from wsm.states.view import View
from wsm.states.votes import never_ready
from wsm.states.words import StatusCode
from wsm.worker.errors import (
    ActionDeadlineError,
    ActionInterruptedError,
    CommandAbortedError,
    FlipFailedError,
    PeerNeverReadyError,
)
from wsm.worker.patience import Patience
from wsm.worker.reporting import Reporter
from wsm.worker.standing import Standing
from wsm.worker.watch import ActionWatch


class Failing:
    """The failures of one rank.

    Parameters
    ----------
    standing : Standing
        Where the rank stands.
    reporter : Reporter
        This rank's payload slots.
    patience : Patience
        For this rank's waits.
    watch : ActionWatch
        Knows whether an action raised because the rank was called out of it.
    """

    def __init__(
        self, standing: Standing, reporter: Reporter, patience: Patience, watch: ActionWatch
    ) -> None:
        self._standing = standing
        self._reporter = reporter
        self._patience = patience
        self._watch = watch
        self._unsaid: Callable[[], None] | None = None

    def say_what_is_unsaid(self) -> bool:
        """Go on with a failure that could not be said when it came; return whether there was one."""
        unsaid = self._unsaid
        if unsaid is None:
            return False
        unsaid()
        return True

    def broke_off(self, error: Exception) -> None:
        """Take in that a shortage broke off what was done for the command, before its end was remembered.

        Nobody knows how far that came, so it counts as failed. A failure that is unsaid stays the cause.
        """
        execution = self._standing.execution
        doing = self._standing.state.phase.value if execution is None else execution.doing
        self._unsaid = self._unsaid or (lambda: self.fail(doing, error))

    def refuse(self, error: BaseException) -> None:
        """Report why the command cannot even begin here, then say REFUSED."""
        self._unsaid = lambda: self.refuse(error)
        self._report("begin", error, StatusCode.REFUSED)
        self._standing.take_in(Event.REFUSED)
        self._unsaid = None

    def fail(self, doing: str, error: BaseException) -> None:
        """Report why, then say FAILED."""
        self._unsaid = lambda: self.fail(doing, error)
        failure = self._report(doing, error, StatusCode.FAILED)
        execution = self._standing.execution
        touched = False
        if execution is not None:
            execution.fail(f"{doing}: {failure.message}")
            touched = execution.touched
        self._standing.take_in(Event.FAILED, touched=touched)
        self._unsaid = None

    def broke_in_flip(self, error: BaseException) -> None:
        """Store BROKEN and why: the flip of a hot update raised, after the group had decided for it.

        Nobody steps beside a broken rank, so no token is made by mixed weights; only a new epoch leads out.
        The status word stays PREPARED, which nothing but the decision may follow.

        Raises
        ------
        FlipFailedError
            Always, for the embedding loop.
        """
        standing = self._standing
        doing = standing.at_work.doing
        failure = self._report(doing, error, StatusCode.FAILED)
        standing.at_work.fail(f"{doing}: {failure.message}")
        standing.take_in(Event.BROKE)
        raise FlipFailedError(rank=standing.state.rank, action=doing, cause=failure.message) from error

    def failed_action(self, error: Exception) -> None:
        """Take in that the action at hand raised: by itself, or because somebody has ended it.

        Without its communicators this rank cannot run another step with the others, so it says BROKEN, too.
        """
        standing = self._standing
        rank, action = standing.state.rank, standing.at_work.doing
        why = self._watch.interruption
        ended = self._watch.stalled_in(standing.state.sequence)
        if why is not None:
            ended = ActionInterruptedError(
                rank=rank, action=action, why=why, deadline_s=self._watch.deadline_s
            )
            standing.take_in(Event.BROKE)
        elif isinstance(error, ActionDeadlineError):
            ended = None
        elif ended is None and standing.words.called_off(standing.state.epoch):
            ended = CommandAbortedError(rank=rank, action=action)
        if ended is not None:
            if ended is not error:
                ended.__cause__ = error
            error = ended
        self.fail(action, error)

    def forsaken(self, view: View) -> None:
        """Take in that a peer will never be ready for the collective action at hand."""
        state = self._standing.state
        action = self._standing.at_work.plan.actions[state.action].name
        peers = never_ready(view, state.action)
        self.fail(action, PeerNeverReadyError(rank=state.rank, action=action, peers=peers))

    def expire(self, view: View) -> None:
        """Report a wait that has passed its deadline, once; fail the command where a rank still may."""
        standing = self._standing
        state = standing.state
        error = self._patience.expired(state, view, standing.execution)
        if error is None:
            return
        standing.recorder.wait_expired(state.epoch, state.sequence, error)
        if protocol.may_fail(state):
            self.fail(state.phase.value, error)

    def expire_command(self) -> None:
        """Fail a command whose controller is stopped and whose deadline has passed, if that may be."""
        standing = self._standing
        state = standing.state
        error = self._watch.stalled_in(state.sequence)
        if error is not None and protocol.may_fail(state):
            standing.recorder.wait_expired(state.epoch, state.sequence, error)
            self.fail(state.phase.value, error)

    def _report(self, doing: str, error: BaseException, code: StatusCode) -> FailureReport:
        state = self._standing.state
        failure = FailureReport.of(state.rank, doing, error)
        self._reporter.failed(state, code, failure)
        self._standing.recorder.command_failed(state.epoch, state.sequence, failure)
        return failure
