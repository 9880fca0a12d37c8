"""What closes the hold of a group over HTTP, and what opens it again besides other weights that commit.

Why a hold is closed stands in its own record in the group's segment (:mod:`wsm.states.holding`), written
under the controller role: every server and every controller sees it, and it outlives them all. Where another
command has the role, the closing waits in this server, which keeps text away and releases nothing until it
is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import structs

from wsm import log
from wsm.controller import Controller
from wsm.controller import errors as controller_errors
from wsm.controller.abandoned_commands import revise_hold
from wsm.controller.group_view import GroupAccess
from wsm.errors import RefusedError, WsmError
from wsm.http.hold_table import HoldEvent, HoldState, Meaning, failure, meaning, state_of, success
from wsm.receipt import Receipt
from wsm.signals.errors import RoleBusyError
from wsm.states.holding import ClosedHold, Hold
from wsm.states.vocabulary import After, Tag

#: Seconds that a caller waits for the controller role, and that a closing which was too late goes on waiting.
ROLE_S = 5.0
_LATER_S: Final = 3600.0

#: Characters of a verb or a reason that fit a record beside everything else.
_MOST_TEXT: Final = 200


class ClosedHolds:
    """Closes and opens the hold that one group stands under. Safe for threads; all blocks.

    Parameters
    ----------
    attached : callable
        Returns the group's controller and its memory, as they are now.
    """

    def __init__(self, attached: Callable[[], tuple[Controller, GroupAccess]]) -> None:
        self._attached = attached
        # Of what could not be written yet: the hold's id, what happened to it, and why it is to be closed.
        self._waiting: list[tuple[str, HoldEvent, ClosedHold]] = []

    def now(self) -> tuple[Meaning, ClosedHold | None]:
        """Return what the group's hold means now, and why it is closed; None: it is not."""
        group = self._attached()[1].group
        view = group.view()
        hold = group.hold(view)
        if hold is None:
            return meaning(HoldState.OPEN), None
        for waiting in tuple(self._waiting):
            hold = _closed(hold, group.known_record(view).version, *waiting)
        return meaning(state_of(hold)), hold.closed

    def close(self, surface: str, why: ClosedHold) -> bool:
        """Close a hold; whether there is one that is closed now. A command under way is waited for.

        A refusal closes the hold of any surface, since trainers of one group may speak to several; a failure
        that of its own surface alone, for another's trainer sees none. A failure names the version of before:
        if the group has another by now, the update brought it.

        Raises
        ------
        RoleBusyError
            If another controller has the role still. Until it is written this server keeps the hold closed.
        """
        group = self._attached()[1].group
        view = group.view()
        hold = group.known_hold(view)
        event = failure(why.by, hold, surface)
        if hold is None or event is HoldEvent.FAILED_ELSEWHERE or meaning(state_of(hold), event).may_release:
            return False
        version = group.known_record(view).version if event is HoldEvent.REFUSED else why.version
        why = structs.replace(
            why, surface=surface, verb=why.verb[:_MOST_TEXT], reason=why.reason[:_MOST_TEXT], version=version
        )
        return self._write(hold.hold_id, event, why)

    def reopen(self, surface: str, *, sent: bool) -> None:
        """Let a closed hold be an ordinary one, since an update of this surface has succeeded. Blocks.

        One that a refusal closed is so only if its caller has `sent` the weights, by their path.

        Raises
        ------
        RoleBusyError
            If another controller has the role still: it is closed as before.
        """

        def opened(hold: Hold, _: str | None) -> Hold:
            opens = meaning(state_of(hold), success(hold, surface, sent=sent)).may_release
            return structs.replace(hold, closed=None) if opens else hold

        if not self.now()[0].may_release:
            revise_hold(self._attached()[1], opened, wait_s=ROLE_S)

    def require_none(self) -> None:
        """Refuse a release that is not forced where the hold is closed (code ``hold-closed``)."""
        now, closed = self.now()
        if not now.may_release and closed is not None:
            raise controller_errors.hold_closed(closed=closed)

    def update(
        self,
        command: Callable[[After], Receipt],
        *,
        tags: frozenset[Tag] | None,
        owner: str,
        decides_later: bool = False,
    ) -> Receipt:
        """Do an update that is to serve, and opens a closed hold only by what it has brought.

        Parameters
        ----------
        command : callable
            ``command(after)`` does it, whole; `after`: what is wanted of admission behind it.
        tags : frozenset of Tag or None
            What it is about; None: all.
        owner : str
            Who asks.
        decides_later : bool
            Whether what it brings is only prepared by it.

        Raises
        ------
        RefusedError
            If the hold is another's (code ``held-by-another``), or closed and nothing was brought that could
            open it (``hold-closed``).
        """
        if self._waiting:
            self.require_none()
        try:
            return command(After.SERVE)
        except RefusedError as error:
            closed = self.now()[1]
            brings = not decides_later and (tags is None or Tag.WEIGHTS in tags)
            if error.code != "hold-closed" or not brings:
                raise
        receipt = command(After.AS_BEFORE)
        if receipt.hold is None:
            return receipt
        try:
            self.require_none()
            opened = self._attached()[0].release(owner=owner, hold=receipt.hold.hold_id, wait_s=ROLE_S)
        except RefusedError as error:
            if error.code != "hold-closed" or not receipt.loaded:
                raise
            why = f"it stays held and closed: the group had these weights when {closed}"
            return structs.replace(receipt, warning=why)
        return structs.replace(receipt, serving=opened.serving, hold=opened.hold)

    def _write(self, hold_id: str, event: HoldEvent, why: ClosedHold) -> bool:
        """Write why a hold is closed; whether one is. A thread writes later what could not be in time."""
        access, waiting = self._attached()[1], (hold_id, event, why)

        def closes(hold: Hold, version: str | None) -> Hold:
            return _closed(hold, version, *waiting)

        def write(wait_s: float) -> bool:
            hold = revise_hold(access, closes, wait_s=wait_s)
            self._waiting.remove(waiting)
            closed = hold is not None and hold.closed is not None
            if closed:
                log.logger("http").warning(
                    "hold.closed", surface=why.surface, verb=why.verb, reason=why.reason
                )
            return closed

        def write_later() -> None:
            with suppress(WsmError):  # of a group that has ended
                write(_LATER_S)

        self._waiting.append(waiting)
        try:
            return write(ROLE_S)
        except RoleBusyError:
            threading.Thread(target=write_later, name="wsm-http-closing", daemon=True).start()
            raise


def _closed(hold: Hold, version: str | None, hold_id: str, event: HoldEvent, why: ClosedHold) -> Hold:
    """Return a hold as it is once it was closed; what closed it no longer counts behind another version."""
    closed = structs.replace(hold, closed=why)
    counts = hold.hold_id == hold_id and version in (None, why.version)
    return closed if counts and meaning(state_of(hold), event).state is state_of(closed) else hold
