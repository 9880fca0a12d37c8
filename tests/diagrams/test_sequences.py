"""The dialogues say what the protocol's own code does: two ranks are driven through it, word by word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import pytest

from drawing import sequences
from drawing.dialogues import RANKS, Dialogue, Message, Participant, chosen
from wsm.actions.base import Plans
from wsm.states import epochs
from wsm.states import rank as protocol
from wsm.states.decide import is_over
from wsm.states.errors import IllegalTransitionError
from wsm.states.group import GroupState, Known, May, advance
from wsm.states.phases import Event, Happened
from wsm.states.rank import Move, RankState, Todo
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

STATUS = re.compile(r"status ([A-Z_]+)(?: or ([A-Z_]+))?")
DECISIONS = re.compile(r"command \(epoch, q, (\w+)\)")


@dataclass
class Group:
    """Two ranks and a controller in lock-step on the real protocol code; every written code is noted."""

    holds: bool
    fails: str = ""  # "" or the rank-1 failure: "untouched", "touched"
    collective: tuple[bool, ...] = (False, True)
    written: list[list[str]] = field(default_factory=lambda: [[], []])
    decisions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.command = CommandWord(1, 0, Operation.NONE)
        self.committed = CommittedWord(0, None)
        moves = [self.joined(rank) for rank in (0, 1)]
        self.states: list[RankState] = [move.state for move in moves]
        self.steps: list[StepWord] = [move.step for move in moves if move.step is not None]
        self.statuses: list[StatusWord] = [move.status for move in moves if move.status is not None]

    def joined(self, rank: int) -> Move:
        move = protocol.join(rank, self.command, StepWord.unpack(0), StatusWord.unpack(0))
        return Move(RankState(**{**vars(move.state), "holds": self.holds}), move.todo, move.step, move.status)

    def view(self) -> View:
        return View(self.command, tuple(self.steps), tuple(self.statuses), self.committed)

    def run(self, operation: Operation) -> None:
        self.command = CommandWord(1, 1, operation)
        self.decisions.append(operation.name)
        for _ in range(100):
            for rank in (0, 1):
                self.turn(rank)
            mine = GroupState(self.command, follows=True, mine=True)
            move = advance(mine, self.view(), Known(May.DRIVE, agree=True, version="7"))
            if move.command is not None:
                self.command = move.command
                self.decisions.append(move.command.operation.name)
            self.committed = move.committed or self.committed
            if is_over(self.view()):
                return
        pytest.fail(f"the command never ended: {self.written}")

    def turn(self, rank: int) -> None:
        move = protocol.advance(self.states[rank], self.view())
        self.take(rank, move)
        answer = self.answers().get(move.todo)
        if answer is not None:
            self.take(rank, protocol.take_in(self.states[rank], answer(self.states[rank])))

    def answers(self) -> dict[Todo, Callable[[RankState], Happened]]:
        return {
            Todo.BEGIN: lambda _state: Happened(Event.BEGAN, collective=self.collective),
            Todo.DRAIN: lambda _state: Happened(Event.DRAINED),
            Todo.ACCEPT: lambda _state: Happened(Event.ACCEPTED),
            Todo.RUN: self.act,
            Todo.LEAVE_VOTE: lambda _state: Happened(Event.FAILED),
            Todo.FINISH: lambda _state: Happened(Event.FINISHED),
            Todo.STAGE: lambda state: Happened(Event.FAILED if self.is_failing(state) else Event.STAGED),
            Todo.COMMIT: lambda _state: Happened(Event.COMMITTED),
            Todo.UNDO: lambda state: Happened(Event.STOPPED, touched=self.is_touched(state)),
            Todo.KEEP: lambda _state: Happened(Event.KEPT),
            Todo.DROP: lambda _state: Happened(Event.CLEARED),
        }

    def act(self, state: RankState) -> Happened:
        if self.is_failing(state) and state.action == len(self.collective) - 1:
            return Happened(Event.FAILED, touched=self.fails == "touched")
        return Happened(Event.ACTION_DONE)

    def is_failing(self, state: RankState) -> bool:
        return state.rank == 1 and self.fails != ""

    def is_touched(self, state: RankState) -> bool:
        return state.operation is Operation.CLEAR or state.touched

    def take(self, rank: int, move: Move) -> None:
        self.states[rank] = move.state
        if move.step is not None:
            self.steps[rank] = move.step
        if move.status is not None:
            self.statuses[rank] = move.status
            name = move.status.code.name
            if self.written[rank][-1:] != [name]:  # the diagram draws a loop over the actions once
                self.written[rank].append(name)


def drawn_codes(items: Iterable[object], rank: Participant) -> list[tuple[str, ...]]:
    """The status codes that a rank writes in a dialogue; several where the diagram leaves it open."""
    return [
        tuple(code for code in matched.groups() if code)
        for item in items
        if isinstance(item, Message) and item.source is rank and (matched := STATUS.match(item.text))
    ]


def drawn_decisions(items: Iterable[object]) -> list[str]:
    return [
        matched[1]
        for item in items
        if isinstance(item, Message)
        and item.source is Participant.CONTROLLER
        and (matched := DECISIONS.match(item.text))
    ]


def all_dialogues(plans: Plans) -> dict[str, Dialogue]:
    return {
        "clear": sequences.clear_dialogue(plans),
        "update": sequences.update_dialogue(plans),
        "hot": sequences.hot_update_dialogue(plans),
        "restore": sequences.restore_dialogue(plans),
        "rank_loss": sequences.rank_loss_dialogue(plans),
    }


class Case(NamedTuple):
    dialogue: str
    operation: Operation
    holds: bool
    fails: str
    branches: tuple[str, ...]


CASES = [
    Case("clear", Operation.CLEAR, True, "", (sequences.CLEARED_BY_ALL,)),
    Case("clear", Operation.CLEAR, True, "touched", (sequences.NOT_CLEARED,)),
    Case("update", Operation.UPDATE, False, "", (sequences.PREPARED_BY_ALL,)),
    Case("update", Operation.UPDATE, True, "untouched", (sequences.NOT_PREPARED, sequences.NONE_TOUCHED)),
    Case("update", Operation.UPDATE, True, "touched", (sequences.NOT_PREPARED, sequences.SOME_TOUCHED)),
    Case("restore", Operation.UPDATE, False, "", (sequences.PREPARED_BY_ALL,)),
    Case("restore", Operation.UPDATE, False, "touched", (sequences.NOT_PREPARED,)),
    Case("hot", Operation.HOT_UPDATE, True, "", (sequences.STAGED_BY_ALL,)),
    Case("hot", Operation.HOT_UPDATE, True, "untouched", (sequences.NOT_STAGED,)),
]


def once(codes: Iterable[str]) -> list[str]:
    """What a loop over actions repeats is drawn once."""
    return [code for code, _ in groupby(codes)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.dialogue}-{case.fails or 'succeeds'}")
def test_the_words_of_a_dialogue_come_in_the_protocols_order(plans: Plans, case: Case) -> None:
    group = Group(holds=case.holds, fails=case.fails)
    group.run(case.operation)
    items = list(chosen(all_dialogues(plans)[case.dialogue].items, *case.branches))
    assert drawn_decisions(items) == group.decisions
    for rank, written in zip(RANKS, group.written, strict=True):
        drawn = drawn_codes(items, rank)
        # A failing dialogue leaves open how far the other rank came, and a hot one which of them failed.
        left_open = {"PREPARED", "FAILED"} if rank is Participant.RANK_0 or case.dialogue == "hot" else set()
        told = [code for code in once(written) if not case.fails or code not in left_open]
        assert len(drawn) == len(told), (drawn, told)
        assert all(code in codes for code, codes in zip(told, drawn, strict=True)), (drawn, told)


def test_a_lost_rank_ends_the_epoch_and_all_join_the_next_with_nothing(plans: Plans) -> None:
    group = Group(holds=True)
    group.run(Operation.UPDATE)
    broken = protocol.take_in(group.states[0], Happened(Event.BROKE))
    group.take(0, broken)
    group.command = epochs.next_epoch(group.view())
    assert protocol.advance(group.states[0], group.view()).todo is Todo.REJOIN
    for rank in (0, 1):  # the survivor, and the process that replaces the other
        joined = protocol.join(rank, group.command, group.steps[rank], group.statuses[rank])
        group.written[rank].clear()
        group.take(rank, joined)
        assert joined.step == StepWord(2, 0, StepKind.PARKED, 0)
    items = list(chosen(all_dialogues(plans)["rank_loss"].items, sequences.GIVEN_BACK))
    for rank, written in zip(RANKS, group.written, strict=True):
        assert drawn_codes(items, rank) == [tuple(written)]
        assert "step PARKED (epoch+1, 0, 0)" in [
            item.text for item in items if isinstance(item, Message) and item.source is rank
        ]
    said = [
        item.text for item in items if isinstance(item, Message) and item.source is Participant.SUPERVISOR
    ]
    assert "command (epoch+1, q, NONE)" in said
    assert group.command == CommandWord(2, 1, Operation.NONE)


@pytest.mark.parametrize("name", ["clear", "update", "hot", "restore"])
def test_every_code_and_operation_in_a_dialogue_exists(rendered: dict[str, str], name: str) -> None:
    text = rendered[f"sequence_{'hot_update' if name == 'hot' else name}.mmd"]
    codes = {code for found in STATUS.findall(text) for code in found if code}
    assert codes <= {code.name for code in StatusCode}
    assert set(DECISIONS.findall(text)) <= {operation.name for operation in Operation}
    assert len(codes) >= 5


def test_a_dialogue_ends_where_its_states_should(plans: Plans) -> None:
    update = all_dialogues(plans)["update"]
    told = [
        line
        for item in chosen(update.items, sequences.PREPARED_BY_ALL)
        for line in getattr(item, "lines", ())
    ]
    assert "weights: PREPARED commit NORMAL" in told
    assert told.index("KV cache: UPDATING rebuilt NORMAL") < told.index("weights: UPDATING prepared PREPARED")


def test_a_dialogue_that_the_tables_do_not_allow_cannot_be_drawn(
    plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "_SERVING", sequences.START)
    with pytest.raises(IllegalTransitionError):
        all_dialogues(plans)["clear"]
