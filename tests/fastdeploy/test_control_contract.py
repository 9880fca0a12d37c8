"""What control requests may do: every state of group and rank against every request, from the pure tables."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from tests.raising import raising
from wsm.actions.base import Plans
from wsm.fastdeploy import _control_contract as control
from wsm.fastdeploy._control_calls import DEADLINES_S, REST_S, TAGS, ControlCalls, ControlRequest
from wsm.states.decide import Resident
from wsm.states.engine_words import Given
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState

SUBSETS = [frozenset(), frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE}), ALL_TAGS]
METHODS = list(DEADLINES_S)
#: How long FastDeploy's engine waits for the answer of each.
ENGINE_WAITS_S = {"sleep": 60, "wakeup": 300, "update_weights": 60}


def test_the_table_knows_every_request_and_half_and_each_ends_before_the_engine_gives_up():
    assert set(control.GIVES) == set(itertools.product(METHODS, (True, False, None)))
    assert set(TAGS.values()) == ALL_TAGS
    for method, waits_s in ENGINE_WAITS_S.items():
        # Ranks that come late, the command, the way out of one that failed.
        assert REST_S + DEADLINES_S[method] + 2 * REST_S < waits_s


def test_a_request_changes_what_it_names_alone_and_leaves_only_what_every_rank_has_as_it_asks():
    """Two ranks in every pair of states; no rank sleeps over memory that it still has."""
    states = [Resident(*each) for each in itertools.product(WeightState, KVState)]
    for method, tags, held in itertools.product(METHODS, SUBSETS, itertools.product(states, repeat=2)):
        given = control.command_of(method, tags, held)
        there = frozenset(tag for tag in ALL_TAGS if not any(tag in each.missing for each in held))
        away = {Tag.WEIGHTS} if all(each.weights is WeightState.CLEARED for each in held) else set()
        away |= {Tag.KV_CACHE} if all(each.kv is KVState.CLEARED for each in held) else set()
        if tags - away - there and method == "sleep":  # they differ: nothing but both has one meaning
            away = set()
        changed = {"sleep": tags - away, "wakeup": tags - there, "update_weights": tags}[method]
        done = Given.CLEAR if method == "sleep" else Given.UPDATE
        assert (given.given, given.tags) == (done if changed else Given.NOTHING, changed)


def test_no_runner_steps_without_all_that_a_step_needs():
    for weights, kv, found in itertools.product(WeightState, KVState, (True, False)):
        asleep = control.sleeping(weights, kv, kv_found=found)
        assert (Tag.WEIGHTS in asleep) == (weights is not WeightState.NORMAL)
        assert (Tag.KV_CACHE in asleep) == (found and kv is not KVState.NORMAL)
        # A loop that takes no steps looks at no command, and says so; one that takes them looks.
        assert bool(control.keeps_from_polling(asleep)) == bool(asleep)
        assert control.keeps_from_polling(asleep, "sleep").startswith("sleep has been asked for")


def test_only_a_rank_at_rest_or_one_that_ran_the_method_is_settled_by_a_request():
    at_rest = (WeightState.NORMAL, WeightState.CLEARED)
    for weights, entered in itertools.product(WeightState, (True, False)):
        assert control.settles(weights, entered=entered) == (entered or weights in at_rest)


def test_no_runner_steps_once_another_rank_is_gone_whatever_it_holds():
    for weights, kv in itertools.product(WeightState, KVState):
        assert control.sleeping(weights, kv, kv_found=False, peer_gone=True) == ALL_TAGS
        assert control.settles(weights, entered=False, peer_gone=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_refused_inside_another_and_passes_through_inside_its_own(method):
    calls = ControlCalls()
    assert not calls.passes_through(method)
    for open_method in METHODS:
        with calls.open(ControlRequest(open_method, ALL_TAGS), str, bool, Plans({})) as call:
            with raising("call-open"):
                calls.passes_through(method)
            call.inside = True
            with contextlib.nullcontext() if open_method == method else raising("call-open"):
                assert calls.passes_through(method)
