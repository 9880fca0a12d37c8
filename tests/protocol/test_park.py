"""Park and vote: what a standing rank reads off the other ranks' step words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from words import broken, parked, running

from wsm.states.phases import Event, Happened, RankState
from wsm.states.rank import take_in
from wsm.states.view import all_stand, any_broken, is_behind
from wsm.states.words import MAX_STEP, StepWord, step_in_word


def behind(*others, step=3, sequence=1, epoch=1):
    return is_behind([parked(step), *others], rank=0, epoch=epoch, step=step, sequence=sequence)


def stand(*others, step=3, sequence=1, follow=False):
    return all_stand(
        [running(99), *others], rank=0, epoch=1, step=step, sequence=sequence, follow=follow
    )  # the own word does not count: whoever asks has stored it


def test_a_peer_in_a_later_step_needs_this_rank():
    assert behind(running(4))
    assert behind(running(3), running(4))


def test_a_peer_in_the_same_or_an_earlier_step_does_not():
    assert not behind(running(3))
    assert not behind(running(2), parked(3))


@given(
    st.integers(0, 4).map(lambda wraps: wraps * (MAX_STEP + 1)),
    st.integers(-6, 6),
    st.lists(st.integers(-5, 5), min_size=1, max_size=4),
    st.integers(0, 2),
)
def test_ranks_follow_each_other_over_every_end_of_the_numbers_as_if_there_were_none(begun, own, apart, done):
    """Steps are counted without end; words hold their numbers modulo 2**27."""
    step = max(begun + own, 0)
    others = [max(step + each, 0) for each in apart]
    words = [running(step_in_word(each), done=done) for each in others]
    needs = any(each > step for each in others) and done < 1
    assert is_behind([running(0), *words], rank=0, epoch=1, step=step, sequence=1) is needs
    standing = [parked(step_in_word(each)) for each in others]
    assert stand(*standing, step=step) is all(each == step for each in others)


def test_a_rank_counts_its_steps_on_where_its_word_begins_anew():
    state, seen = RankState(rank=0, epoch=1, step=MAX_STEP - 1, holds=True), []
    for _ in range(3):
        move = take_in(state, Happened(Event.ENTERED, 0, 0))
        state = move.state
        assert isinstance(move.step, StepWord)
        seen.append((state.step, StepWord.unpack(move.step.pack()).step))
    assert seen == [(MAX_STEP, MAX_STEP), (MAX_STEP + 1, 0), (MAX_STEP + 2, 1)]


def test_a_peer_of_another_epoch_needs_nobody_here():
    assert not behind(running(4, epoch=2))
    assert not behind(running(4, epoch=1), epoch=2)


def test_a_peer_that_has_finished_the_command_already_waits_for_nobody_who_has_not():
    assert not behind(running(4, done=1))
    assert behind(running(4, done=1), sequence=2)


def test_a_rank_that_knows_of_no_command_follows_whoever_steps():
    assert behind(running(4, done=7), sequence=0)


def test_a_peer_that_stands_behind_a_later_step_needs_this_rank_in_it():
    """It has entered that step, and waits until all have."""
    assert behind(parked(4))


def test_all_stand_when_every_other_rank_is_parked_for_the_same_command_at_the_same_step():
    assert stand(parked(3))
    assert stand(parked(3), parked(3))


@pytest.mark.parametrize(
    "other", [running(3), parked(2), parked(4), parked(3, sequence=2), parked(3, epoch=2), broken(3)]
)
def test_one_rank_that_stands_elsewhere_or_not_at_all_is_enough_to_wait(other):
    assert not stand(parked(3), other)


def test_a_lone_rank_stands_with_itself():
    assert stand()


def test_a_commit_is_followed_when_one_rank_has_finished_it():
    """It could finish only because all stood, and nobody can refuse any more."""
    assert stand(parked(2), running(4, done=1), follow=True)
    assert not stand(parked(2), running(4, done=1))
    assert not stand(parked(2), running(4, done=0), follow=True)
    assert not stand(parked(2), running(4, done=1, epoch=2), follow=True)


def test_one_broken_step_of_this_epoch_is_noticed():
    assert any_broken([running(3), broken(3)], epoch=1)
    assert not any_broken([running(3), broken(3, epoch=1)], epoch=2)
    assert not any_broken([running(3), parked(3)], epoch=1)
