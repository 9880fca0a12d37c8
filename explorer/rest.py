"""What a group must look like when nothing moves any more, unless somebody from outside makes it.

That every world comes to rest is another question (:mod:`explorer.graph`); that it rests well is asked
of every world that rests. Together they say that no group hangs.
"""

from __future__ import annotations

from explorer.clerk import all_ended
from explorer.desk import Desk
from explorer.invariants import holds_all
from explorer.participant import Participant, Place, read_command, read_status, read_step
from explorer.recovery_moves import ATTEMPTS
from explorer.world import World, desk_of, everybody
from wsm.states.rank_state import Phase
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.states.words import CommittedWord, Operation, StatusCode, StepKind

_PREPARED = (StatusCode.PREPARED, StatusCode.DONE_COMMITTED)


def objection(world: World, ranks: int) -> str:
    """Say what is wrong with a world in which nothing moves by itself; empty: nothing."""
    desk, people = desk_of(world), everybody(world)
    view = View(
        read_command(desk.command),
        [read_step(each.step) for each in people[:ranks]],
        [read_status(each.status) for each in people],
        CommittedWord.unpack(desk.committed),
    )
    if desk.gave_up:
        return _given_up(people, view)
    if desk.frozen and (_is_hurt(people, view) or not all_ended(view)):
        return _waits_for_stopped(people, view)
    stuck = [f"rank {i} {why} for ever" for i, each in enumerate(people) if (why := _stuck(each))]
    if not all_ended(view):
        stuck.append(f"{view.command.operation.name} {view.command.sequence} is never over")
    if (desk.driving and not desk.frozen) or desk.ending or not (desk.alive or desk.left):
        stuck.append("the controller never finishes")
    if stuck:
        return stuck[0]
    mistaken = [f"rank {i} {why}" for i, each in enumerate(people) if (why := _mistaken(each, view))]
    if mistaken:
        return mistaken[0]
    return _disagreement(people) or ("" if desk.frozen else _never_restored(desk, people, view))


def _waits_for_stopped(people: list[Participant], view: View) -> str:
    """Say that a command waits for a stopped controller beyond its deadline; if all prepared, it must."""
    words = [view.of_command(index) for index in range(len(view.statuses))]
    prepared = all(word is not None and word.code in _PREPARED for word in words)
    if prepared or _is_hurt(people, view) or view.command.operation is Operation.NONE:
        return ""  # whom to end is said; what was lost is recovered then
    return f"{view.command.operation.name} {view.command.sequence} waits for a stopped controller for ever"


def _is_hurt(people: list[Participant], view: View) -> bool:
    """Whether only a new epoch leads on, which needs the role."""
    return any(not each.alive for each in people) or any(word.kind is StepKind.BROKEN for word in view.steps)


def _disagreement(people: list[Participant]) -> str:
    """Say in what the ranks differ, or what the group as a whole has lost.

    A FAULTED rank may hold less than the others: nobody serves beside it, and only a clear of both goes on.
    """
    held = [each.content for each in people if not _is_faulted(each)]
    halves = [(bool(each.content), each.joint.kv) for each in people if not _is_faulted(each)]
    if len(set(held)) > 1:
        return f"the ranks rest with different versions: {held}"
    if len(set(halves)) > 1:
        return f"the ranks rest with different halves: {halves}"
    if len(held) < len(people) and any(each.state.holds for each in people):
        return "a rank serves beside one that is FAULTED"
    return ""


def _never_restored(desk: Desk, people: list[Participant], view: View) -> str:
    """Say that a group stays CLEARED in its new epoch, although its restore may be tried still."""
    version, operation = view.committed.version, view.command.operation
    tried = operation is Operation.ABORT and desk.restores
    waits = operation is Operation.NONE or (tried and desk.failed < ATTEMPTS)
    if waits and version is not None and not any(each.content for each in people):
        return f"the group must serve version {version} again in its new epoch, and never does"
    return ""


def _given_up(people: list[Participant], view: View) -> str:
    """Say what is wrong with a group whose owner recovers it no more: those who live must not hang inside."""
    opened = view.command.operation in (Operation.CLEAR, Operation.UPDATE, Operation.HOT_UPDATE)
    if opened and not all_ended(view):
        return f"{view.command.operation.name} {view.command.sequence} is never decided"
    inside = (f"rank {i} {_stuck(each)} for ever" for i, each in enumerate(people) if each.place)
    return next(inside, "")


def _is_faulted(me: Participant) -> bool:
    return me.joint.weights is WeightState.FAULTED


def _stuck(me: Participant) -> str:
    if not me.alive:
        return "is not started anew"
    if me.place is Place.IN_STEP:
        return f"stays in step {me.state.step}, which not all have entered,"
    if me.place is Place.IN_ACTION:
        return f"stays in collective action {me.state.action}, which not all have entered,"
    if me.state.phase is not Phase.IDLE:
        return f"waits while {me.state.phase.value}"
    return ""


def _mistaken(me: Participant, view: View) -> str:
    """Say in what a rank's idea of itself differs from what is in its memory."""
    serving = holds_all(me)
    if serving != me.state.holds or me.version != me.content or (serving and not me.content):
        return f"rests in {me.joint}, holds={me.state.holds}, and has version {me.content} in memory"
    if me.content and me.content != view.committed.version:
        return f"serves version {me.content}, and the committed version is {view.committed.version}"
    if not me.content and me.joint.weights not in (WeightState.CLEARED, WeightState.FAULTED):
        return f"holds nothing and rests in {me.joint}"
    return ""
