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

**A lease that runs out** ends by an ordinary release, given by the process that keeps the group. It looks at
the lease again once it has the controller role, since renewing needs that, too. Memory that is not whole
belongs to the owner that has cleared it, so such a group stays held.

Pure: functions of words, of the committed record and of a clock's reading.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from wsm.states.vocabulary import (
    Admission,
    AdmissionEvent,
    After,
    InFlightPolicy,
    KVPolicy,
    OnLease,
    Tag,
)

#: No clock reads so late, in ns, and no lease lasts so long, in seconds.
LATEST = 1 << 63


@dataclass(frozen=True)
class Hold:
    """What is known of a hold besides that it is one.

    Parameters
    ----------
    hold_id : str
        Names it; commands may carry it.
    owner : str
        Who asked for it, and may release it.
    in_flight : InFlightPolicy
        What became of running requests.
    kv_policy : KVPolicy
        KEEP or DROP: what became of the blocks in the KV cache.
    lease_s : float or None
        Seconds after which it runs out unless its owner asks again; None: never.
    on_lease : OnLease
        What happens then.
    renewed_ns : int
        When its owner asked last, by the host's monotonic clock, in ns.
    """

    hold_id: str
    owner: str
    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    kv_policy: KVPolicy = KVPolicy.KEEP
    lease_s: float | None = None
    on_lease: OnLease = OnLease.STAY
    renewed_ns: int = 0

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "id": self.hold_id,
            "owner": self.owner,
            "in_flight": self.in_flight.value,
            "kv_policy": self.kv_policy.value,
            "lease_s": self.lease_s,
            "on_lease": self.on_lease.value,
            "renewed_ns": self.renewed_ns,
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Hold:
        """Return what :meth:`facts` has described.

        Raises
        ------
        ValueError
            If the values describe none.
        """
        try:
            hold_id, owner, lease_s = facts["id"], facts["owner"], facts["lease_s"]
            renewed_ns = facts["renewed_ns"]
            hold = cls(
                hold_id,
                owner,
                InFlightPolicy(facts["in_flight"]),
                KVPolicy(facts["kv_policy"]),
                lease_s,
                OnLease(facts["on_lease"]),
                renewed_ns,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        texts = isinstance(hold_id, str) and isinstance(owner, str)
        clock = type(renewed_ns) is int and 0 <= renewed_ns < LATEST
        seconds = lease_s is None or (type(lease_s) in (int, float) and 0 < lease_s < LATEST)
        if not (texts and clock and seconds):
            raise ValueError(f"{facts}")
        return hold

    def left_s(self, now_ns: int) -> float | None:
        """Return the seconds until its lease runs out, negative if that is past; None: it has none."""
        return None if self.lease_s is None else self.lease_s - (now_ns - self.renewed_ns) / 1e9


def held_after(after: After, *, held: bool) -> bool:
    """Whether the group is held once a command is committed.

    Parameters
    ----------
    after : After
        What the command leaves.
    held : bool
        Whether the group was held before it.
    """
    return held if after is After.AS_BEFORE else after is After.HELD


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
    CANNOT_SERVE = "cannot serve"  # of a release: refused, and what is missing is named


def asked_to_hold(hold: Hold | None, *, held: bool, owner: str) -> Answer:
    """Say what becomes of a request to hold the group; of a hold without a record the owner is unknown."""
    if not held:
        return Answer.COMMAND
    return Answer.RENEW if hold is None or hold.owner == owner else Answer.NOT_THE_OWNER


def asked_to_release(
    hold: Hold | None, *, held: bool, owner: str, forced: bool, missing: Collection[Tag]
) -> Answer:
    """Say what becomes of a request to release the group.

    Parameters
    ----------
    hold : Hold or None
        What is known of the hold; None: nothing, and then no owner is asked for.
    held : bool
        Whether the group is held.
    owner : str
        Who asks.
    forced : bool
        Whether another's hold is released, too.
    missing : collection of Tag
        What the group lacks that a step needs.
    """
    if not held:
        return Answer.NOTHING
    if not forced and hold is not None and hold.owner != owner:
        return Answer.NOT_THE_OWNER
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

    Parameters
    ----------
    policy : InFlightPolicy
        Of the command.
    held : bool
        Whether the rank is held.
    set_aside : int or None
        How many requests the hold has set aside; None: the scheduler cannot tell.
    can_end : bool
        Whether the scheduler can end what it has set aside.
    """
    if not held or policy is InFlightPolicy.KEEP or set_aside == 0:
        return None
    some = "requests" if set_aside is None else f"{set_aside} request(s)"
    if policy is InFlightPolicy.ABORT:
        return (
            None if can_end else f"the hold has set {some} aside, which this scheduler cannot end; keep them"
        )
    return f"the hold has set {some} aside, and what stands still cannot be drained; keep or abort them"


class LeaseEnd(enum.Enum):
    """What is due about a hold's lease."""

    NOTHING = "nothing"  # the group is open, the lease runs still, or there is none
    WAIT = "wait"  # it has run out, and a command is open, or the group is to be restored first
    RELEASE = "release"  # by an ordinary release
    STAYS = "stays"  # it has run out, the hold stays, and every status says so


def lease_end(
    hold: Hold | None, now_ns: int, *, held: bool, is_over: bool, whole: bool, owed: bool
) -> LeaseEnd:
    """Say what is due about the lease of a hold.

    Parameters
    ----------
    hold : Hold or None
        What is known of the hold.
    now_ns : int
        The host's monotonic clock, in ns.
    held : bool
        Whether the group is held.
    is_over : bool
        Whether no command is open.
    whole : bool
        Whether every rank has in memory what a step needs: its committed version.
    owed : bool
        Whether the group is to be restored to what it served.
    """
    left_s = None if hold is None or not held else hold.left_s(now_ns)
    if hold is None or left_s is None or left_s > 0:
        return LeaseEnd.NOTHING
    if hold.on_lease is OnLease.STAY:
        return LeaseEnd.STAYS
    if not is_over or owed:
        return LeaseEnd.WAIT
    return LeaseEnd.RELEASE if whole else LeaseEnd.STAYS
