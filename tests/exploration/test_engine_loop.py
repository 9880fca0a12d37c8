"""FastDeploy's loop around wsm's rank 0: every order of what engine and trainer do, and seeded faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from explorer import control_requests, engine_loop
from explorer.engine_loop import CLEARED, CLEARING, LOOPS, NORMAL, UPDATING, Loop
from wsm.controller import engine_bridge
from wsm.controller.engine_bridge import EngineWishes
from wsm.fastdeploy import _control_contract as control
from wsm.states import engine_words as contract
from wsm.states.engine_words import Given, Held, WishRow
from wsm.states.vocabulary import Tag

POLLS, SLEEPS, STAYS = Loop(block=False, polls=True), Loop(block=False, polls=False), Loop(True, polls=True)

Seed = Callable[[pytest.MonkeyPatch], object]


@pytest.mark.slow_but
@pytest.mark.parametrize(
    "loop", [pytest.param(loop, marks=pytest.mark.slow if loop == STAYS else ()) for loop in LOOPS], ids=str
)
def test_no_order_of_wishes_commands_and_failures_breaks_a_rule(loop: Loop) -> None:
    found = engine_loop.explore(loop)
    assert not found.broken, "\n".join(found.way)
    assert found.situations >= (20 if loop.polls else 3)


def rows(patch: pytest.MonkeyPatch, then: Callable[[WishRow], object]) -> None:
    """Let each row be followed by what `then` says of it."""
    patch.setattr(contract, "ROWS", [row._replace(then=then(row)) for row in contract.ROWS])


def a_group_that_differs_is_updated(patch: pytest.MonkeyPatch) -> None:
    rows(patch, lambda row: Given.UPDATE if row[:2] == (UPDATING, (Held.DIFFERENT,)) else row.then)


def a_clear_that_kept_the_weights_is_answered_normal_to_a_loop_that_sleeps(patch: pytest.MonkeyPatch) -> None:
    rows(patch, lambda row: NORMAL if row.sleeps == (True,) else row.then)


def the_loop_is_never_taken_to_sleep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contract, "sleeps_behind", lambda _left: False)


def a_woken_loop_loads_once_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        EngineWishes, "woken", property(lambda _self: False, lambda _self, _woken: None), raising=False
    )


def ranks_leave_on_any_change_of_the_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contract, "leaves", lambda entry, word: word != entry.asked)


def ranks_that_differ_are_called_whole(patch: pytest.MonkeyPatch) -> None:
    true = engine_bridge.held_by
    patch.setattr(
        engine_bridge,
        "held_by",
        lambda status: Held.WHOLE if true(status) is Held.DIFFERENT else true(status),
    )


def a_clear_is_answered_before_it_is_done(patch: pytest.MonkeyPatch) -> None:
    rows(patch, lambda row: CLEARED if (row.wish, row.then) == (CLEARING, Given.CLEAR) else row.then)


def an_update_that_failed_over_weights_that_serve_is_answered(patch: pytest.MonkeyPatch) -> None:
    rows(patch, lambda row: NORMAL if (row.wish, row.failed) == (UPDATING, (True,)) else row.then)


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("seed", "loop"),
    [
        (a_group_that_differs_is_updated, SLEEPS),
        (a_clear_that_kept_the_weights_is_answered_normal_to_a_loop_that_sleeps, SLEEPS),
        (the_loop_is_never_taken_to_sleep, POLLS),
        (a_woken_loop_loads_once_more, POLLS),
        (ranks_leave_on_any_change_of_the_word, STAYS),
        (ranks_that_differ_are_called_whole, SLEEPS),
        (a_clear_is_answered_before_it_is_done, SLEEPS),
        (an_update_that_failed_over_weights_that_serve_is_answered, STAYS),
    ],
    ids=lambda one: one.__name__ if callable(one) else str(one),
)
def test_a_seeded_fault_of_the_loops_contract_is_caught(
    seed: Seed, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(monkeypatch)
    found = engine_loop.explore(loop)
    assert found.broken
    assert found.way


def test_no_order_of_control_requests_and_failures_breaks_a_rule() -> None:
    found = control_requests.explore()
    assert not found.broken, "\n".join(found.way)
    assert found.situations > 10


def half_a_group_that_differs_is_slept(patch: pytest.MonkeyPatch) -> None:
    true = control.held_by_all
    patch.setattr(control, "held_by_all", lambda tag, held: true(tag, held) or False)


def the_runner_wakes_as_it_was_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(control, "sleeping", lambda *_held, **_found: frozenset[Tag]())


def a_sleeping_runner_is_said_to_poll(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(control, "keeps_from_polling", lambda _asleep, method=None: method or "")


def a_wakeup_of_one_half_brings_both(patch: pytest.MonkeyPatch) -> None:
    true = control.command_of

    def both(method: str, tags: Any, held: Any) -> Any:
        found = true(method, tags, held)
        return found._replace(tags=frozenset(Tag)) if found.given is Given.UPDATE else found

    patch.setattr(control, "command_of", both)


@pytest.mark.parametrize(
    "seed",
    [
        half_a_group_that_differs_is_slept,
        the_runner_wakes_as_it_was_asked,
        a_sleeping_runner_is_said_to_poll,
        a_wakeup_of_one_half_brings_both,
    ],
)
def test_a_seeded_fault_of_the_control_requests_is_caught(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(monkeypatch)
    assert control_requests.explore().broken
