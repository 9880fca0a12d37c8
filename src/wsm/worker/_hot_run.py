"""A hot update on one rank: staged by a thread beside what serves, then flipped between two steps.

Until the group has decided, the machines stay where they are and the rank serves: all the work is done by the
thread, and the run only asks how far it is. The thread waits for no peer and for no loop, and touches neither
words, journal, machines nor heartbeat, which would hide a loop that hangs. After the decision everything
happens in one call, between two steps, and nothing of it may fail: what does all the same leaves weights of
two versions, so the rank must never step again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import NamedTuple

from wsm.actions.base import Action, ActionContext, facts_kept_plain
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.errors import NoRoomError, raise_kept
from wsm.states.words import Operation
from wsm.worker._run import RankTools, Run
from wsm.worker.errors import command_aborted

#: How long a command may be kept waiting for memory that an earlier staging is about to let go, in seconds.
_REST_S = 0.5


class Moment(NamedTuple):
    """When an action began, or ended well; what an action raises ends the staging."""

    action: Action
    at_ns: int
    is_end: bool


class Staging:
    """The thread that stages one hot update, and lets memory go at the end.

    `cancelled`: whether the work is not wanted any more; asked between two chunks of it.
    """

    def __init__(self, rank: int, clock: Clock) -> None:
        self.cancelled = False
        self._rank = rank
        self._clock = clock
        self._moments: SimpleQueue[Moment] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._retired = threading.Event()
        self._errors: list[BaseException] = []

    def start(self, actions: Sequence[Action], context: ActionContext) -> None:
        """Run actions of a plan, the one after the other. Does not block.

        Raises
        ------
        RuntimeError
            If the kernel grants no thread.
        """
        name = f"wsm-stager-{self._rank}"
        thread = threading.Thread(target=self._work, args=(actions, context), name=name, daemon=True)
        thread.start()
        self._thread = thread

    def ended(self) -> bool:
        """Whether the actions have ended, well or not."""
        return self._ended.is_set()

    def result(self) -> None:
        """Raise what an action raised, with its traceback; only once, since that holds memory."""
        raise_kept(self._errors)

    def news(self) -> list[Moment]:
        """Return the moments since the last call, in order. For another thread; does not block."""
        return [self._moments.get_nowait() for _ in range(self._moments.qsize())]

    def retire(self) -> None:
        """Let the thread give back what was staged and does not serve, and end. Idempotent."""
        self._retired.set()

    def rest(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; blocks up to `timeout_s` seconds. Return whether it has."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self, actions: Sequence[Action], context: ActionContext) -> None:
        try:
            for action in actions:
                self._stage(action, context)
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread, by result()
            self._errors.append(error)
        self._ended.set()
        self._retired.wait()
        if context.done.staged is not None:
            context.done.staged.give_back()

    def _stage(self, action: Action, context: ActionContext) -> None:
        if context.cancelled():
            raise command_aborted(rank=self._rank, action=action.name)
        action.precondition(context)
        self._moments.put(Moment(action, self._clock.monotonic_ns(), is_end=False))
        try:
            with facts_kept_plain(action, context):
                action.carry_out(context)
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            cause = str(error) or type(error).__name__
            rank = self._rank
            raise NoRoomError(
                f"memory ran out on rank {rank} in {action.name}, beside the version that serves: {cause}; "
                "nothing was changed: update without --hot, or free memory",
                code="staging-exhausted",
                rank=rank,
                action=action.name,
                cause=cause,
            ) from error
        self._moments.put(Moment(action, self._clock.monotonic_ns(), is_end=True))


class HotRun(Run):
    """The work of one hot update; otherwise as :class:`Run`.

    `staging`: its thread, not started yet. `before`: those of earlier hot updates that have not ended yet.
    """

    is_mixed = True  # until the flip has ended well

    def __init__(
        self,
        arguments: CommandArguments,
        context: ActionContext,
        tools: RankTools,
        *,
        staging: Staging,
        before: Sequence[Staging],
    ) -> None:
        super().__init__(Operation.HOT_UPDATE, arguments, context, tools)
        self._staging = staging
        self._before = before
        self._begun = self._over = False  # whether the thread was started; whether it failed, or was stopped
        self._inside: Action | None = None  # what the thread is inside of
        self._inside_since_ns = 0
        self._admission_ended = False

    def stage(self) -> bool:
        """Go on with what runs beside the serving loop; return whether all of it is done. Does not block.

        Raises
        ------
        ActionDeadlineError
            If an action is past its deadline and has not ended by itself.
        Exception
            Whatever an action raised in the staging thread, with its traceback.
        """
        if not self._begun:
            self._begun = True
            self.doing = self.plan.staging[0].name
            self._staging.start(self.plan.staging, self._context)
        ended = self._staging.ended()  # first: whatever it tells has happened before
        self._take_in()
        if ended:
            try:
                self._staging.result()
            except BaseException as error:
                self._staging_failed(error)
                raise
            self.doing = "decision"
            return True
        action = self._inside
        late = None if action is None else self._tools.watch.overdue(action, self._inside_since_ns)
        if late is not None:
            self._staging.cancelled = True
            self._staging_failed(late)
            raise late
        return False

    def drained(self) -> bool:
        """Whether the in-flight policy is satisfied; admission ends here, after the decision."""
        if not self._admission_ended:
            for action in self.plan.before_parking:
                self._run(action)
            self._admission_ended = True
        return super().drained()

    def commit(self) -> None:
        """Flip, and serve the new version.

        Whatever this raises while :attr:`is_mixed`, the rank must not step again in this epoch.
        """
        if self.is_mixed:
            self.doing = "flip"
            self._begin_transition()
            for action in self.plan.flip:
                self._run(action)
            self.finish()
            self.is_mixed = False
        super().commit()
        self._staging.retire()

    def fail(self, cause: str) -> None:
        """Take in that the command has failed on this rank; staging stops."""
        self._staging.cancelled = True
        super().fail(cause)

    def undo(self) -> bool:
        """Stop staging; nothing else was changed."""
        self.stop_staging()
        return self.done.weights_touched

    def stop_staging(self, wait_s: float = 0.0) -> None:
        """Stop staging and let go of what was staged. Waits up to `wait_s` seconds for that. Idempotent."""
        self._staging.cancelled = True
        self._take_in()
        if self._inside is not None:
            self._staging_failed(command_aborted(rank=self._context.rank, action=self._inside.name))
        self._over = True
        self._staging.retire()
        if wait_s:
            self._staging.rest(wait_s)

    def _admit(self) -> tuple[bool, ...]:
        """Check that a second version fits; admission goes on, and nothing needs a vote."""
        if not all(earlier.rest(_REST_S) for earlier in self._before):
            rank = self._context.rank
            raise NoRoomError(
                f"rank {rank} refuses a hot update: the thread that staged for an earlier one hangs and "
                "holds its memory; nothing was changed: see what its source waits for, or update without "
                "--hot",
                code="staging-unfinished",
                rank=rank,
            )
        for action in self.plan.admission:
            self._run(action)
        return ()

    def _staging_failed(self, error: BaseException) -> None:
        """Take in that the staging has failed, in an action or between two."""
        action, self._inside, self._over = self._inside, None, True
        if action is not None:
            self._failed(action, error)

    def _take_in(self) -> None:
        """Write down what the staging thread has begun and ended since the last look.

        Nothing once it was stopped: what it was inside of has failed, however it ends.
        """
        for moment in () if self._over else self._staging.news():
            if moment.is_end:
                self._ended(moment.action, (moment.at_ns - self._inside_since_ns) / 1e9)
                self._inside = None
            else:
                self.doing = moment.action.name
                self._begins(moment.action, beside=True)
                self._inside, self._inside_since_ns = moment.action, moment.at_ns
