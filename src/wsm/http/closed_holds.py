"""Holds that no blind release ends: closed, since a trainer may take for done what was refused, or failed.

A hold that a refusal closed opens by an update with other weights, one that a failed update closed by the
next update that succeeds; both by an explicit release. What may let requests in, and the closing itself, are
told apart in time by one lock: either the group is open, or it is held and closed.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from wsm import log
from wsm.controller import Controller
from wsm.controller import errors as controller_errors
from wsm.controller.group_view import GroupAccess
from wsm.errors import RefusedError
from wsm.http import errors
from wsm.http.kept import KeptRequests
from wsm.receipt import Outcome, Receipt
from wsm.states.vocabulary import After, Tag

#: What the owners of holds over HTTP begin with.
OWNERS: Final = "http:"

#: Outcomes behind which a group has the version that was asked for.
_BROUGHT: Final = (Outcome.UPDATED, Outcome.ALREADY_SERVED, Outcome.ALREADY_HELD)


class ClosedBy(str, enum.Enum):
    """What closed a hold.

    REFUSED: a verb that is never honoured. FAILED: an update that failed. DELAYED: an update that failed, and
    may pass when it is asked again, which its trainer was told.
    """

    REFUSED = "refused"
    FAILED = "failed"
    DELAYED = "delayed"


@dataclass(frozen=True)
class ClosedHold:
    """Why a held group is not released blindly.

    Parameters
    ----------
    hold : str
        The id of the hold.
    surface, verb, reason : str
        What was refused, or failed, and why.
    version : str or None
        What the group had committed before.
    by : ClosedBy
        Whether it was refused, or failed.
    """

    hold: str
    surface: str
    verb: str
    reason: str
    version: str | None = None
    by: ClosedBy = ClosedBy.REFUSED

    @property
    def text_waits(self) -> bool:
        """Whether requests for text wait, as in any hold: the update is to be asked for again at once."""
        return self.by is ClosedBy.DELAYED

    @property
    def did(self) -> str:
        """What the verb did."""
        return "was refused" if self.by is ClosedBy.REFUSED else "failed"

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> ClosedHold | None:
        """Return what was kept; None where nothing was, or nothing that can be read."""
        try:
            return None if said is None else cls(**{**said, "by": ClosedBy(said.get("by", ClosedBy.REFUSED))})
        except (TypeError, ValueError):
            return None


class ClosedHolds:
    """What is closed of one group, kept in a file that outlives the server. Safe for threads; all blocks.

    Parameters
    ----------
    kept : KeptRequests
        The file.
    attached : callable
        Returns the group's controller and its memory, as they are now.
    """

    def __init__(self, kept: KeptRequests, attached: Callable[[], tuple[Controller, GroupAccess]]) -> None:
        self._kept = kept
        self._attached = attached
        self._deciding = threading.Lock()

    def now(self) -> ClosedHold | None:
        """Return why the group's hold may not be released blindly; None: it may be, or there is none."""
        closed = ClosedHold.of(self._kept.closed)
        if closed is None:
            return None
        group = self._attached()[1].group
        view = group.view()
        hold = group.known_hold(view)
        in_force = view.committed.held and hold is not None and hold.hold_id == closed.hold
        return closed if in_force and group.known_version(view) in (None, closed.version) else None

    def close(
        self,
        surface: str,
        *,
        verb: str,
        reason: str,
        by: ClosedBy = ClosedBy.REFUSED,
        before: str | None = None,
    ) -> bool:
        """Close a hold; whether there is one. A release under way is waited for.

        A refusal closes the hold of any surface, since trainers of one group may speak to several; a failure
        that of its own surface alone, for another's trainer sees none.

        Parameters
        ----------
        surface, verb, reason : str
            Whose verb it was, and why it was refused or failed.
        by : ClosedBy
            Which of the two.
        before : str or None
            Of a failure: what the group had before. If it has another version by now, the update brought it.
        """
        with self._deciding:
            controller, access = self._attached()
            view = access.group.view()
            hold = access.group.known_hold(view)
            refused, closed = by is ClosedBy.REFUSED, self.now()
            if hold is None or not hold.owner.startswith(OWNERS):
                return False
            if not refused:
                if hold.owner != f"{OWNERS}{surface}":
                    return False
                if closed is not None and closed.by is ClosedBy.REFUSED:
                    return True  # by what opens less easily
            version = access.group.known_version(view) if refused else before
            self._kept.close(asdict(ClosedHold(hold.hold_id, surface, verb, reason, version, by)))
            if hold.lease_s is not None:
                controller.hold(in_flight=hold.in_flight, kv_policy=hold.kv_policy, owner=hold.owner)
        log.logger("http").warning(log.HOLD_CLOSED, surface=surface, verb=verb, reason=reason)
        return True

    def reopen_after_success(self, surface: str) -> None:
        """Let a hold that a failure of this surface closed be an ordinary one: an update has passed since."""
        closed = ClosedHold.of(self._kept.closed)
        if closed is not None and closed.by is not ClosedBy.REFUSED and closed.surface == surface:
            self._kept.close(None)

    def release(self, command: Callable[[], Receipt], *, explicit: bool) -> Receipt:
        """Do a release, whole.

        Raises
        ------
        RefusedError
            If the hold is closed (code ``hold-closed``), unless the word is explicit.
        """
        with self._deciding:
            closed = None if explicit else self.now()
            if closed is not None:
                raise _refusal(closed)
            return command()

    def update(
        self,
        command: Callable[[After], Receipt],
        *,
        after: After,
        tags: frozenset[Tag] | None,
        owner: str,
        decides_later: bool = False,
    ) -> Receipt:
        """Do an update, which opens a closed hold only by what it has brought.

        Parameters
        ----------
        command : callable
            ``command(after)`` does it, whole.
        after : After
            What its caller wants of admission behind it.
        tags : frozenset of Tag or None
            What it is about; None: all.
        owner : str
            Who asks.
        decides_later : bool
            Whether what it brings is only prepared by it.

        Raises
        ------
        RefusedError
            If the group is to serve, and its hold is another's (code ``held-by-another``), or closed and
            nothing was brought that could open it (``hold-closed``).
        """
        closed = self.now()
        if after is After.SERVE:
            self._require_owned(owner)
        if after is not After.SERVE or closed is None:
            return command(after)
        if decides_later or (tags is not None and Tag.WEIGHTS not in tags):
            raise _refusal(closed)
        receipt = command(After.AS_BEFORE)
        self.reopen_after(receipt)
        if receipt.hold is None:
            return receipt
        hold = str(receipt.hold["id"])
        with self._deciding:
            if self.now() is None:
                opened = self._attached()[0].release(owner=owner, hold=hold)
                return replace(receipt, serving=opened.serving, hold=opened.hold)
        if not receipt.loaded:
            raise _refusal(closed)
        why = f"the group had these weights when {closed.verb} {closed.did}: it stays held and closed"
        return replace(receipt, warning=why)

    def reopen_after(self, receipt: Receipt, *, sent: bool = False) -> None:
        """Let a closed hold be an ordinary one again once its group was updated.

        Parameters
        ----------
        receipt : Receipt
            Of a command that ended well.
        sent : bool
            Whether its caller has sent the weights, by their path: then the same ones are an update, too.
        """
        closed = ClosedHold.of(self._kept.closed)
        if closed is None:
            return
        brought = receipt.outcome in _BROUGHT and (not receipt.tags or Tag.WEIGHTS.value in receipt.tags)
        if receipt.outcome is Outcome.RELEASED or (brought and (sent or receipt.version != closed.version)):
            self._kept.close(None)

    def _require_owned(self, owner: str) -> None:
        group = self._attached()[1].group
        view = group.view()
        hold = group.known_hold(view) if view.committed.held else None
        if hold is not None and hold.owner != owner:
            raise controller_errors.held_by_another(
                operation="update that serves", owner=hold.owner, hold_id=hold.hold_id
            )


def _refusal(closed: ClosedHold) -> RefusedError:
    return errors.hold_closed(surface=closed.surface, verb=closed.verb, did=closed.did, reason=closed.reason)
