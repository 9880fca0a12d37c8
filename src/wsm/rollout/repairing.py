"""A rank that lives and whose teardown failed: all are cleared again, and if that does not help, it goes.

A FAULTED rank holds who knows what, and nothing serves beside it until all have given everything back. Most
causes pass (no descriptor was left, somebody held a view), so the teardown is tried again, with growing
delays; a cause that stays goes with its process. Kills nobody itself, and knows no processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from wsm import log
from wsm.controller.errors import RankLostError
from wsm.controller.recovery import Recovery
from wsm.errors import WsmError
from wsm.rollout.config import RolloutConfig
from wsm.states.errors import CommandOpenError
from wsm.states.restoring import Repair

#: Longest time between two looks at whether the wait for a receipt is wanted still, in seconds.
_LOOK_S = 0.02


class Repairs:
    """The FAULTED ranks of one group.

    Parameters
    ----------
    config : RolloutConfig
        The group; its limits are in ``recovery``.
    recovery : Recovery
        Of its segment; has no command under way when this is asked.
    tell : callable
        Given one line for each attempt.
    cancelled : callable
        Whether nobody wants it any more.
    """

    def __init__(
        self,
        config: RolloutConfig,
        recovery: Recovery,
        *,
        tell: Callable[[str], object],
        cancelled: Callable[[], bool],
    ) -> None:
        self._name = config.group.name
        self._limits = config.recovery
        self._recovery = recovery
        self._tell = tell
        self._cancelled = cancelled
        self._failed = 0
        self._due_s: float | None = None
        self._log = log.logger("rollout.supervisor", group=config.group.name)

    @property
    def pending(self) -> bool:
        """Whether a rank is FAULTED, as far as the last look has seen."""
        return self._due_s is not None

    def look(self) -> dict[int, str]:
        """Clear the group again if that is due; return who has to be replaced instead, and why.

        Blocks for the length of that clear. Another controller that has the role is given way.
        """
        faulted = self._recovery.faulted()
        following = self._next()
        if following is Repair.NONE:
            self._failed, self._due_s = 0, None
            return {}
        now = time.monotonic()
        if self._due_s is None:
            self._put_off(now, f"a teardown failed on rank {_listed(faulted)}")
        if following is Repair.WAIT or self._due_s is None or now < self._due_s:
            return {}
        if following is Repair.REPLACE:
            self._due_s = None
            failed, self._failed = self._failed, 0
            return dict.fromkeys(faulted, f"its teardown failed, and {failed} times more when it was cleared")
        self._clear(now)
        return {}

    def _clear(self, now_s: float) -> None:
        if not self._recovery.take_role(0.0):
            self._due_s = now_s + self._limits.delay_s
            return
        try:
            if self._next() is Repair.CLEAR:  # nobody was quicker
                self._finish()
        except (RankLostError, CommandOpenError):
            self._due_s = now_s + self._limits.delay_s  # whoever is gone is replaced, which repairs it, too
        except WsmError as error:
            self._failed += 1
            if not self._cancelled():
                self._put_off(time.monotonic(), f"clearing it again failed: {error}")
        finally:
            self._recovery.release()

    def _finish(self) -> None:
        pending = self._recovery.clear_again(deadline_s=self._limits.restore_s)
        while True:
            with contextlib.suppress(TimeoutError):
                receipt = pending.result(_LOOK_S)
                break
            if self._cancelled():
                pending.give_up()
        self._log.warning(log.GROUP_REPAIRED, epoch=receipt.epoch, sequence=receipt.sequence)
        self._tell(f"{self._name} is CLEARED, its teardown worked in the end; the next update makes it serve")

    def _put_off(self, now_s: float, why: str) -> None:
        delay_s = min(self._limits.delay_s * 2.0**self._failed, self._limits.longest_delay_s)
        self._due_s = now_s + delay_s
        last = self._failed >= self._limits.repair_attempts
        then = "that rank is replaced" if last else "all ranks are cleared again"
        self._log.error(log.GROUP_FAULTED, failed=self._failed, retry_s=delay_s, cause=why)
        self._tell(f"{self._name} is FAULTED, {why}; {then} in {delay_s:g} s")

    def _next(self) -> Repair:
        return self._recovery.next_repair(failed=self._failed, limit=self._limits.repair_attempts)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
