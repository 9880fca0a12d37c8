"""Every command from every state at rest, every moment of it, every way out: gone through one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from tests.incident import incident
from wsm.states import command_events
from wsm.states.command_events import Asked, CacheChange, Course, WayOut
from wsm.states.joint import JointState, serving
from wsm.states.plan_key import DISCARD, GIVEN_BACK, OF_ADMISSION, PLANS, REQUESTS, Half, plan_for
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState
from wsm.states.words import Operation

W, K = WeightState, KVState
AT_REST = [JointState(*pair) for pair in product((W.NORMAL, W.CLEARED, W.FAULTED), (K.NORMAL, K.CLEARED))]
TAGS = [frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE}), ALL_TAGS]
COMMANDS = [
    Asked(request, tags, before, keeps_kv=keeps)
    for request, tags, before, keeps in product(REQUESTS, TAGS, AT_REST, (False, True))
]
LEGAL = [asked for asked in COMMANDS if command_events.objection(asked, Course(asked.before)) is None]


def moments(asked: Asked) -> Iterator[JointState]:
    """Every state that a rank can be in within the command, before the decision."""
    begun = Course.led(asked.before, partial(command_events.begin, asked)).joint
    yield begun
    seen = {begun}
    waiting = [begun]
    clears = asked.request is Operation.CLEAR
    change = CacheChange.RELEASED if clears else CacheChange.READY
    while waiting:
        joint = waiting.pop()
        for moment in (partial(command_events.followed, change), command_events.fail):
            course = Course.led(joint, moment)
            if course.joint not in seen:
                seen.add(course.joint)
                waiting.append(course.joint)
                yield course.joint


def finished(asked: Asked) -> JointState:
    moments = partial(command_events.begin, asked), partial(command_events.finish, asked)
    return Course.led(asked.before, *moments).joint


def ends(way_out: Callable[[Course], WayOut], joint: JointState) -> list[JointState]:
    """Where a way out leads, whether or not its teardown succeeds."""
    course = Course(joint)
    if way_out(course).plan is None:
        return [course.joint]
    return [Course.led(course.joint, end).joint for end in (command_events.freed, command_events.not_freed)]


def name(asked: Asked) -> str:
    tags = "+".join(sorted(tag.value for tag in asked.tags))
    keeps = ", keeps" if asked.keeps_kv else ""
    return f"{asked.request.phrase} {tags}{keeps} at {asked.before.weights.name}+{asked.before.kv.name}"


@pytest.mark.parametrize("asked", LEGAL, ids=name)
def test_a_command_that_is_legal_is_led_to_its_end_by_the_tables(asked: Asked) -> None:
    end = finished(asked)
    if asked.request is Operation.CLEAR:
        assert (Tag.WEIGHTS in asked.tags) <= (end.weights is W.CLEARED)
        assert (Tag.KV_CACHE in asked.tags) <= (end.kv is K.CLEARED)
        return
    end = Course.led(end, command_events.commit).joint
    if asked.request in OF_ADMISSION:
        assert end == asked.before
        return
    assert end.weights in (W.NORMAL, W.CLEARED)
    assert (Tag.WEIGHTS in asked.tags) <= (end.weights is W.NORMAL)
    assert (Tag.KV_CACHE in asked.tags) <= (end.kv is K.NORMAL)
    assert (asked.tags == ALL_TAGS) <= serving(end.weights, end.kv)


@pytest.mark.parametrize("asked", LEGAL, ids=name)
def test_every_way_out_of_every_moment_ends_at_rest(asked: Asked) -> None:
    begun = replace(asked, begun=True)
    within = set(moments(asked))
    if asked.request is not Operation.CLEAR:
        within.add(finished(asked))
    for joint in within:
        for dropped in ends(partial(command_events.drop, begun), joint):
            assert dropped.weights in (W.CLEARED, W.NORMAL, W.FAULTED)
            gone = asked.tags if asked.request is Operation.CLEAR else ALL_TAGS
            if dropped.weights is not W.FAULTED:
                assert (Tag.WEIGHTS in gone) <= (dropped.weights is W.CLEARED)
                assert (Tag.KV_CACHE in gone) <= (dropped.kv is K.CLEARED)
        if not command_events.is_torn(joint):
            kept, *_ = ends(partial(command_events.keep, begun), joint)
            assert (kept.weights, kept.kv) == asked.before[:2]


@pytest.mark.parametrize("asked", LEGAL, ids=name)
def test_a_failure_moves_weights_that_are_being_given_back_and_nothing_else(asked: Asked) -> None:
    for joint in moments(asked):
        after = Course.led(joint, command_events.fail).joint
        assert after == (joint._replace(weights=W.FAULTED) if joint.weights is W.CLEARING else joint)


@pytest.mark.parametrize("asked", COMMANDS, ids=name)
def test_a_command_that_has_not_begun_keeps_what_was_held(asked: Asked) -> None:
    if asked.before.weights is not W.FAULTED:
        course = Course(asked.before)
        assert command_events.keep(asked, course) == WayOut()
        assert not course.fired
    dropped = ends(partial(command_events.drop, asked), asked.before)
    assert all(joint.weights in (W.CLEARED, W.NORMAL, W.FAULTED) for joint in dropped)


@pytest.mark.parametrize("before", AT_REST, ids=lambda joint: f"{joint.weights.name}+{joint.kv.name}")
def test_a_rank_that_cannot_read_what_was_asked_serves_nothing(before: JointState) -> None:
    unreadable = Asked(Operation.CLEAR, frozenset(), before)
    course = Course(before)
    ending = command_events.drop(unreadable, course)
    assert ending.plan is None
    empty = before == command_events.START
    assert ending.faulted is not empty
    assert not serving(course.joint.weights, course.joint.kv)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked(Operation.HOT_UPDATE, ALL_TAGS, JointState(W.CLEARED, K.NORMAL)), "weights that serve"),
        (
            Asked(Operation.CLEAR, TAGS[0], JointState(W.FAULTED, K.CLEARED)),
            "clear weights and KV cache together",
        ),
        (
            Asked(Operation.UPDATE, TAGS[1], JointState(W.NORMAL, K.NORMAL)),
            "nothing of the KV cache is missing",
        ),
        (
            Asked(Operation.UPDATE, ALL_TAGS, JointState(W.FAULTED, K.CLEARED)),
            "no way from FAULTED by update",
        ),
    ],
    ids=lambda value: name(value) if isinstance(value, Asked) else "",
)
def test_a_command_that_is_illegal_says_why(asked: Asked, why: str) -> None:
    assert why in (command_events.objection(asked, Course(asked.before)) or "")


def test_a_faulted_rank_is_repaired_without_a_collective_action() -> None:
    asked = Asked(Operation.CLEAR, ALL_TAGS, JointState(W.FAULTED, K.CLEARING))
    assert asked.plan is DISCARD


def test_a_plan_is_called_by_its_parts_and_no_two_plans_alike() -> None:
    """Users name these in faults, and read them in journals and receipts of every version."""
    assert {str(key) for key in PLANS} == {
        "clear",
        "clear_weights",
        "clear_kv_cache",
        "clear_remaining_weights",
        "clear_remaining_kv_cache",
        "update",
        "update_weights",
        "update_weights_only",
        "update_kv_cache",
        "update_kv_cache_only",
        "update_in_place",
        "update_in_place_only",
        "update_in_place_and_rebuild",
        "hot",
        "discard",
        "discard_weights",
        "discard_held_weights",
        "discard_kv_cache",
        "rejoin",
        "hold",
        "hold_without_kv_cache",
        "release",
    }
    assert len({str(key) for key in PLANS}) == len(PLANS)


@incident("FastDeploy C2-26")
@pytest.mark.parametrize("request_", REQUESTS)
def test_the_plan_for_a_request_moves_what_its_tags_name_and_is_not_there_yet(request_: Operation) -> None:
    for tags, weights, kv in product(TAGS, (True, False), (True, False)):
        key = plan_for(request_, tags, weights=weights, kv=kv)
        if request_ is Operation.HOT_UPDATE:
            assert (key is not None) is (weights and kv)
            continue
        if request_ in OF_ADMISSION:
            assert key is not None
            assert not key.loads
            assert not key.gives_back
            continue
        there = {Tag.WEIGHTS: weights, Tag.KV_CACHE: kv}
        wanted = {
            tag: request_ is Operation.UPDATE if tag in tags else there[tag]
            for tag in (Tag.WEIGHTS, Tag.KV_CACHE)
        }
        reloads = request_ is Operation.UPDATE and Tag.WEIGHTS in tags
        assert (key is None) is (wanted == there and not reloads)
        if key is not None:
            assert {tag: tag not in key.gone for tag in there} == wanted
            assert {tag: half not in (Half.COMES, Half.AWAY) for tag, half in key.halves.items()} == there
            assert key.gives_back is bool(GIVEN_BACK & set(key.halves.values()))
            assert key.loads is reloads
