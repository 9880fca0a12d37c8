"""What must hold after every move, and what must hold when nothing moves any more.

Each rule is a sentence; a move that breaks one raises a RuleBrokenError. Rules about one word, one step or
one action are asked where the move is made. That every world comes to rest is another question
(:func:`explorer.search.endless`); that it rests well (:func:`objection`) is asked of every world that rests.
Together they say that no group hangs. What the protocol answers is said here once more, without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.errors import RuleBrokenError
from explorer.world import (
    ControllerState,
    ParticipantState,
    Position,
    PublicState,
    Tags,
    Terms,
    World,
    all_participants,
    committed_version,
    controller_of,
    group_view,
    hold_in_force,
    read_command,
    read_status,
    read_step,
)
from wsm.states.check import stands_beside
from wsm.states.decide import Role
from wsm.states.group import GroupMove, GroupState, GroupTodo, Known, May, advance
from wsm.states.phases import Phase, RankState
from wsm.states.view import View
from wsm.states.vocabulary import After, KVState, WeightState
from wsm.states.words import CommittedWord, Decider, Operation, StatusCode, StatusWord, StepKind, StepWord

#: How many attempts to restore a group, or to repair a rank, may fail in one epoch; a supervisor reads it
#: from its configuration.
ATTEMPTS = 2

_NEVER = frozenset((Phase.FAILED, Phase.STOPPING, Phase.STOPPED, Phase.SETTLING))
_AFTER_PREPARED = frozenset(
    (
        StatusCode.STOPPED_UNTOUCHED,
        StatusCode.STOPPED_TOUCHED,
        StatusCode.DONE_KEPT,
        StatusCode.DONE_CLEARED,
        StatusCode.DONE_COMMITTED,
        StatusCode.DONE_FAULTED,
    )
)


def check_status(before: StatusWord, after: StatusWord) -> None:
    """Acknowledgements only grow; a vote that was given, PREPARED and an end are never taken back."""
    old, new = (before.epoch, before.sequence), (after.epoch, after.sequence)
    if new < old:
        raise RuleBrokenError(rule="acknowledgements only grow", seen=f"{_say(before)} becomes {_say(after)}")
    if new > old:
        return
    if after.ready < before.ready:
        raise RuleBrokenError(
            rule="a vote that was given is never hidden", seen=f"{_say(before)} becomes {_say(after)}"
        )
    if before.code.is_terminal:
        raise RuleBrokenError(
            rule="what is over is over: a sequence ends once", seen=f"{_say(before)} becomes {_say(after)}"
        )
    if after.code < before.code:
        raise RuleBrokenError(rule="acknowledgements only grow", seen=f"{_say(before)} becomes {_say(after)}")
    if before.code is StatusCode.PREPARED and after.code not in _AFTER_PREPARED:
        raise RuleBrokenError(
            rule="PREPARED is a promise: only a decision or a new epoch ends it",
            seen=f"{_say(before)} becomes {_say(after)}",
        )


def check_step(before: StepWord, after: StepWord) -> None:
    """Step words only grow within an epoch, and a broken rank steps no more in it."""
    if after.epoch < before.epoch or (after.epoch == before.epoch and after.step < before.step):
        raise RuleBrokenError(
            rule="step words only grow within an epoch", seen=f"{tuple(before)} becomes {tuple(after)}"
        )
    if after.epoch == before.epoch and before.kind is StepKind.BROKEN and after.kind is StepKind.RUNNING:
        raise RuleBrokenError(
            rule="a rank whose step broke enters no other in this epoch",
            seen=f"{tuple(before)} becomes {tuple(after)}",
        )


def check_entry(me: ParticipantState, others: Sequence[PublicState], rank: int) -> None:
    """Check who enters a step: no rank without whole, committed weights, no two versions, no old blocks."""
    if not holds_all(me):
        raise RuleBrokenError(
            rule="a rank steps only while weights and KV cache are NORMAL",
            seen=f"it enters step {me.state.step} in {me.joint}",
        )
    if not me.version or me.content != me.version:
        raise RuleBrokenError(
            rule="no rank serves unverified weights",
            seen=f"it enters step {me.state.step} as version {me.version} and holds {me.content or 'none'}",
        )
    if me.blocks not in (0, me.content):
        raise RuleBrokenError(
            rule="no KV block outlives the weights that computed it, unless the command says so",
            seen=f"version {me.content} reads blocks of version {me.blocks} in step {me.state.step}",
        )
    for index, other in enumerate(others):
        if index != rank and other.epoch == me.state.epoch and other.ran > me.state.done:
            raise RuleBrokenError(
                rule="no rank steps after another has accepted a command, until it is over for itself too",
                seen=f"it enters step {me.state.step}, and {index} has accepted sequence {other.ran}",
            )
        same = index != rank and (other.epoch, other.entered_step) == (me.state.epoch, me.state.step)
        if same and other.step_version not in (0, me.content):
            raise RuleBrokenError(
                rule="no step is served by two versions",
                seen=f"it enters step {me.state.step} with version {me.content}, "
                f"rank {index} with {other.step_version}",
            )


def check_admission(closed: bool, state: RankState) -> None:
    """No step begins between the decision of a hold and that of its end, whatever died."""
    if closed:
        raise RuleBrokenError(
            rule="never a step between hold and release",
            seen=f"it enters step {state.step} with held={state.held}, and the group is held",
        )


def check_decided_admission(after: After, tags: Tags, *, unheard: bool, whole: bool) -> None:
    """A hold or a release is committed for a caller that lives, and only what can serve is released."""
    if unheard and not tags:
        raise RuleBrokenError(
            rule="a hold or a release whose caller is gone is aborted",
            seen="it is committed, and no process will hear of it",
        )
    if after is After.SERVE and not tags and not whole:
        raise RuleBrokenError(
            rule="only a group that can serve is released",
            seen="it is released, and lacks weights or KV cache",
        )


def check_refusal(me: ParticipantState) -> None:
    """A hold is legal whatever a rank has in memory."""
    if me.state.operation is Operation.HOLD and not me.state.broken:
        raise RuleBrokenError(
            rule="a hold is legal whatever a rank has in memory",
            seen=f"a rank in {me.joint} refuses to be held",
        )


def check_requests_ended(*, named: bool, stands: Terms | None) -> None:
    """What a hold kept of requests is ended by a command that names that, and by no other."""
    if not named and stands is not None and stands.keeps:
        raise RuleBrokenError(
            rule="a command under a hold treats requests as the hold said, unless it names a policy",
            seen="it ends those that the hold has kept, and its caller has named none",
        )


def holds_all(me: ParticipantState) -> bool:
    """Whether weights and KV cache are there; said here once more, for the tables may be wrong."""
    return me.joint.weights is WeightState.NORMAL and me.joint.kv is KVState.NORMAL


def check_accepts_once(me: ParticipantState) -> None:
    """A sequence runs at most once per participant and epoch."""
    if me.state.sequence <= me.ran:
        raise RuleBrokenError(
            rule="a sequence runs at most once per rank and epoch",
            seen=f"it accepts sequence {me.state.sequence} after {me.ran}",
        )


def check_collective(me: ParticipantState, others: Sequence[PublicState], rank: int) -> None:
    """No rank is in a collective action that another will never enter, unless one died."""
    action = me.state.action
    for index, other in enumerate(others):
        if index == rank or other.epoch != me.state.epoch or _has_entered(other, me):
            continue
        ended = other.phase is Phase.IDLE and other.ran >= me.ran
        if other.phase in _NEVER or ended:
            raise RuleBrokenError(
                rule="no rank enters a collective action that not all will enter",
                seen=f"rank {rank} is in action {action}, and {index}, {other.phase.value}, never will be",
            )


def all_inside(me: ParticipantState, others: Sequence[PublicState]) -> bool:
    """Whether all have entered the collective action that the participant is in."""
    return all(other.epoch == me.state.epoch and _has_entered(other, me) for other in others)


def one_raised_beside(me: ParticipantState, others: Sequence[PublicState]) -> bool:
    """Whether a rank has failed after it had entered the collective action that the participant is in."""
    return any(
        other.phase in _NEVER and other.epoch == me.state.epoch and _has_entered(other, me)
        for other in others
    )


def _has_entered(other: PublicState, me: ParticipantState) -> bool:
    return other.ran == me.ran and other.entered_action > me.state.action


def check_command(controller: ControllerState, after: int) -> None:
    """A decision is final, and what was committed is known to be before anything else begins."""
    old, new = read_command(controller.command), read_command(after)
    if (new.epoch, new.sequence) < (old.epoch, old.sequence):
        raise RuleBrokenError(rule="commands only grow", seen=f"{tuple(old)} becomes {tuple(new)}")
    if (new.epoch, new.sequence) == (old.epoch, old.sequence):
        if old.operation.is_decision and new.operation is not old.operation:
            raise RuleBrokenError(
                rule="a decision is final", seen=f"{old.operation.name} becomes {new.operation.name}"
            )
        return
    word = CommittedWord.unpack(controller.committed)
    if word.held is not controller.closed:
        raise RuleBrokenError(
            rule="whether a group is held stands in the committed word before the sequence is over",
            seen=f"{old.operation.name} is followed by {new.operation.name}, and the word says "
            f"{'held' if word.held else 'open'}",
        )
    version = committed_version(controller)
    stored = (word.sequence, version) == (old.sequence, controller.says.version)
    if old.operation.is_commit and controller.owed and not stored:
        raise RuleBrokenError(
            rule="the committed version is stored before the sequence is over",
            seen=f"{old.operation.name} of version {controller.says.version} is followed by "
            f"{new.operation.name}, and version {version} counts as committed",
        )


def check_decider(controller: ControllerState, after: int, *, excused: bool) -> None:
    """A held decision is made by its holder; `excused`: reports that differ, or a rank that is gone."""
    old, new = read_command(controller.command), read_command(after)
    if old.decider is Decider.CONTROLLER or old.operation.is_decision:
        return
    seen = f"{old.operation.name} of {old.decider.name} is followed by {new.operation.name}"
    if (new.epoch, new.sequence) != (old.epoch, old.sequence):
        return
    if new.operation.is_commit and controller.verdict is not True:
        raise RuleBrokenError(rule="COMMIT needs the word of who decides", seen=seen)
    if not new.operation.is_abort or controller.verdict is False:
        return
    if controller.says.leased and controller.told and not (controller.lease_over or excused):
        raise RuleBrokenError(rule="what a lease holds is its caller's until it is over", seen=seen)


def check_goal(goal: int | None, owed: int) -> None:
    """What a group served when it lost a rank it serves again; what was cleared stays cleared."""
    if (goal or 0) != owed:
        raise RuleBrokenError(
            rule="a new epoch brings back what the group served, and nothing that it did not",
            seen=f"an epoch ends that served version {owed or 'none'}; {goal or 'none'} is to be restored",
        )


def check_restore(version: int, owed: int, view: View) -> None:
    """What is loaded again is what the group is owed, and it does not serve."""
    if not version or version != owed or all_serve(view):
        raise RuleBrokenError(
            rule="a group is restored that does not serve, to the version that it is owed",
            seen=f"version {version} is to be restored in a group that is owed version {owed or 'none'}, and "
            f"{'serves' if all_serve(view) else 'does not serve'}",
        )


def check_attempts(failed: int, limit: int) -> None:
    """A group that cannot be restored is given up, and free for other commands."""
    if failed >= limit:
        raise RuleBrokenError(
            rule="a restore is tried as often as is allowed, and no more",
            seen=f"it is tried again after {failed} attempts have failed",
        )


def check_owner(todo: GroupTodo, wanted: GroupTodo, rule: str) -> None:
    """Check what the owner of the group is told of a process that has ended, or is missing."""
    if todo is not wanted:
        raise RuleBrokenError(rule=rule, seen=f"its owner is to {todo.value}")


def check_leaving(move: GroupMove) -> None:
    """While a process may be about to end because of which others broke, nothing begins."""
    if move.arguments is not None or (move.command is not None and not move.command.operation.is_decision):
        raise RuleBrokenError(
            rule="nothing begins while a process may be about to end because of which others broke",
            seen=f"its owner opens {move.command and move.command.operation.name}",
        )


def check_kept(owner: GroupMove, rank: GroupMove) -> None:
    """The owner of the group does what is owed to an abandoned command as a rank does it."""
    if (owner.todo, owner.command, owner.committed) != (rank.todo, rank.command, rank.committed):
        raise RuleBrokenError(
            rule="an abandoned command is ended alike by each process",
            seen=f"its owner is to {owner.todo.value}, and a rank to {rank.todo.value}",
        )


def check_replaced(failed: int, limit: int) -> None:
    """A process is ended for its teardown only when tearing down again did not help."""
    if failed < limit:
        raise RuleBrokenError(
            rule="a FAULTED rank is cleared again as often as is allowed before it is replaced",
            seen=f"it is replaced after {failed} attempts have failed",
        )


def is_blocked(me: ParticipantState, others: Sequence[PublicState]) -> bool:
    """Whether a step that the participant is in lacks a rank still."""
    return me.position is Position.IN_STEP and not all(
        other.epoch == me.state.epoch and other.entered_step >= me.state.step for other in others
    )


def is_broken(word: int, epoch: int) -> bool:
    """Whether a step word says that a step of the epoch raised."""
    step = read_step(word)
    return step.epoch == epoch and step.kind is StepKind.BROKEN


def check_beside(me: ParticipantState) -> None:
    """States of weights and KV cache stand only beside phases that the joint rules name."""
    if me.position is Position.LEAVING:
        return  # between two epochs it lives no command
    tags = None if me.asked is None else me.asked.tags
    why = stands_beside(me.state.phase, me.state.operation, tags, me.joint)
    if why is not None:
        raise RuleBrokenError(rule="a state stands only beside phases that the joint rules name", seen=why)


def check_words(before: ParticipantState, after: ParticipantState) -> None:
    """Check what a participant stored."""
    if after.step != before.step:
        check_step(read_step(before.step), read_step(after.step))
    if after.status != before.status:
        check_status(read_status(before.status), read_status(after.status))


def _say(status: StatusWord) -> str:
    return f"{status.code.name} of {status.epoch}/{status.sequence} (ready {status.ready})"


_PREPARED = (StatusCode.PREPARED, StatusCode.DONE_COMMITTED)


def objection(world: World, ranks: int) -> str:
    """Say what is wrong with a world in which nothing moves by itself; empty: nothing."""
    controller, people = controller_of(world), all_participants(world)
    view = group_view(controller, people, ranks)
    if controller.gave_up:
        return _given_up(people, view)
    if controller.frozen and (_is_hurt(people, view) or not all_ended(view)):
        return _waits_for_stopped(people, view)
    stuck = [f"rank {i} {why} for ever" for i, each in enumerate(people) if (why := _stuck(each))]
    if not all_ended(view):
        stuck.append(f"{view.command.operation.name} {view.command.sequence} is never over")
    if (
        (controller.driving and not controller.frozen)
        or controller.ending
        or not (controller.alive or controller.left)
    ):
        stuck.append("the controller never finishes")
    if stuck:
        return stuck[0]
    version = committed_version(controller)
    mistaken = [f"rank {i} {why}" for i, each in enumerate(people) if (why := _mistaken(each, view, version))]
    if mistaken:
        return mistaken[0]
    misled = _misheld(controller, people, view)
    if misled or controller.frozen:
        return misled or _disagreement(people)
    faulted = [
        f"rank {i} stays FAULTED, and is not repaired" for i, each in enumerate(people) if _is_faulted(each)
    ]
    return _disagreement(people) or (faulted[0] if faulted else _never_restored(controller, people, view))


def _misheld(controller: ControllerState, people: list[ParticipantState], view: View) -> str:
    """Say what is wrong with the admission of a group that rests."""
    if view.committed.held is not controller.closed:
        return f"the committed word says held={view.committed.held}, and that was not decided last"
    if controller.closed and hold_in_force(controller) != controller.stands:
        return f"the record names hold {hold_in_force(controller)}, and {controller.stands} was decided last"
    stays = controller.stands is not None and controller.stands.stays
    may_end = controller.lapsed and controller.closed and not (stays or controller.frozen)
    if may_end and all(map(holds_all, people)):
        return "a hold whose lease has run out stays, although the group could serve"
    return ""


def _waits_for_stopped(people: list[ParticipantState], view: View) -> str:
    """Say that a command waits for a stopped controller beyond its deadline; if all prepared, it must."""
    words = [view.of_command(index) for index in range(len(view.statuses))]
    prepared = all(word is not None and word.code in _PREPARED for word in words)
    if prepared or _is_hurt(people, view) or view.command.operation is Operation.NONE:
        return ""  # whom to end is said; what was lost is recovered then
    hangs = any(each.hung for each in people)
    if hangs and beside_a_stopped_controller(view) in (GroupTodo.FAIL, GroupTodo.NAME):
        return ""  # as is who hangs: no other participant may still fail, or it would
    return f"{view.command.operation.name} {view.command.sequence} waits for a stopped controller for ever"


def beside_a_stopped_controller(view: View) -> GroupTodo:
    """Return what each process of the group does beside a stopped controller, whose deadline has passed."""
    return advance(GroupState.of(view), view, Known(May.STAND_IN, Role.STALLED, expired=True)).todo


def _is_hurt(people: list[ParticipantState], view: View) -> bool:
    """Whether only a new epoch leads on, which needs the role."""
    return any(not each.alive for each in people) or any(word.kind is StepKind.BROKEN for word in view.steps)


def _disagreement(people: list[ParticipantState]) -> str:
    """Say in what the ranks differ, or what the group as a whole has lost.

    A FAULTED rank may hold less than the others: no rank serves beside it, and only a clear of both goes on.
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


def _never_restored(controller: ControllerState, people: list[ParticipantState], view: View) -> str:
    """Say that a group stays CLEARED in its new epoch, although its restore may be tried still."""
    version, operation = committed_version(controller), view.command.operation
    leaves_it = operation in (Operation.ABORT, Operation.CLEAR) or not controller.says.tags
    tried = (controller.says.restores or controller.says.owing) and leaves_it
    waits = operation is Operation.NONE or (tried and controller.failed < ATTEMPTS)
    if waits and version and not any(each.content for each in people):
        return f"the group must serve version {version} again, and never does"
    return ""


def _given_up(people: list[ParticipantState], view: View) -> str:
    """Say what is wrong with a group whose owner recovers it no more: those who live must not hang inside."""
    opened = view.command.operation is not Operation.NONE and not view.command.operation.is_decision
    if opened and not all_ended(view):
        return f"{view.command.operation.name} {view.command.sequence} is never decided"
    inside = (
        f"rank {i} {_stuck(each)} for ever"
        for i, each in enumerate(people)
        if each.position and not each.hung
    )
    return next(inside, "")


def _is_faulted(me: ParticipantState) -> bool:
    return me.joint.weights is WeightState.FAULTED


def _stuck(me: ParticipantState) -> str:
    if not me.alive or me.hung:
        return "" if me.alive else "is not started anew"  # the command that waits for it says who hangs
    if me.position is Position.IN_STEP:
        return f"stays in step {me.state.step}, which not all have entered,"
    if me.position is Position.IN_ACTION:
        return f"stays in collective action {me.state.action}, which not all have entered,"
    if me.position is Position.LEAVING:
        return "leaves its epoch and joins no other"
    if me.state.phase is not Phase.IDLE:
        return f"waits while {me.state.phase.value}"
    return ""


def _mistaken(me: ParticipantState, view: View, version: int) -> str:
    """Say in what a rank's idea of itself differs from what is in its memory."""
    serving = holds_all(me)
    if me.state.held is not view.committed.held:
        return f"rests with held={me.state.held}, and the committed word says {view.committed.held}"
    if serving != me.state.holds or me.version != me.content or (serving and not me.content):
        return f"rests in {me.joint}, holds={me.state.holds}, and has version {me.content} in memory"
    if me.content and me.content != version:
        return f"serves version {me.content}, and the committed version is {version}"
    if not me.content and me.joint.weights not in (WeightState.CLEARED, WeightState.FAULTED):
        return f"holds nothing and rests in {me.joint}"
    return ""


def all_ended(view: View) -> bool:
    """Whether the last command is over, by what the words say: the protocol's own answer may be wrong."""
    command = view.command
    if command.operation is Operation.NONE:
        return all(word.epoch == command.epoch for word in view.statuses)
    ended = all(word[:2] == command[:2] and word.code.is_terminal for word in view.statuses)
    return ended and (not command.operation.is_commit or view.committed.sequence == command.sequence)


def all_serve(view: View) -> bool:
    """Whether every participant holds all that a step needs."""
    return all(
        status.weights == WeightState.NORMAL and status.kv == KVState.NORMAL for status in view.statuses
    )


def serves(view: View) -> bool:
    """Whether a participant holds all that a step needs."""
    return any(
        status.weights == WeightState.NORMAL and status.kv == KVState.NORMAL for status in view.statuses
    )
