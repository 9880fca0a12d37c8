"""What the tables must refuse: every joint state that is reached is shown every event, wanted or not.

The moves fire what a worker fires, in its order; a rule that is missing from the tables would never be missed
by them. Here the rules are said once more, without the tables, and asked of whatever an event would lead to.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from explorer.errors import RuleBrokenError
from wsm.states import joint as tables
from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import JointState
from wsm.states.table import Event
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState

_EVENTS: tuple[Event, ...] = (*WeightEvent, *KVEvent)
_KV_AT_WORK = (KVState.UPDATING, KVState.CLEARING)
_LEAVES_PREPARED = (WeightEvent.COMMIT, WeightEvent.ABORT, WeightEvent.LOST, KVEvent.LOST)
_EMPTY_HANDS = "a new epoch begins with empty hands"
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
        return "" if now is WeightState.CLEARED else _EMPTY_HANDS
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
        return "" if now is KVState.CLEARED else _EMPTY_HANDS
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
