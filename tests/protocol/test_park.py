"""Park and vote: what a standing rank reads off the other ranks' step words."""

from __future__ import annotations

import pytest
from words import broken, parked, running

from wsm.states.view import all_stand, any_broken, is_behind


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
