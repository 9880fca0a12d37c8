"""What is said by who decides a command that its controller does not decide, and when its lease ends.

A caller says it to its own process, which tells no other; what is said outside stays known there. Each of it
happens without a wish, so that a group which rests does not wait for it. And what a dead controller leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from explorer import invariants
from explorer.scope import BY_CALLER, BY_CONTROLLER, BY_LEASE, BY_OUTSIDE, Scope
from explorer.world import ControllerState, Seen, read_command
from wsm.states import decide
from wsm.states.view import View
from wsm.states.words import Decider

#: A lease counts from all PREPARED; a seeded fault lets it count from the command's beginning.
leases_count_from_the_start = False

Heard = Iterator[tuple[str, Callable[[], ControllerState]]]

NOTHING_PENDING = {
    name: ControllerState._field_defaults[name]
    for name in (
        "pending",
        "pending_version",
        "pending_before",
        "pending_tags",
        "pending_restores",
        "pending_after",
        "pending_hold",
        "pending_policy",
    )
}

NOTHING_SAID = {
    name: ControllerState._field_defaults[name]
    for name in ("says_commit", "says_abort", "voted", "lease_over")
}

_DECIDERS = (
    (BY_CONTROLLER, Decider.CONTROLLER, False),
    (BY_CALLER, Decider.CALLER, False),
    (BY_OUTSIDE, Decider.OUTSIDE, False),
    (BY_LEASE, Decider.CALLER, True),
)


def deciders_asked(scope: Scope, *, one: bool) -> list[tuple[Decider, bool]]:
    """Return who may decide what is asked, and whether by a lease; `one`: its controller does."""
    given = BY_CONTROLLER if one else scope.deciders
    return [(decider, leased) for number, decider, leased in _DECIDERS if number & given]


def of(now: ControllerState, view: View, *, agree: bool) -> Heard:
    """Iterate over what is said next; `agree`: whether the reports do."""
    command = view.command
    if command.operation.is_decision or command.decider is Decider.CONTROLLER:
        return
    gone = now.left and not now.alive and not now.ending
    if now.says_commit or now.says_abort:
        if gone:
            back = now._replace(alive=True, driving=True, left=False)
            yield "comes back with what was decided", lambda: back
    elif command.decider is Decider.OUTSIDE:
        yield from _from_outside(now, prepared=decide.all_prepared(view) and agree)
    else:
        prepared = decide.all_prepared(view)
        if (prepared or leases_count_from_the_start) and now.leased and not now.lease_over:
            yield "holds a lease that is over", lambda: _lease_ended(now, prepared=prepared)
        if prepared and agree and not now.frozen and not now.pending:
            yield from _from_caller(now, gone=gone)


def _from_outside(now: ControllerState, *, prepared: bool) -> Heard:
    may_tell = now.driving and not now.frozen and not now.pending and not now.voted
    if may_tell and prepared:
        yield "tells outside that all are PREPARED", lambda: now._replace(voted=True)
    if now.voted:
        yield "hears COMMIT from outside", lambda: now._replace(says_commit=True)
    yield "hears ABORT from outside", lambda: now._replace(says_abort=True)


def _from_caller(now: ControllerState, *, gone: bool) -> Heard:
    held_by_lease = now.leased and not now.lease_over
    if now.driving and not now.gives_up and not now.leased:
        yield "hears COMMIT from its caller", lambda: now._replace(says_commit=True)
        yield "hears ABORT from its caller", lambda: now._replace(says_abort=True)
    elif now.driving and now.alive and held_by_lease:
        away = controller_killed(now)._replace(left=True, voted=True)
        yield "gives the role back, and a lease holds the decision", lambda: away
    elif gone and held_by_lease:
        back = now._replace(alive=True, driving=True, left=False)
        yield "comes back to commit", lambda: back._replace(says_commit=True)
        yield "comes back to abort", lambda: back._replace(says_abort=True)


def _lease_ended(now: ControllerState, *, prepared: bool) -> ControllerState:
    invariants.check_lease(prepared=prepared)
    return now._replace(lease_over=True)


def controller_killed(controller: ControllerState) -> ControllerState:
    """Return what is left of a controller whose process died: the words, and what the owner remembers."""
    if read_command(controller.command).decider is Decider.CALLER:
        controller = controller._replace(says_commit=False, says_abort=False)
    return controller._replace(
        alive=False,
        orphaned=True,
        driving=False,
        gives_up=False,
        recovering=False,
        ending=False,
        frozen=False,
        repairs=False,
        seen=Seen(),
        **NOTHING_PENDING,
    )
