"""Faults to be seeded into the real protocol functions, one at a time, each with bounds that must catch it.

The first sixteen are those of the Promela model of the transaction, under its names. Run this file to print
which rule each one breaks, and how many moves the shortest way there has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from msgspec import structs

from explorer import admission, controller_moves, rank_moves
from explorer.answers import check_refusals
from explorer.scope import Scope
from explorer.search import Findings, explore
from wsm import committed_record
from wsm.states import command_events, decide, epochs, group, holding, joint, rank, view
from wsm.states.group import (
    CommandStage,
    GroupMove,
    GroupRow,
    GroupState,
    GroupTodo,
    GroupWhen,
    Known,
    May,
    Writes,
)
from wsm.states.phases import Effect, Event, Happened, LookRow, Move, OutcomeRow, Phase, RankState, Todo, When
from wsm.states.plan_key import Request
from wsm.states.table import Row
from wsm.states.view import View
from wsm.states.vocabulary import ALL_TAGS, After, KVEvent, KVState, OnFailure, OnLease, WeightState
from wsm.states.words import CommandWord, Operation, StatusCode, StepKind, StepWord

#: A seed puts other functions in the place of real ones: (module, name) -> what stands there instead.
Seed = Callable[[], dict[tuple[ModuleType, str], Any]]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Parameters
    ----------
    name : str
        What it is called.
    seed : callable
        Returns what to put where.
    scope : str
        Bounds in which the exploration finds it.
    of_model : bool
        Whether the Promela model knows it.
    """

    name: str
    seed: Seed
    scope: str
    of_model: bool = False


FAULTS: list[Fault] = []


def fault(scope: str, *, of_model: bool = False) -> Callable[[Seed], Seed]:
    def register(seed: Seed) -> Seed:
        FAULTS.append(Fault(seed.__name__, seed, scope, of_model))
        return seed

    return register


@contextmanager
def seeded(what: Fault) -> Iterator[None]:
    """Put the fault in the place of the real functions, and take it out again."""
    before = {}
    try:
        check_refusals.cache_clear()
        for (module, name), instead in what.seed().items():
            before[module, name] = getattr(module, name)
            setattr(module, name, instead)
        yield
    finally:
        for (module, name), real in before.items():
            setattr(module, name, real)
        check_refusals.cache_clear()


def hunt(what: Fault) -> Findings:
    """Explore with the fault in place."""
    with seeded(what):
        return explore(Scope.from_text(what.scope))


def with_row(row: LookRow) -> dict[tuple[ModuleType, str], Any]:
    """Ask a row before all others of its phase."""
    return {(rank, "ROWS"): {**rank.ROWS, row.phase: (row, *rank.ROWS[row.phase])}}


def without_rows(phase: Phase, condition: When) -> dict[tuple[ModuleType, str], Any]:
    """Leave the rows of a phase out that have a condition."""
    kept = tuple(row for row in rank.ROWS[phase] if condition not in row.when)
    return {(rank, "ROWS"): {**rank.ROWS, phase: kept}}


def waiting_instead(phase: Phase, todo: Todo) -> dict[tuple[ModuleType, str], Any]:
    """Let a rank wait where a row of the phase tells it to do something."""
    rows = tuple(replace(row, todo=Todo.WAIT) if row.todo is todo else row for row in rank.ROWS[phase])
    return {(rank, "ROWS"): {**rank.ROWS, phase: rows}}


def with_group_row(row: GroupRow) -> dict[tuple[ModuleType, str], Any]:
    """Ask a row of the group's side before all others of its stage."""
    return {(group, "BY_STAGE"): {**group.BY_STAGE, row.stage: (row, *group.BY_STAGE[row.stage])}}


def without_group_rows(stage: CommandStage, condition: GroupWhen) -> dict[tuple[ModuleType, str], Any]:
    """Leave the rows of a stage out that have a condition."""
    kept = tuple(row for row in group.BY_STAGE[stage] if condition not in row.when)
    return {(group, "BY_STAGE"): {**group.BY_STAGE, stage: kept}}


def deciding(word: Writes, *when: GroupWhen) -> GroupRow:
    return GroupRow(CommandStage.UNDECIDED, when, GroupTodo.LOOK, word)


def standing_in(*when: GroupWhen) -> GroupRow:
    """Return a row that aborts in the place of a controller which does not go on."""
    lacks = (GroupWhen.LACKS_A_WORD, GroupWhen.STALLED)
    return GroupRow(CommandStage.AWAY, (*lacks, *when), GroupTodo.LOOK, Writes.ABORT)


def where(conditions: dict[GroupWhen, Callable[..., bool]]) -> dict[tuple[ModuleType, str], Any]:
    """Let conditions of the group's side mean something else."""
    return {(group, "CONDITIONS"): {**group.CONDITIONS, **conditions}}


# -- the sixteen faults of the Promela model ------------------------------------------------------


@fault("operations=clear steps=1 give_ups=1 starts=serving", of_model=True)
def abort_resume():
    """A parked rank that sees ABORT serves on at once."""
    return with_row(LookRow(Phase.PARKING, (When.ABORTED,), Todo.KEEP, Phase.SETTLING))


@fault("operations=clear steps=1 failures=1 starts=serving", of_model=True)
def deadline_unpark():
    """A parked rank whose deadline expires walks away."""
    real = rank.take_in

    def take_in(state: RankState, happened: Happened) -> Move:
        move = real(state, happened)
        if happened.event is Event.FAILED and state.phase is Phase.PARKING:
            return replace(move, state=rank.without_command(state))
        return move

    return {(rank, "take_in"): take_in}


@fault("operations=update steps=0 failures=1 starts=serving", of_model=True)
def deadline_prepared():
    """A PREPARED rank whose deadline expires says FAILED."""
    return {
        (rank, "OUTCOMES"): (
            OutcomeRow(Phase.PREPARED, Event.EXPIRED, (), Phase.FAILED, StatusCode.FAILED),
            OutcomeRow(Phase.PREPARED, Event.FAILED, (), Phase.FAILED, StatusCode.FAILED),
            *rank.OUTCOMES,
        )
    }


@fault("operations=update steps=0 controller_crashes=1 starts=cleared", of_model=True)
def takeover_literal():
    """A successor commits if all are PREPARED, else aborts, whatever the command word says already."""
    real = group.advance

    def advance(state: GroupState, view: View, known: Known) -> GroupMove:
        decided = view.command.operation.is_decision and not decide.is_over(view)
        if decided and state.follows and not state.mine:
            command = view.command._replace(operation=Operation.UPDATE)
            view, state = replace(view, command=command), replace(state, command=command)
        return real(state, view, known)

    return {(controller_moves, "advance"): advance}


@fault("operations=clear commands=2 steps=0 starts=serving", of_model=True)
def next_early():
    """The next command is written before every rank is done with the last one."""

    def is_over(view: View) -> bool:
        return view.command.operation is not Operation.UPDATE

    return {(decide, "is_over"): is_over}


@fault("operations=update steps=0 failures=1 starts=serving", of_model=True)
def local_outcome():
    """After an ABORT each rank keeps or drops by what it did itself."""
    own = (
        LookRow(Phase.STOPPED, (When.TOUCHED,), Todo.DROP, Phase.SETTLING),
        LookRow(Phase.STOPPED, (), Todo.KEEP, Phase.SETTLING),
    )
    return {(rank, "ROWS"): {**rank.ROWS, Phase.STOPPED: own}}


@fault("operations=update steps=0 give_ups=1 starts=serving", of_model=True)
def ready_withdraw():
    """A rank that has voted for a collective action leaves on ABORT."""
    return with_row(LookRow(Phase.VOTING, (When.ABORTED,), Todo.UNDO, Phase.STOPPING))


@fault("operations=update steps=1 rank_crashes=1 starts=serving", of_model=True)
def step_no_epoch():
    """Step words have no epoch: they go on where the old epoch ended, and older ones count as later steps."""
    real = rank.join

    def is_behind(steps: Any, *, rank: int, epoch: int, step: int, sequence: int) -> bool:
        del epoch, sequence
        return any(peer.step > step for index, peer in enumerate(steps) if index != rank)

    def join(index: int, command: CommandWord, step: StepWord, status: Any, **said: bool) -> Move:
        move = real(index, command, step, status, **said)
        return replace(move, step=step._replace(epoch=command.epoch))

    return {(rank, "is_behind"): is_behind, (rank, "join"): join}


@fault("operations=update steps=0 rank_crashes=1 starts=serving", of_model=True)
def bump_loses_commit():
    """The epoch is raised before what was committed is stored."""
    lost = (GroupWhen.KEEPS, GroupWhen.LOST)
    return with_group_row(GroupRow(CommandStage.UNSTORED, lost, GroupTodo.START, Writes.EPOCH))


@fault("operations=clear steps=1 give_ups=1 starts=serving", of_model=True)
def no_join_in_abort():
    """A rank that stopped for an ABORT does not join the step that others are in already."""
    return waiting_instead(Phase.STOPPED, Todo.JOIN)


@fault("operations=update steps=1 rank_crashes=1 starts=serving", of_model=True)
def same_epoch_restart():
    """A replacement joins the epoch in which its predecessor died."""

    def join(index: int, command: CommandWord, step: StepWord, status: Any, **said: bool) -> Move:
        del step
        unused = StepWord(0, 0, StepKind.PARKED, 0)
        return real(index, command, unused, status._replace(epoch=0), **said)

    real = rank.join
    return {(rank, "join"): join}


@fault("operations=clear steps=1 starts=serving", of_model=True)
def no_dummy():
    """A parked rank does not join the step that others are in already."""
    return waiting_instead(Phase.PARKING, Todo.JOIN)


@fault("operations=clear steps=0 failures=1 starts=serving", of_model=True)
def clear_undecided():
    """A clear that failed somewhere is never decided."""

    def of_others(condition: GroupWhen) -> Callable[..., bool]:
        real = group.CONDITIONS[condition]
        return lambda state, view, known: (
            view.command.operation is not Operation.CLEAR and real(state, view, known)
        )

    return where({each: of_others(each) for each in (GroupWhen.GIVEN_UP, GroupWhen.ANY_FAILED)})


@fault("operations=update steps=0 controller_crashes=1 give_ups=1 starts=cleared fine=True", of_model=True)
def split_brain():
    """A successor takes over from a controller that was only stopped, and goes on afterwards."""
    return {(controller_moves, "takes_over_from_the_living"): True}


@fault("operations=hot_update steps=1 starts=serving", of_model=True)
def hot_flip_at_once():
    """A hot update's commit is followed at once, without parking."""
    return with_row(LookRow(Phase.STAGED, (When.HOT_COMMITTED,), Todo.COMMIT, Phase.COMMITTING))


@fault("operations=hot_update steps=1 starts=serving", of_model=True)
def running_no_seq():
    """A running rank does not say which command it finished last."""
    return {(view, "_has_finished"): lambda _peer, _sequence: False}


# -- decisions that are held, as the model has them ------------------------------------------------


def with_held(instead: Callable[..., bool]) -> dict[tuple[ModuleType, str], Any]:
    """Ask something else whether a decision is held."""
    return {(decide, "is_held"): instead}


HELD = "operations=hot_update steps=0 starts=serving"


@fault(f"{HELD} deciders=2", of_model=True)
def caller_is_not_asked():
    """COMMIT is written once all are PREPARED, whoever decides."""
    return with_group_row(deciding(Writes.COMMIT, GroupWhen.PREPARED))


@fault(f"{HELD} deciders=2 controller_losses=1", of_model=True)
def successor_commits_for_caller():
    """Who ends a command in its caller's place commits it if all are PREPARED."""
    return with_group_row(deciding(Writes.COMMIT, GroupWhen.INHERITS, GroupWhen.PREPARED))


@fault(f"{HELD} deciders=4", of_model=True)
def lease_counts_from_the_start():
    """A lease counts from the command's beginning."""
    return {(admission, "leases_count_from_the_start"): True}


@fault(f"{HELD} deciders=4", of_model=True)
def lease_has_no_end():
    """What a lease holds is held for ever."""
    real = decide.is_held
    return with_held(lambda view, *, leased=False: real(view, leased=True))


@fault(f"{HELD} deciders=4 controller_crashes=1", of_model=True)
def next_controller_ends_a_lease():
    """A controller that finds a command held by a lease takes it over."""
    return with_held(lambda _view, *, leased=False: False)


@fault(f"{HELD} deciders=2 controller_stops=2 fine=True", of_model=True)
def stopped_holder_is_overruled():
    """A caller's decision is made in its place although its process is only stopped."""
    return with_group_row(standing_in(GroupWhen.PREPARED))


# -- our own -------------------------------------------------------------------------------------------


@fault("operations=update steps=0 failures=1 starts=cleared")
def one_vote_is_enough():
    """A collective action is entered when anybody is ready."""

    def all_ready(view: View, action: int) -> bool:
        return any((found := view.of_command(i)) and found.ready > action for i in range(len(view.statuses)))

    return {(rank, "all_ready"): all_ready}


@fault("operations=update steps=0 failures=1 starts=cleared")
def no_vote_is_ever_left():
    """A rank that waits for votes never learns that one will not come."""
    return {(rank, "never_ready"): lambda _view, _action: []}


@fault("operations=update steps=0 broken_steps=1 starts=cleared ranks=3")
def a_failure_takes_votes_back():
    """Whoever failed after it had voted counts as never ready."""

    def never_ready(view: View, _action: int) -> list[int]:
        return [
            index
            for index in range(len(view.statuses))
            if (found := view.of_command(index)) is not None and found.code >= StatusCode.FAILED
        ]

    def all_ready(view: View, action: int) -> bool:
        return real(view, action) and not never_ready(view, action)

    real = view.all_ready
    return {(rank, "never_ready"): never_ready, (rank, "all_ready"): all_ready}


@fault("operations=update steps=0 failures=1 starts=serving")
def touched_is_forgotten_at_the_end():
    """A rank that has settled already does not tell any more that it touched its weights."""
    return {(view, "_TOUCHED"): frozenset((StatusCode.STOPPED_TOUCHED,))}


@fault("operations=update steps=0 failures=1 starts=cleared")
def manifests_are_not_compared():
    """All PREPARED is enough, whatever they prepared."""
    return without_group_rows(CommandStage.UNDECIDED, GroupWhen.DIFFER)


@fault("operations=update steps=0 halves=True failures=1 starts=cleared")
def prepared_by_one_is_enough():
    """COMMIT is decided when the first rank is PREPARED."""

    def all_prepared(view: View) -> bool:
        found = [view.of_command(index) for index in range(len(view.statuses))]
        return any(word is not None and word.code is StatusCode.PREPARED for word in found)

    return {(decide, "all_prepared"): all_prepared}


@fault("operations=update steps=0 failures=1 starts=cleared")
def failures_decide_nothing():
    """The controller waits for PREPARED, come what may."""
    return without_group_rows(CommandStage.UNDECIDED, GroupWhen.ANY_FAILED)


@fault("operations=update steps=0 starts=cleared commands=2")
def over_before_it_is_stored():
    """A command is over when the ranks are, whether or not the committed version is stored."""
    return {(decide, "is_over"): lambda view: not decide.waiting_on(view)}


@fault("operations=clear,update commands=3 steps=0 rank_crashes=1 starts=serving")
def sequences_begin_anew():
    """A new epoch counts its commands from 1 again."""

    def next_epoch(view: View) -> CommandWord:
        return CommandWord(view.command.epoch + 1, 0, Operation.NONE)

    return {(epochs, "next_epoch"): next_epoch}


@fault("operations=update steps=0 rank_crashes=1 starts=serving")
def epoch_begins_with_the_old_command():
    """A new epoch begins with the command of the one before."""

    def next_epoch(view: View) -> CommandWord:
        return view.command._replace(epoch=view.command.epoch + 1)

    return {(epochs, "next_epoch"): next_epoch}


@fault("operations=update steps=0 commands=1 starts=serving")
def commands_are_levels():
    """A rank obeys whatever word it reads, old ones too."""

    def new(state: RankState, view: View) -> bool:
        return state.phase is Phase.IDLE and view.command.operation is not Operation.NONE

    return {(rank, "OF_THE_WORDS"): {**rank.OF_THE_WORDS, When.NEW: new}}


@fault("operations=clear commands=2 steps=1 starts=cleared,serving failures=1")
def standing_for_anything():
    """A rank accepts when all stand, for whichever command each of them stands."""

    def all_stand(steps: Any, *, rank: int, epoch: int, step: int, sequence: int, follow: bool) -> bool:
        del sequence, follow
        others = [word for index, word in enumerate(steps) if index != rank]
        return all((word.epoch, word.kind, word.step) == (epoch, StepKind.PARKED, step) for word in others)

    return {(rank, "all_stand"): all_stand}


@fault("operations=clear steps=1 starts=serving")
def nobody_needs_to_stand():
    """A rank accepts as soon as it stands itself."""
    return {(rank, "all_stand"): lambda *_args, **_named: True}


@fault("operations=update steps=1 rank_crashes=1 starts=serving")
def empty_hands_step():
    """A rank without weights joins steps."""

    def may_step(state: RankState, view: View) -> bool:
        return not state.broken and not rank.any_broken(view.steps, epoch=state.epoch)

    return {
        (rank, "may_step"): may_step,
        (rank, "OF_THE_WORDS"): {**rank.OF_THE_WORDS, When.MAY_STEP: may_step},
    }


@fault("operations=update steps=0 failures=1 starts=cleared")
def votes_are_hidden():
    """A later status does not repeat the votes that were given."""
    real = rank.status_word

    def status_word(state: RankState, code: StatusCode) -> Any:
        word = real(state, code)
        return word._replace(ready=0) if code >= StatusCode.FAILED else word

    return {(rank, "status_word"): status_word}


@fault("operations=update steps=0 failures=1 starts=cleared")
def prepared_commits_by_itself():
    """A PREPARED rank serves as soon as all are PREPARED, without the decision."""

    def committed(_state: RankState, view: View) -> bool:
        return view.command.operation is Operation.COMMIT or decide.all_prepared(view)

    return {(rank, "OF_THE_WORDS"): {**rank.OF_THE_WORDS, When.COMMITTED: committed}}


@fault("operations=update steps=0 rank_crashes=1 starts=serving")
def busy_ranks_miss_the_epoch():
    """A rank that works on a command does not look at the epoch."""
    real = rank.advance

    def advance(state: RankState, view: View) -> Move:
        if view.command.epoch > state.epoch and state.phase is not Phase.IDLE:
            return Move(state, Todo.WAIT)
        return real(state, view)

    return {(rank, "advance"): advance}


@fault("operations=update steps=1 failures=1 starts=serving")
def dropped_weights_count_as_held():
    """A rank that has dropped its weights goes on as if it held them."""
    real = rank.take_in

    def take_in(state: RankState, happened: Happened) -> Move:
        move = real(state, happened)
        if happened.event is not Event.CLEARED:
            return move
        return replace(move, state=replace(move.state, holds=state.holds))

    return {(rank, "take_in"): take_in}


@fault("operations=update steps=0 starts=cleared")
def ends_are_forgotten():
    """A rank does not remember that it has finished a command."""

    def without_command(state: RankState) -> RankState:
        return replace(real(state), done=state.done)

    real = rank.without_command
    return {(rank, "without_command"): without_command}


@fault("operations=hot_update steps=2 starts=serving ranks=3")
def followers_do_not_follow():
    """A rank waits for all to stand for a commit, though some have flipped already."""

    def all_stand(steps: Any, *, rank: int, epoch: int, step: int, sequence: int, follow: bool) -> bool:
        del follow
        return real(steps, rank=rank, epoch=epoch, step=step, sequence=sequence, follow=False)

    real = view.all_stand
    return {(rank, "all_stand"): all_stand}


@fault("operations=hot_update steps=0 starts=serving")
def hot_parking_takes_prepared_back():
    """Parking for a hot commit is said over PREPARED."""

    def says(row: Any) -> Any:
        return replace(row, says=StatusCode.PARKING) if row.change is Effect.STANDS else row

    return {
        (rank, "ROWS"): {phase: tuple(map(says, rows)) for phase, rows in rank.ROWS.items()},
        (rank, "OUTCOMES"): tuple(map(says, rank.OUTCOMES)),
    }


@fault("operations=update steps=2 broken_steps=1 starts=serving")
def ranks_step_on_beside_a_broken_one():
    """A rank enters the next step although a peer's has raised, and can enter none any more."""
    return {(rank, "any_broken"): lambda _steps, **_named: False}


@fault("operations=hot_update steps=0 broken_steps=1 starts=serving")
def a_flip_that_broke_is_tried_again():
    """A rank goes on with a flip that raised in its middle."""
    return without_rows(Phase.COMMITTING, When.BROKEN)


@fault("operations=hot_update steps=1 failures=1 starts=serving")
def a_hot_abort_is_not_heard():
    """A rank that has staged waits for a commit alone."""
    return without_rows(Phase.STAGED, When.HOT_ABORTED)


@fault("operations=clear steps=1 starts=serving helpers=1")
def a_helper_begins_early():
    """A helper begins before a rank has shown that all stand."""
    return {(rank, "any_accepted"): lambda _view: True}


@fault("operations=hot_update steps=1 starts=serving helpers=1")
def a_helper_follows_a_decision_at_once():
    """A helper drops its blocks when the commit of a hot update is decided, while ranks still step."""
    return {(rank, "any_committed"): lambda _view: True}


@fault("operations=update halves=True helpers=1 steps=0 starts=cleared")
def a_helper_misses_who_was_fast():
    """A rank that is PREPARED without a vote is no sign for a helper that all stand."""
    return {(view, "ACCEPTED"): view.ACCEPTED - {StatusCode.PREPARED}}


@fault("operations=update steps=0 starts=serving give_ups=1")
def whoever_aborts_drops():
    """An abort takes weights away that nobody has touched."""
    return {(rank, "any_touched"): lambda _view: True}


@fault("operations=clear,update commands=2 steps=1 starts=serving halves=True")
def one_half_is_enough_to_serve():
    """A rank serves with whatever it holds."""

    def serving(weights: WeightState, kv: KVState) -> bool:
        return weights is WeightState.NORMAL or kv is KVState.NORMAL

    return {(joint, "serving"): serving}


@fault("operations=update steps=0 starts=cleared give_ups=1")
def prepared_is_left_by_anything():
    """The tables let a KV cache go that a PREPARED rank has promised."""
    needs = tuple(need for need in joint.NEEDS if need.event is not KVEvent.CLEAR)
    return {(joint, "NEEDS"): needs, (joint, "FORBIDDEN"): {}}


@fault("operations=update steps=0 starts=cleared failures=1")
def nothing_held_is_kept():
    """An aborted update goes back to NORMAL on a rank that held nothing."""
    real = joint.objection

    def objection(state: joint.JointState, row: Row) -> str | None:
        why = real(state, row)
        return None if why is joint.NOTHING_HELD else why

    return {(joint, "objection"): objection}


@fault("operations=update steps=0 starts=serving helpers=1 failures=1")
def helpers_are_not_asked():
    """The controller commits when all ranks are PREPARED, whatever the helpers say."""
    real = decide.all_prepared

    def all_prepared(view: View) -> bool:
        return real(replace(view, statuses=view.statuses[: len(view.steps)]))

    return {(decide, "all_prepared"): all_prepared}


@fault("operations=update steps=0 controller_crashes=1 starts=cleared")
def a_successor_waits_for_ever():
    """A successor does not decide what was left undecided."""
    return with_group_row(GroupRow(CommandStage.UNDECIDED, (GroupWhen.INHERITS,), GroupTodo.WAIT))


@fault("operations=update steps=0 controller_losses=1 starts=serving")
def a_group_waits_for_the_next_controller():
    """A command whose controller was killed is left to whoever commands next."""
    free = (GroupWhen.STANDS_IN, GroupWhen.FREE)
    return with_group_row(GroupRow(CommandStage.AWAY, free, GroupTodo.WAIT))


@fault("operations=update steps=0 controller_losses=1 starts=serving")
def a_commit_is_left_without_its_version():
    """A commit that stands counts as all that a dead controller owed."""
    real = decide.lacks_a_word
    return {(decide, "lacks_a_word"): lambda view: real(view) and not view.command.operation.is_commit}


@fault("operations=clear steps=0 failures=1 controller_stops=1 starts=serving")
def a_failure_waits_for_who_is_stopped():
    """ABORT is not written although it is the only decision left."""
    return without_group_rows(CommandStage.AWAY, GroupWhen.ANY_FAILED)


@fault("operations=update steps=0 hangs=1 controller_stops=1 starts=cleared")
def a_deadline_waits_for_who_is_stopped():
    """A command's deadline does not count while its controller is stopped, though a rank hangs."""
    return without_group_rows(CommandStage.AWAY, GroupWhen.EXPIRED)


@fault("operations=update steps=0 hangs=1 starts=serving")
def a_hung_process_is_left_in_a_decided_command():
    """The process that keeps a decided command from its end is not ended."""
    return {(epochs, "hung"): lambda _view, _stopped, **_seconds: {}}


@fault("operations=clear steps=0 hangs=1 failures=1 starts=serving")
def who_hangs_as_it_settles_is_taken_for_one_that_waits():
    """A participant that has stopped after an abort is never late, though all have stopped."""
    real, stopped = epochs.late, (StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED)

    def late(view: View) -> list[int]:
        words = {rank: view.of_command(rank) for rank in real(view)}
        return [rank for rank, word in words.items() if word is None or word.code not in stopped]

    return {(epochs, "late"): late}


@fault("operations=update steps=0 failures=1 give_ups=1 rank_crashes=1 starts=serving")
def a_repair_begins_before_a_process_has_ended():
    """A FAULTED rank is repaired although another process is leaving its place in the group."""
    return {(group, "_is_due"): lambda known: known.due}


@fault("operations=update steps=0 rank_crashes=1 starts=serving")
def a_rank_joins_with_what_it_held():
    """A rank joins the new epoch before it has given back what it held in the old one."""
    return {(command_events, "leave"): lambda _machines: command_events.WayOut()}


@fault("operations=hot_update steps=0 controller_stops=2 starts=serving fine=True")
def a_stopped_controller_is_overruled():
    """ABORT is written in the place of a stopped controller although all are PREPARED."""
    return with_group_row(standing_in(GroupWhen.PREPARED))


@fault("operations=update steps=0 starts=serving fine=True")
def a_group_decides_without_the_role():
    """ABORT is written beside a controller that goes on, before anything failed."""
    lacks = (GroupWhen.STANDS_IN, GroupWhen.LACKS_A_WORD)
    return with_group_row(GroupRow(CommandStage.AWAY, lacks, GroupTodo.LOOK, Writes.ABORT))


@fault("operations=clear commands=2 steps=0 failures=1 controller_stops=2 starts=serving")
def a_decision_in_its_place_comes_late():
    """The next command is written while a rank is about to abort the one before it."""
    return {(controller_moves, "stands_in_without_waiting"): True}


@fault("operations=update steps=0 controller_crashes=1 starts=serving")
def a_committed_word_is_stored_before_its_record():
    """Whoever dies in between leaves a word that names nothing."""
    return {(controller_moves, "record_before_word"): False}


@fault("operations=update steps=0 rank_crashes=1 controller_crashes=1 starts=serving")
def a_record_is_written_over_the_one_that_is_needed():
    """Until its own word is stored, no process knows what is committed."""
    real = committed_record.named_by
    return {(committed_record, "place_to_write"): lambda word, records: real(word, records) or 0}


@fault("operations=update steps=0 rank_crashes=1 starts=serving")
def a_new_epoch_forgets_what_the_group_served():
    """Recovery begins with empty hands, and stays so."""
    return {(epochs, "restored_version"): lambda _view, **_named: None}


@fault("operations=clear steps=0 rank_crashes=1 starts=serving")
def a_new_epoch_restores_what_was_cleared():
    """Recovery loads the committed version, although its memory belongs to whoever cleared it."""
    return {(epochs, "restored_version"): lambda _view, *, committed, **_named: committed}


@fault("operations=clear steps=0 rank_crashes=2 starts=serving")
def the_goal_does_not_outlive_the_epoch():
    """What is to be restored is not stored, and the next death finds an older version."""
    real = epochs.goal_word
    return {
        (epochs, "goal_word"): lambda view, goal, **known: (
            real(view, goal, **known) if view.unstored else None
        )
    }


@fault("operations=update steps=0 rank_crashes=1 starts=serving give_ups=1")
def the_dead_are_asked_what_they_hold():
    """What a rank holds in the middle of a command counts as what the group was before it."""
    real = epochs.restored_version

    def restored_version(
        view: View, *, asked: str | None, committed: str | None, served: bool | None, of_admission: bool
    ) -> str | None:
        del served
        return real(view, asked=asked, committed=committed, served=False, of_admission=of_admission)

    return {(epochs, "restored_version"): restored_version}


@fault("operations=update steps=0 rank_crashes=2 controller_crashes=1 starts=serving")
def nobody_is_owed_anything_before_the_restore():
    """A command in an epoch that was not restored yet counts as given to a cleared group."""
    return {(epochs, "unrestored"): lambda _view: False}


@fault("operations=update commands=0 steps=0 rank_crashes=1 failures=1 starts=serving")
def a_restore_is_tried_but_once():
    """A restore that failed for a reason that may pass leaves the group without weights."""
    real = group.CONDITIONS[GroupWhen.OWED]
    return where({GroupWhen.OWED: lambda state, *found: not state.failed and real(state, *found)})


@fault("operations=update commands=0 steps=0 rank_crashes=1 failures=2 starts=serving")
def a_restore_is_tried_for_ever():
    """Nobody counts how often a restore has failed."""
    real = group.CONDITIONS[GroupWhen.OWED]
    return where({GroupWhen.OWED: lambda state, *found: real(replace(state, failed=0), *found)})


@fault("operations=update commands=0 steps=0 rank_crashes=2 failures=1 starts=serving")
def a_death_between_two_attempts_ends_the_debt():
    """What an aborted restore was to bring back is not looked at when the next epoch begins."""
    real = epochs.restored_version

    def restored_version(view: View, **known: Any) -> str | None:
        forgotten = view.command._replace(owes=False)
        return real(replace(view, command=forgotten), **{**known, "served": False, "of_admission": False})

    return {(epochs, "restored_version"): restored_version}


@fault("operations=clear,update commands=1 steps=0 rank_crashes=1 failures=2 starts=serving")
def a_command_between_two_attempts_is_undone():
    """A restore is tried again although somebody has commanded the group since."""
    real = epochs.unrestored

    def unrestored(view: View) -> bool:
        owes = view.command.owes or not view.command.operation.is_commit
        return real(replace(view, command=view.command._replace(owes=owes)))

    return {(epochs, "unrestored"): unrestored}


@fault("operations=clear commands=1 steps=0 failures=2 starts=serving")
def a_faulted_rank_is_left_alone():
    """A rank whose teardown failed waits until a controller commands the group."""
    return where({GroupWhen.FAULTED: lambda *_found: False})


@fault("operations=clear commands=1 steps=0 failures=6 starts=serving")
def a_faulted_rank_is_cleared_for_ever():
    """How often a repair has failed is not counted."""
    return where({GroupWhen.MAY_REPAIR: lambda *_found: True})


@fault("operations=clear commands=1 steps=0 failures=2 starts=serving")
def a_faulted_rank_is_replaced_at_once():
    """A process is ended although its teardown was not tried again."""
    return where({GroupWhen.MAY_REPAIR: lambda *_found: False})


@fault("operations=update commands=0 steps=0 rank_crashes=1 failures=2 starts=serving")
def a_repair_ends_the_debt():
    """The clear that repairs a rank counts as a command of the group: what it served is not restored."""
    real = epochs.unrestored

    def unrestored(view: View) -> bool:
        return real(view) and view.command.operation is not Operation.CLEAR

    return {(epochs, "unrestored"): unrestored}


@fault("operations=clear,update commands=2 steps=0 halves=True starts=serving")
def another_version_is_left_alone():
    """A rank that lacks its KV cache alone keeps its weights, whatever version it is told to load."""
    real = command_events.narrowed

    def narrowed(request: Any, tags: Any, at: joint.JointState, *, same_version: bool, reload: bool) -> Any:
        del same_version
        return real(request, tags, at, same_version=True, reload=reload)

    return {(command_events, "narrowed"): narrowed}


@fault("operations=clear,update commands=2 steps=1 halves=True starts=serving")
def half_a_rank_steps():
    """A commit that leaves one half away counts as one that brings all a step needs."""
    real = rank.take_in
    return {(rank, "take_in"): lambda state, happened: real(state, replace(happened, serves=True))}


@fault("operations=update steps=0 halves=True rank_crashes=1 starts=cleared")
def half_a_group_is_restored_whole():
    """A new epoch brings back what a commit about one half was never asked to bring."""
    return {(epochs, "_commit_serves"): lambda _view: True}


@fault("operations=clear steps=0 halves=True failures=1 starts=serving")
def a_failed_clear_of_a_half_takes_both():
    """Who failed gives back both halves, beside ranks that are done and keep the other one."""
    everything = property(lambda _asked: ALL_TAGS)
    return {(command_events.Asked, "gives_back"): everything}


@fault("operations=clear steps=0 halves=True failures=1 helpers=1 starts=serving")
def who_saw_only_the_abort_takes_both():
    """A helper that had not begun does not ask the arguments what the others give back."""
    real = command_events.called_off

    def called_off(tags: Any, *, of_admission: bool, **_said: Any) -> Any:
        return real(tags, clears=False, of_admission=of_admission)

    return {(command_events, "called_off"): called_off}


@fault("operations=update steps=0 halves=True starts=cleared")
def a_kv_cache_alone_arrives_before_the_decision():
    """PREPARED of a KV cache alone is a phase: its machine says NORMAL behind the decision, not before it."""
    real = command_events.finish

    def finish(asked: command_events.Asked, machines: command_events.Machines) -> None:
        at = machines.joint
        real(asked, machines)
        if at.weights is not WeightState.UPDATING and at.kv is KVState.UPDATING:
            machines.fire(KVEvent.REBUILT)

    return {(command_events, "finish"): finish}


@fault("operations=hot_update steps=0 starts=serving")
def a_rank_stages_before_all_have_looked():
    """A rank loads as soon as it has begun a hot update itself, whatever the others have looked at."""
    return with_row(LookRow(Phase.STAGING, (), Todo.STAGE))


@fault("operations=update commands=1 steps=0 failures=1 rank_crashes=1 starts=serving")
def what_was_overwritten_is_restored():
    """A restore takes whatever its source holds under the label that it had."""
    return {(epochs, "is_other_content"): lambda **_known: False}


# -- held groups -----------------------------------------------------------------------------------


@fault("operations=hold steps=1 starts=serving")
def a_held_rank_steps():
    """Whoever holds all that a step needs may step."""
    real = rank.take_in
    return {(rank, "take_in"): lambda state, happened: real(state, replace(happened, held=False))}


@fault("operations=hold steps=1 starts=serving")
def a_hold_finds_all_standing():
    """What a release finds is expected of a hold: it is accepted as it begins."""
    conditions = {
        When.RELEASES: lambda state: state.operation.is_of_admission,
        When.HELD: lambda _state: True,
    }
    return {(rank, "OF_THE_RANK"): {**rank.OF_THE_RANK, **conditions}}


@fault("operations=hold commands=1 steps=1 rank_crashes=1 starts=serving")
def a_new_epoch_begins_open():
    """A rank that joins does not ask the committed word whether the group is held."""
    real = rank.join
    return {(rank, "join"): lambda *words, steps, held: real(*words, steps=steps, held=held and False)}


@fault("operations=hold commands=1 steps=0 rank_crashes=1 starts=serving")
def an_epoch_loses_a_hold():
    """The epoch is raised before the committed word says that the group is held."""
    real, stage_of = epochs.goal_word, group.stage_of

    def goal_word(view: View, goal: str | None, *, held: bool) -> Any:
        return None if held and view.unstored else real(view, goal, held=held)

    def stage(view: View, known: Known) -> CommandStage:
        found, unheard = stage_of(view, known), known.after is After.HELD and known.may is May.KEEP
        return CommandStage.DECIDED if found is CommandStage.UNSTORED and unheard else found

    return {(epochs, "goal_word"): goal_word, (group, "stage_of"): stage}


@fault("operations=hold,clear commands=2 steps=0 rank_crashes=1 starts=serving")
def the_goal_of_a_held_group_is_open():
    """The committed word that says that nothing is to be restored says no more that the group is held."""
    real = epochs.goal_word

    def goal_word(view: View, goal: str | None, *, held: bool) -> Any:
        word = real(view, goal, held=held)
        return word if word is None or view.unstored else word._replace(held=False)

    return {(epochs, "goal_word"): goal_word}


@fault("operations=hold,update commands=2 steps=1 starts=serving")
def an_update_ends_a_hold():
    """A command that says nothing about admission lets the group serve."""
    real = holding.held_after

    def held_after(after: After, *, held: bool) -> bool:
        return after is not After.AS_BEFORE and real(after, held=held)

    return {(holding, "held_after"): held_after, (rank_moves, "held_after"): held_after}


@fault("operations=update afters=True commands=1 steps=0 starts=serving")
def an_update_that_holds_is_written_as_open():
    """What an update leaves of admission is known to its ranks alone."""
    real = decide.committed
    return {(decide, "committed"): lambda view, version, **_held: real(view, version)}


@fault("operations=hold commands=1 steps=0 controller_crashes=1 starts=serving")
def a_successor_holds_the_group():
    """A hold that all have prepared is committed, although its caller is gone."""
    return without_group_rows(CommandStage.UNDECIDED, GroupWhen.OF_ADMISSION)


@fault("operations=hold commands=1 steps=0 rank_crashes=1 controller_crashes=1 starts=serving")
def a_hold_takes_the_debt_away():
    """A hold counts as a command that makes the group what it is: it stays CLEARED."""
    real = epochs.unrestored
    return {(epochs, "unrestored"): lambda view: real(view) and not view.command.operation.is_commit}


@fault("operations=hold commands=1 steps=0 rank_crashes=1 controller_crashes=1 starts=serving")
def a_decision_leaves_the_debt_to_the_arguments():
    """What is owed stands in the command's arguments alone, which say nothing where they are damaged."""
    real = decide.decided

    def decided(view: View, *, commit: bool) -> CommandWord:
        return real(view, commit=commit)._replace(owes=False)

    return {(decide, "decided"): decided}


@fault("operations=update commands=1 steps=0 failures=1 restores=True starts=serving")
def an_update_that_failed_owes_nothing():
    """The word of an update in place never says that it owes the group the version before."""
    return {(epochs, "owes_version_before"): lambda _operation, **_known: False}


@fault("operations=clear,update commands=2 steps=0 failures=1 restores=True starts=serving")
def a_cleared_group_is_owed_what_it_served_once():
    """An update that fails owes the group a version, whatever it held before."""

    def owes(operation: Operation, *, on_failure: OnFailure, **_known: Any) -> bool:
        return operation is Operation.UPDATE and on_failure is OnFailure.RESTORE

    return {(epochs, "owes_version_before"): owes}


@fault("operations=update commands=1 steps=0 give_ups=1 restores=True starts=serving")
def what_was_not_touched_is_restored():
    """An update that was aborted before its first byte owes the group what it has."""

    def unrestored(view: View) -> bool:
        return view.command.owes and view.committed.version_id is not None

    return {(epochs, "unrestored"): unrestored}


@fault("operations=hold,release,clear commands=3 steps=0 starts=serving")
def what_cannot_serve_is_released():
    """A release asks nothing of what the group has in memory."""
    real = holding.asked_to_release

    def asked_to_release(hold: Any, *, missing: Any, **asked: Any) -> Any:
        del missing
        return real(hold, missing=(), **asked)

    return {
        (holding, "asked_to_release"): asked_to_release,
        (command_events, "objection"): lambda _asked, _machines: None,
    }


@fault("operations=hold,clear commands=2 steps=0 leases=1 starts=serving")
def a_lease_serves_whatever_is_there():
    """A lease that has run out releases a group whose memory was taken."""
    real = holding.lease_ends

    def asked_to_release(_hold: Any, *, held: bool, **_asked: Any) -> holding.Answer:
        return holding.Answer.COMMAND if held else holding.Answer.NOTHING

    return {
        (holding, "lease_ends"): lambda hold, now_ns, *, whole, **known: real(
            hold, now_ns, whole=True, **known
        ),
        (holding, "asked_to_release"): asked_to_release,
        (command_events, "objection"): lambda _asked, _machines: None,
    }


@fault("operations=hold commands=1 steps=0 leases=1 starts=serving")
def a_lease_that_ran_out_is_left_alone():
    """No process ends a hold whose owner does not come back."""
    return {(holding, "lease_ends"): lambda *_asked, **_known: False}


@fault("operations=hold,update commands=2 steps=0 failures=1 halves=True starts=serving")
def a_hold_gives_memory_back():
    """A hold that fails drops what the group has, as an update that has touched it does."""
    real = command_events.keep

    def keep(asked: command_events.Asked, machines: command_events.Machines) -> command_events.WayOut:
        if asked.request is not Request.HOLD:
            return real(asked, machines)
        return command_events.drop(asked, machines)._replace(plan=None)

    return {(command_events, "keep"): keep}


@fault("ranks=1 operations=hold,clear commands=2 steps=0 failures=2 rank_crashes=1 starts=serving")
def a_hold_is_restored():
    """A hold that was decided counts as one that brings the committed version, whatever a rank had before."""
    real = epochs.restored_version

    def restored_version(view: View, *, of_admission: bool, **known: Any) -> str | None:
        del of_admission
        return real(view, **known)

    return {(epochs, "restored_version"): restored_version}


@fault("operations=hold,update commands=2 steps=0 rank_crashes=1 starts=serving")
def a_held_group_counts_as_cleared():
    """What a command finds under a hold counts as memory that its caller has taken."""
    real = decide.resident_for

    def resident_for(view: View, operation: Operation, tags: Any) -> decide.Resident | None:
        found = real(view, operation, tags)
        taken = decide.Resident(WeightState.CLEARED, KVState.CLEARED)
        return taken if found is not None and view.committed.held else found

    return {(decide, "resident_for"): resident_for}


@fault("operations=hold,clear commands=2 steps=0 starts=serving")
def a_hold_needs_what_serves():
    """A rank that lacks something refuses to be held."""
    real = command_events.objection

    def objection(asked: command_events.Asked, machines: command_events.Machines) -> str | None:
        lacks = asked.request is Request.HOLD and asked.before.weights is not WeightState.NORMAL
        return "it lacks something" if lacks else real(asked, machines)

    return {(command_events, "objection"): objection}


@fault("operations=hold,update commands=2 steps=0 failures=1 starts=serving")
def an_abort_opens_a_held_group():
    """The undo of a command under a hold lets the rank step."""
    real = rank.take_in

    def take_in(state: RankState, happened: Happened) -> Move:
        opens = happened.event in (Event.KEPT, Event.CLEARED)
        return real(replace(state, held=state.held and not opens), happened)

    return {(rank, "take_in"): take_in}


@fault("operations=hold commands=1 steps=0 failures=1 starts=serving")
def a_hold_that_fails_holds():
    """A rank is held as soon as it stands, whatever is decided."""
    real = rank.take_in

    def take_in(state: RankState, happened: Happened) -> Move:
        stands = state.operation is Operation.HOLD and happened.event is Event.FINISHED
        return real(replace(state, held=state.held or stands), happened)

    return {(rank, "take_in"): take_in}


@fault("operations=hold commands=2 steps=0 owners=True starts=serving")
def another_renews_a_hold():
    """A hold is renewed by any that asks for one."""
    real = holding.asked_to_hold

    def asked_to_hold(hold: Any, *, held: bool, owner: str) -> holding.Answer:
        del owner
        return real(hold, held=held, owner="" if hold is None else hold.owner)

    return {(holding, "asked_to_hold"): asked_to_hold}


@fault("operations=hold,release commands=2 steps=0 owners=True starts=serving")
def another_releases_a_hold():
    """A hold is released by any that asks for that."""
    real = holding.asked_to_release
    return {(holding, "asked_to_release"): lambda hold, **asked: real(hold, **{**asked, "forced": True})}


@fault("operations=hold,release commands=2 steps=0 owners=True starts=serving")
def an_operator_is_refused():
    """A release that is forced asks for the owner, too."""
    real = holding.asked_to_release
    return {(holding, "asked_to_release"): lambda hold, **asked: real(hold, **{**asked, "forced": False})}


@fault("operations=hold,release commands=3 steps=0 owners=True starts=serving")
def a_hold_that_ended_is_in_force():
    """A command that names a hold is taken under any."""

    def is_in_force(_hold: Any, hold_id: str | None, *, held: bool) -> bool:
        return hold_id is None or held

    return {(holding, "is_in_force"): is_in_force}


@fault("operations=hold commands=1 steps=0 rank_crashes=1 owners=True starts=serving")
def a_new_epoch_forgets_whose_hold_it_is():
    """The record of a hold says that there is one, and no more."""
    return {(admission, "begun_by"): lambda _now, *, held: None}


@fault("operations=hold commands=2 steps=0 leases=1 owners=True starts=serving")
def a_lease_is_not_read_again():
    """A lease that was renewed before the role was had is ended as it was seen first."""
    return {(admission, "lease_is_read_again"): False}


@fault("operations=hold commands=1 steps=0 leases=1 owners=True starts=serving")
def a_lease_that_is_to_stay_serves():
    """What is to become of a hold when its lease runs out is not asked."""
    real = holding.lease_ends

    def lease_ends(hold: Any, now_ns: int, **known: bool) -> bool:
        return real(hold and structs.replace(hold, on_lease=OnLease.SERVE), now_ns, **known)

    return {(holding, "lease_ends"): lease_ends}


@fault("operations=hold,update commands=2 steps=0 requests=True starts=serving")
def what_stands_is_drained():
    """A command under a hold waits for requests that go on only after the release."""
    return {(rank_moves, "in_flight_objection"): lambda _policy, **_known: None}


@fault("operations=hold,update commands=2 steps=0 requests=True starts=serving")
def the_usual_policy_counts_under_a_hold():
    """A command that says nothing about requests ends those that the hold has kept."""
    return {(holding, "in_flight_under"): lambda _hold, asked, usual: asked or usual}


@fault("operations=hold commands=1 steps=1 failures=1 requests=True starts=serving")
def blocks_are_forgotten_before_the_decision():
    """A hold forgets the blocks of the KV cache as soon as a rank stands."""
    return {(rank_moves, "blocks_are_forgotten_at_once"): True}


def main() -> None:
    """Print what the exploration makes of every fault."""
    for each in FAULTS:
        began = time.monotonic()
        found = hunt(each)
        way = found.violation
        moves = "MISSED" if way is None else f"{len(way.moves):3} moves"
        broken = "" if way is None else way.broken
        print(f"{each.name:36} {moves} {found.states:7} {time.monotonic() - began:5.2f} s  {broken}")  # noqa: T201 - a table for whoever runs this file


if __name__ == "__main__":
    main()
