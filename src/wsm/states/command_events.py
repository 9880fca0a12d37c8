"""What a command means on one rank: its plan for weights and KV cache, its events, every way out of it.

Theory of operation
-------------------
**Which plan** follows from what is asked, the tags, and what is held
(:func:`wsm.states.plan_key.plan_for`). A command moves the halves that its tags name, as far as they are not
where it wants them already, and the other half only where it must.

A command moves the machines of a rank at a few moments: when all ranks stand (:func:`begin`), when an action
has changed the KV cache (:func:`followed`), when the plan is done (:func:`finish`), and at the decision
(:func:`commit`, :func:`keep`, :func:`drop`). Each function here takes where the rank is and what was asked,
and returns a :class:`Course`: the events in their order, each led through the tables. A way out that frees
memory names the plan that does it; :func:`freed` and :func:`not_freed` say what its end means.

**What was held before is what is kept.** An aborted update goes back only if no rank touched its weights;
then the KV cache says what undoing has left, and the weights' ABORT is fired between, as the joint rules want
it: after PREPARED the decision comes first, before it the cache is finished first.

**A teardown that has begun is never taken back.** :func:`is_torn` says so to the protocol; the group drops.

**A dropped update takes both halves with it**: what it was to bring stands on both. A dropped clear of one
half goes on to clear that half, on every rank. Where the arguments of the command cannot be read, a rank
cannot know which half the others gave back, and serves nothing until all of it is cleared.

The worker fires these events with their times and journals them; the explorer takes them as they are. Pure;
knows no action by name, of the words the operation alone, no time.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import START, JointState, serving, step
from wsm.states.plan_key import (
    DISCARD,
    DISCARD_HELD_WEIGHTS,
    DISCARD_KV_CACHE,
    DISCARD_WEIGHTS,
    HOT,
    OF_ADMISSION,
    REJOIN,
    PlanKey,
    Request,
    plan_for,
)
from wsm.states.table import Event
from wsm.states.vocabulary import (
    ALL_TAGS,
    KVEvent,
    KVState,
    Tag,
    WeightEvent,
    WeightState,
    sentence_of,
)
from wsm.states.words import Operation

_AT_WORK = (WeightState.UPDATING, WeightState.CLEARING)
_AT_REST = (WeightState.NORMAL, WeightState.CLEARED)


#: What the operation of a command word asks for.
REQUESTS = {
    Operation.CLEAR: Request.CLEAR,
    Operation.UPDATE: Request.UPDATE,
    Operation.HOT_UPDATE: Request.HOT_UPDATE,
    Operation.HOLD: Request.HOLD,
    Operation.RELEASE: Request.RELEASE,
}


class CacheChange(enum.Enum):
    """What an action has done to the KV cache."""

    RELEASED = "released"
    READY = "rebuilt, or emptied"


class Fired(NamedTuple):
    """One event, with its flags, as :meth:`wsm.states.machine.LifeCycle.fire` takes it.

    Parameters
    ----------
    event : WeightEvent or KVEvent
        What happens.
    kept : bool
        For ``abort``: the outcome of the group.
    kv_kept : bool
        For ``update`` of the weights: the KV policy of the command.
    cause : str
        Why, for the journal; empty: the command.
    to : JointState
        Where it leads.
    """

    event: Event
    kept: bool
    kv_kept: bool
    cause: str
    to: JointState


@dataclass(frozen=True)
class Course:
    """Events, in the order in which they are fired, and where they lead.

    Parameters
    ----------
    joint : JointState
        Where the rank is behind the last of them.
    fired : tuple of Fired
        The events.
    """

    joint: JointState
    fired: tuple[Fired, ...] = ()

    def then(self, event: Event, *, kept: bool = False, kv_kept: bool = True, cause: str = "") -> Course:
        """Return the course with one more event.

        Raises
        ------
        IllegalTransitionError
            If the tables or the joint rules refuse it.
        """
        _, after = step(self.joint, event, kept=kept, kv_kept=kv_kept)
        return Course(after, (*self.fired, Fired(event, kept, kv_kept, cause, after)))


@dataclass(frozen=True)
class Asked:
    """A command, as far as it decides which events are fired on one rank.

    Parameters
    ----------
    request : Request
        What is asked.
    tags : frozenset of Tag
        What it is about. Empty: nothing in memory; of a clear: its arguments cannot be read.
    before : JointState
        Where the rank was when its work was set up.
    keeps_kv : bool
        Whether the KV policy keeps blocks of the old weights.
    begun : bool
        Whether the machines have left where they were before.
    """

    request: Request
    tags: frozenset[Tag]
    before: JointState
    keeps_kv: bool = False
    begun: bool = False

    @property
    def gives_back(self) -> frozenset[Tag]:
        """What no rank holds any more once the command is dropped; empty: unknown."""
        return self.tags if self.request is Request.CLEAR else ALL_TAGS

    @property
    def plan(self) -> PlanKey | None:
        """The plan that serves the request from `before`; None: nothing is to do.

        Its collective actions are the same on every rank.
        """
        weights, kv = self.before.weights, self.before.kv
        if self.request is Request.HOT_UPDATE:
            return HOT
        if self.request in OF_ADMISSION:
            return plan_for(self.request, self.tags, weights=True, kv=kv is KVState.NORMAL)
        if weights is WeightState.FAULTED:
            # It is repaired beside peers that are cleared already: no collective can be part of it.
            return DISCARD
        if weights not in _AT_REST:
            return None  # a new epoch, in the middle of a command: what is held is given back
        there = {"weights": weights is WeightState.NORMAL, "kv": kv is KVState.NORMAL}
        return plan_for(self.request, self.tags, **there)


class WayOut(NamedTuple):
    """A way out of a command, or of an epoch.

    Parameters
    ----------
    course : Course
        Events to be fired at once.
    plan : PlanKey or None
        The discard plan to be run then, one action after the other; None: what is held stays.
    faulted : bool
        Whether the rank ends FAULTED, if no plan is to be run.
    leaves : bool
        Whether the rank leaves its epoch: what broke with a peer is let go before the discard plan.
    """

    course: Course
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
    request: Request, tags: frozenset[Tag], joint: JointState, *, same_version: bool, reload: bool
) -> frozenset[Tag]:
    """Return what a command is about on this rank: weights that are there already are left alone.

    Only where it is the KV cache that a rank lacks. Every rank holds the same version and was told the same
    one, so all of them come to the same plan.
    """
    lacks_kv_only = joint.weights is WeightState.NORMAL and joint.kv is KVState.CLEARED
    asked = request is Request.UPDATE and tags == ALL_TAGS and not reload
    return frozenset({Tag.KV_CACHE}) if asked and same_version and lacks_kv_only else tags


#: What wants weights and KV cache to be there, and why.
_NEEDS_WHOLE = {
    Request.HOT_UPDATE: "a hot update replaces weights that serve; update without it",
    Request.RELEASE: "only a group that can serve is released",
}


def objection(asked: Asked) -> str | None:
    """Say why a command cannot begin where the rank is; None if it can."""
    joint = asked.before
    if asked.request in _NEEDS_WHOLE:
        return None if serving(joint.weights, joint.kv) else _NEEDS_WHOLE[asked.request]
    if asked.request is Request.HOLD:
        return None
    faulted = joint.weights is WeightState.FAULTED
    if faulted and asked.request is Request.CLEAR and asked.tags != ALL_TAGS:
        return "what a FAULTED rank holds is unknown; clear weights and KV cache together"
    if asked.request is Request.UPDATE and asked.plan is None:
        return f"nothing of {sentence_of(asked.tags)} is missing"
    first = _first_events(asked)[0]
    try:
        step(joint, first)
    except IllegalTransitionError:
        state = joint.weights if isinstance(first, WeightEvent) else joint.kv
        return f"there is no way from {state.name} by {asked.request.value}"
    return None


def begin(asked: Asked, joint: JointState) -> Course:
    """Begin the transition: all ranks stand at the same step.

    For a hot update the flip begins here; if a shortage cut its beginning short, it goes on from there.
    """
    course = Course(joint)
    if asked.request in OF_ADMISSION:
        return course
    cut_short = asked.request is Request.HOT_UPDATE and joint.weights is WeightState.UPDATING
    for event in () if cut_short else _first_events(asked):
        course = course.then(event, kv_kept=asked.keeps_kv or event is not WeightEvent.UPDATE)
    replaced = course.joint.weights is WeightState.UPDATING and course.joint.kv is KVState.NORMAL
    return course.then(KVEvent.UPDATE) if replaced and not asked.keeps_kv else course


def followed(joint: JointState, change: CacheChange) -> Course:
    """Let the KV cache's machine follow an action, while the weights are at work, too.

    A KV cache that moves alone arrives when all is done (:func:`finish`, :func:`commit`, :func:`freed`).
    """
    course = Course(joint)
    if joint.weights not in _AT_WORK:
        return course
    if change is CacheChange.READY:
        return _brought_back(course)
    return course.then(KVEvent.CLEARED) if joint.kv is KVState.CLEARING else course


def finish(asked: Asked, joint: JointState) -> Course:
    """Say that everything which can fail is behind this rank."""
    if asked.request is Request.CLEAR:
        return freed(joint)
    course = Course(joint)
    if joint.weights is not WeightState.UPDATING:
        return course
    if Tag.KV_CACHE in asked.tags or joint.kv is KVState.UPDATING:
        course = _brought_back(course)
    return course.then(WeightEvent.PREPARED)


def commit(joint: JointState) -> Course:
    """Serve the new version, or take in that the KV cache is back over the same weights."""
    course = Course(joint)
    if joint.weights is WeightState.PREPARED:
        return course.then(WeightEvent.COMMIT)
    return course.then(KVEvent.REBUILT) if joint.kv is KVState.UPDATING else course


def fail(joint: JointState, cause: str = "") -> Course:
    """Take in that the command failed: a teardown of the weights leaves them FAULTED, all else moves nothing.

    What failed is said by the phase (:mod:`wsm.states.phases`) and its word; the decision leads out of it.
    A KV cache that was to go alone stays CLEARING until then.
    """
    course = Course(joint)
    return course.then(WeightEvent.FAIL, cause=cause) if joint.weights is WeightState.CLEARING else course


def is_torn(joint: JointState) -> bool:
    """Whether a teardown has begun, so that undoing brings nothing back."""
    gone = joint.weights in (WeightState.CLEARING, WeightState.FAULTED)
    return gone or joint.kv is KVState.CLEARING


def keep(asked: Asked, joint: JointState) -> WayOut:
    """End an aborted command that touched no rank, after it was undone: hold what was held before."""
    moves = asked.request not in OF_ADMISSION
    cut_short = not asked.begun and joint.weights is WeightState.CLEARING
    if moves and (joint.weights is WeightState.FAULTED or cut_short):
        return _drop_all(Course(joint))
    if not (moves and asked.begun):
        return WayOut(Course(joint))
    course = Course(joint)
    if joint.weights in _AT_REST:
        return WayOut(_kv_as_before(asked, course))
    if joint.held:
        if joint.weights is WeightState.PREPARED:
            course = course.then(WeightEvent.ABORT, kept=True)
        course = _kv_as_before(asked, course)
        if course.joint.weights is WeightState.UPDATING:
            course = course.then(WeightEvent.ABORT, kept=True)
        return WayOut(course)
    if asked.before.kv is not KVState.NORMAL:
        return _drop_all(course)
    # What an update has begun to load goes, the KV cache stays.
    return WayOut(_kv_as_before(asked, course).then(WeightEvent.ABORT), DISCARD_WEIGHTS)


def drop(asked: Asked, joint: JointState) -> WayOut:
    """End an aborted command that touched some rank: hold nothing, or not the half that was to be cleared."""
    course, gives_back = Course(joint), asked.gives_back
    if gives_back == ALL_TAGS:
        return _drop_all(course)
    if asked.before.weights is WeightState.FAULTED:
        return WayOut(course, faulted=True)  # half a teardown repairs nothing
    return (
        _drop_half(course, takes_weights=Tag.WEIGHTS in gives_back) if gives_back else _drop_unknown(course)
    )


def leave(joint: JointState) -> WayOut:
    """Give back everything in the old epoch, which has ended; only then the rank joins the new one.

    Where an action of it fails (:func:`not_freed`) the rank never joins, and its process is replaced.
    """
    return _drop_all(Course(joint))._replace(leaves=True)


def freed(joint: JointState) -> Course:
    """Take in that the last action of a teardown is done: what was CLEARING is CLEARED."""
    course = Course(joint)
    if joint.kv is KVState.CLEARING:
        course = course.then(KVEvent.CLEARED)
    return course.then(WeightEvent.CLEARED) if joint.weights is WeightState.CLEARING else course


def not_freed(joint: JointState, cause: str = "") -> Course:
    """Take in that an action of a teardown failed: the rank is FAULTED, unless it held nothing before."""
    course = Course(joint)
    return course if joint == START else course.then(WeightEvent.FAIL, cause=cause)


def lose(joint: JointState) -> Course:
    """Begin a new epoch with nothing; refused while anything is held."""
    return Course(joint).then(KVEvent.LOST).then(WeightEvent.LOST)


def _first_events(asked: Asked) -> list[Event]:
    """Say with which events a command begins, weights first."""
    clears = asked.request is Request.CLEAR
    events: list[Event] = []
    if Tag.WEIGHTS in asked.tags:
        events.append(WeightEvent.CLEAR if clears else WeightEvent.UPDATE)
    if clears and Tag.KV_CACHE in asked.tags:
        events.append(KVEvent.CLEAR)
    return events or [KVEvent.UPDATE]


def _brought_back(course: Course) -> Course:
    """Say that the KV cache is whole again; an engine without one is always in step."""
    if course.joint.kv is KVState.CLEARED:
        course = course.then(KVEvent.UPDATE)
    return course.then(KVEvent.REBUILT) if course.joint.kv is KVState.UPDATING else course


def _kv_as_before(asked: Asked, course: Course) -> Course:
    """Let the KV cache's machine say what undoing has left: what there was before."""
    kv = course.joint.kv
    if asked.before.kv is KVState.CLEARED and kv is not KVState.CLEARED:
        return course.then(KVEvent.CLEAR, cause="what was built is given back").then(KVEvent.CLEARED)
    if kv is KVState.UPDATING:
        return course.then(KVEvent.REBUILT, cause="the old cache is still whole")
    return course


def _drop_all(course: Course) -> WayOut:
    if course.joint == START:
        return WayOut(course)
    course = _weights_leave(course)
    if course.joint.kv is not KVState.CLEARED:
        course = course.then(KVEvent.CLEAR)
    return WayOut(course, DISCARD)


def _drop_half(course: Course, *, takes_weights: bool) -> WayOut:
    away = (
        course.joint.weights is WeightState.CLEARED if takes_weights else course.joint.kv is KVState.CLEARED
    )
    if away:
        return WayOut(course)
    if not takes_weights:
        return WayOut(course.then(KVEvent.CLEAR), DISCARD_KV_CACHE)
    course = _weights_leave(course)
    beside = course.joint.kv is KVState.NORMAL
    return WayOut(course, DISCARD_HELD_WEIGHTS if beside else DISCARD)


def _drop_unknown(course: Course) -> WayOut:
    """Serve nothing, since keeping either half may be keeping what the other ranks have not."""
    if course.joint == START:
        return WayOut(course)
    if course.joint.weights is WeightState.FAULTED:  # it was here before, and its end was not remembered
        return WayOut(course, faulted=True)
    normal = course.joint.weights is WeightState.NORMAL
    course = course.then(WeightEvent.CLEAR if normal else KVEvent.CLEAR)
    cause = "the command's arguments cannot be read"
    return WayOut(course.then(WeightEvent.FAIL, cause=cause), faulted=True)


def _weights_leave(course: Course) -> Course:
    leaves = course.joint.weights in (WeightState.NORMAL, WeightState.FAULTED)
    return course.then(WeightEvent.CLEAR if leaves else WeightEvent.ABORT)
