"""What a group is owed after a loss: tried again while it fails, and given up where everybody sees it.

Most causes pass: a file that is written anew, a file server that comes back. Between two attempts the group
is free for other commands, and any of them ends this. Kills nobody, and knows no processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from wsm import log
from wsm.controller import outcome
from wsm.controller.errors import RankLostError
from wsm.controller.recovery import Recovery
from wsm.errors import WsmError
from wsm.receipt import Receipt
from wsm.rollout.config import RolloutConfig
from wsm.states.errors import CommandOpenError
from wsm.states.restoring import Attempt

#: Longest time between two looks at whether the wait for a receipt is wanted still, in seconds.
_LOOK_S = 0.02

_OVERTAKEN = "was given another command, and is restored no more"


class Restoration:
    """The end of one recovery: every participant has joined the new epoch.

    Parameters
    ----------
    config : RolloutConfig
        The group; its limits are in ``recovery``.
    recovery : Recovery
        Of its segment; has the controller role for the first attempt.
    tell : callable
        Given one line for each attempt.
    cancelled : callable
        Whether nobody wants it any more.
    since_s : float
        When the group lost its rank, by ``time.monotonic()``.

    Attributes
    ----------
    over : bool
        Whether no further attempt will be made.
    due_s : float
        When the next one is to be made.
    """

    def __init__(
        self,
        config: RolloutConfig,
        recovery: Recovery,
        *,
        tell: Callable[[str], object],
        cancelled: Callable[[], bool],
        since_s: float,
    ) -> None:
        self.over = False
        self.due_s = since_s
        self._name = config.group.name
        self._limits = config.recovery
        self._recovery = recovery
        self._tell = tell
        self._cancelled = cancelled
        self._since_s = since_s
        self._attempts = 0
        self._log = log.logger("rollout.supervisor", group=config.group.name)

    def attempt(self) -> None:
        """Load what the group is owed; it need not be due. Blocks for the length of that update.

        Another controller that has the role at the moment is given way.

        Raises
        ------
        RankLostError, wsm.states.errors.CommandOpenError
            If a participant is gone again, or somebody has not come to the end of the last attempt.
        """
        if not self._recovery.take_role(0.0):
            self.due_s = time.monotonic() + self._limits.delay_s
            return
        if self._next() is Attempt.OVERTAKEN:
            self._recovery.release()
            self._end(_OVERTAKEN)
            return
        try:
            receipt = self._update()
        except (RankLostError, CommandOpenError):
            raise
        except WsmError as error:
            self.failed(error)
        else:
            nothing = "is CLEARED, as it was before"
            self._end(nothing if receipt is None else f"serves version {receipt.version} again")

    def failed(self, error: WsmError) -> None:
        """Take in that an attempt has failed for a reason that may pass; the last one gives up."""
        self._recovery.release()
        self._attempts += 1
        number, limit = self._attempts, self._limits.restore_attempts
        epoch = self._recovery.epoch
        if self._cancelled():
            self.over = True
            return
        following = self._next()
        if following is Attempt.OVERTAKEN:
            self._end(_OVERTAKEN)
            return
        hopeless = outcome.cannot_be_restored(error)
        if following is Attempt.GIVE_UP or hopeless:
            self._log.error(log.GROUP_NOT_RESTORED, epoch=epoch, attempts=number, error=str(error))
            how = "cannot be restored" if hopeless else f"is not restored after {number} attempts"
            self._end(f"{how} and stays CLEARED until it is updated: {error}")
            return
        delay_s = min(self._limits.delay_s * 2.0 ** (number - 1), self._limits.longest_delay_s)
        self.due_s = time.monotonic() + delay_s
        self._log.warning(
            log.GROUP_RESTORE_FAILED, epoch=epoch, attempt=number, retry_s=delay_s, error=str(error)
        )
        self._tell(
            f"{self._name} is not restored yet, attempt {number + 1} of {limit} in {delay_s:g} s: {error}"
        )

    def _next(self) -> Attempt:
        return self._recovery.next_attempt(failed=self._attempts, limit=self._limits.restore_attempts)

    def _update(self) -> Receipt | None:
        pending = self._recovery.restore(deadline_s=self._limits.restore_s)
        while pending is not None:
            with contextlib.suppress(TimeoutError):
                return pending.result(_LOOK_S)
            if self._cancelled():
                pending.give_up()
        return None

    def _end(self, held: str) -> None:
        self.over = True
        epoch, seconds = self._recovery.epoch, time.monotonic() - self._since_s
        self._log.warning(log.GROUP_RECOVERED, epoch=epoch, seconds=seconds, held=held)
        self._tell(f"{self._name} {held} (epoch {epoch}, {seconds:.2f} s after the loss)")
