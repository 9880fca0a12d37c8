"""The group's side over plain values: no segment, no clock, no process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wsm.states import decide
from wsm.states.check import check_group
from wsm.states.decide import Role
from wsm.states.epochs import Cause
from wsm.states.group import (
    CONDITIONS,
    FORGOTTEN,
    LEADS_TO,
    ROWS,
    STAGES,
    CommandStage,
    GroupMove,
    GroupRow,
    GroupState,
    GroupTodo,
    GroupWhen,
    Known,
    May,
    Opens,
    Writes,
    advance,
)
from wsm.states.holding import Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, OnFailure, OnLease, WeightState
from wsm.states.words import (
    CommandWord,
    CommittedWord,
    Decider,
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
)

_C, _O, _T = StatusCode, Operation, GroupTodo

FIRST = CommittedWord(1, 1)


def group_of(
    command: CommandWord,
    *codes: StatusCode,
    committed: CommittedWord = FIRST,
    serves: bool = True,
    faulted: tuple[int, ...] = (),
    broken: tuple[int, ...] = (),
) -> View:
    """Return what is read of a group whose ranks say these codes of the command."""
    statuses = []
    for rank, code in enumerate(codes):
        weights, kv = (-3 if rank in faulted else 0 if serves else -2), (0 if serves else -2)
        statuses.append(StatusWord(command.epoch, command.sequence, code, weights=weights, kv=kv))
    kinds = [StepKind.BROKEN if rank in broken else StepKind.PARKED for rank in range(len(codes))]
    steps = [StepWord(command.epoch, command.sequence, kind, 1) for kind in kinds]
    return View(command, steps, statuses, committed)


def asked(
    operation: Operation, *, sequence: int = 2, decider: Decider = Decider.CONTROLLER, owes: bool = False
) -> CommandWord:
    return CommandWord(1, sequence, operation, decider, owes)


def mine(view: View, **known: int | bool) -> GroupState:
    return GroupState(view.command, follows=True, mine=True, **known)


def followed(move: GroupMove, view: View) -> View:
    """Return the view behind a move: what it stores, stored in order."""
    assert move.committed is None or move.record is not None, "a word names a record that is not written"
    return replace(view, command=move.command or view.command, committed=move.committed or view.committed)


DRIVER = Known(May.DRIVE, version="2", agree=True, committed="1")
STANDS_IN = Known(May.STAND_IN, role=Role.FREE, version="2", agree=True, committed="1")
KEEPER = Known(May.KEEP, version="2", agree=True, committed="1", restore_limit=2, repair_limit=2)


def test_an_update_is_opened_committed_stored_and_over() -> None:
    view = group_of(asked(_O.COMMIT, sequence=1), _C.DONE_COMMITTED, _C.DONE_COMMITTED)
    state, known = GroupState.of(view), replace(DRIVER, wanted=Opens(_O.UPDATE))
    move = advance(state, view, known)
    assert (move.todo, move.arguments, move.command) == (_T.LOOK, known.wanted, asked(_O.UPDATE))
    state, view = move.state, group_of(asked(_O.UPDATE), _C.RUNNING, _C.PREPARED)
    known = replace(known, wanted=None)
    assert advance(state, view, known).todo is _T.WAIT
    view = group_of(asked(_O.UPDATE), _C.PREPARED, _C.PREPARED)
    assert advance(state, view, replace(known, agree=None)).todo is _T.READ_REPORTS
    move = advance(state, view, known)
    assert move.command == asked(_O.COMMIT)
    view = followed(move, view)
    move = advance(move.state, view, known)
    assert (move.committed, move.record) == (decide.committed(view, "2"), ("2", True))
    view = followed(move, view)
    assert advance(move.state, view, known).todo is _T.WAIT
    view = group_of(view.command, _C.DONE_COMMITTED, _C.DONE_COMMITTED, committed=view.committed)
    move = advance(move.state, view, known)
    assert move.todo is _T.END
    assert advance(move.state, view, known).todo is _T.GIVE_ROLE_BACK


def test_reports_that_differ_abort_an_update() -> None:
    view = group_of(asked(_O.UPDATE), _C.PREPARED, _C.PREPARED)
    move = advance(mine(view), view, replace(DRIVER, agree=False))
    assert move.command == asked(_O.ABORT)


@pytest.mark.parametrize(
    "reason", [{"expired": True}, {"gave_up": True}, {"dead": frozenset({0})}, {"hangs": True}]
)
def test_what_is_given_up_is_aborted_unless_all_that_a_commit_needs_is_there(reason: dict[str, bool]) -> None:
    early = group_of(asked(_O.UPDATE), _C.RUNNING, _C.PREPARED)
    ready = group_of(asked(_O.UPDATE), _C.PREPARED, _C.PREPARED)
    hold = group_of(asked(_O.HOLD), _C.PREPARED, _C.PREPARED)
    known = replace(DRIVER, **reason)
    assert advance(mine(early), early, known).command == asked(_O.ABORT)
    assert advance(mine(ready), ready, known).command == asked(_O.COMMIT)
    assert advance(mine(ready), ready, replace(known, agree=None)).command == asked(_O.ABORT)
    assert advance(mine(hold), hold, known).command == asked(_O.ABORT)
    assert advance(mine(hold), hold, DRIVER).command == asked(_O.COMMIT)


def test_a_rank_whose_step_broke_says_so_before_its_command_is_aborted() -> None:
    silent = group_of(asked(_O.CLEAR), _C.RUNNING, _C.RUNNING, broken=(1,))
    refused = group_of(asked(_O.CLEAR), _C.RUNNING, _C.REFUSED, broken=(1,))
    assert advance(mine(silent), silent, DRIVER).todo is _T.WAIT
    assert advance(mine(refused), refused, DRIVER).command == asked(_O.ABORT)
    for state in (GroupState.of(silent), mine(silent)):
        assert advance(state, silent, KEEPER).command == asked(_O.ABORT), "its epoch ends"


def test_a_caller_is_told_once_and_then_decides() -> None:
    view = group_of(asked(_O.UPDATE, decider=Decider.CALLER), _C.PREPARED, _C.PREPARED)
    move = advance(mine(view), view, DRIVER)
    assert move.todo is _T.TELL_PREPARED
    late = replace(DRIVER, expired=True)
    assert advance(move.state, view, late).todo is _T.WAIT, "no deadline counts from there on"
    assert advance(move.state, view, replace(DRIVER, verdict=True)).command.operation is _O.COMMIT
    assert advance(move.state, view, replace(DRIVER, verdict=False)).command.operation is _O.ABORT
    assert advance(move.state, view, replace(DRIVER, dead=frozenset({1}))).command.operation is _O.ABORT


def test_a_lease_holds_a_decision_without_a_process() -> None:
    view = group_of(asked(_O.UPDATE, decider=Decider.CALLER), _C.PREPARED, _C.PREPARED)
    leased = replace(DRIVER, leased=True)
    told = advance(mine(view), view, leased).state
    assert advance(told, view, leased).todo is _T.HELD
    assert advance(GroupState.of(view), view, leased).todo is _T.HELD, "a successor decides nothing"
    assert advance(GroupState.of(view), view, replace(STANDS_IN, leased=True)).todo is _T.WAIT
    over = replace(leased, lease_over=True)
    assert advance(told, view, over).command.operation is _O.ABORT
    assert advance(told, view, replace(over, verdict=True)).command.operation is _O.ABORT, "said too late"
    back = advance(GroupState.of(view), view, replace(leased, verdict=True))
    assert back.command.operation is _O.COMMIT
    lost = replace(KEEPER, leased=True, dead=frozenset({1}))
    assert advance(GroupState.of(view), view, lost).command.operation is _O.ABORT


@pytest.mark.parametrize(
    ("codes", "word"), [((_C.PREPARED, _C.PREPARED), _O.COMMIT), ((_C.PREPARED, _C.RUNNING), _O.ABORT)]
)
def test_who_stands_in_decides_what_the_words_say_and_leaves_the_rest_to_the_ranks(
    codes: tuple[StatusCode, ...], word: Operation
) -> None:
    view = group_of(asked(_O.UPDATE), *codes)
    assert advance(GroupState.of(view), view, STANDS_IN).todo is _T.TAKE_ROLE
    with_role = replace(STANDS_IN, role=Role.OWN)
    move = advance(GroupState.of(view), view, with_role)
    assert move.command.operation is word
    view = followed(move, view)
    if word is _O.COMMIT:
        move = advance(move.state, view, with_role)
        assert move.committed == decide.committed(view, "2")
        view = followed(move, view)
    assert advance(move.state, view, with_role).todo is _T.GIVE_ROLE_BACK


def test_in_the_place_of_a_stopped_controller_the_only_decision_left_is_written() -> None:
    stalled = replace(STANDS_IN, role=Role.STALLED)
    failed = group_of(asked(_O.UPDATE), _C.FAILED, _C.RUNNING)
    ready = group_of(asked(_O.UPDATE), _C.PREPARED, _C.PREPARED)
    runs = group_of(asked(_O.UPDATE), _C.RUNNING, _C.PREPARED)
    decided = group_of(asked(_O.COMMIT), _C.PREPARED, _C.PREPARED)
    assert advance(GroupState.of(failed), failed, stalled).command == asked(_O.ABORT)
    assert advance(GroupState.of(ready), ready, stalled).todo is _T.NAME
    assert advance(GroupState.of(decided), decided, stalled).todo is _T.NAME
    assert advance(GroupState.of(runs), runs, stalled).todo is _T.WAIT
    assert advance(GroupState.of(runs), runs, replace(stalled, expired=True)).todo is _T.FAIL
    for view in (failed, ready, runs, decided):
        assert advance(GroupState.of(view), view, replace(STANDS_IN, role=Role.KEPT)).todo is _T.WAIT


def test_an_epoch_ends_in_three_words_and_begins_with_what_was_served() -> None:
    dead = replace(KEEPER, dead=frozenset({1}), after=After.AS_BEFORE, served=True)
    view = group_of(asked(_O.UPDATE), _C.PREPARED, _C.PREPARED)
    state = GroupState.of(view)
    assert advance(state, view, replace(dead, role=Role.KEPT)).todo is _T.TAKE_ROLE
    written = []
    for _ in range(3):
        move = advance(state, view, dead)
        written.append((move.committed, move.command))
        state, view = move.state, followed(move, view)
    assert [command for _, command in written] == [asked(_O.COMMIT), None, CommandWord(2, 2, _O.NONE)]
    assert written[1][0] == CommittedWord(2, decide.committed(view, "2").version_id)
    assert move.todo is _T.START
    gone = replace(dead, dead=frozenset({1}))
    assert advance(state, view, gone).todo is _T.START, "a process that dies in its start is started again"
    assert advance(state, view, KEEPER).todo is _T.WAIT
    view = group_of(
        CommandWord(2, 0, _O.NONE), _C.ATTACHED, _C.ATTACHED, committed=view.committed, serves=False
    )
    view = replace(view, command=CommandWord(2, 2, _O.NONE))
    move = advance(state, view, KEEPER)
    assert move.command == CommandWord(2, 3, _O.UPDATE, owes=True)
    assert move.arguments == Opens(_O.UPDATE, before=WeightState.NORMAL, restores=True)


def test_a_group_that_was_cleared_begins_its_epoch_with_nothing_owed() -> None:
    view = group_of(asked(_O.CLEAR), _C.DONE_CLEARED, _C.DONE_CLEARED, serves=False)
    dead = replace(KEEPER, dead=frozenset({0}), served=True)
    move = advance(GroupState.of(view), view, dead)
    assert move.committed == CommittedWord(2, None)
    assert move.record == (None, False)
    view = followed(move, view)
    assert advance(move.state, view, dead).command == CommandWord(2, 2, _O.NONE)


def test_a_restore_is_tried_as_often_as_is_allowed() -> None:
    owing = group_of(asked(_O.ABORT, owes=True), _C.DONE_CLEARED, _C.DONE_CLEARED, serves=False)
    state = GroupState.of(owing)
    for sequence in (3, 4):
        move = advance(state, owing, KEEPER)
        assert move.command == asked(_O.UPDATE, sequence=sequence, owes=True)
        over = asked(_O.ABORT, sequence=sequence, owes=True)
        owing = group_of(over, _C.DONE_CLEARED, _C.DONE_CLEARED, serves=False)
        move = advance(move.state, owing, replace(KEEPER, restores=True))
        assert move.todo is _T.END
        state = move.state
    assert advance(state, owing, KEEPER).todo is _T.GIVE_ROLE_BACK
    assert advance(replace(state, failed=0), owing, replace(KEEPER, due=False)).todo is _T.GIVE_ROLE_BACK


def test_who_drove_an_update_restores_once_and_only_if_it_owes() -> None:
    owing = group_of(asked(_O.ABORT, owes=True), _C.DONE_CLEARED, _C.DONE_CLEARED, serves=False)
    once = replace(DRIVER, restore_limit=1)
    move = advance(mine(owing), owing, DRIVER)
    assert move.todo is _T.END
    assert advance(move.state, owing, once).arguments.restores
    assert advance(replace(move.state, failed=1), owing, once).todo is _T.GIVE_ROLE_BACK
    owes_nothing = group_of(asked(_O.ABORT), _C.DONE_CLEARED, _C.DONE_CLEARED, serves=False)
    assert advance(move.state, owes_nothing, once).todo is _T.GIVE_ROLE_BACK


def test_an_update_owes_the_version_before_where_its_caller_wants_that() -> None:
    view = group_of(asked(_O.COMMIT, sequence=1), _C.DONE_COMMITTED, _C.DONE_COMMITTED)
    for on_failure, restorable, owes in (
        (OnFailure.RESTORE, True, True),
        (OnFailure.RESTORE, False, False),
        (OnFailure.CLEAR, True, False),
    ):
        wanted = Opens(_O.UPDATE, on_failure=on_failure, restorable=restorable)
        move = advance(GroupState.of(view), view, replace(DRIVER, wanted=wanted))
        assert move.command.owes is owes


def test_a_faulted_rank_is_cleared_again_and_then_replaced() -> None:
    view = group_of(asked(_O.ABORT), _C.DONE_FAULTED, _C.DONE_CLEARED, serves=False, faulted=(0,))
    state = GroupState.of(view)
    free = replace(KEEPER, role=Role.FREE)
    for sequence in (3, 4):
        assert advance(state, view, free).todo is _T.TAKE_ROLE
        move = advance(state, view, KEEPER)
        assert (move.command.operation, move.command.sequence) == (_O.CLEAR, sequence)
        view = group_of(
            asked(_O.ABORT, sequence=sequence), _C.DONE_FAULTED, _C.DONE_CLEARED, serves=False, faulted=(0,)
        )
        state = advance(move.state, view, KEEPER).state
    move = advance(state, view, KEEPER)
    assert (move.todo, move.replaced) == (_T.REPLACE, {0: Cause.FAULTED})


def test_a_lease_that_is_over_is_ended_by_a_release() -> None:
    hold = Hold("h", "trainer", lease_s=1.0, on_lease=OnLease.SERVE)
    held = CommittedWord(2, 1, held=True)
    view = group_of(asked(_O.COMMIT), _C.DONE_COMMITTED, _C.DONE_COMMITTED, committed=held)
    for may in (May.KEEP, May.END_LEASES):
        known = Known(may, hold=hold, now_ns=2 * 10**9)
        assert advance(GroupState.of(view), view, replace(known, role=Role.FREE)).todo is _T.TAKE_ROLE
        assert advance(GroupState.of(view), view, known).command == asked(_O.RELEASE, sequence=3)
        renewed = replace(known, now_ns=10**9 // 2)
        assert advance(GroupState.of(view), view, renewed).todo is _T.GIVE_ROLE_BACK
    other = Known(May.STAND_IN, hold=hold, now_ns=2 * 10**9)
    assert advance(GroupState.of(view), view, other).todo is _T.GIVE_ROLE_BACK


def test_a_controller_whose_epoch_ended_writes_nothing() -> None:
    before = group_of(asked(_O.UPDATE), _C.RUNNING, _C.RUNNING)
    after = group_of(CommandWord(2, 2, _O.NONE), _C.ATTACHED, _C.ATTACHED)
    move = advance(mine(before), after, DRIVER)
    assert move.todo is _T.OVERTAKEN
    assert move.command is None is move.committed
    assert not move.state.follows


def test_ranks_that_do_not_answer_a_decision_end_the_wait_of_its_caller() -> None:
    view = group_of(asked(_O.ABORT), _C.RUNNING, _C.DONE_KEPT)
    assert advance(mine(view), view, DRIVER).todo is _T.WAIT
    assert advance(mine(view), view, replace(DRIVER, stuck=True)).todo is _T.UNSETTLED


def test_a_commit_whose_version_no_report_names_waits_for_that() -> None:
    view = group_of(asked(_O.COMMIT), _C.PREPARED, _C.PREPARED)
    unknown = replace(DRIVER, version=None, version_known=False)
    assert advance(mine(view), view, unknown).todo is _T.WAIT
    assert advance(mine(view), view, replace(unknown, may=May.STAND_IN)).todo is _T.GIVE_ROLE_BACK


def test_a_successor_knows_nothing_that_no_word_says() -> None:
    view = group_of(asked(_O.UPDATE), _C.RUNNING, _C.RUNNING)
    blank, found = GroupState(CommandWord(0, 0, _O.NONE)), GroupState.of(view)
    fields = set(vars(found)) - set(FORGOTTEN)
    assert fields == {"command", "follows"}
    assert all(getattr(found, name) == getattr(blank, name) for name in FORGOTTEN)


def test_each_condition_has_a_meaning_and_each_thing_to_do_a_row() -> None:
    assert set(GroupWhen) == set(CONDITIONS)
    assert {row.todo for row in ROWS} | {_T.OVERTAKEN} == set(GroupTodo)
    assert set(STAGES) == set(CommandStage)
    assert set(LEADS_TO) == set(Writes)


def test_the_table_is_sound() -> None:
    assert list(check_group()) == []


_UNDECIDED, _OVER = CommandStage.UNDECIDED, CommandStage.OVER


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (GroupRow(_OVER, (GroupWhen.LOST,), _T.LOOK, Writes.EPOCH), "row that writes too much"),
        (GroupRow(_OVER, (GroupWhen.STANDS_IN,), _T.LOOK, Writes.RELEASE), "row that writes too much"),
        (GroupRow(_UNDECIDED, (), _T.LOOK, Writes.REQUEST), "row that writes too much"),
        (GroupRow(_UNDECIDED, (GroupWhen.PREPARED,), _T.WAIT), "row that is never taken"),
    ],
)
def test_a_row_that_does_not_belong_there_is_found(row: GroupRow, found: str) -> None:
    assert found in {fault.check for fault in check_group([row, *ROWS])}


def test_a_stage_without_an_answer_and_what_no_row_uses_is_found() -> None:
    open_ended = [row for row in ROWS if row.when or row.stage is not _UNDECIDED]
    assert [fault.check for fault in check_group(open_ended)] == ["no answer"]
    shorter = [row for row in ROWS if row.writes is not Writes.REQUEST]
    assert {fault.check for fault in check_group(shorter)} == {"unused condition", "idle word"}
