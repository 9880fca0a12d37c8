"""Because of whom an epoch must end: the dead that had joined it, and ranks whose step broke. Nobody else."""

from __future__ import annotations

from wsm.protocol import epochs
from wsm.protocol.view import View
from wsm.signals.word import CommandWord, Operation, StatusCode, StatusWord, StepKind, StepWord

EPOCH = 3


def view_of(steps: list[StepWord], *epochs_of_statuses: int) -> View:
    statuses = [StatusWord(epoch, 0, StatusCode.ATTACHED) for epoch in epochs_of_statuses]
    return View(CommandWord(EPOCH, 5, Operation.NONE), steps, statuses)


def at(epoch: int, kind: StepKind = StepKind.RUNNING) -> StepWord:
    return StepWord(epoch, 0, kind, 1)


def test_an_epoch_goes_on_while_all_live() -> None:
    assert epochs.ended_by(view_of([at(3), at(3)], 3, 3), dead=[]) == []


def test_a_death_ends_the_epoch_that_the_dead_had_joined() -> None:
    assert epochs.ended_by(view_of([at(3), at(3)], 3, 3), dead=[1]) == [1]


def test_a_death_between_the_two_words_of_joining_ends_it_too() -> None:
    assert epochs.ended_by(view_of([at(3), at(3)], 3, 2), dead=[1]) == [1]


def test_whoever_died_before_it_joined_ends_nothing_more() -> None:
    assert epochs.ended_by(view_of([at(3), at(2)], 3, 2), dead=[1]) == []


def test_a_broken_step_ends_its_own_epoch_only() -> None:
    assert epochs.ended_by(view_of([at(3), at(3, StepKind.BROKEN)], 3, 3), dead=[]) == [1]
    assert epochs.ended_by(view_of([at(3), at(2, StepKind.BROKEN)], 3, 3), dead=[]) == []


def test_a_helper_has_no_step_word_and_ends_an_epoch_by_its_status() -> None:
    assert epochs.ended_by(view_of([at(3), at(3)], 3, 3, 3), dead=[2]) == [2]
    assert epochs.ended_by(view_of([at(3), at(3)], 3, 3, 2), dead=[2]) == []
