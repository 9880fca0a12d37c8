"""The group's side of every command: what a process with the controller role, or without it, does next.

Theory of operation
-------------------
Every process that looks after a group asks :func:`advance`: the controller that has given a command, its
successor, a rank whose controller does not come back, and the process that keeps the group alive. They differ
in what they know (:class:`Known`) and in what they may write (:class:`May`), and in nothing else. The answer
is a :class:`GroupMove`: what to remember, what to store, in this order (arguments, record, committed word,
command word), and the next thing to do.

One table decides. :data:`ROWS` is asked whenever the words of the group have been read: of the rows of the
stage (:class:`CommandStage`) that the command is at, the first whose conditions all hold. A move stores one
command word at most; behind it the words are read again.

**All that is lost with a process is listed** (:data:`FORGOTTEN`). :meth:`GroupState.of` makes a successor's
state of the words alone.

**One decision.** A command is decided once, by a process with the role, or in the place of one that is
stopped with it. That one is a COMMIT only if every participant is PREPARED, all reports agree and, where a
caller decides, the caller has said so. The version is stored before the command can be over.

**Where no word is shared** (:func:`.view.view_of_answers`), a decision is what one rank has heard, or what
the driver has recorded before it told the first one. So a successor decides nothing before each living rank
has answered it.

**A controller that does not come back** is followed by a successor, or by the group itself. The role's kernel
lock proves that it is gone; a timeout never does. Its words are enough: what is decided is completed; what is
not is committed where all are PREPARED, if it is an update and its controller's to decide.

**A decision in another's place** (stage AWAY, ABORT) is written where it is the only one left: a participant
that failed is never PREPARED later. It is stored while no next command can be (the lock of the stand-in).
While all are PREPARED, nothing is decided in the place of a process that may go on.

**An epoch ends in three words.** What is undecided is decided, what the group must serve again is stored, and
then the epoch is raised. A process that dies in between leaves words of which its successor makes the same
three.

**The order behind a command**: a FAULTED rank is repaired before the group is restored, the group is
restored before the lease of a hold ends, and all that before a caller's next command.

Rows and conditions alone; knows no clock, no process and no report, but what :class:`Known` says of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from wsm.errors import InternalError
from wsm.states import decide, epochs, holding
from wsm.states.decide import Role
from wsm.states.epochs import Cause
from wsm.states.holding import Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, OnFailure, TableKey, WeightState
from wsm.states.words import CommandWord, CommittedWord, Decider, Operation


class May(enum.Enum):
    """What a process may write."""

    STAND_IN = "stand in"  # a decision that is owed, and the version that it commits
    END_LEASES = "end leases"  # that, and the release of a hold whose lease is over: where no process keeps
    DRIVE = "drive"  # its caller's commands, their decisions, and one restore of what a failed one owes
    KEEP = "keep"  # all but callers' commands: decisions, epochs, restores, repairs, ends of leases


class Writes(enum.Enum):
    """What a row stores."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"
    VERSION = "the committed version"
    GOAL = "the goal"
    EPOCH = "the next epoch"
    REQUEST = "a caller's command"
    RESTORE = "a restore"
    REPAIR = "a clear of all ranks"
    RELEASE = "a release"


_OWED = frozenset({Writes.COMMIT, Writes.ABORT, Writes.VERSION})

#: What the rows of each process may store (:mod:`.check`).
PERMITS: dict[May, frozenset[Writes]] = {
    May.STAND_IN: _OWED,
    May.END_LEASES: _OWED | {Writes.RELEASE},
    May.DRIVE: _OWED | {Writes.REQUEST, Writes.RESTORE},
    May.KEEP: _OWED | {Writes.GOAL, Writes.EPOCH, Writes.RESTORE, Writes.REPAIR, Writes.RELEASE},
}


class Opens(NamedTuple):
    """A command that is given: its word, and what its arguments say of the group.

    `before`: what the group is to be again if a rank is lost in it. `restores`: whether it brings back what
    the group is owed, or repairs a rank for that. `on_failure`: what its caller wants of the version before,
    should it fail. `restorable`: whether every rank can load that version again.
    """

    operation: Operation
    decider: Decider = Decider.CONTROLLER
    before: WeightState = WeightState.CLEARED
    restores: bool = False
    on_failure: OnFailure = OnFailure.CLEAR
    restorable: bool = True


class GroupRecord(NamedTuple):
    """What the record of a committed word says.

    `of_command`: whether the command at hand has brought that, and its reports say how; else the group has
    lost what it held, and keeps its hold.
    """

    version: str | None
    of_command: bool


@dataclass(frozen=True)
class Known:
    """What a process knows besides the words: plain values, so that time and deaths are inputs.

    `role`: the controller role: OWN if this process has it.
    `wanted`: the command that it is to give, admitted already; None: none.
    `verdict`: what the caller has said of a command that it decides: whether to commit it; None: nothing.
    A caller that comes back to a command of another process says something: that is no command inherited.
    `agree`: whether the reports of all PREPARED participants name the same version and manifest; None: they
    are not all there. Looked at only when all are PREPARED.
    `leased`, `lease_over`: whether a lease holds the decision; whether it is over, counted from all PREPARED.
    `dead`: participants without a living process; for the one that replaces them: those that it has reaped.
    `hangs`: whether a rank is in an action beyond the action's deadline.
    `stuck`: whether the participants that a decided command waits for will not answer, as far as is seen.
    `replaced`: whose processes are to be ended and replaced first (:func:`.epochs.whom_to_replace`).
    `leaving`: whether processes may be about to end because of which others broke: no epoch ends before that,
    and no restore, repair or release begins.
    `version`, `version_known`: what the command brings if it is committed; whether that is known by now.
    `of_admission`, `restores`: whether the command is a hold or a release; whether it restores what is owed.
    `served`: whether the group served at admission, or is owed that; None: the arguments are gone.
    `hold`, `now_ns`: what is known of the hold in force; the host's monotonic clock, in ns.
    `restore_limit`, `repair_limit`: how many restores of the group, or repairs of a FAULTED rank, may fail.
    `due`: whether the wait for the next of these attempts is over.
    """

    may: May
    role: Role = Role.OWN
    wanted: Opens | None = None
    expired: bool = False
    gave_up: bool = False
    verdict: bool | None = None
    agree: bool | None = None
    leased: bool = False
    lease_over: bool = False
    dead: frozenset[int] = frozenset()
    hangs: bool = False
    stuck: bool = False
    replaced: Mapping[int, Cause] = field(default_factory=dict)
    leaving: bool = False
    version: str | None = None
    version_known: bool = True
    after: After = After.AS_BEFORE
    of_admission: bool = False
    restores: bool = False
    served: bool | None = None
    committed: str | None = None
    hold: Hold | None = None
    now_ns: int = 0
    restore_limit: int = 0
    repair_limit: int = 0
    due: bool = True


@dataclass(frozen=True)
class GroupState:
    """Everything that a process must remember to look after a group.

    `follows`: whether the process sees it through to its end.
    `mine`: whether this process has given it; another's is decided as a successor decides it.
    `told`: whether its caller was told that all are PREPARED; from then on the lease alone counts.
    `repairs`: whether it is this process's attempt to repair a FAULTED rank.
    `failed`, `repaired`: how many restores have failed in this epoch, and how many repairs of a rank.
    """

    command: CommandWord
    follows: bool = False
    mine: bool = False
    told: bool = False
    repairs: bool = False
    failed: int = 0
    repaired: int = 0

    @classmethod
    def of(cls, view: View) -> GroupState:
        """Return the state of a process that knows the words alone, as a successor does."""
        opened = view.command.operation is not Operation.NONE
        return cls(view.command, follows=opened and not decide.is_over(view))


#: What no word says, and what a process that has just begun does not know: it begins at zero.
FORGOTTEN = ("mine", "told", "repairs", "failed", "repaired")


class GroupTodo(enum.Enum):
    """The next thing to do."""

    LOOK = "look"  # something was stored: read the words again
    WAIT = "wait"  # until a word changes, a process ends, or a deadline passes
    READ_REPORTS = "read the reports"  # all are PREPARED, and not all reports are there
    TELL_PREPARED = "tell its caller"  # that all are PREPARED
    HELD = "held"  # a lease holds the decision, and it needs no process: give the role back, and say so
    END = "end"  # the command is over: tell its caller
    UNSETTLED = "unsettled"  # the command is decided, and ranks do not answer: tell its caller
    OVERTAKEN = "overtaken"  # the epoch has ended, or another command is given: tell its caller
    TAKE_ROLE = "take the role"  # if it is free, and look again
    GIVE_ROLE_BACK = "give the role back"  # nothing is to be done with it
    FAIL = "fail"  # the deadline has passed: every participant that still may says FAILED
    NAME = "name"  # say which process must be ended; nothing may be decided in its place
    REPLACE = "replace"  # end and reap the processes of these participants
    START = "start"  # start the processes of those that are dead, in the present epoch


@dataclass(frozen=True)
class GroupMove:
    """What follows: what to remember, what to store in this order, and the next thing to do.

    `arguments` are stored before the command word; their command begins then. The record is stored before
    the committed word, which names it, and the command word last. Where arguments of a dead controller lie
    under the sequence of `command`, the shell takes a later one, and says so with
    :func:`dataclasses.replace`. `replaced`: the participants of REPLACE, and why.
    """

    state: GroupState
    todo: GroupTodo
    arguments: Opens | None = None
    record: GroupRecord | None = None
    committed: CommittedWord | None = None
    command: CommandWord | None = None
    replaced: Mapping[int, Cause] = field(default_factory=dict)


class CommandStage(TableKey):
    """Where the command at hand is, for a process with the controller role; AWAY: for one without it."""

    AWAY = "away"
    JOINING = "joining"
    UNDECIDED = "undecided"
    UNSTORED = "unstored"
    DECIDED = "decided"
    OVER = "over"


class GroupWhen(TableKey):
    """A condition of a row; its value is the text of the diagram."""

    # of the process
    STANDS_IN = "this process only stands in"
    DRIVES = "this process commands"
    KEEPS = "this process keeps the group"
    MAY_RELEASE = "this process ends leases"
    MAY_RESTORE = "this process restores"
    FOLLOWS = "this process follows the command"
    INHERITS = "the command is another's"
    # of the role
    FREE = "the role is free"
    STALLED = "the role's process hangs"
    # of the command
    LACKS_A_WORD = "a word is due"
    IS_DECIDED = "it is decided"
    OF_ADMISSION = "a hold or a release"
    CONTROLLER_DECIDES = "its controller decides"
    UNHEARD = "a living rank has not answered"
    HELD = "a lease holds the decision"
    PREPARED = "all are PREPARED"
    UNREAD = "reports are missing"
    DIFFER = "reports differ"
    ANY_FAILED = "a participant failed"
    SAID_COMMIT = "its caller said COMMIT"
    GIVEN_UP = "it is given up"
    EXPIRED = "its deadline passed"
    NOT_TOLD = "its caller was not told"
    STUCK = "ranks do not answer"
    # of the group
    LOST = "a rank is lost"
    DEAD = "a process is dead"
    TO_REPLACE = "a process is to be replaced"
    GOAL_UNWRITTEN = "the goal is not stored"
    FAULTED = "a rank is FAULTED"
    MAY_REPAIR = "repairs are left"
    OWED = "a version is owed, restores are left"
    LAPSED = "the lease of the hold is over"
    WANTED = "a command is wanted"


#: What each stage means, in one line.
STAGES: dict[CommandStage, str] = {
    CommandStage.AWAY: "another process has the controller role, or none has",
    CommandStage.JOINING: "the epoch has no command, and not all participants have joined it",
    CommandStage.UNDECIDED: "the participants work for the command, or all are PREPARED",
    CommandStage.UNSTORED: "COMMIT stands in the command word, and the committed word does not say so",
    CommandStage.DECIDED: "all is stored, and the participants end the command",
    CommandStage.OVER: "every participant is terminal: the next command may be given",
}


#: Where the command is once a word was stored; None: where it was.
LEADS_TO: dict[Writes, CommandStage | None] = {
    Writes.COMMIT: CommandStage.UNSTORED,
    Writes.ABORT: CommandStage.DECIDED,
    Writes.VERSION: CommandStage.DECIDED,
    Writes.GOAL: None,
    Writes.EPOCH: CommandStage.JOINING,
    **dict.fromkeys((Writes.REQUEST, Writes.RESTORE, Writes.REPAIR, Writes.RELEASE), CommandStage.UNDECIDED),
}


class GroupRow(NamedTuple):
    """What follows at a stage when all conditions of `when` hold; what it writes is stored before."""

    stage: CommandStage
    when: tuple[GroupWhen, ...]
    todo: GroupTodo
    writes: Writes | None = None


_S, _W, _T, _R = CommandStage, GroupWhen, GroupTodo, Writes

#: The conditions that ask what a process may write, and of which processes they hold.
PROCESSES: dict[GroupWhen, frozenset[May]] = {
    _W.STANDS_IN: frozenset({May.STAND_IN, May.END_LEASES}),
    _W.DRIVES: frozenset({May.DRIVE}),
    _W.KEEPS: frozenset({May.KEEP}),
    _W.MAY_RELEASE: frozenset({May.END_LEASES, May.KEEP}),
    _W.MAY_RESTORE: frozenset({May.DRIVE, May.KEEP}),
}

ROWS: tuple[GroupRow, ...] = (
    # processes that hold up the group are ended first, whatever the command is at
    *(GroupRow(stage, (_W.KEEPS, _W.TO_REPLACE), _T.REPLACE) for stage in CommandStage),
    # without the role
    GroupRow(_S.AWAY, (_W.KEEPS, _W.LOST), _T.TAKE_ROLE),
    GroupRow(_S.AWAY, (_W.KEEPS, _W.DEAD), _T.START),
    GroupRow(_S.AWAY, (_W.KEEPS, _W.FREE, _W.FAULTED), _T.TAKE_ROLE),
    GroupRow(_S.AWAY, (_W.KEEPS, _W.FREE, _W.OWED), _T.TAKE_ROLE),
    GroupRow(_S.AWAY, (_W.MAY_RELEASE, _W.FREE, _W.LAPSED), _T.TAKE_ROLE),
    GroupRow(_S.AWAY, (_W.LACKS_A_WORD, _W.FREE, _W.HELD), _T.WAIT),
    GroupRow(_S.AWAY, (_W.LACKS_A_WORD, _W.FREE), _T.TAKE_ROLE),
    GroupRow(_S.AWAY, (_W.LACKS_A_WORD, _W.STALLED, _W.IS_DECIDED), _T.NAME),
    GroupRow(_S.AWAY, (_W.LACKS_A_WORD, _W.STALLED, _W.PREPARED), _T.NAME),
    GroupRow(_S.AWAY, (_W.LACKS_A_WORD, _W.STALLED, _W.ANY_FAILED), _T.LOOK, _R.ABORT),
    GroupRow(_S.AWAY, (_W.LACKS_A_WORD, _W.STALLED, _W.EXPIRED), _T.FAIL),
    GroupRow(_S.AWAY, (), _T.WAIT),
    # one decision; where no word is shared, it may be known to one rank alone
    GroupRow(_S.UNDECIDED, (_W.INHERITS, _W.UNHEARD), _T.WAIT),
    # a lease ends with the rank that it waits for
    GroupRow(_S.UNDECIDED, (_W.KEEPS, _W.LOST, _W.HELD), _T.LOOK, _R.ABORT),
    GroupRow(_S.UNDECIDED, (_W.INHERITS, _W.HELD), _T.HELD),
    # who asked for a hold has no receipt, and must not find the group held, or open
    GroupRow(_S.UNDECIDED, (_W.OF_ADMISSION, _W.CONTROLLER_DECIDES, _W.GIVEN_UP), _T.LOOK, _R.ABORT),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.UNREAD, _W.GIVEN_UP), _T.LOOK, _R.ABORT),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.UNREAD), _T.READ_REPORTS),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.DIFFER), _T.LOOK, _R.ABORT),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.CONTROLLER_DECIDES), _T.LOOK, _R.COMMIT),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.SAID_COMMIT), _T.LOOK, _R.COMMIT),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.GIVEN_UP), _T.LOOK, _R.ABORT),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.NOT_TOLD), _T.TELL_PREPARED),
    GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.HELD), _T.HELD),
    GroupRow(_S.UNDECIDED, (_W.PREPARED,), _T.WAIT),
    GroupRow(_S.UNDECIDED, (_W.GIVEN_UP,), _T.LOOK, _R.ABORT),
    GroupRow(_S.UNDECIDED, (_W.ANY_FAILED,), _T.LOOK, _R.ABORT),
    GroupRow(_S.UNDECIDED, (), _T.WAIT),
    # a commit whose version is not stored
    GroupRow(_S.UNSTORED, (_W.KEEPS, _W.LOST), _T.LOOK, _R.GOAL),
    GroupRow(_S.UNSTORED, (), _T.LOOK, _R.VERSION),
    # an epoch ends, or a process is replaced in the present one
    *(
        GroupRow(stage, (_W.KEEPS, _W.LOST, _W.GOAL_UNWRITTEN), _T.LOOK, _R.GOAL)
        for stage in (_S.DECIDED, _S.OVER)
    ),
    *(
        GroupRow(stage, (_W.KEEPS, _W.LOST), _T.START, _R.EPOCH)
        for stage in (_S.DECIDED, _S.OVER, _S.JOINING)
    ),
    GroupRow(_S.JOINING, (_W.KEEPS, _W.DEAD), _T.START),
    GroupRow(_S.JOINING, (_W.KEEPS,), _T.WAIT),
    GroupRow(_S.JOINING, (), _T.GIVE_ROLE_BACK),
    # a decided command on its way to its end
    GroupRow(_S.DECIDED, (_W.STANDS_IN,), _T.GIVE_ROLE_BACK),
    GroupRow(_S.DECIDED, (_W.KEEPS, _W.INHERITS), _T.GIVE_ROLE_BACK),
    GroupRow(_S.DECIDED, (_W.STUCK,), _T.UNSETTLED),
    GroupRow(_S.DECIDED, (), _T.WAIT),
    # what follows a command
    GroupRow(_S.OVER, (_W.FOLLOWS,), _T.END),
    GroupRow(_S.OVER, (_W.KEEPS, _W.FAULTED, _W.MAY_REPAIR), _T.LOOK, _R.REPAIR),
    GroupRow(_S.OVER, (_W.KEEPS, _W.FAULTED), _T.REPLACE),
    GroupRow(_S.OVER, (_W.MAY_RESTORE, _W.OWED), _T.LOOK, _R.RESTORE),
    GroupRow(_S.OVER, (_W.MAY_RELEASE, _W.LAPSED), _T.LOOK, _R.RELEASE),
    GroupRow(_S.OVER, (_W.DRIVES, _W.WANTED), _T.LOOK, _R.REQUEST),
    GroupRow(_S.OVER, (), _T.GIVE_ROLE_BACK),
)


def advance(state: GroupState, view: View, known: Known) -> GroupMove:
    """Say what follows, given the words that were read, and what is known besides.

    May be called at any time, any number of times; nothing of it counts until it is stored.
    """
    if view.command[:2] != state.command[:2]:
        repaired = state.repaired if epochs.faulted(view) else 0
        after = replace(GroupState.of(view), repaired=repaired)
        if known.of_admission:  # such a command takes no debt away, and any other one begins to count anew
            after = replace(after, failed=state.failed)
        if state.mine and state.follows:
            return GroupMove(replace(after, follows=False), GroupTodo.OVERTAKEN)
        state = after
    row = find_row(state, view, known)
    return _made(
        state if state.command == view.command else replace(state, command=view.command), row, view, known
    )


def stage_of(view: View, known: Known) -> CommandStage:
    """Return where the command at hand is."""
    operation = view.command.operation
    if known.role is not Role.OWN:
        return CommandStage.AWAY
    if decide.is_over(view):
        return CommandStage.OVER
    if operation is Operation.NONE:
        return CommandStage.JOINING
    if not operation.is_decision:
        return CommandStage.UNDECIDED
    return CommandStage.UNSTORED if view.unstored and known.version_known else CommandStage.DECIDED


def find_row(state: GroupState, view: View, known: Known) -> GroupRow:
    """Return the row that is taken; every stage has one that always holds."""
    stage = stage_of(view, known)
    for row in BY_STAGE[stage]:
        for condition in row.when:
            if not CONDITIONS[condition](state, view, known):
                break
        else:
            return row
    raise InternalError(f"no row of {stage.name} answers a process that may {known.may.value}")


def goal_of(view: View, known: Known) -> str | None:
    """Return the version that the group must serve again once the epoch of `view` has ended; None: none."""
    return epochs.restored_version(
        view,
        asked=known.version,
        committed=known.committed,
        served=known.served,
        of_admission=known.of_admission,
    )


def _made(state: GroupState, row: GroupRow, view: View, known: Known) -> GroupMove:
    match row.writes:
        case Writes.COMMIT | Writes.ABORT:
            word = decide.decided(view, commit=row.writes is Writes.COMMIT)
            return GroupMove(replace(state, command=word), row.todo, command=word)
        case Writes.VERSION:
            held = holding.held_after(known.after, held=view.committed.held)
            committed = decide.committed(view, known.version, held=held)
            record = GroupRecord(known.version, of_command=True)
            return GroupMove(state, row.todo, record=record, committed=committed)
        case Writes.GOAL:
            record = GroupRecord(goal_of(view, known) if view.unstored else None, view.unstored)
            return GroupMove(state, row.todo, record=record, committed=_goal_word(view, known))
        case Writes.EPOCH:
            word = epochs.next_epoch(view)
            return GroupMove(GroupState(word), row.todo, command=word)
        case None:
            ranks = known.replaced or dict.fromkeys(epochs.faulted(view), Cause.FAULTED)
            replaced = ranks if row.todo is GroupTodo.REPLACE else {}
            return GroupMove(_remembered(state, row, view, known), row.todo, replaced=replaced)
        case Writes.REQUEST | Writes.RESTORE | Writes.REPAIR | Writes.RELEASE:
            return _opened(state, row.todo, _opens(row.writes, view, known), row.writes, view)


def _opens(writes: Writes, view: View, known: Known) -> Opens:
    owed = epochs.unrestored(view)
    if writes is Writes.REPAIR:
        before = WeightState.NORMAL if owed else WeightState.CLEARED
        return Opens(Operation.CLEAR, before=before, restores=owed)
    if writes is Writes.RESTORE:
        # A rank that dies in it must find the group's goal, not the empty hands it begins with.
        return Opens(Operation.UPDATE, before=WeightState.NORMAL, restores=True)
    if writes is Writes.RELEASE:
        before = decide.before_admission(decide.resident_on_each(view), owed=False)[0]
        return Opens(Operation.RELEASE, before=before)
    if known.wanted is None:
        raise InternalError("a command is wanted that is none")
    return known.wanted


def _opened(state: GroupState, todo: GroupTodo, opens: Opens, writes: Writes, view: View) -> GroupMove:
    word = decide.next_command(view, opens.operation, opens.decider)
    owes = epochs.owes_version_before(
        opens.operation,
        on_failure=opens.on_failure,
        serves=all(each.serving for each in decide.resident_on_each(view)),
        restorable=opens.restorable and view.committed.version_id is not None,
    )
    word = word._replace(owes=opens.restores or owes)
    counted = writes in (Writes.RESTORE, Writes.REPAIR, Writes.RELEASE) or opens.operation.is_of_admission
    after = replace(
        state,
        command=word,
        follows=True,
        mine=True,
        told=False,
        repairs=writes is Writes.REPAIR,
        failed=state.failed if counted else 0,
    )
    return GroupMove(after, todo, arguments=opens, command=word)


def _remembered(state: GroupState, row: GroupRow, view: View, known: Known) -> GroupState:
    if row.todo is GroupTodo.TELL_PREPARED:
        return replace(state, told=True)
    if row.todo is not GroupTodo.END:
        return state
    fails = view.command.operation is Operation.ABORT
    failed, repaired = state.failed, state.repaired
    if state.repairs:
        repaired += fails
    elif not known.of_admission:
        failed = failed + 1 if known.restores and fails else 0
    if not epochs.faulted(view):
        repaired = 0
    return GroupState(state.command, failed=failed, repaired=repaired)


def _goal_word(view: View, known: Known) -> CommittedWord | None:
    held = holding.held_after(known.after, held=view.committed.held)
    return epochs.goal_word(view, goal_of(view, known), held=held)


def _is_lost(view: View, known: Known) -> bool:
    return not known.leaving and bool(epochs.ended_by(view, known.dead))


def _is_due(known: Known) -> bool:
    return known.due and not known.leaving


def _is_given_up(state: GroupState, view: View, known: Known) -> bool:
    """Whether the command is aborted unless all that a COMMIT needs is there already."""
    late = known.lease_over or (known.expired and not state.told)
    refused = known.gave_up or known.verdict is False
    # A rank whose step broke refuses the command itself, and says why; the end of its epoch does not wait.
    ends = known.may is May.KEEP and _is_lost(view, known)
    broken = known.hangs or bool(known.dead) or ends
    return late or refused or broken or _inherits(state, view, known)


def _inherits(state: GroupState, _view: View, known: Known) -> bool:
    return not state.mine and known.verdict is None


def _is_owed(state: GroupState, view: View, known: Known) -> bool:
    begins = view.command.operation is Operation.NONE and decide.is_over(view) and epochs.unrestored(view)
    owed = begins or epochs.is_to_be_restored(view)
    return owed and _is_due(known) and state.failed < known.restore_limit


def _has_lapsed(_state: GroupState, view: View, known: Known) -> bool:
    if not _is_due(known):
        return False
    each = decide.resident_on_each(view)
    return holding.lease_ends(
        known.hold,
        known.now_ns,
        held=view.committed.held,
        is_over=decide.is_over(view),
        whole=all(resident.serving for resident in each),
        owed=decide.before_admission(each, owed=epochs.unrestored(view))[1],
    )


def _may_write(processes: frozenset[May], _state: GroupState, _view: View, known: Known) -> bool:
    return known.may in processes


#: What each condition means.
CONDITIONS: dict[GroupWhen, Callable[[GroupState, View, Known], bool]] = {
    **{when: partial(_may_write, processes) for when, processes in PROCESSES.items()},
    _W.FOLLOWS: lambda state, _view, _known: state.follows,
    _W.INHERITS: _inherits,
    _W.FREE: lambda _state, _view, known: known.role is Role.FREE,
    _W.STALLED: lambda _state, _view, known: known.role is Role.STALLED,
    _W.LACKS_A_WORD: lambda _state, view, _known: decide.lacks_a_word(view),
    _W.IS_DECIDED: lambda _state, view, _known: view.command.operation.is_decision,
    _W.OF_ADMISSION: lambda _state, view, _known: view.command.operation.is_of_admission,
    _W.CONTROLLER_DECIDES: lambda _state, view, _known: view.command.decider is Decider.CONTROLLER,
    _W.UNHEARD: lambda _state, view, known: not view.silent <= known.dead,
    _W.HELD: lambda _state, view, known: decide.is_held(view, leased=known.leased and not known.lease_over),
    _W.PREPARED: lambda _state, view, _known: decide.is_prepared(view),
    _W.UNREAD: lambda _state, _view, known: known.agree is None,
    _W.DIFFER: lambda _state, _view, known: known.agree is False,
    _W.ANY_FAILED: lambda _state, view, _known: decide.any_failed(view),
    _W.SAID_COMMIT: lambda _state, _view, known: known.verdict is True and not known.lease_over,
    _W.GIVEN_UP: _is_given_up,
    _W.EXPIRED: lambda _state, _view, known: known.expired,
    _W.NOT_TOLD: lambda state, _view, _known: not state.told,
    _W.STUCK: lambda _state, _view, known: known.stuck,
    _W.LOST: lambda _state, view, known: _is_lost(view, known),
    _W.DEAD: lambda _state, _view, known: bool(known.dead),
    _W.TO_REPLACE: lambda _state, _view, known: bool(known.replaced),
    _W.GOAL_UNWRITTEN: lambda _state, view, known: _goal_word(view, known) is not None,
    _W.FAULTED: lambda _state, view, known: (
        _is_due(known) and decide.is_over(view) and bool(epochs.faulted(view))
    ),
    _W.MAY_REPAIR: lambda state, _view, known: state.repaired < known.repair_limit,
    _W.OWED: _is_owed,
    _W.LAPSED: _has_lapsed,
    _W.WANTED: lambda _state, _view, known: known.wanted is not None,
}


def processes_of(row: GroupRow) -> frozenset[May]:
    """Return the processes that may take a row, by what they may write."""
    return frozenset(May).intersection(*(PROCESSES[when] for when in row.when if when in PROCESSES))


def by_stage(rows: Iterable[GroupRow] = ROWS) -> dict[CommandStage, tuple[GroupRow, ...]]:
    """Return the rows of each stage, in the order in which they are asked."""
    return {stage: tuple(row for row in rows if row.stage is stage) for stage in CommandStage}


#: :data:`ROWS` by stage.
BY_STAGE = by_stage()
