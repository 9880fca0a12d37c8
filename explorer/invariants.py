"""What must hold after every move. Each rule is a sentence; whoever breaks it gets a RuleBrokenError.

Rules about one word, one step or one action are asked where the move is made; what a world must look
like when nothing moves any more is in :mod:`explorer.rest`.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.desk import Desk
from explorer.errors import RuleBrokenError
from explorer.participant import (
    Entered,
    Participant,
    Place,
    Presence,
    Public,
    read_command,
    read_status,
    read_step,
)
from wsm.states.joint import stands_beside
from wsm.states.rank_state import Phase
from wsm.states.vocabulary import KVState, Tag, WeightState
from wsm.states.words import CommittedWord, StatusCode, StatusWord, StepKind, StepWord

#: The bits of a participant's tags.
_TAGS = {1: Tag.WEIGHTS, 2: Tag.KV_CACHE}
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


def check_entry(me: Participant, others: Sequence[Entered], rank: int) -> None:
    """Check who enters a step: nobody without whole, committed weights, no two versions, no old blocks."""
    if not holds_all(me):
        raise RuleBrokenError(
            rule="a rank steps only while weights and KV cache are NORMAL",
            seen=f"it enters step {me.state.step} in {me.joint}",
        )
    if not me.version or me.content != me.version:
        raise RuleBrokenError(
            rule="nobody serves unverified weights",
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
                rule="nobody steps after somebody has accepted a command, until it is over for itself too",
                seen=f"it enters step {me.state.step}, and {index} has accepted sequence {other.ran}",
            )
        same = index != rank and (other.epoch, other.step) == (me.state.epoch, me.state.step)
        if same and other.version not in (0, me.content):
            raise RuleBrokenError(
                rule="no step is served by two versions",
                seen=f"it enters step {me.state.step} with version {me.content}, "
                f"rank {index} with {other.version}",
            )


def holds_all(me: Participant) -> bool:
    """Whether weights and KV cache are there; said here once more, for the tables may be wrong."""
    return me.joint.weights is WeightState.NORMAL and me.joint.kv is KVState.NORMAL


def check_accepts_once(me: Participant) -> None:
    """A sequence runs at most once per participant and epoch."""
    if me.state.sequence <= me.ran:
        raise RuleBrokenError(
            rule="a sequence runs at most once per rank and epoch",
            seen=f"it accepts sequence {me.state.sequence} after {me.ran}",
        )


def check_company(me: Participant, others: Sequence[Public], rank: int) -> None:
    """Nobody is in a collective action that somebody will never enter, unless somebody died."""
    action = me.state.action
    for index, other in enumerate(others):
        if index == rank or other.epoch != me.state.epoch or _has_entered(other, me):
            continue
        ended = other.phase is Phase.IDLE and other.ran >= me.ran
        if other.phase in _NEVER or ended:
            raise RuleBrokenError(
                rule="nobody enters a collective action that not all will enter",
                seen=f"rank {rank} is in action {action}, and {index}, {other.phase.value}, never will be",
            )


def all_inside(me: Participant, others: Sequence[Public]) -> bool:
    """Whether everybody has entered the collective action that the participant is in."""
    return all(other.epoch == me.state.epoch and _has_entered(other, me) for other in others)


def someone_raised_beside(me: Participant, others: Sequence[Public]) -> bool:
    """Whether somebody has failed after it had entered the collective action that the participant is in."""
    return any(
        other.phase in _NEVER and other.epoch == me.state.epoch and _has_entered(other, me)
        for other in others
    )


def _has_entered(other: Public, me: Participant) -> bool:
    return other.ran == me.ran and other.entered_action > me.state.action


def check_command(desk: Desk, after: int) -> None:
    """A decision is final, and what was committed is known to be before anything else begins."""
    old, new = read_command(desk.command), read_command(after)
    if (new.epoch, new.sequence) < (old.epoch, old.sequence):
        raise RuleBrokenError(rule="commands only grow", seen=f"{tuple(old)} becomes {tuple(new)}")
    if (new.epoch, new.sequence) == (old.epoch, old.sequence):
        if old.operation.is_decision and new.operation is not old.operation:
            raise RuleBrokenError(
                rule="a decision is final", seen=f"{old.operation.name} becomes {new.operation.name}"
            )
        return
    word = CommittedWord.unpack(desk.committed)
    stored = (word.sequence, word.version) == (old.sequence, desk.version)
    if old.operation.is_commit and desk.owed and not stored:
        raise RuleBrokenError(
            rule="the committed version is stored before the sequence is over",
            seen=f"{old.operation.name} of version {desk.version} is followed by {new.operation.name}, "
            f"and version {word.version} counts as committed",
        )


def check_goal(goal: int | None, owed: int) -> None:
    """What a group served when it lost a rank it serves again; what was cleared stays cleared."""
    if (goal or 0) != owed:
        raise RuleBrokenError(
            rule="a new epoch brings back what the group served, and nothing that it did not",
            seen=f"an epoch ends that served version {owed or 'none'}; {goal or 'none'} is to be restored",
        )


def check_attempts(failed: int, limit: int) -> None:
    """A group that cannot be restored is given up, and free for whoever commands it."""
    if failed >= limit:
        raise RuleBrokenError(
            rule="a restore is tried as often as is allowed, and no more",
            seen=f"it is tried again after {failed} attempts have failed",
        )


def is_blocked(me: Participant, others: Sequence[Presence]) -> bool:
    """Whether a step that the participant is in lacks somebody still."""
    return me.place is Place.IN_STEP and not all(
        other.epoch == me.state.epoch and other.entered_step >= me.state.step for other in others
    )


def is_broken(word: int, epoch: int) -> bool:
    """Whether a step word says that a step of the epoch raised."""
    step = read_step(word)
    return step.epoch == epoch and step.kind is StepKind.BROKEN


def check_beside(me: Participant) -> None:
    """States of weights and KV cache stand only beside phases that the joint rules name."""
    tags = frozenset(tag for bit, tag in _TAGS.items() if me.tags & bit) if me.began else None
    why = stands_beside(me.state.phase, me.state.operation, tags, me.joint)
    if why is not None:
        raise RuleBrokenError(rule="a state stands only beside phases that the joint rules name", seen=why)


def check_words(before: Participant, after: Participant) -> None:
    """Check what a participant stored."""
    if after.step != before.step:
        check_step(read_step(before.step), read_step(after.step))
    if after.status != before.status:
        check_status(read_status(before.status), read_status(after.status))


def _say(status: StatusWord) -> str:
    return f"{status.code.name} of {status.epoch}/{status.sequence} (ready {status.ready})"
