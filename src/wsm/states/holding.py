"""Held groups: what a command leaves of admission, who may end a hold, what its requests and its lease mean.

Theory of operation
-------------------
A group stands still while it is HELD, with all that it has in memory. Admission says one thing, whether a
rank may step; for every other rule a held rank counts as what it holds. Only a COMMIT changes it, and the
committed word carries it, so that a new epoch begins as the last one was decided.

**One hold at a time**, with an id and an owner. The owner is a name and no process: the one that asked
may have ended long ago. Its owner may ask for it again, which renews its lease, and any other is refused.

**A command under a hold stays under it.** Its in-flight policy is about the requests that the hold has set
aside, since there are no others.

**A closed hold** (:class:`ClosedHold`) is released by force alone, and no lease ends it: its trainer may take
for done what was refused, or failed. A commit of other weights makes it an ordinary one; a restore, a death
or a new process does not.

**A lease that runs out** ends by an ordinary release, given by the process that keeps the group. It looks at
the lease again once it has the controller role, since renewing needs that, too. Memory that is not whole
belongs to the owner that has cleared it, so such a group stays held.

Pure: functions of words, of the committed record and of a clock's reading.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from wsm.states.vocabulary import Admission, AdmissionEvent, After, InFlightPolicy, KVPolicy, OnLease, Tag

#: The owner of a hold whose caller names none.
ANY_OWNER = "unnamed"

#: No clock reads so late, in ns, and no lease lasts so long, in seconds.
LATEST = 1 << 63


class ClosedBy(str, enum.Enum):
    """What closed a hold.

    REFUSED: a verb that is never honoured. FAILED: an update that failed. DELAYED: an update that failed, and
    may pass when it is asked again, which its trainer was told.
    """

    REFUSED = "refused"
    FAILED = "failed"
    DELAYED = "delayed"


class ClosedHold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a held group is released by force alone.

    `surface`, `verb`, `reason`: whose verb was refused, or failed, and why. `version`: what the group had
    committed before; None: not known.
    """

    surface: str
    verb: str
    reason: str
    version: str | None = None
    by: ClosedBy = ClosedBy.REFUSED

    def __str__(self) -> str:
        did = "was refused" if self.by is ClosedBy.REFUSED else "failed"
        return f"{self.verb} {did} over {self.surface} ({self.reason})"


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a hold besides that it is one.

    `owner`: who asked for it, and may release it. `lease_s`: seconds after which it runs out unless its owner
    asks again; None: never. `renewed_ns`: when its owner asked last, by the host's monotonic clock, in ns.
    `closed`: why it is released by force alone; None: its owner releases it.
    """

    hold_id: str = msgspec.field(name="id")
    owner: str
    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    kv_policy: KVPolicy = KVPolicy.KEEP
    lease_s: Annotated[float, msgspec.Meta(gt=0, lt=LATEST)] | None = None
    on_lease: OnLease = OnLease.STAY
    renewed_ns: Annotated[int, msgspec.Meta(ge=0, le=LATEST - 1)] = 0
    closed: ClosedHold | None = None

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values; ``closed`` is there only where it is."""
        said: dict[str, Any] = msgspec.to_builtins(self)
        if self.closed is None:
            del said["closed"]
        return said

    @staticmethod
    def known(hold: Hold | None) -> Hold | None:
        """Return a hold; None: there is none, or nothing is known of it but that it is one."""
        return None if hold == UNKNOWN_HOLD else hold

    def left_s(self, now_ns: int) -> float | None:
        """Return the seconds until its lease runs out, negative if that is past; None: it has none."""
        return None if self.lease_s is None else self.lease_s - (now_ns - self.renewed_ns) / 1e9


#: A hold whose record is lost: only the committed word says that there is one.
UNKNOWN_HOLD = Hold("", "")


def held_after(after: After, *, held: bool) -> bool:
    """Whether the group is held behind a commit, which leaves `after`; `held`: whether it was before."""
    return held if after is After.AS_BEFORE else after is After.HELD


def keeps_closed(
    hold: Hold | None, version: str | None, *, loads: bool, restores: bool, other: bool = False
) -> ClosedHold | None:
    """Return why a hold is closed still behind a command; None: it is not, or no longer.

    `hold`: what is known of the hold that the command stays under, or would end. `version`: what it commits;
    None: not known yet. `loads`, `restores`, `other`: whether it brings weights, whether only to restore what
    was there, and whether it is known to have brought other content under the same label.
    """
    closed = None if hold is None else hold.closed
    brings = loads and not restores and version is not None
    return None if closed is not None and brings and (other or version != closed.version) else closed


def event_to(admission: Admission, *, held: bool) -> AdmissionEvent | None:
    """Return the event that brings a rank's admission to what was decided; None: it is there."""
    if held is (admission is Admission.HELD):
        return None
    return AdmissionEvent.HOLD if held else AdmissionEvent.RELEASE


class Answer(enum.Enum):
    """What becomes of a request to hold a group, or to release it."""

    COMMAND = "command"  # all ranks are asked
    RENEW = "renew"  # the owner has the hold already: its lease begins anew
    NOTHING = "nothing"  # of a release: the group is open already
    NOT_THE_OWNER = "not the owner"  # refused, and the owner is named
    CLOSED = "closed"  # of a release: refused, unless it is forced
    CANNOT_SERVE = "cannot serve"  # of a release: refused, and what is missing is named


def asked_to_hold(hold: Hold | None, *, held: bool, owner: str) -> Answer:
    """Say what becomes of a request to hold the group; of a hold without a record the owner is unknown."""
    if not held:
        return Answer.COMMAND
    return Answer.RENEW if hold is None or hold.owner == owner else Answer.NOT_THE_OWNER


def asked_to_release(
    hold: Hold | None, *, held: bool, owner: str, forced: bool, missing: Collection[Tag]
) -> Answer:
    """Say what becomes of a request to release the group; of a hold without a record no owner is asked for.

    `forced`: whether another's hold is released, too, and one that is closed. `missing`: what the group lacks
    that a step needs.
    """
    if not held:
        return Answer.NOTHING
    if not forced and hold is not None and hold.owner != owner:
        return Answer.NOT_THE_OWNER
    if not forced and hold is not None and hold.closed is not None:
        return Answer.CLOSED
    return Answer.CANNOT_SERVE if missing else Answer.COMMAND


def is_in_force(hold: Hold | None, hold_id: str | None, *, held: bool) -> bool:
    """Whether a command may be given that names a hold, or none."""
    return hold_id is None or (held and hold is not None and hold.hold_id == hold_id)


def in_flight_under(hold: Hold | None, asked: InFlightPolicy | None, usual: InFlightPolicy) -> InFlightPolicy:
    """Return the in-flight policy of a command: what it asks for, else what the hold said, else the usual."""
    return asked or (usual if hold is None else hold.in_flight)


def in_flight_objection(
    policy: InFlightPolicy, *, held: bool, set_aside: int | None, can_end: bool = True
) -> str | None:
    """Say why a rank cannot honour a command's in-flight policy under a hold; None if it can.

    `set_aside`: how many requests the hold has set aside, None: the scheduler cannot tell; `can_end`: whether
    the scheduler can end them.
    """
    if not held or policy is InFlightPolicy.KEEP or set_aside == 0:
        return None
    some = "requests" if set_aside is None else f"{set_aside} request(s)"
    if policy is InFlightPolicy.ABORT:
        return (
            None if can_end else f"the hold has set {some} aside, which this scheduler cannot end; keep them"
        )
    return f"the hold has set {some} aside, and what stands still cannot be drained; keep or abort them"


def lease_ends(hold: Hold | None, now_ns: int, *, held: bool, is_over: bool, whole: bool, owed: bool) -> bool:
    """Whether a release is due, since the lease of `hold` is over at `now_ns` of the host's clock.

    It is not while a command is open, or the group is to be restored first. Where the hold stays behind its
    lease, every status says so.

    `is_over`: whether no command is open; `whole`: whether every rank has what a step needs; `owed`: whether
    the group is to be restored to what it served.
    """
    left_s = None if hold is None or not held else hold.left_s(now_ns)
    if hold is None or left_s is None or left_s > 0:
        return False
    stays = hold.on_lease is OnLease.STAY or hold.closed is not None
    return is_over and whole and not (stays or owed)
