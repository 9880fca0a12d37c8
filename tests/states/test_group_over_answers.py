"""The group's side where no word is shared: answers are lost, late and doubled, and the driver dies midway.

Two ranks, one update, and the process that drives it. All orders of what can happen are gone through: a rank
works or fails, answers or does not, is told what the driver has recorded, once, twice or much later, the
deadline passes, and the driver dies, whatever it has told to which rank. Its successor has no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from wsm.states import group
from wsm.states.group import GroupState, GroupTodo, Known, May, Opens, advance
from wsm.states.view import RankAnswer, View, view_of_answers
from wsm.states.vocabulary import After
from wsm.states.words import CommandWord, CommittedWord, Decider, Operation, StatusCode, StatusWord

_C, _O = StatusCode, Operation
BEFORE, SERVED = CommandWord(1, 1, _O.COMMIT), CommittedWord(1, 1)
RANKS = 2
ENDS = {_C.DONE_COMMITTED, _C.DONE_KEPT}


class Rank(NamedTuple):
    heard: CommandWord = BEFORE
    code: StatusCode = _C.DONE_COMMITTED
    term: int = 1
    committed: CommittedWord = SERVED

    def answer(self, rank: int) -> RankAnswer:
        status = StatusWord(self.heard.epoch, self.heard.sequence, self.code, weights=0, kv=0)
        return RankAnswer(rank, self.term, self.heard, status, self.committed)

    def told(self, command: CommandWord, committed: CommittedWord, term: int) -> Rank:
        """Take in what a driver says that is new to this rank."""
        after = self._replace(term=term, heard=command, code=_C.RUNNING)
        if command.operation.is_commit:
            assert self.code is _C.PREPARED, "a rank is told COMMIT that is not PREPARED"
            return after._replace(code=_C.DONE_COMMITTED, committed=committed)
        return after._replace(code=_C.DONE_KEPT) if command.operation.is_abort else after


class Message(NamedTuple):
    """What a driver tells one rank."""

    rank: int
    command: CommandWord
    committed: CommittedWord
    term: int

    def is_new_to(self, rank: Rank) -> bool:
        return self.term >= rank.term and key(self.command) > key(rank.heard)


class World(NamedTuple):
    ranks: tuple[Rank, ...]
    term: int
    state: GroupState
    recorded: CommandWord | None
    committed: CommittedWord | None
    got: tuple[RankAnswer | None, ...] = (None,) * RANKS
    sent: frozenset[Message] = frozenset()  # may arrive at any time
    deaths: int = 1
    failures: int = 1
    expired: bool = False

    @property
    def view(self) -> View:
        answers = [answer for answer in self.got if answer is not None]
        return view_of_answers(
            RANKS, answers, term=self.term, recorded=self.recorded, committed=self.committed
        )


def key(command: CommandWord) -> tuple[int, int, bool]:
    return command.epoch, command.sequence, command.operation.is_decision


def moves(now: World, decider: Decider) -> Iterator[World]:
    for index, rank in enumerate(now.ranks):

        def became(after: Rank, index: int = index) -> World:
            ranks = (*now.ranks[:index], after, *now.ranks[index + 1 :])
            return now._replace(
                ranks=ranks, sent=frozenset(m for m in now.sent if m.is_new_to(ranks[m.rank]))
            )

        if rank.code is _C.RUNNING:
            yield became(rank._replace(code=_C.PREPARED))
            if now.failures:
                yield became(rank._replace(code=_C.FAILED))._replace(failures=now.failures - 1)
        asked = rank._replace(term=max(now.term, rank.term))
        got = (*now.got[:index], asked.answer(index), *now.got[index + 1 :])  # a later one says all of it
        yield became(asked)._replace(got=got)
        for message in now.sent:
            if message.rank == index:
                yield became(rank.told(*message[1:]))
        view = now.view
        message = Message(index, view.command, view.committed, now.term)
        if stored(view) and message.is_new_to(rank):
            yield now._replace(sent=now.sent | {message})
    yield from driven(now, decider)
    if now.deaths:  # what it has got and recorded is lost with it
        view = view_of_answers(RANKS, (), term=now.term + 1)
        yield now._replace(
            term=now.term + 1, state=GroupState.of(view), recorded=None, committed=None, got=(None,) * RANKS,
            deaths=now.deaths - 1, expired=True,
        )  # fmt: skip


def stored(view: View) -> bool:
    """Whether the version stands in the record before the first rank is told of its COMMIT."""
    return not view.command.operation.is_commit or view.committed.sequence == view.command.sequence


def driven(now: World, decider: Decider) -> Iterator[World]:
    """Let the driver look; it records what it is to store."""
    wanted = Opens(_O.UPDATE, decider) if now.term == 1 and key(now.state.command) == key(BEFORE) else None
    for expired in {now.expired, True}:
        for verdict in {None, True} if decider is Decider.CALLER and now.term == 1 else {None}:
            known = Known(
                May.DRIVE, wanted=wanted, agree=True, verdict=verdict, expired=expired, version="2",
                committed="1", after=After.AS_BEFORE,
            )  # fmt: skip
            move = advance(now.state, now.view, known)
            if move.todo is GroupTodo.LOOK or move.state != now.state:
                yield now._replace(
                    state=move.state,
                    recorded=move.command or now.recorded,
                    committed=move.committed or now.committed,
                    expired=expired,
                )


def decisions_of(world: World) -> set[Operation]:
    heard = {rank.heard.operation for rank in world.ranks if rank.heard.sequence == 2}
    return {each for each in heard if each.is_decision}


def has_ended(rank: Rank) -> bool:
    return rank.heard.sequence == 2 and rank.code in ENDS


def walked(decider: Decider) -> set[World]:
    """Return every world that can come of a driver which is to give an update."""
    ranks = tuple(Rank() for _ in range(RANKS))
    answers = tuple(rank.answer(index) for index, rank in enumerate(ranks))
    first = World(ranks, 1, GroupState(BEFORE), BEFORE, SERVED, answers)
    seen, due = {first}, [first]
    while due:
        found = set(moves(due.pop(), decider)) - seen
        seen |= found
        due += found
    return seen


BOTH = pytest.mark.parametrize("decider", [Decider.CONTROLLER, Decider.CALLER], ids=["controller", "caller"])


@pytest.mark.slow_but
@BOTH
def test_no_two_ranks_ever_hear_two_decisions(decider: Decider) -> None:
    worlds = walked(decider)
    assert all(len(decisions_of(world)) < 2 for world in worlds)
    ended = [world for world in worlds if all(has_ended(rank) for rank in world.ranks)]
    assert {rank.code for world in ended for rank in world.ranks} == ENDS
    assert any(world.term == 2 and world.recorded is not None for world in ended), "a successor ends it, too"


@pytest.mark.slow
@BOTH
def test_a_successor_that_does_not_wait_for_each_rank_breaks_that(
    decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for row in group.ROWS if group.GroupWhen.UNHEARD not in row.when]
    monkeypatch.setattr(group, "BY_STAGE", group.by_stage(rows))
    with pytest.raises(AssertionError):
        assert all(len(decisions_of(world)) < 2 for world in walked(decider))


def answer(rank: int, operation: Operation, code: StatusCode, *, term: int = 1) -> RankAnswer:
    return Rank(CommandWord(1, 2, operation), code, term).answer(rank)


def test_a_rank_without_an_answer_is_neither_prepared_nor_over() -> None:
    view = view_of_answers(2, [answer(0, _O.UPDATE, _C.PREPARED)], term=1)
    known = Known(May.DRIVE, agree=True, version="2", committed="1")
    mine = GroupState(view.command, follows=True, mine=True)
    assert view.silent == {1}
    assert advance(mine, view, known).todo is GroupTodo.WAIT
    assert advance(GroupState.of(view), view, known).todo is GroupTodo.WAIT
    dead = replace(known, dead=frozenset({1}))
    assert advance(GroupState.of(view), view, dead).command == CommandWord(1, 2, _O.ABORT)
    ended = view_of_answers(2, [answer(0, _O.ABORT, _C.DONE_KEPT)], term=1)
    assert advance(GroupState.of(ended), ended, known).todo is GroupTodo.WAIT


def test_a_decision_that_one_rank_has_heard_is_the_groups() -> None:
    told = [answer(0, _O.COMMIT, _C.DONE_COMMITTED), answer(1, _O.UPDATE, _C.PREPARED)]
    view = view_of_answers(2, told, term=1)
    assert view.command.operation is _O.COMMIT
    move = advance(GroupState.of(view), view, Known(May.DRIVE, agree=True, version="2", committed="1"))
    assert move.committed is not None
    assert move.committed.sequence == 2


def test_late_and_doubled_answers_take_nothing_back_and_those_to_another_driver_do_not_count() -> None:
    late = [
        answer(0, _O.UPDATE, _C.PREPARED),
        answer(0, _O.UPDATE, _C.RUNNING),
        answer(0, _O.UPDATE, _C.PREPARED),
        answer(1, _O.UPDATE, _C.FAILED, term=2),
    ]
    view = view_of_answers(2, late, term=1)
    assert view.statuses[0].code is _C.PREPARED
    assert view.silent == {1}
