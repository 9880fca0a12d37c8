"""What a command does to one participant's memory and machines: the worker's shell, as far as it matters.

The shell (:mod:`wsm.worker.execution`) runs real actions; here an action is one assignment. The events are
the shell's, and they go through the real tables and joint rules (:func:`wsm.states.joint.step`), so
whatever those refuse is refused here. Knows no words and no other participant.
"""

from __future__ import annotations

import enum

from wsm.exploration.errors import RuleBrokenError
from wsm.exploration.participant import Participant
from wsm.exploration.probing import check_refusals
from wsm.signals.word import Operation, StatusCode
from wsm.states import joint as tables
from wsm.states.chart import Event
from wsm.states.errors import IllegalTransitionError
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState

#: What a command is about.
WEIGHTS, KV_CACHE = 1, 2
BOTH = WEIGHTS | KV_CACHE

_AT_WORK = (WeightState.UPDATING, WeightState.CLEARING)
_AT_REST = (WeightState.NORMAL, WeightState.CLEARED)


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
    operation = me.state.operation
    if me.state.broken:
        return False
    if operation.is_hot:
        return tables.serving(me.joint.weights, me.joint.kv)
    clears = operation is Operation.CLEAR
    if clears and me.joint.weights is WeightState.FAULTED and me.tags != BOTH:
        return False
    if not clears and me.tags == KV_CACHE and me.joint.kv is KVState.NORMAL:
        return False  # nothing of it is missing
    try:
        tables.step(me.joint, _events(me)[0])
    except IllegalTransitionError:
        return False
    return True


def set_up(me: Participant, tags: int) -> Participant:
    """Take in what is asked."""
    serves = tables.serving(me.joint.weights, me.joint.kv)
    had_kv = me.joint.kv is KVState.NORMAL
    return me._replace(
        began=True, from_normal=serves, torn=False, moved=False, loaded=0, tags=tags, had_kv=had_kv
    )


def _events(me: Participant) -> list[Event]:
    """Say with which events a command begins, weights first."""
    clears = me.state.operation is Operation.CLEAR
    events: list[Event] = []
    if me.tags & WEIGHTS:
        events.append(WeightEvent.CLEAR if clears else WeightEvent.UPDATE)
    if clears and me.tags & KV_CACHE:
        events.append(KVEvent.CLEAR)
    return events or [KVEvent.UPDATE]


def accept(me: Participant) -> Participant:
    """Begin the transition."""
    me = me._replace(moved=True)
    for event in _events(me):
        me = _fire(me, event, kv_kept=event is not WeightEvent.UPDATE)
    replaces = me.joint.weights is WeightState.UPDATING and me.joint.kv is KVState.NORMAL
    return _fire(me, KVEvent.UPDATE) if replaces else me


def release(me: Participant) -> Participant:
    """Free what the command is about."""
    if me.tags & WEIGHTS:
        me = me._replace(torn=True, content=0)
    if me.tags & KV_CACHE:
        me = me._replace(torn=True, blocks=0)
        if me.joint.kv is KVState.CLEARING and me.joint.weights in _AT_WORK:
            return _fire(me, KVEvent.CLEARED)
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
    """Leave weights of which nobody knows what they are."""
    return me._replace(torn=True, content=0)


def tear_off(me: Participant) -> Participant:
    """Leave the middle of a release."""
    return tear(me) if me.tags & WEIGHTS else me._replace(torn=True, blocks=0)


def fail(me: Participant) -> Participant:
    """Tell the machine that the command failed here."""
    return _fire(me, WeightEvent.FAIL) if me.joint.weights in _AT_WORK else me


def finish(me: Participant) -> Participant:
    """Declare that all which can fail is done: CLEARED, or PREPARED."""
    if me.state.operation is not Operation.CLEAR:
        if me.joint.weights is not WeightState.UPDATING:
            return me
        if me.tags & KV_CACHE or me.joint.kv is KVState.UPDATING:
            me = _bring_kv_back(me)
        return _fire(me, WeightEvent.PREPARED)
    if me.joint.kv is KVState.CLEARING:
        me = _fire(me, KVEvent.CLEARED)
    if me.joint.weights is WeightState.CLEARING:
        me = _fire(me, WeightEvent.CLEARED)
    if (me.tags & WEIGHTS and me.content) or (me.tags & KV_CACHE and me.blocks):
        raise RuleBrokenError(
            rule="CLEARED is said after the memory is free",
            seen=f"it says CLEARED and holds version {me.content}",
        )
    return _settled(me)


def commit(me: Participant) -> Participant:
    """Serve what is prepared."""
    if me.state.operation.is_hot:
        me = _fire(_bring_kv_back(_begin_update(me)), WeightEvent.PREPARED)
    if me.joint.weights is not WeightState.PREPARED:
        me = _fire(me, KVEvent.REBUILT) if me.joint.kv is KVState.UPDATING else me
        return _settled(me)
    me = _fire(me, WeightEvent.COMMIT)
    content = me.staged or me.content
    if not me.loaded or content != me.loaded:
        raise RuleBrokenError(
            rule="only what was loaded and verified is committed",
            seen=f"it commits version {me.loaded} and holds {content}",
        )
    return _forget(me)._replace(content=content, version=content)


def break_flip(me: Participant) -> Participant:
    """Leave the flip of a hot update in the middle: the machines are on their way, and the weights mixed."""
    return tear(fail(_begin_update(me)))


def undo(me: Participant) -> Participant:
    """Stop and take back what can be taken back; a teardown that has begun never is."""
    if not me.began:
        return me
    torn = me.joint.weights in (WeightState.CLEARING, WeightState.FAULTED)
    if torn or me.joint.kv is KVState.CLEARING:
        me = me._replace(torn=True)
    return me if me.torn else me._replace(staged=0)


def keep(me: Participant) -> tuple[Participant, StatusCode]:
    """End an aborted command as if it had not been; where nothing was held, hold nothing again."""
    if me.joint.weights is WeightState.FAULTED:
        return drop(me)[0], StatusCode.DONE_KEPT
    if me.moved:
        held = me.joint.held
        if me.joint.weights is WeightState.PREPARED and held:
            me = _fire(me, WeightEvent.ABORT, kept=True)
        me = _restore_kv(me)
        if me.joint.weights is WeightState.UPDATING and held:
            me = _fire(me, WeightEvent.ABORT, kept=True)
        if me.joint.weights not in _AT_REST:
            return (_drop_weights(me) if me.had_kv else drop(me)[0]), StatusCode.DONE_KEPT
    if me.joint.weights is WeightState.NORMAL and me.content != me.version:
        raise RuleBrokenError(
            rule="only weights that nobody touched are kept",
            seen=f"it keeps version {me.version} and holds {me.content}",
        )
    return _settled(me), StatusCode.DONE_KEPT


def drop(
    me: Participant, gives_back: int = BOTH, *, teardown_fails: bool = False
) -> tuple[Participant, StatusCode]:
    """End an aborted command holding nothing of what goes; FAULTED if the teardown fails."""
    if gives_back != BOTH and me.joint.weights is WeightState.FAULTED and not me.began:
        return _settled(me), StatusCode.DONE_FAULTED  # half a teardown repairs nothing
    if _is_away(me, gives_back):
        return _settled(me), StatusCode.DONE_CLEARED
    if gives_back & WEIGHTS:
        leaves = me.joint.weights in (WeightState.NORMAL, WeightState.FAULTED)
        me = _fire(me, WeightEvent.CLEAR if leaves else WeightEvent.ABORT)._replace(content=0)
    if gives_back & KV_CACHE and me.joint.kv is not KVState.CLEARED:
        me = _fire(me, KVEvent.CLEAR)
    if gives_back & KV_CACHE:
        me = me._replace(blocks=0)
    if teardown_fails:
        return _settled(_fire(me, WeightEvent.FAIL)._replace(content=0)), StatusCode.DONE_FAULTED
    return _gone(me), StatusCode.DONE_CLEARED


def given_back(me: Participant, tags: int, *, clears_half: bool) -> int:
    """Say what every rank holds no more once the command is dropped, given what its arguments say."""
    if me.began:
        return me.tags if me.state.operation is Operation.CLEAR else BOTH
    return tags if clears_half else BOTH


def _is_away(me: Participant, tags: int) -> bool:
    if tags == BOTH:
        return me.joint == tables.START
    half = me.joint.weights if tags == WEIGHTS else me.joint.kv
    return half in (WeightState.CLEARED, KVState.CLEARED)


def _drop_weights(me: Participant) -> Participant:
    """Give back what an update has begun to load beside a KV cache that stays."""
    return _gone(_fire(me, WeightEvent.ABORT)._replace(content=0))


def _gone(me: Participant) -> Participant:
    if me.joint.kv is KVState.CLEARING:
        me = _fire(me, KVEvent.CLEARED)
    if me.joint.weights is WeightState.CLEARING:
        me = _fire(me, WeightEvent.CLEARED)
    return _settled(me)


def _restore_kv(me: Participant) -> Participant:
    """Let the KV cache's machine say what undoing has left: what there was before."""
    if not me.had_kv and me.joint.kv is not KVState.CLEARED:
        return _fire(_fire(me, KVEvent.CLEAR), KVEvent.CLEARED)._replace(blocks=0)
    return _fire(me, KVEvent.REBUILT) if me.joint.kv is KVState.UPDATING else me


def lose(me: Participant) -> Participant:
    """Begin a new epoch with empty hands."""
    me = _fire(_fire(me, KVEvent.LOST), WeightEvent.LOST)
    return _forget(me)._replace(content=0, version=0, blocks=0)


def _forget(me: Participant) -> Participant:
    return me._replace(
        began=False, from_normal=False, torn=False, moved=False, tags=0, had_kv=False, staged=0, loaded=0
    )


def _settled(me: Participant) -> Participant:
    """Forget the command, and the version of weights that are not held any more."""
    held = me.joint.weights is WeightState.NORMAL
    return _forget(me)._replace(version=me.version if held else 0)


def _begin_update(me: Participant) -> Participant:
    me = _fire(me, WeightEvent.UPDATE, kv_kept=False)
    return _fire(me, KVEvent.UPDATE) if me.joint.kv is KVState.NORMAL else me


def _bring_kv_back(me: Participant) -> Participant:
    if me.joint.kv is KVState.CLEARED:
        me = _fire(me, KVEvent.UPDATE)
    return _fire(me, KVEvent.REBUILT)._replace(blocks=0) if me.joint.kv is KVState.UPDATING else me


def _fire(me: Participant, event: Event, *, kept: bool = False, kv_kept: bool = True) -> Participant:
    _, after = tables.step(me.joint, event, kept=kept, kv_kept=kv_kept)
    check_refusals(after)
    return me._replace(joint=after)
