"""Because of whom an epoch must end: the dead that had joined it, and ranks whose step broke. Nobody else."""

from __future__ import annotations

import pytest

from wsm.labels import version_id
from wsm.states import epochs
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

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


SERVES, HOLDS_NOTHING = 0, -2
OPEN, UNDONE = StatusCode.RUNNING, StatusCode.STOPPED_TOUCHED
KEPT, CLEARED, COMMITTED = StatusCode.DONE_KEPT, StatusCode.DONE_CLEARED, StatusCode.DONE_COMMITTED


def left(operation: Operation, *ranks: tuple[StatusCode, int], committed: CommittedWord) -> View:
    """What is left of command 5: per rank how far it came, and where its weights and its KV cache are."""
    statuses = [
        StatusWord(EPOCH, 5, code, weights=weights, kv=kv[0] if kv else min(weights, 1))
        for code, weights, *kv in ranks
    ]
    return View(CommandWord(EPOCH, 5, operation), [at(EPOCH) for _ in ranks], statuses, committed)


def version_of(view: View) -> str | None:
    """The version that the record of the committed word would name."""
    return {version_id(label): label for label in ("7", "8")}.get(view.committed.version_id)


SEVEN = CommittedWord(4, version_id("7"))
EIGHT = CommittedWord(5, version_id("8"))
STAYS_CLEARED = CommittedWord(4, None)


@pytest.mark.parametrize(
    ("operation", "ranks", "committed", "served", "goal"),
    [
        pytest.param(Operation.NONE, [(OPEN, -2)], SEVEN, None, "7", id="no command since it was to serve"),
        pytest.param(Operation.NONE, [(OPEN, -2)], STAYS_CLEARED, None, None, id="no command since cleared"),
        pytest.param(Operation.NONE, [(OPEN, -2)], CommittedWord(0, None), None, None, id="never served"),
        pytest.param(Operation.COMMIT, [(OPEN, 2), (OPEN, 2)], SEVEN, True, "8", id="decided, not stored"),
        pytest.param(Operation.COMMIT, [(COMMITTED, 0)], EIGHT, True, "8", id="decided, stored"),
        pytest.param(Operation.COMMIT, [(COMMITTED, 0)], EIGHT, False, "8", id="from cleared"),
        pytest.param(Operation.HOT_COMMIT, [(OPEN, 0)], SEVEN, True, "8", id="hot, decided"),
        pytest.param(Operation.COMMIT, [(COMMITTED, 0, -2)], EIGHT, False, None, id="weights alone came"),
        pytest.param(
            Operation.COMMIT,
            [(COMMITTED, -2, 0)],
            CommittedWord(5, version_id("7")),
            False,
            None,
            id="the cache alone came",
        ),
        pytest.param(
            Operation.COMMIT, [(COMMITTED, 0, 0), (OPEN, 0, 1)], SEVEN, False, "8", id="the cache was missing"
        ),
        pytest.param(Operation.CLEAR, [(CLEARED, 0, -2)], SEVEN, True, None, id="the cache alone went"),
        pytest.param(Operation.ABORT, [(KEPT, 0, -2)], SEVEN, False, None, id="aborted, half of it was gone"),
        pytest.param(Operation.CLEAR, [(CLEARED, -2), (CLEARED, -2)], SEVEN, True, None, id="a clear, over"),
        pytest.param(
            Operation.CLEAR, [(CLEARED, -2), (OPEN, -1)], SEVEN, True, None, id="a clear, not aborted"
        ),
        pytest.param(Operation.ABORT, [(CLEARED, -2), (UNDONE, -1)], SEVEN, True, "7", id="a clear, aborted"),
        pytest.param(
            Operation.ABORT, [(UNDONE, 1), (OPEN, 1)], SEVEN, True, "7", id="served when it was asked"
        ),
        pytest.param(Operation.ABORT, [(UNDONE, 1), (OPEN, 1)], SEVEN, False, None, id="held nothing then"),
        pytest.param(Operation.ABORT, [(KEPT, 0), (KEPT, 0)], SEVEN, True, "7", id="aborted, all kept"),
        pytest.param(Operation.ABORT, [(CLEARED, -2)] * 2, SEVEN, True, None, id="aborted, all cleared"),
        pytest.param(Operation.ABORT, [(KEPT, -2), (KEPT, -2)], SEVEN, False, None, id="aborted, all empty"),
        pytest.param(Operation.UPDATE, [(OPEN, 1), (OPEN, 1)], SEVEN, True, "7", id="nobody decided, served"),
        pytest.param(
            Operation.UPDATE, [(OPEN, 1), (OPEN, 1)], SEVEN, False, None, id="nobody decided, empty"
        ),
        pytest.param(Operation.HOT_ABORT, [(KEPT, 0), (OPEN, 0)], SEVEN, True, "7", id="hot, aborted"),
        pytest.param(
            Operation.ABORT, [(KEPT, 0), (OPEN, 1)], SEVEN, None, "7", id="arguments gone, one holds"
        ),
        pytest.param(
            Operation.ABORT, [(OPEN, 1), (OPEN, 1)], SEVEN, None, None, id="arguments gone, none holds"
        ),
        pytest.param(
            Operation.ABORT, [(OPEN, -2)], STAYS_CLEARED, True, None, id="never more than committed"
        ),
    ],
)
def test_the_last_commanded_state_is_what_the_next_epoch_restores(
    operation, ranks, committed, served, goal
) -> None:
    view = left(operation, *ranks, committed=committed)
    assert epochs.restored_version(view, asked="8", committed=version_of(view), served=served) == goal


@pytest.mark.parametrize("served", [True, False, None])
@pytest.mark.parametrize("operation", list(Operation))
def test_a_successor_of_who_stored_the_goal_finds_the_same_goal(operation, served) -> None:
    for ranks in ([(OPEN, 1), (CLEARED, -2)], [(KEPT, 0), (KEPT, 0)], [(CLEARED, -2), (CLEARED, -2)]):
        view = left(operation, *ranks, committed=SEVEN)
        goal = epochs.restored_version(view, asked="8", committed=version_of(view), served=served)
        word = epochs.goal_word(view, goal)
        stored = view if word is None else left(operation, *ranks, committed=word)
        assert epochs.restored_version(stored, asked="8", committed=version_of(stored), served=served) == goal
        begun = View(epochs.next_epoch(stored), stored.steps, stored.statuses, stored.committed)
        assert epochs.restored_version(begun, asked=None, committed=version_of(begun), served=None) == goal
