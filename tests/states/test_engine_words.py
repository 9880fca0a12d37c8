"""What FastDeploy's words say and mean, by tables that are written by hand."""

from __future__ import annotations

import itertools

import pytest

from wsm.states.engine_words import (
    BACK_TO_NORMAL,
    Entry,
    FailedWish,
    Given,
    leaves,
    mirrored,
    outcome_of,
    sleeps_behind,
)

NORMAL, UPDATING, CLEARING, CLEARED = N, U, G, C = 0, 1, -1, -2
WORDS = (NORMAL, UPDATING, CLEARING, CLEARED)

#: What the deciding word says; what another part's word is made to say where it says N, U, G and C.
MIRRORED = {
    NORMAL: (N, N, G, N),
    UPDATING: (U, U, U, U),
    CLEARING: (G, U, G, C),
    CLEARED: (C, U, C, C),
}


def test_the_word_of_another_part_follows_the_deciding_one_and_keeps_its_own_next_wish() -> None:
    assert {said: tuple(mirrored(said, own) for own in WORDS) for said in WORDS} == MIRRORED


def test_parts_that_asked_together_are_answered_together() -> None:
    answered = {said: tuple(mirrored(said, own, together=True) for own in WORDS) for said in WORDS}
    assert answered == {**MIRRORED, NORMAL: (N, N, N, N), CLEARED: (C, C, C, C)}


@pytest.mark.parametrize(
    ("asked", "block", "words"),
    [
        (CLEARING, False, {CLEARED, UPDATING}),
        (CLEARING, True, {NORMAL}),
        (UPDATING, False, {NORMAL}),
        (UPDATING, True, {NORMAL}),
        (CLEARED, False, {NORMAL, CLEARED}),
        (CLEARED, True, {NORMAL}),
    ],
)
def test_ranks_leave_an_entry_at_the_words_that_let_fastdeploys_loop_go_on(
    asked: int, block: bool, words: set[int]
) -> None:
    assert {word for word in WORDS if leaves(Entry(asked, block), word)} == words


def test_fastdeploys_loop_sleeps_behind_every_word_but_normal() -> None:
    assert {word for word in WORDS if sleeps_behind(word)} == {UPDATING, CLEARING, CLEARED}
    entries = itertools.product(WORDS, (False, True))
    assert [entry for entry in itertools.starmap(Entry, entries) if entry.sleeps] == [Entry(CLEARING, False)]


@pytest.mark.parametrize("shown", WORDS)
def test_one_pass_leads_a_word_of_wsms_own_to_normal(shown: int) -> None:
    for before, after in BACK_TO_NORMAL:
        shown = after if shown == before else shown
    assert shown == NORMAL


def test_a_wish_that_fails_again_waits_longer_and_another_wish_does_not() -> None:
    once = FailedWish().again(UPDATING, "no unnamed-a.1 there", sequence=3, now=10.0)
    assert once == FailedWish(UPDATING, 1, 11.0, 3, "no  there")
    twice = once.again(UPDATING, "no unnamed-b.2 there", sequence=4, now=20.0)
    assert twice == FailedWish(UPDATING, 2, 22.0, 4, once.cause), "its cause is no news"
    assert [twice.waits(word, now) for word in (UPDATING, CLEARING) for now in (21.9, 22.0)] == [
        *(True, False),
        *(False, False),
    ]
    assert twice.again(CLEARING, "", sequence=5, now=30.0).failures == 1


def test_how_a_wish_ended_is_said_by_its_own_command_alone() -> None:
    for failed in (False, True):
        assert outcome_of(CLEARING, Given.CLEAR, failed=failed) is failed
        assert outcome_of(UPDATING, Given.UPDATE, failed=failed) is failed
        assert outcome_of(UPDATING, Given.CLEAR, failed=failed) is None
    assert {given.request_id for given in (Given.CLEAR, Given.UPDATE)} == {"engine-clear", "engine-update"}
