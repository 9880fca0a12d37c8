"""What a command means on one rank: its plan for weights and KV cache, its events, every way out of it.

Theory of operation
-------------------
**Which plan** follows from what is asked, the tags, and what is held
(:func:`wsm.states.plan_key.plan_for`). A command moves the halves that its tags name, as far as they are not
where it wants them already, and the other half only where it must.

A command moves the machines of a rank at a few moments: when all ranks stand (:func:`begin`), when an action
has changed the KV cache (:func:`followed`), when the plan is done (:func:`finish`), and at the decision
(:func:`commit`, :func:`keep`, :func:`drop`). Each function here fires the events of its moment, one after the
other, into the :class:`Machines` that it is given; they decide, and raise what they refuse. A way out that
frees memory names the plan that does it; :func:`freed` and :func:`not_freed` say what its end means.

**What was held before is what is kept.** An aborted update goes back only if no rank touched its weights;
then the KV cache says what undoing has left, and the weights' ABORT is fired between, as the joint rules want
it: after PREPARED the decision comes first, before it the cache is finished first.

**A teardown that has begun is never taken back.** :func:`is_torn` says so to the protocol; the group drops.

**A dropped update takes both halves with it**: what it was to bring stands on both. A dropped clear of one
half goes on to clear that half, on every rank. Where the arguments of the command cannot be read, a rank
cannot know which half the others gave back, and serves nothing until all of it is cleared.

A worker gives its live machines, with a clock and a journal behind them; the explorer and the static checks
give a :class:`Course`, which the tables lead. Knows no action by name, of the words the operation alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import START, JointState, serving, step
from wsm.states.plan_key import (
    DISCARD,
    DISCARD_HELD_WEIGHTS,
    DISCARD_KV_CACHE,
    DISCARD_WEIGHTS,
    HOT,
    REJOIN,
    PlanKey,
    plan_for,
)
from wsm.states.table import Event
from wsm.states.vocabulary import ALL_TAGS, KVEvent, KVState, Tag, WeightEvent, WeightState, sentence_of
from wsm.states.words import Operation

_AT_WORK = (WeightState.UPDATING, WeightState.CLEARING)
_AT_REST = (WeightState.NORMAL, WeightState.CLEARED)


class CacheChange(enum.Enum):
    """What an action has done to the KV cache."""

    RELEASED = "released"
    READY = "rebuilt, or emptied"


class Machines(Protocol):
    """Weights and KV cache of one rank, as their events reach them."""

    @property
    def joint(self) -> JointState:
        """Where they are."""
        ...

    def can(self, event: Event) -> bool:
        """Whether they would take an event in now."""
        ...

    def fire(self, event: Event, *, kept: bool = False, kv_kept: bool = True, cause: str = "") -> None:
        """Take in one event.

        `kept`: for ``abort``: the outcome of the group. `kv_kept`: for ``update`` of the weights: the KV
        policy of the command. `cause`: why, for the journal; empty: the command.

        Raises
        ------
        IllegalTransitionError
            If they refuse it; nothing has moved.
        """
        ...


@dataclass
class Course:
    """Machines that the tables and the joint rules lead; `fired`: the events so far, and where each led."""

    joint: JointState
    fired: list[tuple[Event, JointState]] = field(default_factory=list)

    @classmethod
    def led(cls, joint: JointState, *moments: Callable[[Course], object]) -> Course:
        """Return the course of moments of a command, one after the other, from where the machines are."""
        course = cls(joint)
        for moment in moments:
            moment(course)
        return course

    def can(self, event: Event) -> bool:
        """Whether tables and joint rules take an event in now."""
        try:
            step(self.joint, event)
        except IllegalTransitionError:
            return False
        return True

    def fire(self, event: Event, *, kept: bool = False, kv_kept: bool = True, cause: str = "") -> None:
        """Take in one event; `cause` is for the journal of a worker."""
        del cause
        _, self.joint = step(self.joint, event, kept=kept, kv_kept=kv_kept)
        self.fired.append((event, self.joint))


@dataclass(frozen=True)
class Asked:
    """A command, as far as it decides which events are fired on one rank.

    `tags`: what it is about. Empty: nothing in memory; of a clear: its arguments cannot be read. `before`:
    where the rank was when its work was set up. `keeps_kv`: whether the KV policy keeps blocks of the old
    weights. `begun`: whether the machines have left where they were before.
    """

    request: Operation
    tags: frozenset[Tag]
    before: JointState
    keeps_kv: bool = False
    begun: bool = False

    @property
    def gives_back(self) -> frozenset[Tag]:
        """What no rank holds any more once the command is dropped; empty: unknown."""
        return self.tags if self.request is Operation.CLEAR else ALL_TAGS

    @property
    def plan(self) -> PlanKey | None:
        """The plan that serves the request from `before`; None: nothing is to do.

        Its collective actions are the same on every rank.
        """
        weights, kv = self.before.weights, self.before.kv
        if self.request is Operation.HOT_UPDATE:
            return HOT
        if self.request.is_of_admission:
            return plan_for(self.request, self.tags, weights=True, kv=kv is KVState.NORMAL)
        if weights is WeightState.FAULTED:
            # It is repaired beside peers that are cleared already: no collective can be part of it.
            return DISCARD
        if weights not in _AT_REST:
            return None  # a new epoch, in the middle of a command: what is held is given back
        there = {"weights": weights is WeightState.NORMAL, "kv": kv is KVState.NORMAL}
        return plan_for(self.request, self.tags, **there)


class WayOut(NamedTuple):
    """What a way out of a command, or of an epoch, leaves to be done behind its events.

    `plan`: the discard plan to be run then, one action after the other; None: what is held stays. `faulted`:
    whether the rank ends FAULTED, if no plan is to be run. `leaves`: whether the rank leaves its epoch: what
    broke with a peer is let go before the discard plan.
    """

    plan: PlanKey | None = None
    faulted: bool = False
    leaves: bool = False

    @property
    def plans(self) -> tuple[PlanKey, ...]:
        """The plans to be run after the events; empty: the command has ended here."""
        discard = () if self.plan is None else (self.plan,)
        return (REJOIN, *discard) if self.leaves else discard


def holds(tags: Collection[Tag], joint: JointState, *, same_version: bool) -> bool:
    """Whether an update of `tags` finds all that it names, as the last commit left it."""
    kv = Tag.KV_CACHE not in tags or joint.kv is KVState.NORMAL
    return same_version and joint.weights is WeightState.NORMAL and kv


def narrowed(
    request: Operation, tags: frozenset[Tag], joint: JointState, *, same_version: bool, reload: bool
) -> frozenset[Tag]:
    """Return what a command is about on this rank: weights that are there already are left alone.

    Only where it is the KV cache that a rank lacks. Every rank holds the same version and was told the same
    one, so all of them come to the same plan.
    """
    lacks_kv_only = joint.weights is WeightState.NORMAL and joint.kv is KVState.CLEARED
    asked = request is Operation.UPDATE and tags == ALL_TAGS and not reload
    return frozenset({Tag.KV_CACHE}) if asked and same_version and lacks_kv_only else tags


#: What wants weights and KV cache to be there, and why.
_NEEDS_WHOLE = {
    Operation.HOT_UPDATE: "a hot update replaces weights that serve; update without it",
    Operation.RELEASE: "only a group that can serve is released",
}


def objection(asked: Asked, machines: Machines) -> str | None:
    """Say why a command cannot begin where the rank is; None if it can."""
    joint = asked.before
    if asked.request in _NEEDS_WHOLE:
        return None if serving(joint.weights, joint.kv) else _NEEDS_WHOLE[asked.request]
    if asked.request is Operation.HOLD:
        return None
    faulted = joint.weights is WeightState.FAULTED
    if faulted and asked.request is Operation.CLEAR and asked.tags != ALL_TAGS:
        return "what a FAULTED rank holds is unknown; clear weights and KV cache together"
    if asked.request is Operation.UPDATE and asked.plan is None:
        return f"nothing of {sentence_of(asked.tags)} is missing"
    first = _first_events(asked)[0]
    if machines.can(first):
        return None
    state = joint.weights if isinstance(first, WeightEvent) else joint.kv
    return f"there is no way from {state.name} by {asked.request.phrase}"


def begin(asked: Asked, machines: Machines) -> None:
    """Begin the transition: all ranks stand at the same step. For a hot update the flip begins here."""
    if asked.request.is_of_admission:
        return
    for event in _first_events(asked):
        machines.fire(event, kv_kept=asked.keeps_kv or event is not WeightEvent.UPDATE)
    joint = machines.joint
    replaced = joint.weights is WeightState.UPDATING and joint.kv is KVState.NORMAL
    if replaced and not asked.keeps_kv:
        machines.fire(KVEvent.UPDATE)


def followed(change: CacheChange, machines: Machines) -> None:
    """Let the KV cache's machine follow an action, while the weights are at work, too.

    A KV cache that moves alone arrives when all is done (:func:`finish`, :func:`commit`, :func:`freed`).
    """
    if machines.joint.weights not in _AT_WORK:
        return
    if change is CacheChange.READY:
        _bring_back(machines)
    elif machines.joint.kv is KVState.CLEARING:
        machines.fire(KVEvent.CLEARED)


def finish(asked: Asked, machines: Machines) -> None:
    """Say that everything which can fail is behind this rank."""
    if asked.request is Operation.CLEAR:
        freed(machines)
    elif machines.joint.weights is WeightState.UPDATING:
        if Tag.KV_CACHE in asked.tags or machines.joint.kv is KVState.UPDATING:
            _bring_back(machines)
        machines.fire(WeightEvent.PREPARED)


def commit(machines: Machines) -> None:
    """Serve the new version, or take in that the KV cache is back over the same weights."""
    if machines.joint.weights is WeightState.PREPARED:
        machines.fire(WeightEvent.COMMIT)
    elif machines.joint.kv is KVState.UPDATING:
        machines.fire(KVEvent.REBUILT)


def fail(machines: Machines, cause: str = "") -> None:
    """Take in that the command failed: a teardown of the weights leaves them FAULTED, all else moves nothing.

    What failed is said by the phase (:mod:`wsm.states.phases`) and its word; the decision leads out of it.
    A KV cache that was to go alone stays CLEARING until then.
    """
    if machines.joint.weights is WeightState.CLEARING:
        machines.fire(WeightEvent.FAIL, cause=cause)


def is_torn(joint: JointState) -> bool:
    """Whether a teardown has begun, so that undoing brings nothing back."""
    gone = joint.weights in (WeightState.CLEARING, WeightState.FAULTED)
    return gone or joint.kv is KVState.CLEARING


def called_off(
    tags: frozenset[Tag] | None, *, clears: bool, of_admission: bool
) -> tuple[Operation, frozenset[Tag]]:
    """Return request and tags by which a rank ends a command that was aborted before it had begun here.

    `tags`: what the command's arguments name; None: they cannot be read, and what others give back is
    unknown. `clears`, `of_admission`: whether they say that it is a clear; a hold or a release.
    """
    if tags is None:
        return Operation.CLEAR, frozenset()
    if of_admission:
        return Operation.HOLD, tags
    return Operation.CLEAR, tags if clears else ALL_TAGS


def keep(asked: Asked, machines: Machines) -> WayOut:
    """End an aborted command that touched no rank, after it was undone: hold what was held before."""
    moves, joint = not asked.request.is_of_admission, machines.joint
    if moves and joint.weights is WeightState.FAULTED:
        return _drop_all(machines)
    if not (moves and asked.begun):
        return WayOut()
    if joint.weights in _AT_REST:
        _kv_as_before(asked, machines)
        return WayOut()
    if joint.had_version:
        if joint.weights is WeightState.PREPARED:
            machines.fire(WeightEvent.ABORT, kept=True)
        _kv_as_before(asked, machines)
        if machines.joint.weights is WeightState.UPDATING:
            machines.fire(WeightEvent.ABORT, kept=True)
        return WayOut()
    if asked.before.kv is not KVState.NORMAL:
        return _drop_all(machines)
    # What an update has begun to load goes, the KV cache stays.
    _kv_as_before(asked, machines)
    machines.fire(WeightEvent.ABORT)
    return WayOut(DISCARD_WEIGHTS)


def drop(asked: Asked, machines: Machines) -> WayOut:
    """End an aborted command that touched some rank: hold nothing, or not the half that was to be cleared."""
    gives_back = asked.gives_back
    if gives_back == ALL_TAGS:
        return _drop_all(machines)
    if asked.before.weights is WeightState.FAULTED:
        return WayOut(faulted=True)  # half a teardown repairs nothing
    if not gives_back:
        return _drop_unknown(machines)
    return _drop_half(machines, takes_weights=Tag.WEIGHTS in gives_back)


def leave(machines: Machines) -> WayOut:
    """Give back everything in the old epoch, which has ended; only then the rank joins the new one.

    Where an action of it fails (:func:`not_freed`) the rank never joins, and its process is replaced.
    """
    return _drop_all(machines)._replace(leaves=True)


def freed(machines: Machines) -> None:
    """Take in that the last action of a teardown is done: what was CLEARING is CLEARED."""
    if machines.joint.kv is KVState.CLEARING:
        machines.fire(KVEvent.CLEARED)
    if machines.joint.weights is WeightState.CLEARING:
        machines.fire(WeightEvent.CLEARED)


def not_freed(machines: Machines, cause: str = "") -> None:
    """Take in that an action of a teardown failed: the rank is FAULTED, unless it held nothing before."""
    if machines.joint != START:
        machines.fire(WeightEvent.FAIL, cause=cause)


def lose(machines: Machines) -> None:
    """Begin a new epoch with nothing; refused while anything is held."""
    machines.fire(KVEvent.LOST, cause="a new epoch")
    machines.fire(WeightEvent.LOST, cause="a new epoch")


def _first_events(asked: Asked) -> list[Event]:
    clears = asked.request is Operation.CLEAR
    events: list[Event] = []
    if Tag.WEIGHTS in asked.tags:
        events.append(WeightEvent.CLEAR if clears else WeightEvent.UPDATE)
    if clears and Tag.KV_CACHE in asked.tags:
        events.append(KVEvent.CLEAR)
    return events or [KVEvent.UPDATE]


def _bring_back(machines: Machines) -> None:
    """Say that the KV cache is whole again; an engine without one is always in step."""
    if machines.joint.kv is KVState.CLEARED:
        machines.fire(KVEvent.UPDATE)
    if machines.joint.kv is KVState.UPDATING:
        machines.fire(KVEvent.REBUILT)


def _kv_as_before(asked: Asked, machines: Machines) -> None:
    """Let the KV cache's machine say what undoing has left: what there was before."""
    kv = machines.joint.kv
    if asked.before.kv is KVState.CLEARED and kv is not KVState.CLEARED:
        machines.fire(KVEvent.CLEAR, cause="what was built is given back")
        machines.fire(KVEvent.CLEARED)
    elif kv is KVState.UPDATING:
        machines.fire(KVEvent.REBUILT, cause="the old cache is still whole")


def _drop_all(machines: Machines) -> WayOut:
    if machines.joint == START:
        return WayOut()
    _weights_leave(machines)
    if machines.joint.kv is not KVState.CLEARED:
        machines.fire(KVEvent.CLEAR)
    return WayOut(DISCARD)


def _drop_half(machines: Machines, *, takes_weights: bool) -> WayOut:
    joint = machines.joint
    away = joint.weights is WeightState.CLEARED if takes_weights else joint.kv is KVState.CLEARED
    if away:
        return WayOut()
    if not takes_weights:
        machines.fire(KVEvent.CLEAR)
        return WayOut(DISCARD_KV_CACHE)
    _weights_leave(machines)
    beside = machines.joint.kv is KVState.NORMAL
    return WayOut(DISCARD_HELD_WEIGHTS if beside else DISCARD)


def _drop_unknown(machines: Machines) -> WayOut:
    """Serve nothing, since keeping either half may be keeping what the other ranks have not."""
    if machines.joint == START:
        return WayOut()
    if machines.joint.weights is WeightState.FAULTED:  # it was here before, and its end was not remembered
        return WayOut(faulted=True)
    normal = machines.joint.weights is WeightState.NORMAL
    machines.fire(WeightEvent.CLEAR if normal else KVEvent.CLEAR)
    machines.fire(WeightEvent.FAIL, cause="the command's arguments cannot be read")
    return WayOut(faulted=True)


def _weights_leave(machines: Machines) -> None:
    leaves = machines.joint.weights in (WeightState.NORMAL, WeightState.FAULTED)
    machines.fire(WeightEvent.CLEAR if leaves else WeightEvent.ABORT)
