"""What callers ask of a group's admission, what a caller decides, and when leases end, in an explored world.

A hold is numbered, has one of two owners, and is released or stays when its lease runs out. What is known of
it stands in the record; what was decided last no process knows, and the rules here ask for that. Whatever is
answered is asked of :mod:`wsm.states.holding`. A caller's verdict is said to its own process, which tells no
other; it comes without a wish, so that a group which rests does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from explorer.errors import RuleBrokenError
from explorer.scope import BY_CALLER, BY_CONTROLLER, BY_LEASE, Scope
from explorer.world import Arguments, ControllerState, Terms, hold_in_force
from wsm.states import decide, holding
from wsm.states.holding import Answer, Hold
from wsm.states.view import View
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, OnLease
from wsm.states.words import Decider

#: The keeper reads a lease again once it has the role; a seeded fault lets it believe what it saw before.
lease_is_read_again = True

#: A lease counts from all PREPARED; a seeded fault lets it count from the command's beginning.
leases_count_from_the_start = False

OWNERS = ("one", "another")

_LEASE_S = 1.0
#: When a world is looked at, by a clock; a lease that was renewed has not run out then.
NOW_NS = 10**9

#: The highest number that a hold may have.
_MOST_HOLDS = 7

_DECIDERS = (
    (BY_CONTROLLER, Decider.CONTROLLER, False),
    (BY_CALLER, Decider.CALLER, False),
    (BY_LEASE, Decider.CALLER, True),
)


def deciders_asked(scope: Scope, *, one: bool) -> list[tuple[Decider, bool]]:
    """Return who may decide what is asked, and whether by a lease; `one`: its controller does."""
    given = BY_CONTROLLER if one else scope.deciders
    return [(decider, leased) for number, decider, leased in _DECIDERS if number & given]


def verdicts(now: ControllerState, view: View, *, agree: bool) -> Iterator[tuple[str, ControllerState]]:
    """Iterate over what a caller decides next in the place of its controller, and over the end of its lease.

    `agree`: whether the reports do.
    """
    command = view.command
    if command.operation.is_decision or command.decider is Decider.CONTROLLER:
        return
    gone = now.left and not now.alive and not now.ending
    back = now._replace(alive=True, driving=True, left=False)
    if now.verdict is not None:
        if gone:
            yield "comes back with what was decided", back
        return
    prepared = decide.all_prepared(view)
    if (prepared or leases_count_from_the_start) and now.says.leased and not now.lease_over:
        if not prepared:
            raise RuleBrokenError(rule="a lease counts from all PREPARED", seen="it is over before that")
        yield "holds a lease that is over", now._replace(lease_over=True)
    if not (prepared and agree) or now.frozen or now.pending:
        return
    if now.driving and not now.orphaned and not now.says.leased and now.told:
        yield "hears COMMIT from its caller", now._replace(verdict=True)
        yield "hears ABORT from its caller", now._replace(verdict=False)
    elif gone and now.says.leased and not now.lease_over:
        yield "comes back to commit", back._replace(verdict=True)
        yield "comes back to abort", back._replace(verdict=False)


def named(says: Arguments, scope: Scope) -> str:
    """Say what arguments say of requests and of the hold that they begin, as far as that varies."""
    hold, parts = says.hold, []
    if hold is not None and scope.owners:
        parts += [f"by {OWNERS[hold.owner]}", *(["to stay"] if hold.stays else [])]
    if hold is not None and hold.drops:
        parts.append("blocks are dropped")
    if scope.requests and (says.tags or hold is not None):
        parts.append(f"requests {says.in_flight.value}{' as asked' * says.names_policy}")
    return "".join(f", {part}" for part in parts)


def known_hold(now: ControllerState) -> Hold | None:
    """Return what the record says of the hold that the group stands under."""
    terms = hold_in_force(now)
    if terms is None:
        return None
    return Hold(
        str(terms.number),
        OWNERS[terms.owner],
        InFlightPolicy.KEEP if terms.keeps else InFlightPolicy.ABORT,
        KVPolicy.DROP if terms.drops else KVPolicy.KEEP,
        _LEASE_S,
        OnLease.STAY if terms.stays else OnLease.SERVE,
        -1 if now.lapsed else NOW_NS,
    )


def begun_by(now: ControllerState, held: bool) -> Terms | None:
    """Return the hold that a group stands under once the command at hand is committed."""
    return (now.says.hold or hold_in_force(now)) if held else None


def holds_asked(now: ControllerState, scope: Scope) -> Iterator[Terms]:
    """Iterate over the holds that callers may ask for."""
    number = min(now.holds + 1, _MOST_HOLDS) if scope.owners else 1
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
    theirs = held and now.stands is not None and now.stands.owner != terms.owner
    if (answer is Answer.NOT_THE_OWNER) is not theirs or (answer is Answer.COMMAND) is held:
        raise RuleBrokenError(
            rule="there is one hold at a time, and its owner alone renews it",
            seen=f"{OWNERS[terms.owner]} asks for a hold under {now.stands}, and it is {answer.value}",
        )
    return answer


def answers_to_release(now: ControllerState, scope: Scope, view: View) -> Iterator[tuple[str, Answer]]:
    """Iterate over who asks for a release and what becomes of that, checked against what was decided."""
    each, held = decide.resident_on_each(view), view.committed.held
    missing = frozenset(tag for resident in each for tag in resident.missing)
    for owner in range(len(OWNERS)) if scope.owners else (0,):
        for forced in (False, True) if scope.owners else (False,):
            answer = holding.asked_to_release(
                known_hold(now), held=held, owner=OWNERS[owner], forced=forced, missing=missing
            )
            theirs = held and now.stands is not None and now.stands.owner != owner and not forced
            if (answer is Answer.NOT_THE_OWNER) is not theirs or (answer is Answer.NOTHING) is held:
                raise RuleBrokenError(
                    rule="a hold is released by its owner, or by an operator who forces it",
                    seen=f"{OWNERS[owner]} asks for a release under {now.stands} (forced: {forced}), and the "
                    f"answer is {answer.value}",
                )
            yield (f", forced by {OWNERS[owner]}" if forced else ""), answer


def check_ids(now: ControllerState, *, held: bool) -> None:
    """Check that a command which names a hold is taken while that very hold is in force."""
    for number in range(1, now.holds + 1):
        taken = holding.is_in_force(known_hold(now), str(number), held=held)
        in_force = held and now.stands is not None and now.stands.number == number
        if taken is not in_force:
            raise RuleBrokenError(
                rule="a command that names a hold is refused once that hold is no longer in force",
                seen=f"it names hold {number} under {now.stands}, and is {'taken' if taken else 'refused'}",
            )


def policies_asked(
    now: ControllerState, scope: Scope, *, held: bool
) -> Iterator[tuple[InFlightPolicy, bool]]:
    """Iterate over what a command may say about requests; the first: nothing."""
    under = known_hold(now) if held else None
    for asked in (None, *InFlightPolicy) if scope.requests and held else (None,):
        yield holding.in_flight_under(under, asked, InFlightPolicy.ABORT), asked is not None


def check_lease_end(now: ControllerState) -> None:
    """A lease is ended once it has run out, and not where the hold is to stay."""
    if not now.lapsed or now.stands is None or now.stands.stays:
        raise RuleBrokenError(
            rule="a lease ends a hold that is to serve then, and only while it has run out",
            seen=f"it ends {now.stands}, whose lease {'has run out' if now.lapsed else 'was renewed'}",
        )
