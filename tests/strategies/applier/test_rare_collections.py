"""Collections of cycles become rare, not absent, and what was set before is set again."""

from __future__ import annotations

import gc

import pytest

from wsm.strategies.load import RARELY, rare_collections


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_thresholds_are_high_inside_and_as_before_afterwards():
    gc.set_threshold(500, 7, 9)
    inside = []

    def fail():
        with rare_collections():
            inside.append(gc.get_threshold()[:2])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [(RARELY, 7)]
    assert gc.get_threshold()[:2] == (500, 7)


def test_the_last_one_who_leaves_sets_them_back():
    gc.set_threshold(500)
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == RARELY
    second.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 500


@pytest.mark.parametrize("set_by_user", [0, 2 * RARELY])
def test_a_collector_that_runs_rarely_or_never_is_left_alone(set_by_user):
    gc.set_threshold(set_by_user)
    with rare_collections():
        assert gc.get_threshold()[0] == set_by_user
    assert gc.get_threshold()[0] == set_by_user


def test_what_somebody_else_sets_meanwhile_stays():
    with rare_collections():
        gc.set_threshold(123)
    assert gc.get_threshold()[0] == 123
