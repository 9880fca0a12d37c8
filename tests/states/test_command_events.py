"""Every command from every state at rest, every moment of it, every way out: gone through one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from wsm.states import command_events
from wsm.states.command_events import Asked, CacheChange, Request, WayOut
from wsm.states.joint import JointState, serving
from wsm.states.vocabulary import ALL_TAGS, KVState, PlanName, Tag, WeightState

W, K = WeightState, KVState
AT_REST = [JointState(*pair) for pair in product((W.NORMAL, W.CLEARED, W.FAULTED), (K.NORMAL, K.CLEARED))]
TAGS = [frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE}), ALL_TAGS]
COMMANDS = [
    Asked(request, tags, before, keeps_kv=keeps)
    for request, tags, before, keeps in product(Request, TAGS, AT_REST, (False, True))
]
LEGAL = [asked for asked in COMMANDS if command_events.objection(asked) is None]


def moments(asked: Asked) -> Iterator[JointState]:
    """Every state that a rank can be in within the command, before the decision."""
    begun = command_events.begin(asked, asked.before).joint
    yield begun
    seen = {begun}
    waiting = [begun]
    clears = asked.request is Request.CLEAR
    change = CacheChange.RELEASED if clears else CacheChange.READY
    while waiting:
        joint = waiting.pop()
        for course in (command_events.followed(joint, change), command_events.fail(joint)):
            if course.joint not in seen:
                seen.add(course.joint)
                waiting.append(course.joint)
                yield course.joint


def finished(asked: Asked) -> JointState:
    joint = command_events.begin(asked, asked.before).joint
    return command_events.finish(asked, joint).joint


def ends(ending: WayOut) -> list[JointState]:
    """Where a way out leads, whether or not its teardown succeeds."""
    joint = ending.course.joint
    if ending.plan is None:
        return [joint]
    return [command_events.freed(joint).joint, command_events.not_freed(joint).joint]


def name(asked: Asked) -> str:
    tags = "+".join(sorted(tag.value for tag in asked.tags))
    keeps = ", keeps" if asked.keeps_kv else ""
    return f"{asked.request.value} {tags}{keeps} at {asked.before.weights.name}+{asked.before.kv.name}"


@pytest.mark.parametrize("asked", LEGAL, ids=name)
def test_a_command_that_is_legal_is_led_to_its_end_by_the_tables(asked: Asked) -> None:
    end = finished(asked)
    if asked.request is Request.CLEAR:
        assert (Tag.WEIGHTS in asked.tags) <= (end.weights is W.CLEARED)
        assert (Tag.KV_CACHE in asked.tags) <= (end.kv is K.CLEARED)
        return
    end = command_events.commit(end).joint
    assert end.weights in (W.NORMAL, W.CLEARED)
    assert (Tag.WEIGHTS in asked.tags) <= (end.weights is W.NORMAL)
    assert (Tag.KV_CACHE in asked.tags) <= (end.kv is K.NORMAL)
    assert (asked.tags == ALL_TAGS) <= serving(end.weights, end.kv)


@pytest.mark.parametrize("asked", LEGAL, ids=name)
def test_every_way_out_of_every_moment_ends_at_rest(asked: Asked) -> None:
    begun = replace(asked, begun=True)
    within = set(moments(asked))
    if asked.request is not Request.CLEAR:
        within.add(finished(asked))
    for joint in within:
        for dropped in ends(command_events.drop(begun, joint)):
            assert dropped.weights in (W.CLEARED, W.NORMAL, W.FAULTED)
            gone = asked.tags if asked.request is Request.CLEAR else ALL_TAGS
            if dropped.weights is not W.FAULTED:
                assert (Tag.WEIGHTS in gone) <= (dropped.weights is W.CLEARED)
                assert (Tag.KV_CACHE in gone) <= (dropped.kv is K.CLEARED)
        if not command_events.is_torn(joint):
            kept, *_ = ends(command_events.keep(begun, joint))
            assert (kept.weights, kept.kv) == asked.before[:2]


@pytest.mark.parametrize("asked", LEGAL, ids=name)
def test_a_failure_moves_weights_that_are_being_given_back_and_nothing_else(asked: Asked) -> None:
    for joint in moments(asked):
        after = command_events.fail(joint).joint
        assert after == (joint._replace(weights=W.FAULTED) if joint.weights is W.CLEARING else joint)


@pytest.mark.parametrize("asked", COMMANDS, ids=name)
def test_a_command_that_has_not_begun_keeps_what_was_held(asked: Asked) -> None:
    if asked.before.weights is not W.FAULTED:
        assert command_events.keep(asked, asked.before) == WayOut(command_events.Course(asked.before))
    dropped = command_events.drop(asked, asked.before)
    assert all(joint.weights in (W.CLEARED, W.NORMAL, W.FAULTED) for joint in ends(dropped))


@pytest.mark.parametrize("before", AT_REST, ids=lambda joint: f"{joint.weights.name}+{joint.kv.name}")
def test_a_rank_that_cannot_read_what_was_asked_serves_nothing(before: JointState) -> None:
    unreadable = Asked(Request.CLEAR, frozenset(), before)
    ending = command_events.drop(unreadable, before)
    assert ending.plan is None
    empty = before == command_events.START
    assert ending.faulted is not empty
    assert not serving(ending.course.joint.weights, ending.course.joint.kv)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked(Request.HOT_UPDATE, ALL_TAGS, JointState(W.CLEARED, K.NORMAL)), "weights that serve"),
        (
            Asked(Request.CLEAR, TAGS[0], JointState(W.FAULTED, K.CLEARED)),
            "clear weights and KV cache together",
        ),
        (
            Asked(Request.UPDATE, TAGS[1], JointState(W.NORMAL, K.NORMAL)),
            "nothing of the KV cache is missing",
        ),
        (Asked(Request.UPDATE, ALL_TAGS, JointState(W.FAULTED, K.CLEARED)), "no way from FAULTED by update"),
    ],
    ids=lambda value: name(value) if isinstance(value, Asked) else "",
)
def test_a_command_that_is_illegal_says_why(asked: Asked, why: str) -> None:
    assert why in (command_events.objection(asked) or "")


def test_a_faulted_rank_is_repaired_without_a_collective_action() -> None:
    asked = Asked(Request.CLEAR, ALL_TAGS, JointState(W.FAULTED, K.CLEARING))
    assert asked.plan is PlanName.DISCARD
