"""Ends a hold whose lease has run out: an ordinary release, by the process that keeps the group.

When that is due is decided by :func:`wsm.states.holding.lease_end`. The lease is read again once the
controller role is had, since its owner needs that to renew it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

from wsm import log
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.controller._command_request import SETTLE_S
from wsm.controller._opening import require_able
from wsm.controller._transaction import Pending, Transaction
from wsm.controller.group_view import GroupView
from wsm.errors import WsmError
from wsm.signals.errors import RoleBusyError, SegmentReplacedError
from wsm.states import decide, holding
from wsm.states.epochs import Backoff
from wsm.states.holding import LeaseEnd
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy
from wsm.states.words import Operation

#: Seconds after which a release that is not decided is taken back, and tried again later.
_DEADLINE_S = 60.0

_CLOSE_S = 1.0

_AGAIN = Backoff(1.0, 30.0)


class LeaseWatch:
    """Looks after the lease of the hold that one group stands under. For one thread.

    Parameters
    ----------
    group : GroupView
        The group.
    clock : Clock
        For the deadline of a release; a lease is counted by the host's clock.
    who : str
        Who looks, for logs.
    """

    def __init__(self, group: GroupView, clock: Clock, *, who: str) -> None:
        self._group = group
        self._clock = clock
        self._ending: Pending | None = None
        self._failures = 0
        self._again_at_s = 0.0
        self._told: tuple[str, int] | None = None
        self._log = log.logger("controller.lease", group=group.segment.name, by=who)

    def look(self, view: View) -> None:
        """Begin the release that is due, if one is; takes microseconds where none is, and does not wait."""
        if self._ending is not None and self._ending.over:
            self._take_in(self._ending)
            self._ending = None
        due = self._due(view)
        hold = self._group.known_hold(view)
        if due is LeaseEnd.STAYS and hold is not None and self._told != (hold.hold_id, hold.renewed_ns):
            self._told = hold.hold_id, hold.renewed_ns
            self._log.warning(
                log.LEASE_RAN_OUT, owner=hold.owner, hold=hold.hold_id, on_lease=hold.on_lease.value
            )
        if due is LeaseEnd.RELEASE and self._ending is None and time.monotonic() >= self._again_at_s:
            self._release()

    def close(self) -> None:
        """Take back a release that is not decided; blocks a second at most for its end."""
        if self._ending is not None:
            self._ending.give_up()
            with suppress(WsmError, TimeoutError):
                self._ending.result(_CLOSE_S)

    def _due(self, view: View) -> LeaseEnd:
        each = decide.resident_on_each(view)
        return holding.lease_end(
            self._group.known_hold(view),
            time.monotonic_ns(),
            held=view.committed.held,
            is_over=decide.is_over(view),
            whole=all(resident.serving for resident in each),
            owed=decide.before_admission(each, owed=self._group.unrestored(view))[1],
        )

    def _release(self) -> None:
        """Take the role without waiting, look again, and give the release if it is due still."""
        try:
            role = self._group.role.acquire(0)
        except (RoleBusyError, SegmentReplacedError):
            return  # another process commands the group, or no rank hears it any more
        with ExitStack() as ending:
            ending.callback(role.release)
            view = self._group.view()
            hold = self._group.known_hold(view)
            if hold is None or self._due(view) is not LeaseEnd.RELEASE:
                return
            try:
                command = require_able(self._group, view, Operation.RELEASE)
                arguments = CommandArguments(
                    f"lease-of-{hold.hold_id}"[:200],
                    in_flight=InFlightPolicy.KEEP,
                    kv_policy=KVPolicy.KEEP,
                    before=decide.before_admission(decide.resident_on_each(view), owed=False)[0],
                    tags=frozenset(),
                    deadline_s=_DEADLINE_S,
                    after=After.SERVE,
                    of_admission=True,
                )
                word = command._replace(operation=Operation.RELEASE)
                command = self._group.open(view, word, arguments)
            except WsmError as error:
                self._failed(error)
                return
            self._log.warning(log.LEASE_ENDED, owner=hold.owner, hold=hold.hold_id)
            transaction = Transaction(
                self._group,
                command,
                arguments,
                deadline_s=_DEADLINE_S,
                settle_s=SETTLE_S,
                clock=self._clock,
                previous=self._group.known_version(view),
            )
            self._ending = Pending.driven(transaction, ending.pop_all(), transaction.drive)

    def _take_in(self, ended: Pending) -> None:
        try:
            ended.result()
        except WsmError as error:
            self._failed(error)
        else:
            self._failures = 0

    def _failed(self, error: WsmError) -> None:
        self._failures += 1
        self._again_at_s = time.monotonic() + _AGAIN.after(self._failures)
        self._log.error(log.COMMAND_FAILED, error=str(error))
