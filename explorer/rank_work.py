"""What a command does to one participant's memory: here an action is one assignment.

Which events are fired, and when, is said by :mod:`wsm.states.command_events`, which the worker asks, too. The
moves fire what a worker fires, in its order; a rule that is missing from the tables would never be missed by
them. So each joint state that is reached is shown every event, and the rules are said here once more, without
the tables. Knows no words and no other participant.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from itertools import product

from explorer.errors import RuleBrokenError
from explorer.world import BOTH, KV_CACHE, TAGS, WEIGHTS, ParticipantState
from wsm.states import command_events
from wsm.states import joint as tables
from wsm.states.command_events import REQUESTS, Asked, CacheChange, Course, WayOut
from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import JointState
from wsm.states.phases import Event as CommandEvent
from wsm.states.plan_key import Half, Request
from wsm.states.table import Event
from wsm.states.vocabulary import KVEvent, KVState, Tag, WeightEvent, WeightState
from wsm.states.words import Operation


class ActionKind(enum.Enum):
    """What an action does."""

    MEET = "meets the others"
    LOAD = "loads"
    RELEASE = "releases"
    REBUILD = "rebuilds the KV cache"
    SETTLE = "ends or keeps what runs"


def plan_of(me: ParticipantState, *, long_plans: bool) -> tuple[bool, ...]:
    """Return which actions of the plan need a vote, for the participant's command from where it is.

    One vote before the first touched byte (communicators restarted), one after it (graphs captured), and,
    in long plans, one in a teardown (communicators shut down). A helper is in no communicator.
    """
    plan = _asked(me, me.tags).plan
    if plan is None or plan.operation is Request.HOT_UPDATE:
        return ()
    votes: tuple[bool, ...] = (False,)
    if plan.loads:
        votes = (False, True) if plan.weights is Half.REPLACED else (True, False)
    elif long_plans and plan.operation is Request.CLEAR and plan.weights is Half.GOES:
        votes = (False, True)
    return votes if me.state.steps else tuple(vote for vote in votes if not vote)


def kind_of_action(me: ParticipantState) -> ActionKind:
    """Say what the participant's current action does."""
    if me.state.collective[me.state.action]:
        return ActionKind.MEET
    if me.state.operation is Operation.CLEAR:
        return ActionKind.RELEASE
    if me.state.operation.is_of_admission:
        return ActionKind.SETTLE
    return ActionKind.LOAD if me.tags & WEIGHTS else ActionKind.REBUILD


def is_legal(me: ParticipantState) -> bool:
    """Whether the participant's command is legal where it is."""
    return not me.state.broken and command_events.objection(_asked(me, me.tags)) is None


def set_up(me: ParticipantState, tags: int, version: int) -> ParticipantState:
    """Take in what is asked; weights of that version are left alone where only the KV cache is missing."""
    request = REQUESTS[me.state.operation]
    same = version == me.version
    about = command_events.narrowed(request, TAGS[tags], me.joint, same_version=same, reload=False)
    if about != TAGS[tags] and not same:
        raise RuleBrokenError(
            rule="weights are left alone only in the version that is asked for",
            seen=f"it keeps version {me.version} for an update to version {version}",
        )
    tags = next(bits for bits, named in TAGS.items() if named == about)
    serves = tables.serving(me.joint.weights, me.joint.kv)
    had_kv = me.joint.kv is KVState.NORMAL
    return me._replace(
        began=True, from_normal=serves, torn=False, moved=False, loaded=0, tags=tags, had_kv=had_kv
    )


def accept(me: ParticipantState) -> ParticipantState:
    """Begin the transition."""
    asked = _asked(me, me.tags)
    return _follow(me._replace(moved=True), command_events.begin(asked, me.joint))


def release(me: ParticipantState) -> ParticipantState:
    """Free what the command is about."""
    if me.tags & WEIGHTS:
        me = me._replace(torn=True, content=0)
    if me.tags & KV_CACHE:
        me = me._replace(torn=True, blocks=0)
        return _follow(me, command_events.followed(me.joint, CacheChange.RELEASED))
    return me


def rebuild(me: ParticipantState) -> ParticipantState:
    """Build an empty KV cache."""
    return me._replace(blocks=0, loaded=me.content)


def load_in_place(me: ParticipantState, version: int) -> ParticipantState:
    """Load over the old weights."""
    return me._replace(torn=True, content=version, loaded=version)


def load_beside(me: ParticipantState, version: int) -> ParticipantState:
    """Load and verify beside the old weights."""
    return me._replace(staged=version, loaded=version)


def tear(me: ParticipantState) -> ParticipantState:
    """Leave weights of which nothing is known."""
    return me._replace(torn=True, content=0)


def tear_off(me: ParticipantState) -> ParticipantState:
    """Leave the middle of a release."""
    return tear(me) if me.tags & WEIGHTS else me._replace(torn=True, blocks=0)


def fail(me: ParticipantState) -> ParticipantState:
    """Tell the machine that the command failed here."""
    return _follow(me, command_events.fail(me.joint))


def finish(me: ParticipantState) -> ParticipantState:
    """Declare that all which can fail is done: CLEARED, or PREPARED."""
    me = _brought_back(me, command_events.finish(_asked(me, me.tags), me.joint))
    if me.state.operation is not Operation.CLEAR:
        return me
    if (me.tags & WEIGHTS and me.content) or (me.tags & KV_CACHE and me.blocks):
        raise RuleBrokenError(
            rule="CLEARED is said after the memory is free",
            seen=f"it says CLEARED and holds version {me.content}",
        )
    return _settled(me)


def commit(me: ParticipantState) -> ParticipantState:
    """Serve what is prepared."""
    asked = _asked(me, me.tags)
    if me.state.operation.is_hot:
        me = _follow(me, command_events.begin(asked, me.joint))
        me = _brought_back(me, command_events.finish(asked, me.joint))
    loads = me.joint.weights is WeightState.PREPARED
    me = _follow(me, command_events.commit(me.joint))
    if not loads:
        return _settled(me)
    content = me.staged or me.content
    if not me.loaded or content != me.loaded:
        raise RuleBrokenError(
            rule="only what was loaded and verified is committed",
            seen=f"it commits version {me.loaded} and holds {content}",
        )
    return _forget(me)._replace(content=content, version=content)


def break_flip(me: ParticipantState) -> ParticipantState:
    """Leave the flip of a hot update in the middle: the machines are on their way, and the weights mixed."""
    return tear(fail(_follow(me, command_events.begin(_asked(me, me.tags), me.joint))))._replace(staged=0)


def undo(me: ParticipantState) -> ParticipantState:
    """Stop and take back what can be taken back; a teardown that has begun never is."""
    if not me.began:
        return me
    if command_events.is_torn(me.joint):
        me = me._replace(torn=True)
    return me if me.torn else me._replace(staged=0)


def keep(me: ParticipantState) -> tuple[ParticipantState, CommandEvent]:
    """End an aborted command as if it had not been; where nothing was held, hold nothing again."""
    ending = command_events.keep(_asked(me, me.tags), me.joint)
    if any(fired.event is KVEvent.CLEARED for fired in ending.course.fired):
        me = me._replace(blocks=0)
    me, _ = _ended(me, ending)
    if me.joint.weights is WeightState.NORMAL and me.content != me.version:
        raise RuleBrokenError(
            rule="only weights that no rank touched are kept",
            seen=f"it keeps version {me.version} and holds {me.content}",
        )
    faulted = me.joint.weights is WeightState.FAULTED
    return _settled(me), CommandEvent.FAULTED if faulted else CommandEvent.KEPT


def drop(
    me: ParticipantState, gives_back: int = BOTH, *, teardown_fails: bool = False
) -> tuple[ParticipantState, CommandEvent]:
    """End an aborted command holding nothing of what goes; FAULTED if the teardown fails."""
    ending = command_events.drop(_asked(me, gives_back, drops=True), me.joint)
    me, faulted = _ended(me, ending, teardown_fails=teardown_fails)
    return _settled(me), CommandEvent.FAULTED if faulted else CommandEvent.CLEARED


def given_back(me: ParticipantState, tags: int, *, clears_half: bool) -> int:
    """Say what every rank holds no more once the command is dropped, given what its arguments say."""
    if me.began:
        return me.tags if me.state.operation is Operation.CLEAR else BOTH
    return tags if clears_half else BOTH


def holds_something(me: ParticipantState) -> bool:
    """Whether anything is to be given back before the participant can leave its epoch."""
    return command_events.leave(me.joint).plan is not None


def leave(me: ParticipantState) -> ParticipantState:
    """Give everything back in an epoch that has ended; its machines say so when it joins the next one."""
    me = _follow(me, command_events.leave(me.joint).course)._replace(content=0, version=0, blocks=0)
    return _follow(me, command_events.followed(me.joint, CacheChange.RELEASED))


def lose(me: ParticipantState) -> ParticipantState:
    """Begin the next epoch with nothing."""
    me = _follow(me, command_events.freed(me.joint))
    return _forget(_follow(me, command_events.lose(me.joint)))._replace(content=0, version=0, blocks=0)


def _asked(me: ParticipantState, tags: int, *, drops: bool = False) -> Asked:
    """Return the command at hand as :mod:`wsm.states.command_events` takes it.

    Before it has begun, the rank is where it was; afterwards only what it had counts. A rank that drops is
    told what goes, whatever was asked.
    """
    before = me.joint
    if me.moved:
        before = JointState(WeightState.CLEARED, KVState.NORMAL if me.had_kv else KVState.CLEARED)
    request = Request.CLEAR if drops else REQUESTS.get(me.state.operation, Request.CLEAR)
    return Asked(request, TAGS[tags], before, begun=me.moved)


def _ended(
    me: ParticipantState, ending: WayOut, *, teardown_fails: bool = False
) -> tuple[ParticipantState, bool]:
    """Take a way out to its end; return whether the rank is FAULTED there."""
    me = _follow(me, ending.course)
    if ending.plan is None:
        return me, ending.faulted
    if Tag.WEIGHTS in ending.plan.gone:
        me = me._replace(content=0)
    if Tag.KV_CACHE in ending.plan.gone:
        me = me._replace(blocks=0)
    if teardown_fails:
        return _follow(me, command_events.not_freed(me.joint))._replace(content=0), True
    return _follow(me, command_events.freed(me.joint)), False


def _forget(me: ParticipantState) -> ParticipantState:
    return me._replace(
        began=False,
        from_normal=False,
        torn=False,
        moved=False,
        tags=0,
        had_kv=False,
        had_blocks=False,
        staged=0,
        loaded=0,
    )


def _settled(me: ParticipantState) -> ParticipantState:
    """Forget the command, and the version of weights that are not held any more."""
    held = me.joint.weights is WeightState.NORMAL
    return _forget(me)._replace(version=me.version if held else 0)


def _brought_back(me: ParticipantState, course: Course) -> ParticipantState:
    """Take in that the plan is done; a KV cache that comes back with it is empty."""
    empty = any(fired.event is KVEvent.REBUILT for fired in course.fired)
    return _follow(me._replace(blocks=0) if empty else me, course)


def _follow(me: ParticipantState, course: Course) -> ParticipantState:
    """Take a course's events in; each state on the way is shown every event."""
    for fired in course.fired:
        check_refusals(fired.to)
    return me._replace(joint=course.joint)


_EVENTS: tuple[Event, ...] = (*WeightEvent, *KVEvent)
_KV_AT_WORK = (KVState.UPDATING, KVState.CLEARING)
_LEAVES_PREPARED = (WeightEvent.COMMIT, WeightEvent.ABORT, WeightEvent.LOST, KVEvent.LOST)
_EMPTY = "a new epoch begins with nothing held"
_AFTER_CLEARING = (WeightState.CLEARING, WeightState.CLEARED, WeightState.FAULTED)


@lru_cache(maxsize=1 << 10)
def check_refusals(joint: JointState) -> None:
    """Show a joint state every event.

    Raises
    ------
    RuleBrokenError
        If one leads where none may lead.
    """
    for event, kept, kv_kept in product(_EVENTS, (True, False), (True, False)):
        try:
            _, after = tables.step(joint, event, kept=kept, kv_kept=kv_kept)
        except IllegalTransitionError:
            continue
        wrong = _of_weights(joint, event, after, kept=kept) or _of_kv(joint, event, after, kv_kept=kv_kept)
        if wrong:
            raise RuleBrokenError(rule=wrong, seen=f"in ({joint}) {event.value!r} leads to ({after})")


def _of_weights(joint: JointState, event: Event, after: JointState, *, kept: bool) -> str:
    """Say which rule about the weights is broken; empty: none."""
    was, now = joint.weights, after.weights
    if event is WeightEvent.LOST:
        return "" if now is WeightState.CLEARED else _EMPTY
    committed = was is WeightState.PREPARED and event is WeightEvent.COMMIT
    held = event is WeightEvent.ABORT and kept and joint.held
    serves_anew = now is WeightState.NORMAL and was is not WeightState.NORMAL
    said_free = now is WeightState.CLEARED and was is WeightState.CLEARING
    return _first(
        (
            was is WeightState.PREPARED and event not in _LEAVES_PREPARED,
            "only a decision or a new epoch ends PREPARED",
        ),
        (
            was is WeightState.CLEARING and now not in _AFTER_CLEARING,
            "a teardown that has begun is never taken back",
        ),
        (
            was is WeightState.FAULTED and now not in (WeightState.FAULTED, WeightState.CLEARING),
            "only a teardown leads out of FAULTED",
        ),
        (said_free and joint.kv in _KV_AT_WORK, "CLEARED is said when all that was to go is free"),
        (
            serves_anew and not (committed or held),
            "only what was prepared, or was held before, is served",
        ),
    )


def _of_kv(joint: JointState, event: Event, after: JointState, *, kv_kept: bool) -> str:
    """Say which rule about the KV cache is broken; empty: none."""
    was, now = joint.kv, after.kv
    if event is KVEvent.LOST:
        return "" if now is KVState.CLEARED else _EMPTY
    prepared = after.weights is WeightState.PREPARED
    begins = now is KVState.UPDATING and was is not KVState.UPDATING
    replaces = event is WeightEvent.UPDATE and was is KVState.NORMAL and not kv_kept
    return _first(
        (prepared and now in _KV_AT_WORK, "all that can fail lies behind a PREPARED rank"),
        (prepared and joint.kv_stale, "a PREPARED rank's KV cache holds nothing of other weights"),
        (
            now is KVState.NORMAL and was is not now and event is not KVEvent.REBUILT,
            "a KV cache is NORMAL once it was built",
        ),
        (
            begins and joint.weights in (WeightState.CLEARING, WeightState.FAULTED),
            "nothing is built beside a teardown",
        ),
        (replaces and not after.kv_stale, "what the old weights computed is stale beside new ones"),
    )


def _first(*rules: tuple[bool, str]) -> str:
    return next((said for broken, said in rules if broken), "")
