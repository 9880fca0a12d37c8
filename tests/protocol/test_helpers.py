"""A helper takes part in every command and in no step: it votes, acknowledges, and never stands anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wsm.states import rank as protocol
from wsm.states.phases import Event, Happened, Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord, StepKind, StepWord

RANKS, HELPER = 2, 2
RUNNING = StepWord(1, 0, StepKind.RUNNING, 5)


def view_of(operation: Operation, *codes: StatusCode, ready: int = 0) -> View:
    statuses = [StatusWord(1, 1, code, ready=ready) for code in codes]
    return View(CommandWord(1, 1, operation), [RUNNING] * RANKS, statuses)


def joined() -> RankState:
    move = protocol.join(
        HELPER, CommandWord(1, 0, Operation.NONE), StepWord.unpack(0), StatusWord.unpack(0), steps=False
    )
    assert move.step is None, "a helper has no step word"
    return move.state


def begun(operation: Operation) -> RankState:
    answer = protocol.advance(joined(), view_of(operation, *[StatusCode.DRAINING] * 3))
    assert answer.todo is Todo.BEGIN
    return protocol.take_in(answer.state, Happened(Event.BEGAN, collective=(True, False))).state


def test_a_helper_waits_until_a_rank_shows_that_all_ranks_stand() -> None:
    state = begun(Operation.UPDATE)
    waiting = protocol.advance(state, view_of(Operation.UPDATE, *[StatusCode.PARKING] * 3))
    assert waiting.todo is Todo.WAIT
    assert waiting.step is None
    shown = view_of(Operation.UPDATE, StatusCode.PARKING, StatusCode.ACCEPTED, StatusCode.PARKING)
    assert protocol.advance(state, shown).todo is Todo.ACCEPT


def test_a_vote_of_a_rank_that_failed_later_shows_it_too() -> None:
    state = begun(Operation.UPDATE)
    failed = view_of(Operation.UPDATE, StatusCode.PARKING, StatusCode.FAILED, StatusCode.PARKING, ready=1)
    assert protocol.advance(state, failed).todo is Todo.ACCEPT
    unvoted = view_of(Operation.UPDATE, StatusCode.PARKING, StatusCode.FAILED, StatusCode.PARKING)
    assert protocol.advance(state, unvoted).todo is Todo.WAIT


def test_a_helper_follows_a_hot_commit_only_when_a_rank_serves_the_new_version() -> None:
    state = begun(Operation.HOT_UPDATE)
    assert state.phase is Phase.STAGING
    state = protocol.take_in(state, Happened(Event.STAGED)).state
    parking = protocol.advance(state, view_of(Operation.HOT_COMMIT, *[StatusCode.PREPARED] * 3))
    assert parking.state.phase is Phase.PARKING
    prepared = view_of(Operation.HOT_COMMIT, *[StatusCode.PREPARED] * 3)
    assert protocol.advance(parking.state, prepared).todo is Todo.WAIT
    flipped = view_of(
        Operation.HOT_COMMIT, StatusCode.DONE_COMMITTED, StatusCode.PREPARED, StatusCode.PREPARED
    )
    assert protocol.advance(parking.state, flipped).todo is Todo.COMMIT


@pytest.mark.parametrize("holds", [False, True])
def test_a_helper_never_serves_and_never_joins_a_step(holds: bool) -> None:
    idle = RankState(rank=HELPER, epoch=1, holds=holds, steps=False)
    quiet = View(
        CommandWord(1, 0, Operation.NONE), [RUNNING] * RANKS, [StatusWord(1, 0, StatusCode.ATTACHED)] * 3
    )
    assert protocol.advance(idle, quiet).todo is Todo.WAIT


def test_a_helper_stays_one_from_command_to_command() -> None:
    committing = replace(begun(Operation.UPDATE), phase=Phase.COMMITTING)
    state = protocol.take_in(committing, Happened(Event.COMMITTED)).state
    assert not state.steps
    assert state.phase is Phase.IDLE
