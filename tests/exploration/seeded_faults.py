"""Faults to be seeded into the real protocol functions, one at a time, each with bounds that must catch it.

One for each rule of the explorer, which shows that the rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from explorer import admission, controller_moves, rank_moves
from explorer.answers import check_refusals
from explorer.scope import Scope
from explorer.search import Findings, explore
from wsm.states import command_events, decide, epochs, group, holding, joint, rank
from wsm.states.group import (
    CommandStage,
    GroupRow,
    GroupTodo,
    GroupWhen,
    Writes,
)
from wsm.states.phases import Effect, Event, Happened, LookRow, Move, OutcomeRow, Phase, RankState, Todo, When
from wsm.states.table import Row
from wsm.states.view import View
from wsm.states.vocabulary import ALL_TAGS, KVEvent, WeightState
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
    """

    name: str
    seed: Seed
    scope: str


FAULTS: list[Fault] = []


def fault(scope: str) -> Callable[[Seed], Seed]:
    def register(seed: Seed) -> Seed:
        FAULTS.append(Fault(seed.__name__, seed, scope))
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


@fault("operations=clear steps=1 give_ups=1 starts=serving")
def abort_resume():
    """A parked rank that sees ABORT serves on at once."""
    return with_row(LookRow(Phase.PARKING, (When.ABORTED,), Todo.KEEP, Phase.SETTLING))


@fault("operations=update steps=0 failures=1 starts=serving")
def deadline_prepared():
    """A PREPARED rank whose deadline expires says FAILED."""
    return {
        (rank, "OUTCOMES"): (
            OutcomeRow(Phase.PREPARED, Event.EXPIRED, (), Phase.FAILED, StatusCode.FAILED),
            OutcomeRow(Phase.PREPARED, Event.FAILED, (), Phase.FAILED, StatusCode.FAILED),
            *rank.OUTCOMES,
        )
    }


@fault("operations=clear commands=2 steps=0 starts=serving")
def next_early():
    """The next command is written before every rank is done with the last one."""

    def is_over(view: View) -> bool:
        return view.command.operation is not Operation.UPDATE

    return {(decide, "is_over"): is_over}


@fault("operations=update steps=0 failures=1 starts=serving")
def local_outcome():
    """After an ABORT each rank keeps or drops by what it did itself."""
    own = (
        LookRow(Phase.STOPPED, (When.TOUCHED,), Todo.DROP, Phase.SETTLING),
        LookRow(Phase.STOPPED, (), Todo.KEEP, Phase.SETTLING),
    )
    return {(rank, "ROWS"): {**rank.ROWS, Phase.STOPPED: own}}


@fault("operations=update steps=0 give_ups=1 starts=serving")
def ready_withdraw():
    """A rank that has voted for a collective action leaves on ABORT."""
    return with_row(LookRow(Phase.VOTING, (When.ABORTED,), Todo.UNDO, Phase.STOPPING))


@fault("operations=update steps=0 rank_crashes=1 starts=serving")
def bump_loses_commit():
    """The epoch is raised before what was committed is stored."""
    lost = (GroupWhen.KEEPS, GroupWhen.LOST)
    return with_group_row(GroupRow(CommandStage.UNSTORED, lost, GroupTodo.START, Writes.EPOCH))


@fault("operations=clear steps=1 give_ups=1 starts=serving")
def no_join_in_abort():
    """A rank that stopped for an ABORT does not join the step that others are in already."""
    return waiting_instead(Phase.STOPPED, Todo.JOIN)


@fault("operations=update steps=1 rank_crashes=1 starts=serving")
def same_epoch_restart():
    """A replacement joins the epoch in which its predecessor died."""

    def join(index: int, command: CommandWord, step: StepWord, status: Any, **said: bool) -> Move:
        del step
        unused = StepWord(0, 0, StepKind.PARKED, 0)
        return real(index, command, unused, status._replace(epoch=0), **said)

    real = rank.join
    return {(rank, "join"): join}


@fault("operations=clear steps=1 starts=serving")
def no_dummy():
    """A parked rank does not join the step that others are in already."""
    return waiting_instead(Phase.PARKING, Todo.JOIN)


@fault("operations=hot_update steps=1 starts=serving")
def hot_flip_at_once():
    """A hot update's commit is followed at once, without parking."""
    return with_row(LookRow(Phase.STAGED, (When.HOT_COMMITTED,), Todo.COMMIT, Phase.COMMITTING))


def with_held(instead: Callable[..., bool]) -> dict[tuple[ModuleType, str], Any]:
    """Ask something else whether a decision is held."""
    return {(decide, "is_held"): instead}


HELD = "operations=hot_update steps=0 starts=serving"


@fault(f"{HELD} deciders=2")
def caller_is_not_asked():
    """COMMIT is written once all are PREPARED, whoever decides."""
    return with_group_row(deciding(Writes.COMMIT, GroupWhen.PREPARED))


@fault(f"{HELD} deciders=4")
def lease_counts_from_the_start():
    """A lease counts from the command's beginning."""
    return {(admission, "leases_count_from_the_start"): True}


@fault(f"{HELD} deciders=4 controller_crashes=1")
def next_controller_ends_a_lease():
    """A controller that finds a command held by a lease takes it over."""
    return with_held(lambda _view, *, leased=False: False)


@fault("operations=update steps=0 failures=1 starts=cleared")
def no_vote_is_ever_left():
    """A rank that waits for votes never learns that one will not come."""
    return {(rank, "never_ready"): lambda _view, _action: []}


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


@fault("operations=update steps=0 starts=cleared commands=2")
def over_before_it_is_stored():
    """A command is over when the ranks are, whether or not the committed version is stored."""
    return {(decide, "is_over"): lambda view: not decide.waiting_on(view)}


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


@fault("operations=update steps=0 starts=serving give_ups=1")
def whoever_aborts_drops():
    """An abort takes weights away that nobody has touched."""
    return {(rank, "any_touched"): lambda _view: True}


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


@fault("operations=update steps=0 controller_crashes=1 starts=cleared")
def a_successor_waits_for_ever():
    """A successor does not decide what was left undecided."""
    return with_group_row(GroupRow(CommandStage.UNDECIDED, (GroupWhen.INHERITS,), GroupTodo.WAIT))


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


@fault("operations=clear commands=2 steps=0 failures=1 controller_stops=2 starts=serving")
def a_decision_in_its_place_comes_late():
    """The next command is written while a rank is about to abort the one before it."""
    return {(controller_moves, "stands_in_without_waiting"): True}


@fault("operations=update steps=0 controller_crashes=1 starts=serving")
def a_committed_word_is_stored_before_its_record():
    """Whoever dies in between leaves a word that names nothing."""
    return {(controller_moves, "record_before_word"): False}


@fault("operations=update steps=0 rank_crashes=1 starts=serving")
def a_new_epoch_forgets_what_the_group_served():
    """Recovery begins with empty hands, and stays so."""
    return {(epochs, "restored_version"): lambda _view, **_named: None}


@fault("operations=update steps=0 rank_crashes=2 controller_crashes=1 starts=serving")
def nobody_is_owed_anything_before_the_restore():
    """A command in an epoch that was not restored yet counts as given to a cleared group."""
    return {(epochs, "unrestored"): lambda _view: False}


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


@fault("operations=clear steps=0 halves=True failures=1 starts=serving")
def a_failed_clear_of_a_half_takes_both():
    """Who failed gives back both halves, beside ranks that are done and keep the other one."""
    everything = property(lambda _asked: ALL_TAGS)
    return {(command_events.Asked, "gives_back"): everything}


@fault("operations=hot_update steps=0 starts=serving")
def a_rank_stages_before_all_have_looked():
    """A rank loads as soon as it has begun a hot update itself, whatever the others have looked at."""
    return with_row(LookRow(Phase.STAGING, (), Todo.STAGE))


@fault("operations=update commands=1 steps=0 failures=1 rank_crashes=1 starts=serving")
def what_was_overwritten_is_restored():
    """A restore takes whatever its source holds under the label that it had."""
    return {(epochs, "is_other_content"): lambda **_known: False}


@fault("operations=hold steps=1 starts=serving")
def a_held_rank_steps():
    """Whoever holds all that a step needs may step."""
    real = rank.take_in
    return {(rank, "take_in"): lambda state, happened: real(state, replace(happened, held=False))}


@fault("operations=hold,clear commands=2 steps=0 rank_crashes=1 starts=serving")
def the_goal_of_a_held_group_is_open():
    """The committed word that says that nothing is to be restored says no more that the group is held."""
    real = epochs.goal_word

    def goal_word(view: View, goal: str | None, *, held: bool) -> Any:
        word = real(view, goal, held=held)
        return word if word is None or view.unstored else word._replace(held=False)

    return {(epochs, "goal_word"): goal_word}


@fault("operations=update afters=True commands=1 steps=0 starts=serving")
def an_update_that_holds_is_written_as_open():
    """What an update leaves of admission is known to its ranks alone."""
    real = decide.committed
    return {(decide, "committed"): lambda view, version, **_held: real(view, version)}


@fault("operations=hold commands=1 steps=0 controller_crashes=1 starts=serving")
def a_successor_holds_the_group():
    """A hold that all have prepared is committed, although its caller is gone."""
    return without_group_rows(CommandStage.UNDECIDED, GroupWhen.OF_ADMISSION)


@fault("operations=update commands=1 steps=0 give_ups=1 restores=True starts=serving")
def what_was_not_touched_is_restored():
    """An update that was aborted before its first byte owes the group what it has."""

    def unrestored(view: View) -> bool:
        return view.command.owes and view.committed.version_id is not None

    return {(epochs, "unrestored"): unrestored}


@fault("operations=hold commands=1 steps=0 leases=1 starts=serving")
def a_lease_that_ran_out_is_left_alone():
    """No process ends a hold whose owner does not come back."""
    return {(holding, "lease_ends"): lambda *_asked, **_known: False}


@fault("operations=hold,update commands=2 steps=0 failures=1 halves=True starts=serving")
def a_hold_gives_memory_back():
    """A hold that fails drops what the group has, as an update that has touched it does."""
    real = command_events.keep

    def keep(asked: command_events.Asked, machines: command_events.Machines) -> command_events.WayOut:
        if asked.request is not Operation.HOLD:
            return real(asked, machines)
        return command_events.drop(asked, machines)._replace(plan=None)

    return {(command_events, "keep"): keep}


@fault("operations=hold,clear commands=2 steps=0 starts=serving")
def a_hold_needs_what_serves():
    """A rank that lacks something refuses to be held."""
    real = command_events.objection

    def objection(asked: command_events.Asked, machines: command_events.Machines) -> str | None:
        lacks = asked.request is Operation.HOLD and asked.before.weights is not WeightState.NORMAL
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


@fault("operations=hold commands=2 steps=0 owners=True starts=serving")
def another_renews_a_hold():
    """A hold is renewed by any that asks for one."""
    real = holding.asked_to_hold

    def asked_to_hold(hold: Any, *, held: bool, owner: str) -> holding.Answer:
        del owner
        return real(hold, held=held, owner="" if hold is None else hold.owner)

    return {(holding, "asked_to_hold"): asked_to_hold}


@fault("operations=hold,release commands=2 steps=0 owners=True starts=serving")
def an_operator_is_refused():
    """A release that is forced asks for the owner, too."""
    real = holding.asked_to_release
    return {(holding, "asked_to_release"): lambda hold, **asked: real(hold, **{**asked, "forced": False})}


@fault("operations=hold commands=1 steps=0 rank_crashes=1 owners=True starts=serving")
def a_new_epoch_forgets_whose_hold_it_is():
    """The record of a hold says that there is one, and no more."""
    return {(admission, "begun_by"): lambda _now, *, held: None}


@fault("operations=hold commands=2 steps=0 leases=1 owners=True starts=serving")
def a_lease_is_not_read_again():
    """A lease that was renewed before the role was had is ended as it was seen first."""
    return {(admission, "lease_is_read_again"): False}


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
