"""A fleet of replicas and its target: what one replica counts as, and which digests may be served.

Theory of operation
-------------------
A fleet has no memory but its targets, which lie beside the versions, each under a number of its own: the
highest counts. What is true lies in the replicas, which answer with the digest of what they hold.

**STALE until proved.** A replica is READY by one event alone: it answered in this look, to a question that
was asked for the newest target, that it serves a digest which that target allows. Silence, a late answer or a
new target takes the proof away. Only READY is routable.

**The replica decides.** It reads the target itself (:func:`admits`), so that a caller that lags behind cannot
let text reach weights that are not allowed.

**While a target rolls, two digests are allowed**, the new one and the one before; once all serve the new one
a second target allows that alone. Going back is a way to a digest and never to a label, which may mean other
content by now.

Pure: documents in, states out.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from itertools import product
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from wsm.labels import Label

#: Looks that a proof may be old before a replica is no longer routable.
PROVED_LOOKS = 3

Generation: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=10**12)]


class FleetFailure(str, enum.Enum):
    """What a caller does once a step has failed: leave the rest as it is, or go back."""

    STOP = "stop"
    BACK = "back"


class NamedContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version, by its label and by the digest of what a group loads of it."""

    label: Label
    digest: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class FleetTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a fleet is to serve.

    Parameters
    ----------
    generation : int
        Its number; the highest counts.
    content : NamedContent
        What all are to serve.
    allowed : tuple of NamedContent
        What may be served now.
    before : NamedContent or None
        What is gone back to; None: there is nothing.
    at_a_time, on_failure
        How it is rolled.
    replicas : int
        How many there were; a list that is much shorter is no list of this fleet.
    """

    generation: Generation
    content: NamedContent
    allowed: tuple[NamedContent, ...]
    before: NamedContent | None = None
    at_a_time: Annotated[int, msgspec.Meta(ge=1)] = 1
    on_failure: FleetFailure = FleetFailure.STOP
    replicas: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def named(self) -> frozenset[str]:
        """Labels of the versions that must stay in the store."""
        named = (self.content, *self.allowed, *(() if self.before is None else (self.before,)))
        return frozenset(each.label for each in named)


class FleetState(enum.Enum):
    """What one replica counts as."""

    STALE = "stale"
    STAGED = "staged"
    READY = "ready"
    FAILED = "failed"


class FleetEvent(enum.Enum):
    """What a look at a replica, or a step of it, has brought."""

    SERVES = "serves what is allowed"
    PREPARED = "stands prepared"
    OTHER = "holds something else, or does not serve"
    SILENT = "no answer in this look"
    FAILED = "a step failed"
    TARGET = "a new target"


_S, _E = FleetState, FleetEvent

#: Where an event leads a replica from each state.
FLEET_TABLE: Mapping[tuple[FleetState, FleetEvent], FleetState] = {
    # proved in this look, for the newest target
    **{(state, _E.SERVES): _S.READY for state in _S},
    # under this target's own request id
    **{(state, _E.PREPARED): _S.STAGED for state in _S},
    # what was proved before, or for another target, counts no more
    **{(state, _E.SILENT): _S.STALE for state in _S},
    **{(state, _E.TARGET): _S.STALE for state in _S},
    # its error is told; the next look may prove it
    **{(state, _E.FAILED): _S.FAILED for state in _S},
    # it takes no text; where a step failed, it is as it was told to be
    **{(state, _E.OTHER): _S.FAILED if state is _S.FAILED else _S.STALE for state in _S},
}

#: What is said of each state in pictures.
FLEET_MEANINGS = {
    _S.STALE: "nothing is proved of it; no text goes there",
    _S.STAGED: "the target's version stands prepared beside the one that serves",
    _S.READY: "serves a digest that is allowed, as it said in this look",
    _S.FAILED: "a step of this target failed there",
}


def after(state: FleetState, event: FleetEvent) -> FleetState:
    """Return what a replica counts as behind an event."""
    return FLEET_TABLE[state, event]


class LookAnswer(NamedTuple):
    """What one replica answered, and to which question.

    `look`, `generation`: when it was asked, and for which target. `digest`: of what it holds; None: nothing,
    or not known. `serving`: whether it takes text.
    """

    look: int
    generation: int
    digest: str | None
    serving: bool


def seen(answer: LookAnswer | None, target: FleetTarget, look: int) -> FleetEvent:
    """Return what an answer brings in the look with that number; None: there was none."""
    if answer is None or answer.look != look or answer.generation != target.generation:
        return FleetEvent.SILENT  # a late answer says what was
    return FleetEvent.SERVES if answer.serving and admits(answer.digest, target) else FleetEvent.OTHER


def admits(digest: str | None, target: FleetTarget | None) -> bool:
    """Whether text may reach weights of this digest. Without a target nothing is proved."""
    return target is not None and digest is not None and digest in {each.digest for each in target.allowed}


def replica_state(
    digest: str | None, *, serving: bool, prepared: bool, target: FleetTarget | None
) -> FleetState:
    """Return what a replica counts as by what it knows of itself; only READY lets text in.

    `prepared`: a version of the target stands beside the one that is held.
    """
    if serving and admits(digest, target):
        event = FleetEvent.SERVES
    else:
        event = FleetEvent.PREPARED if prepared else FleetEvent.OTHER
    return after(FleetState.STALE, event)


def step_name(generation: int, replica: str) -> str:
    """Return what the request ids of a replica's steps towards a target begin with."""
    return f"fleet-{generation}-{replica}"


def generation_of(request_id: str | None) -> int | None:
    """Return the generation of the target towards which a step was; None: it is no step of a fleet."""
    words = (request_id or "").split("-", 2)
    return int(words[1]) if len(words) == 3 and words[0] == "fleet" and words[1].isdecimal() else None


def is_target_read(known: FleetTarget | None, found: FleetTarget | None) -> bool:
    """Whether what a read has found counts behind what is known.

    A store that shows none, or an older one than it did, is not whole: what is known goes on to count.
    """
    return known is None or (found is not None and found.generation >= known.generation)


def takes(label: str | None, digest: str | None, target: FleetTarget | None) -> bool:
    """Whether an update to this version is the fleet's own; `digest` None: it is not known yet."""
    return target is not None and any(
        each.label == label and digest in (None, each.digest) for each in target.allowed
    )


def may_step(generation: int, newest: FleetTarget | None) -> bool:
    """Whether a caller of that generation may prepare or commit, by the newest target that there is."""
    return newest is not None and newest.generation <= generation


#: What stands in a step's way for a while: an answer that is lost, another command, a store.
_PASSING = frozenset(
    {"upstream-unreachable", "server-busy", "role-busy", "decision-held", "update-in-progress", "bad-target"}
)
#: What a replica answers by an older target, too, which its server sees for a while, as over NFS.
_BY_TARGET = frozenset({"not-the-fleets", "not-serving"})


def passes(code: str, seen: int | None, generation: int) -> bool:
    """Whether what stands in the way of a step may pass. A step that failed does not.

    `code`: of the error. `seen`: the generation of the target by which it was answered. `generation`: of that
    towards which the step is.
    """
    return (seen or 0) < generation if code in _BY_TARGET else code in _PASSING


def is_settled(target: FleetTarget, newest: FleetTarget) -> bool:
    """Whether a newer target names the same content: a watcher saw all serve it, and nothing else may."""
    return newest.content == target.content


def drains(operation: str | None, *, over: bool) -> bool:
    """Whether a group lets requests end since a command will stop it: text that comes now would wait.

    `operation`, `over`: as its status says them. A hot update stops it for a moment only.
    """
    return not over and not (operation or "").startswith("HOT")


def is_routable(proved: int | None, look: int) -> bool:
    """Whether a replica that was READY in the look `proved` last may get text after the look `look`."""
    return proved is not None and look - proved < PROVED_LOOKS


def way_back(target: FleetTarget, found: NamedContent | None) -> NamedContent | None:
    """Return what a fleet goes back to; None: it is not there as it was. `found`: what lies there now."""
    return target.before if target.before is not None and target.before == found else None


def next_target(
    newest: FleetTarget | None,
    content: NamedContent,
    *,
    strict: bool = False,
    at_a_time: int = 1,
    on_failure: FleetFailure = FleetFailure.STOP,
    replicas: int = 0,
) -> FleetTarget:
    """Return the target that brings a fleet to `content`; `newest` again where it does so already."""
    if newest is not None and newest.content == content and not (strict and len(newest.allowed) > 1):
        return newest
    same = newest is not None and newest.content == content
    before = newest.before if newest is not None and same else None if newest is None else newest.content
    rolling = (content,) if strict or before is None else (content, before)
    return FleetTarget(
        generation=1 if newest is None else newest.generation + 1,
        content=content,
        allowed=rolling,
        before=before,
        at_a_time=at_a_time,
        on_failure=on_failure,
        replicas=replicas,
    )


def fleet_faults() -> list[str]:
    """Return what is wrong with the table: each pair has a row, and READY one way in."""
    pairs = product(FleetState, FleetEvent)
    wrong = [
        f"{state.name} {event.name} has no row" for state, event in pairs if (state, event) not in FLEET_TABLE
    ]
    for (state, event), dest in FLEET_TABLE.items():
        if (dest is FleetState.READY) != (event is FleetEvent.SERVES):
            wrong.append(f"{state.name} is READY by {event.name}")
        if event in (FleetEvent.SILENT, FleetEvent.TARGET) and dest is not FleetState.STALE:
            wrong.append(f"{state.name} keeps its proof behind {event.name}")
    return wrong
