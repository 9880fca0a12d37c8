"""What a command does to one participant's memory and machines: the worker's shell, as far as it matters.

The shell (:mod:`wsm.worker.execution`) runs real actions; here an action is one assignment. The events are
the shell's, and they go through the real tables and joint rules (:func:`wsm.states.joint.step`), so
whatever those refuse is refused here. Knows no words and no other participant.
"""

from __future__ import annotations

import enum

from wsm.exploration.errors import RuleBrokenError
from wsm.exploration.participant import Participant
from wsm.signals.word import Operation, StatusCode
from wsm.states import joint as tables
from wsm.states.chart import Event
from wsm.states.errors import IllegalTransitionError
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState


class Kind(enum.Enum):
    """What an action does."""

    MEET = "meets the others"
    LOAD = "loads"
    RELEASE = "releases"


def plan_of(me: Participant, *, long_plans: bool) -> tuple[bool, ...]:
    """Return which actions of the plan need a vote, for the participant's command from where it is.

    One vote before the first touched byte (communicators restarted), one after it (graphs captured), and,
    in long plans, one in a teardown (communicators shut down).
    """
    operation, weights = me.state.operation, me.joint.weights
    if operation is Operation.UPDATE:
        return (False, True) if weights is WeightState.NORMAL else (True, False)
    if operation is Operation.CLEAR and weights is WeightState.NORMAL:
        return (False, True) if long_plans else (False,)
    return (False,) if operation is Operation.CLEAR and weights is WeightState.FAULTED else ()


def kind_of_action(me: Participant) -> Kind:
    """Say what the participant's current action does."""
    if me.state.collective[me.state.action]:
        return Kind.MEET
    return Kind.RELEASE if me.state.operation is Operation.CLEAR else Kind.LOAD


def is_legal(me: Participant) -> bool:
    """Whether the participant's command is legal where it is."""
    operation = me.state.operation
    if me.state.broken:
        return False
    if operation.is_hot:
        return tables.serving(me.joint.weights, me.joint.kv)
    try:
        tables.step(me.joint, WeightEvent.CLEAR if operation is Operation.CLEAR else WeightEvent.UPDATE)
    except IllegalTransitionError:
        return False
    return True


def set_up(me: Participant) -> Participant:
    """Take in what is asked."""
    serves = tables.serving(me.joint.weights, me.joint.kv)
    return me._replace(began=True, from_normal=serves, torn=False, loaded=0)


def accept(me: Participant) -> Participant:
    """Begin the transition."""
    if me.state.operation is Operation.CLEAR:
        return _fire(_fire(me, WeightEvent.CLEAR), KVEvent.CLEAR)
    return _begin_update(me)


def release(me: Participant) -> Participant:
    """Free weights and KV cache."""
    me = me._replace(torn=True, content=0, blocks=0)
    return _fire(me, KVEvent.CLEARED) if me.joint.kv is KVState.CLEARING else me


def load_in_place(me: Participant, version: int) -> Participant:
    """Load over the old weights."""
    return me._replace(torn=True, content=version, loaded=version)


def load_beside(me: Participant, version: int) -> Participant:
    """Load and verify beside the old weights."""
    return me._replace(staged=version, loaded=version)


def tear(me: Participant) -> Participant:
    """Leave weights of which nobody knows what they are."""
    return me._replace(torn=True, content=0)


def fail(me: Participant) -> Participant:
    """Tell the machine that the command failed here."""
    at_work = me.joint.weights in (WeightState.UPDATING, WeightState.CLEARING)
    return _fire(me, WeightEvent.FAIL) if at_work else me


def finish(me: Participant) -> Participant:
    """Declare that all which can fail is done: CLEARED, or PREPARED."""
    if me.state.operation is not Operation.CLEAR:
        return _fire(_bring_kv_back(me), WeightEvent.PREPARED)
    if me.joint.kv is KVState.CLEARING:
        me = _fire(me, KVEvent.CLEARED)
    if me.joint.weights is WeightState.CLEARING:
        me = _fire(me, WeightEvent.CLEARED)
    if me.content or me.blocks:
        raise RuleBrokenError(
            rule="CLEARED is said after the memory is free",
            seen=f"it says CLEARED and holds version {me.content}",
        )
    return _forget(me)._replace(version=0)


def commit(me: Participant) -> Participant:
    """Serve what is prepared."""
    if me.state.operation.is_hot:
        me = _fire(_bring_kv_back(_begin_update(me)), WeightEvent.PREPARED)
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
    if me.joint.weights in (WeightState.CLEARING, WeightState.FAULTED):
        me = me._replace(torn=True)
    return me if me.torn else me._replace(staged=0)


def keep(me: Participant) -> tuple[Participant, StatusCode]:
    """End an aborted command as if it had not been; where nothing was held, hold nothing again."""
    if me.joint.weights in (WeightState.NORMAL, WeightState.CLEARED):
        return _forget(me), StatusCode.DONE_KEPT
    if not me.from_normal:
        return drop(me)[0], StatusCode.DONE_KEPT
    if me.joint.kv is KVState.UPDATING:
        me = _fire(me, KVEvent.REBUILT)
    me = _fire(me, WeightEvent.ABORT, kept=True)
    if me.content != me.version:
        raise RuleBrokenError(
            rule="only weights that nobody touched are kept",
            seen=f"it keeps version {me.version} and holds {me.content}",
        )
    return _forget(me), StatusCode.DONE_KEPT


def drop(me: Participant, *, teardown_fails: bool = False) -> tuple[Participant, StatusCode]:
    """End an aborted command holding no weights; FAULTED if the teardown fails."""
    if me.joint.weights is WeightState.CLEARED:
        return _forget(me)._replace(version=0), StatusCode.DONE_CLEARED
    leaves = me.joint.weights in (WeightState.NORMAL, WeightState.FAULTED)
    me = _fire(me, WeightEvent.CLEAR if leaves else WeightEvent.ABORT)
    if me.joint.kv is not KVState.CLEARED:
        me = _fire(me, KVEvent.CLEAR)
    me = _forget(me)._replace(version=0, content=0, blocks=0)
    if teardown_fails:
        return _fire(me, WeightEvent.FAIL), StatusCode.DONE_FAULTED
    if me.joint.kv is KVState.CLEARING:
        me = _fire(me, KVEvent.CLEARED)
    return _fire(me, WeightEvent.CLEARED), StatusCode.DONE_CLEARED


def lose(me: Participant) -> Participant:
    """Begin a new epoch with empty hands."""
    me = _fire(_fire(me, KVEvent.LOST), WeightEvent.LOST)
    return _forget(me)._replace(content=0, version=0, blocks=0)


def _forget(me: Participant) -> Participant:
    return me._replace(began=False, from_normal=False, torn=False, staged=0, loaded=0)


def _begin_update(me: Participant) -> Participant:
    me = _fire(me, WeightEvent.UPDATE, kv_kept=False)
    return _fire(me, KVEvent.UPDATE) if me.joint.kv is KVState.NORMAL else me


def _bring_kv_back(me: Participant) -> Participant:
    if me.joint.kv is KVState.CLEARED:
        me = _fire(me, KVEvent.UPDATE)
    return _fire(me, KVEvent.REBUILT)._replace(blocks=0) if me.joint.kv is KVState.UPDATING else me


def _fire(me: Participant, event: Event, *, kept: bool = False, kv_kept: bool = True) -> Participant:
    _, after = tables.step(me.joint, event, kept=kept, kv_kept=kv_kept)
    return me._replace(joint=after)
