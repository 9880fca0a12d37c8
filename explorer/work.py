"""What a command does to one participant's memory: here an action is one assignment.

Which events are fired, and when, is said by :mod:`wsm.states.command_events`, which the worker asks, too.
Knows no words and no other participant.
"""

from __future__ import annotations

import enum

from explorer.errors import RuleBrokenError
from explorer.participant import Participant
from explorer.probing import check_refusals
from wsm.states import command_events
from wsm.states import joint as tables
from wsm.states.command_events import Asked, CacheChange, Course, Request, WayOut
from wsm.states.joint import JointState
from wsm.states.phases import Event
from wsm.states.vocabulary import KVEvent, KVState, PlanName, Tag, WeightState
from wsm.states.words import Operation

#: What a command is about.
WEIGHTS, KV_CACHE = 1, 2
BOTH = WEIGHTS | KV_CACHE

_REQUESTS = {
    Operation.CLEAR: Request.CLEAR,
    Operation.UPDATE: Request.UPDATE,
    Operation.HOT_UPDATE: Request.HOT_UPDATE,
}
_TAGS = {
    0: frozenset[Tag](),
    WEIGHTS: frozenset({Tag.WEIGHTS}),
    KV_CACHE: frozenset({Tag.KV_CACHE}),
    BOTH: frozenset(Tag),
}


class Kind(enum.Enum):
    """What an action does."""

    MEET = "meets the others"
    LOAD = "loads"
    RELEASE = "releases"
    REBUILD = "rebuilds the KV cache"


def plan_of(me: Participant, *, long_plans: bool) -> tuple[bool, ...]:
    """Return which actions of the plan need a vote, for the participant's command from where it is.

    One vote before the first touched byte (communicators restarted), one after it (graphs captured), and,
    in long plans, one in a teardown (communicators shut down). A helper is in no communicator.
    """
    plan = _plan_of_a_rank(me, long_plans=long_plans)
    return plan if me.state.steps else tuple(vote for vote in plan if not vote)


def _plan_of_a_rank(me: Participant, *, long_plans: bool) -> tuple[bool, ...]:
    operation, weights, kv = me.state.operation, me.joint.weights, me.joint.kv
    if operation is Operation.UPDATE:
        if not me.tags & WEIGHTS:
            return (False,)
        return (False, True) if weights is WeightState.NORMAL else (True, False)
    if operation is not Operation.CLEAR:
        return ()
    if weights is WeightState.FAULTED:
        return (False,)
    takes_weights = bool(me.tags & WEIGHTS) and weights is WeightState.NORMAL
    if takes_weights or (me.tags & KV_CACHE and kv is KVState.NORMAL):
        return (False, True) if long_plans and takes_weights else (False,)
    return ()


def kind_of_action(me: Participant) -> Kind:
    """Say what the participant's current action does."""
    if me.state.collective[me.state.action]:
        return Kind.MEET
    if me.state.operation is Operation.CLEAR:
        return Kind.RELEASE
    return Kind.LOAD if me.tags & WEIGHTS else Kind.REBUILD


def is_legal(me: Participant) -> bool:
    """Whether the participant's command is legal where it is."""
    return not me.state.broken and command_events.objection(_asked(me, me.tags)) is None


def set_up(me: Participant, tags: int) -> Participant:
    """Take in what is asked."""
    serves = tables.serving(me.joint.weights, me.joint.kv)
    had_kv = me.joint.kv is KVState.NORMAL
    return me._replace(
        began=True, from_normal=serves, torn=False, moved=False, loaded=0, tags=tags, had_kv=had_kv
    )


def accept(me: Participant) -> Participant:
    """Begin the transition."""
    asked = _asked(me, me.tags)
    return _follow(me._replace(moved=True), command_events.begin(asked, me.joint))


def release(me: Participant) -> Participant:
    """Free what the command is about."""
    if me.tags & WEIGHTS:
        me = me._replace(torn=True, content=0)
    if me.tags & KV_CACHE:
        me = me._replace(torn=True, blocks=0)
        return _follow(me, command_events.followed(me.joint, CacheChange.RELEASED))
    return me


def rebuild(me: Participant) -> Participant:
    """Build an empty KV cache."""
    return me._replace(blocks=0, loaded=me.content)


def load_in_place(me: Participant, version: int) -> Participant:
    """Load over the old weights."""
    return me._replace(torn=True, content=version, loaded=version)


def load_beside(me: Participant, version: int) -> Participant:
    """Load and verify beside the old weights."""
    return me._replace(staged=version, loaded=version)


def tear(me: Participant) -> Participant:
    """Leave weights of which nothing is known."""
    return me._replace(torn=True, content=0)


def tear_off(me: Participant) -> Participant:
    """Leave the middle of a release."""
    return tear(me) if me.tags & WEIGHTS else me._replace(torn=True, blocks=0)


def fail(me: Participant) -> Participant:
    """Tell the machine that the command failed here."""
    return _follow(me, command_events.fail(me.joint))


def finish(me: Participant) -> Participant:
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


def commit(me: Participant) -> Participant:
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


def break_flip(me: Participant) -> Participant:
    """Leave the flip of a hot update in the middle: the machines are on their way, and the weights mixed."""
    return tear(fail(_follow(me, command_events.begin(_asked(me, me.tags), me.joint))))._replace(staged=0)


def undo(me: Participant) -> Participant:
    """Stop and take back what can be taken back; a teardown that has begun never is."""
    if not me.began:
        return me
    if command_events.is_torn(me.joint):
        me = me._replace(torn=True)
    return me if me.torn else me._replace(staged=0)


def keep(me: Participant) -> tuple[Participant, Event]:
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
    return _settled(me), Event.KEPT


def drop(
    me: Participant, gives_back: int = BOTH, *, teardown_fails: bool = False
) -> tuple[Participant, Event]:
    """End an aborted command holding nothing of what goes; FAULTED if the teardown fails."""
    ending = command_events.drop(_asked(me, gives_back, drops=True), me.joint)
    me, faulted = _ended(me, ending, teardown_fails=teardown_fails)
    return _settled(me), Event.FAULTED if faulted else Event.CLEARED


def given_back(me: Participant, tags: int, *, clears_half: bool) -> int:
    """Say what every rank holds no more once the command is dropped, given what its arguments say."""
    if me.began:
        return me.tags if me.state.operation is Operation.CLEAR else BOTH
    return tags if clears_half else BOTH


def lose(me: Participant) -> Participant:
    """Leave an epoch as a worker does: give everything back, then begin the next one with nothing."""
    me, _ = _ended(me, command_events.leave(me.joint))
    return _forget(_follow(me, command_events.lose(me.joint)))._replace(content=0, version=0, blocks=0)


def _asked(me: Participant, tags: int, *, drops: bool = False) -> Asked:
    """Return the command at hand as :mod:`wsm.states.command_events` takes it.

    Before it has begun, the rank is where it was; afterwards only what it had counts. A rank that drops is
    told what goes, whatever was asked.
    """
    before = me.joint
    if me.moved:
        before = JointState(WeightState.CLEARED, KVState.NORMAL if me.had_kv else KVState.CLEARED)
    request = Request.CLEAR if drops else _REQUESTS.get(me.state.operation, Request.CLEAR)
    return Asked(request, _TAGS[tags], before, begun=me.moved)


def _ended(me: Participant, ending: WayOut, *, teardown_fails: bool = False) -> tuple[Participant, bool]:
    """Take a way out to its end; return whether the rank is FAULTED there."""
    me = _follow(me, ending.course)
    if ending.plan is None:
        return me, ending.faulted
    if ending.plan is not PlanName.DISCARD_KV_CACHE:
        me = me._replace(content=0)
    if ending.plan in (PlanName.DISCARD, PlanName.DISCARD_KV_CACHE):
        me = me._replace(blocks=0)
    if teardown_fails:
        return _follow(me, command_events.not_freed(me.joint))._replace(content=0), True
    return _follow(me, command_events.freed(me.joint)), False


def _forget(me: Participant) -> Participant:
    return me._replace(
        began=False, from_normal=False, torn=False, moved=False, tags=0, had_kv=False, staged=0, loaded=0
    )


def _settled(me: Participant) -> Participant:
    """Forget the command, and the version of weights that are not held any more."""
    held = me.joint.weights is WeightState.NORMAL
    return _forget(me)._replace(version=me.version if held else 0)


def _brought_back(me: Participant, course: Course) -> Participant:
    """Take in that the plan is done; a KV cache that comes back with it is empty."""
    empty = any(fired.event is KVEvent.REBUILT for fired in course.fired)
    return _follow(me._replace(blocks=0) if empty else me, course)


def _follow(me: Participant, course: Course) -> Participant:
    """Take a course's events in; each state on the way is shown every event (:mod:`.probing`)."""
    for fired in course.fired:
        check_refusals(fired.to)
    return me._replace(joint=course.joint)
