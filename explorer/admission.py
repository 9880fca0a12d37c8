"""What callers ask of a group's admission, and what is due about the lease of its hold, in an explored world.

A hold is numbered, has one of two owners, and is released or stays when its lease runs out. What is known of
it stands in the record; what was decided last no process knows, and the rules here ask for that. Whatever is
answered is asked of :mod:`wsm.states.holding`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from explorer.errors import RuleBrokenError
from explorer.scope import Scope
from explorer.world import ControllerState, hold_byte_of
from wsm.states import decide, holding
from wsm.states.holding import Answer, Hold, LeaseEnd
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy, OnLease
from wsm.states.words import Decider

#: The keeper reads a lease again once it has the role; a seeded fault lets it believe what it saw before.
lease_is_read_again = True

OWNERS = ("one", "another")

#: How a command treats requests, as a world numbers it.
POLICIES = tuple(InFlightPolicy)

#: Added to that number where its caller has named it.
NAMED = len(POLICIES)

_LEASE_S = 1.0
_NOW_NS = 10**9


class Terms(NamedTuple):
    """What is known of a hold.

    Attributes
    ----------
    number : int
        Which it is, from 1 on: its id.
    owner : int
        A place in :data:`OWNERS`.
    stays : bool
        Whether it stays when its lease has run out.
    drops : bool
        Whether the blocks of the KV cache are forgotten.
    keeps : bool
        Whether the requests that ran are set aside; else they are ended.
    """

    number: int
    owner: int = 0
    stays: bool = False
    drops: bool = False
    keeps: bool = False

    def pack(self) -> int:
        """Return it as one byte, which is not 0."""
        return self.number | self.owner << 3 | self.stays << 4 | self.drops << 5 | self.keeps << 6

    def known(self, *, lapsed: bool) -> Hold:
        """Return what the protocol is told of it."""
        return Hold(
            str(self.number),
            OWNERS[self.owner],
            InFlightPolicy.KEEP if self.keeps else InFlightPolicy.ABORT,
            KVPolicy.DROP if self.drops else KVPolicy.KEEP,
            _LEASE_S,
            OnLease.STAY if self.stays else OnLease.SERVE,
            0 if lapsed else _NOW_NS,
        )


#: The highest number that a hold may have.
MOST_HOLDS = 7


def terms_of(byte: int) -> Terms | None:
    """Return what :meth:`Terms.pack` has packed; None: there is none."""
    if not byte:
        return None
    return Terms(byte & 7, byte >> 3 & 1, bool(byte & 16), bool(byte & 32), bool(byte & 64))


@dataclass(frozen=True)
class Arguments:
    """What is stored before a command word, as far as it matters.

    Parameters
    ----------
    version : int or None
        What it brings; None: what no other command brings.
    before : bool
        Whether the group served when it was admitted, or is owed that.
    tags : int
        What it is about.
    restores : bool
        Whether it restores what the group served before it lost a rank, or repairs a rank for that.
    after : After
        What it leaves of admission.
    decider : Decider
        Who decides it.
    leased : bool
        Whether a lease holds that decision.
    hold : int
        The hold that it begins, packed; 0: none.
    policy : int
        What becomes of requests, as :data:`POLICIES` and :data:`NAMED` say.
    """

    version: int | None
    before: bool
    tags: int
    restores: bool = False
    after: After = After.AS_BEFORE
    decider: Decider = Decider.CONTROLLER
    leased: bool = False
    hold: int = 0
    policy: int = 0


def named(says: Arguments, scope: Scope) -> str:
    """Say what arguments say of requests and of the hold that they begin, as far as that varies."""
    hold, parts = terms_of(says.hold), []
    if hold is not None and scope.owners:
        parts += [f"by {OWNERS[hold.owner]}", *(["to stay"] if hold.stays else [])]
    if hold is not None and hold.drops:
        parts.append("blocks are dropped")
    if scope.requests and (says.tags or hold is not None):
        parts.append(f"requests {POLICIES[says.policy % NAMED].value}{' as asked' * (says.policy >= NAMED)}")
    return "".join(f", {part}" for part in parts)


def known_hold(now: ControllerState) -> Hold | None:
    """Return what the record says of the hold that the group stands under."""
    terms = terms_of(hold_byte_of(now))
    return None if terms is None else terms.known(lapsed=now.lapsed)


def begun_by(now: ControllerState, held: bool) -> int:
    """Return the hold that a group stands under once the command at hand is committed, packed."""
    return (now.hold or hold_byte_of(now)) if held else 0


def holds_asked(now: ControllerState, scope: Scope) -> Iterator[Terms]:
    """Iterate over the holds that callers may ask for."""
    number = min(now.holds + 1, MOST_HOLDS) if scope.owners else 1
    if scope.owners:
        yield Terms(number)
        yield Terms(number, owner=1, stays=True)
    elif scope.requests:
        yield Terms(number, keeps=True)
        yield Terms(number, keeps=True, drops=True)
        yield Terms(number)
    else:
        yield Terms(number)


def answer_to_hold(now: ControllerState, terms: Terms, *, held: bool) -> Answer:
    """Ask what becomes of a request to hold the group, and check that against what was decided."""
    answer = holding.asked_to_hold(known_hold(now), held=held, owner=OWNERS[terms.owner])
    stands = terms_of(now.stands)
    theirs = held and stands is not None and stands.owner != terms.owner
    if (answer is Answer.NOT_THE_OWNER) is not theirs or (answer is Answer.COMMAND) is held:
        raise RuleBrokenError(
            rule="there is one hold at a time, and its owner alone renews it",
            seen=f"{OWNERS[terms.owner]} asks for a hold under {stands}, and the answer is {answer.value}",
        )
    return answer


def answers_to_release(now: ControllerState, scope: Scope, view: View) -> Iterator[tuple[str, Answer]]:
    """Iterate over who asks for a release and what becomes of that, checked against what was decided."""
    each, held = decide.resident_on_each(view), view.committed.held
    missing = frozenset(tag for resident in each for tag in resident.missing)
    stands = terms_of(now.stands)
    for owner in range(len(OWNERS)) if scope.owners else (0,):
        for forced in (False, True) if scope.owners else (False,):
            answer = holding.asked_to_release(
                known_hold(now), held=held, owner=OWNERS[owner], forced=forced, missing=missing
            )
            theirs = held and stands is not None and stands.owner != owner and not forced
            if (answer is Answer.NOT_THE_OWNER) is not theirs or (answer is Answer.NOTHING) is held:
                raise RuleBrokenError(
                    rule="a hold is released by its owner, or by an operator who forces it",
                    seen=f"{OWNERS[owner]} asks for a release under {stands} (forced: {forced}), and the "
                    f"answer is {answer.value}",
                )
            yield (f", forced by {OWNERS[owner]}" if forced else ""), answer


def check_ids(now: ControllerState, *, held: bool) -> None:
    """Check that a command which names a hold is taken while that very hold is in force."""
    stands = terms_of(now.stands)
    for number in range(1, now.holds + 1):
        taken = holding.is_in_force(known_hold(now), str(number), held=held)
        in_force = held and stands is not None and stands.number == number
        if taken is not in_force:
            raise RuleBrokenError(
                rule="a command that names a hold is refused once that hold is no longer in force",
                seen=f"it names hold {number} under {stands}, and is {'taken' if taken else 'refused'}",
            )


def policies_asked(now: ControllerState, scope: Scope, *, held: bool) -> Iterator[int]:
    """Iterate over what a command may say about requests; the first: nothing."""
    usual = InFlightPolicy.ABORT
    under = known_hold(now) if held else None
    yield POLICIES.index(holding.in_flight_under(under, None, usual))
    for asked in POLICIES if scope.requests and held else ():
        yield POLICIES.index(holding.in_flight_under(under, asked, usual)) + NAMED


def lease_end(now: ControllerState, view: View, *, owed: bool) -> LeaseEnd:
    """Ask what is due about the lease of the hold."""
    each = decide.resident_on_each(view)
    return holding.lease_end(
        known_hold(now),
        _NOW_NS + 1,
        held=view.committed.held,
        is_over=decide.is_over(view),
        whole=all(resident.serving for resident in each),
        owed=decide.before_admission(each, owed=owed)[1],
    )


def check_lease_end(now: ControllerState) -> None:
    """A lease is ended once it has run out, and not where the hold is to stay."""
    stands = terms_of(now.stands)
    if not now.lapsed or stands is None or stands.stays:
        raise RuleBrokenError(
            rule="a lease ends a hold that is to serve then, and only while it has run out",
            seen=f"it ends {stands}, whose lease {'has run out' if now.lapsed else 'was renewed'}",
        )
