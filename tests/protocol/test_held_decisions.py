"""Who decides a command stands in its word, and what may be done in the place of who holds it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from words import says, view

from wsm.states.decide import Duty, Inheritance, Role, decision, duty, inherited, is_held, lacks_a_word
from wsm.states.epochs import may_end
from wsm.states.view import View
from wsm.states.words import Decider, Operation, StatusCode

UPDATE, COMMIT, ABORT = Operation.UPDATE, Operation.COMMIT, Operation.ABORT
RUNNING, PREPARED, FAILED = StatusCode.RUNNING, StatusCode.PREPARED, StatusCode.FAILED


def held_by(decider: Decider, *codes: StatusCode) -> View:
    found = view(UPDATE, *map(says, codes))
    return replace(found, command=found.command._replace(decider=decider))


CALLERS, OUTSIDE = held_by(Decider.CALLER, PREPARED, PREPARED), held_by(Decider.OUTSIDE, PREPARED, PREPARED)


def test_a_caller_is_waited_for_once_all_are_prepared():
    assert decision(CALLERS, agree=True, give_up=False) is None
    assert decision(CALLERS, agree=True, give_up=False, verdict=True) is COMMIT
    assert decision(CALLERS, agree=True, give_up=False, verdict=False) is ABORT


def test_a_caller_that_says_nothing_more_is_answered_by_abort():
    assert decision(CALLERS, agree=True, give_up=True) is ABORT
    assert inherited(CALLERS) is Inheritance.DECIDE
    assert duty(CALLERS, Role.FREE, expired=False) is Duty.TAKE_ROLE


def test_no_caller_can_commit_ranks_that_prepared_different_weights():
    assert decision(CALLERS, agree=False, give_up=False, verdict=True) is ABORT


def test_a_callers_lease_keeps_every_process_from_deciding_once_all_are_prepared():
    assert inherited(CALLERS, leased=True) is Inheritance.HELD
    assert duty(CALLERS, Role.FREE, expired=True, leased=True) is Duty.NOTHING
    early = held_by(Decider.CALLER, RUNNING, PREPARED)
    assert duty(early, Role.FREE, expired=False, leased=True) is Duty.TAKE_ROLE


@pytest.mark.parametrize("found", [CALLERS, OUTSIDE], ids=["caller", "outside"])
def test_a_stopped_holder_is_named_whatever_has_expired(found):
    assert duty(found, Role.STALLED, expired=True) is Duty.NAME
    assert lacks_a_word(found)


@pytest.mark.parametrize("give_up", [False, True])
def test_what_is_decided_outside_is_decided_by_no_process_here_once_all_are_prepared(give_up):
    assert decision(OUTSIDE, agree=True, give_up=give_up) is None
    assert decision(OUTSIDE, agree=False, give_up=give_up) is None
    assert inherited(OUTSIDE) is Inheritance.HELD
    assert is_held(OUTSIDE)
    assert duty(OUTSIDE, Role.FREE, expired=True) is Duty.NOTHING
    assert not may_end(OUTSIDE)


def test_what_is_decided_outside_is_aborted_here_while_one_is_not_prepared():
    early = held_by(Decider.OUTSIDE, RUNNING, PREPARED)
    assert decision(early, agree=False, give_up=True) is ABORT
    assert may_end(early)
    assert decision(held_by(Decider.OUTSIDE, FAILED, PREPARED), agree=False, give_up=False) is ABORT


def test_what_was_said_outside_is_written_as_it_was_said():
    assert decision(OUTSIDE, agree=False, give_up=True, verdict=True) is COMMIT
    assert decision(OUTSIDE, agree=True, give_up=False, verdict=False) is ABORT
