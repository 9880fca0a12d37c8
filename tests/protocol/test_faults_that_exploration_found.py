"""Faults of the protocol that the exploration found, each reduced to the calls that show it."""

from __future__ import annotations

from wsm.states import rank as protocol
from wsm.states.phases import Event, Happened, Phase, RankState
from wsm.states.words import Operation, StatusCode, StepKind


def test_parking_for_a_hot_commit_does_not_take_prepared_back() -> None:
    state = RankState(
        rank=0, epoch=1, holds=True, phase=Phase.DRAINING, sequence=1, operation=Operation.HOT_UPDATE
    )
    move = protocol.take_in(state, Happened(Event.DRAINED))
    assert move.step is not None
    assert move.step.kind is StepKind.PARKED
    assert move.status is None or move.status.code >= StatusCode.PREPARED


def test_parking_for_any_other_command_says_so() -> None:
    state = RankState(
        rank=0, epoch=1, holds=True, phase=Phase.DRAINING, sequence=1, operation=Operation.UPDATE
    )
    move = protocol.take_in(state, Happened(Event.DRAINED))
    assert move.status is not None
    assert move.status.code is StatusCode.PARKING
