"""One hot update on one rank: staged beside the version that serves, then flipped in one go.

The other kind of :mod:`.execution`. Until the group has decided, the machines stay where they are and the
rank serves: all the work is done by the staging thread, and this object only asks how far it is. After the
decision everything happens in one call, between two steps, and nothing of it may fail: what does all the same
leaves a rank of which nobody knows what it holds, so the caller must never let it step again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wsm.actions.base import Action
from wsm.states import command_events
from wsm.worker.errors import (
    ActionDeadlineError,
    CommandAbortedError,
    StagingUnfinishedError,
)
from wsm.worker.execution import Execution
from wsm.worker.stager import Stager
from wsm.worker.staging_run import Moment, StagingRun

#: How long a command may be kept waiting for memory that an earlier staging is about to let go, in seconds.
_REST_S = 0.05


class HotExecution(Execution):
    """The work of one hot update.

    Parameters
    ----------
    stager : Stager
        The thread that stages; unused so far.
    before : sequence of Stager
        Those of earlier hot updates that have not ended yet.
    **options
        As :class:`Execution`.
    """

    def __init__(self, *, stager: Stager, before: Sequence[Stager], **options: Any) -> None:
        super().__init__(**options)
        self._stager = stager
        self._before = before
        self._staging = StagingRun(self.plan.staging, self._context, self._clock)
        self._staging_begun = False
        self._moments: list[Moment] = []
        self._running: Action | None = None
        self._since_ns = 0
        self._admission_ended = False
        self._flips = list(self.plan.flip)
        self._flipped = False

    def begin(self) -> tuple[bool, ...]:
        """Check that the command is legal here, and that a second version fits; change nothing.

        Raises
        ------
        CommandIllegalError, StagingUnfinishedError
            If this rank does not serve, or an earlier staging still holds its memory.
        RefusedError (``policy-refused``)
            If a policy cannot be honoured.
        NoRoomError (``staging-unsupported``), NoRoomError (``staging-memory``)
            If the weights cannot be staged, or not in the memory that is there.
        """
        self._admit()
        if not all(stager.rest(_REST_S) for stager in self._before):
            raise StagingUnfinishedError(rank=self._context.rank)
        self._watch.takes_up(self.plan)
        for action in self.plan.admission:
            self.doing = action.name
            self._work.run(action)
        return ()

    def stage(self) -> bool:
        """Go on staging; return whether all of it is done. Does not block.

        Raises
        ------
        ActionDeadlineError
            If an action is past its deadline and has not ended by itself.
        Exception
            Whatever an action raised in the staging thread, with its traceback.
        """
        if not self._staging_begun:
            self._staging_begun = True
            self.doing = self.plan.staging[0].name
            self._stager.start(self._staging)
        ended = self._stager.ended()  # first: whatever it tells has happened before
        self._take_in(self._staging.news())
        if ended:
            self._end_of_staging()
            self.doing = "decision"
            return True
        if self._running is not None:
            seconds = (self._clock.monotonic_ns() - self._since_ns) / 1e9
            if seconds > self._running.deadline_s:
                raise self._late(self._running)
        return False

    def drained(self) -> bool:
        """After the decision: end admission, and say whether the in-flight policy is satisfied."""
        if not self._admission_ended:
            for action in self.plan.before_parking:
                self.doing = action.name
                self._work.run(action)
            self._admission_ended = True
        return super().drained()

    def fail(self, cause: str) -> None:
        """Stop staging. The machines never left NORMAL, unless the flip itself went wrong."""
        self._stager.cancel()
        super().fail(cause)

    def commit(self) -> None:
        """Flip. Whatever this raises while :attr:`is_mixed`, the rank must not step again in this epoch.

        Where something was lacking around an action, or in one that may be run again, the next call goes on.
        """
        if not self._flipped:
            self._flip()
        super().commit()
        self._let_go()

    @property
    def is_mixed(self) -> bool:
        """Whether the flip has begun and not ended."""
        return not self._flipped

    @property
    def may_go_on(self) -> bool:
        """Whether the weights are known: nothing was raised out of the very action that flips them."""
        return self._work.inside is None or not self._work.inside.touches_weights

    def _flip(self) -> None:
        self.doing = "flip"
        if len(self._flips) == len(self.plan.flip):
            self._begin_transition()
        while self._flips:
            action = self._flips[0]
            self.doing = action.name
            self._work.run(action)
            self._work.kv_followed(action.name)
            del self._flips[0]
        self._work.follow(command_events.finish(self._asked, self._life.joint))
        self._flipped = True

    def undo(self) -> bool:
        """Nothing was changed, so there is nothing to take back but the staging itself."""
        self.stop_staging()
        return self._context.weights_touched

    def keep(self) -> bool | None:
        """End the command: the old version serves on, and what was staged is let go in its own thread."""
        self.stop_staging()
        return super().keep()

    def stop_staging(self, wait_s: float = 0.0) -> None:
        """Stop staging and let go of what was staged. Waits up to `wait_s` seconds for that. Idempotent."""
        self._stager.cancel()
        self._take_in(self._staging.news())
        if self._running is not None:
            stopped = CommandAbortedError(rank=self._context.rank, action=self._running.name)
            self._work.failed(self._running, stopped)
            self._running = None
        self._let_go()
        if wait_s:
            self._stager.rest(wait_s)

    def _take_in(self, moments: Sequence[Moment]) -> None:
        """Write down what the staging thread has begun and ended since the last look."""
        self._moments += moments
        while self._moments:
            moment = self._moments[0]
            if moment.is_end:
                self._work.finished(moment.action, self._since_ns, ended_ns=moment.at_ns)
                self._running = None
            else:
                self.doing = moment.action.name
                self._work.started(moment.action, beside=True)
                self._running, self._since_ns = moment.action, moment.at_ns
            del self._moments[0]

    def _end_of_staging(self) -> None:
        action, self._running = self._running, None
        try:
            self._stager.result()
        except BaseException as error:
            if action is not None:
                self._work.failed(action, error)
            raise

    def _late(self, action: Action) -> ActionDeadlineError:
        error = ActionDeadlineError(
            rank=self._context.rank,
            action=action.name,
            seconds=(self._clock.monotonic_ns() - self._since_ns) / 1e9,
            deadline_s=action.deadline_s,
        )
        self._running = None
        self._stager.cancel()
        self._work.failed(action, error)
        return error

    def _let_go(self) -> None:
        context = self._context
        self._stager.retire(lambda: None if context.staged is None else context.staged.give_back())
