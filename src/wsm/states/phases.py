"""The command as a rank lives it: in each phase, what the rank looks for, and what follows when it finds it.

Theory of operation
-------------------
A rank remembers a :class:`RankState`, and is told by a :class:`Move` what to write and the next thing to do
(:class:`Todo`).

Two tables, and nothing else decides. :data:`LOOKS` is asked whenever the rank has read the words of its
group: of the rows of its phase, the first whose conditions all hold says what to do, which phase comes next,
and which code the rank writes. :data:`OUTCOMES` is asked when the thing to do has been done: it says what the
rank writes about that, and where it is then. :mod:`.rank` walks both, and says what each
condition means; the static checks (:mod:`.check`), the diagram and the seeded faults of the explorer are made
from the same rows.

**A phase that waits for others ends by a word.** PREPARED ends by a decision or a new epoch; so do PARKING
once the rank stands, STAGED, and FAILED. A deadline makes a rank say FAILED (the rows of EXPIRED), and the
rank stays where it is. No row leads from PREPARED, STAGED or VOTING to FAILED by a deadline: what was
promised is kept.

**READY is withdrawn only once a peer never will be ready.** So VOTING has no row for an ABORT: the rank
leaves the vote through :data:`Todo.LEAVE_VOTE`, when a peer's word shows that it will never vote.

**A rank that stopped waits for all.** The outcome of an ABORT is known once every participant has stopped:
one that touched its weights makes all of them drop theirs.

**No rank reads before all have looked.** A rank looks at what it is to load when it begins a command. In
place all stand before the first one acts; a hot update stages once every rank has answered.

**A hot update parks late.** It stages while the rank serves, says PREPARED, and drains and parks only for the
commit; so DRAINING and PARKING have no deadline then.

**A release finds all ranks standing.** Under a hold no rank begins or joins a step, and the hold was over on
every rank before its release could be written. So a release of a held group is accepted as it begins.

What holds before any row is looked at (a newer epoch, a word of the past, a command that comes too early) is
in :func:`wsm.states.rank.advance`. Rows alone, and no function; knows no time, no actions, no weights.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from wsm.states.vocabulary import TableKey
from wsm.states.words import Operation, StatusCode, StatusWord, StepWord


class Phase(TableKey):
    """Where a rank is within a command."""

    IDLE = "idle"
    BEGINNING = "beginning"
    DRAINING = "draining"
    PARKING = "parking"
    WORKING = "working"
    VOTING = "voting"
    PREPARED = "prepared"
    COMMITTING = "committing"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SETTLING = "settling"
    STAGING = "staging"
    STAGED = "staged"


class Todo(TableKey):
    """The next thing to do, and in brackets the events that can come of it."""

    SERVE = "serve"  # a step may be entered if there is work [ENTERED]
    JOIN = "join"  # the next step must be entered: others are in it [ENTERED]
    WAIT = "wait"  # until a word changes
    LOOK = "look"  # something was written: read the words again
    REJOIN = "rejoin"  # a new epoch has begun [join]
    BEGIN = "begin"  # read the command's arguments, check that it is legal here [BEGAN, REFUSED]
    DRAIN = "drain"  # serve on, without admitting [DRAINED, FAILED]
    ACCEPT = "accept"  # all stand at the same boundary: the transition begins [ACCEPTED, FAILED]
    RUN = "run"  # action number state.action [ACTION_DONE, FAILED]
    LEAVE_VOTE = "leave vote"  # a peer will never be ready for this collective action [FAILED]
    FINISH = "finish"  # the plan is done: report it [FINISHED]
    STAGE = "stage"  # stage the new weights beside the old ones, and serve [STAGED, FAILED]
    COMMIT = "commit"  # serve the new version [COMMITTED]
    UNDO = "undo"  # stop, take back what can be taken back [STOPPED]
    KEEP = "keep"  # aborted, no rank touched its weights: as before the command [KEPT]
    DROP = "drop"  # aborted, a rank touched its weights: hold no weights [CLEARED, FAULTED]


@dataclass(frozen=True)
class RankState:
    """Everything that a rank must remember to follow the protocol.

    `step`: the last step that was entered.
    `done`: the last sequence that this rank is terminal for.
    `holds`: whether it holds all that a step needs: verified weights, and a KV cache.
    `held`: whether the group is held: no step begins, whatever this rank holds.
    `broken`: whether a step raised; no further step in this epoch.
    `weights`, `kv`: signed state codes for the status word; the shell keeps them true.
    `phase`, `sequence`, `operation`: of the command at hand, as it was asked, not as it was decided.
    `parked`: whether the step word says PARKED for this command at this step.
    `accepted`, `touched`: whether all ranks stood; whether this rank's weights are no longer the old ones.
    `collective`: one per action of the plan: whether it needs a vote.
    `action`, `ready`: the next action's index; one more than the index of the last vote.
    `steps`: whether it takes part in steps. A helper does not: it has no step word, and stands nowhere.
    """

    rank: int
    epoch: int
    step: int = 0
    done: int = 0
    holds: bool = False
    broken: bool = False
    weights: int = -2
    kv: int = -2
    phase: Phase = Phase.IDLE
    sequence: int = 0
    operation: Operation = Operation.NONE
    parked: bool = True
    accepted: bool = False
    touched: bool = False
    collective: tuple[bool, ...] = ()
    action: int = 0
    ready: int = 0
    steps: bool = True
    held: bool = False


@dataclass(frozen=True)
class Move:
    """What follows: the new state, the words to write in this order, the next thing to do."""

    state: RankState
    todo: Todo
    step: StepWord | None = None
    status: StatusWord | None = None


@dataclass(frozen=True)
class Do:
    """What a rank's loop does next.

    `todo`: what it does then. LOOK: it reads the words again. `meanwhile`: SERVE, JOIN or WAIT: how its turn
    ends where that has not come to its end.
    """

    move: Move
    todo: Todo
    meanwhile: Todo = Todo.WAIT


class When(TableKey):
    """A condition of a row; its value is the text of the diagrams."""

    # of the command word
    NEW = "a new command"
    ABORTED = "ABORT"
    HOT_ABORTED = "HOT_ABORT"
    COMMITTED = "COMMIT"
    HOT_COMMITTED = "HOT_COMMIT"
    # of the rank itself
    HOT = "a hot update"
    IN_PLACE = "not a hot update"
    CLEARS = "a clear"
    RELEASES = "a release"
    HELD = "the group is held"
    IS_HELPER = "a helper"
    BROKEN = "its step raised"
    WALKS = "not parked yet"
    NOT_ACCEPTED = "not accepted yet"
    TOUCHED = "some rank touched its weights"
    PLAN_DONE = "the plan is done"
    COLLECTIVE_NEXT = "the next action is collective"
    # of the other ranks
    MAY_STEP = "a step is possible"
    BEHIND = "a peer is in a later step"
    ALL_ANSWERED = "all have answered the command"
    ALL_STAND = "all stand at the same step"
    ANY_ACCEPTED = "a rank has accepted"
    ANY_COMMITTED = "a rank has committed"
    ALL_READY = "all have voted"
    NEVER_READY = "a peer will never vote"
    ALL_STOPPED = "all have stopped"
    ALL_STOPPED_ANY_TOUCHED = "all have stopped, some touched"


class Effect(enum.Enum):
    """What else a rank remembers when it takes a row."""

    TAKES_COMMAND = "takes the command in"
    STANDS = "stands: PARKED in its step word"
    VOTES = "votes"
    ACCEPTS = "has accepted"
    TOUCHED = "some weights are touched"
    UNTOUCHED = "all weights are whole"
    NEXT_ACTION = "goes on to the next action"


class Event(enum.Enum):
    """What came of a thing to do; its value is the text of the diagrams."""

    BEGAN = "legal here"
    REFUSED = "illegal here"
    DRAINED = "drained"
    ACCEPTED = "the transition has begun"
    ACTION_DONE = "the action is done"
    FINISHED = "everything that can fail is done"
    STAGED = "verified beside the old weights"
    COMMITTED = "serves what was asked for"
    STOPPED = "stopped, undone"
    KEPT = "as before the command"
    CLEARED = "holds nothing"
    FAULTED = "the teardown failed"
    FAILED = "failed"
    EXPIRED = "its deadline passed"
    # of the steps; they have no row: a rank stays in its phase
    ENTERED = "enters a step"
    BROKE = "its step raised"


@dataclass(frozen=True)
class Happened:
    """What came of a thing to do, as :func:`wsm.states.rank.take_in` takes it: a plain value, like a view.

    `weights`, `kv`: signed codes of the state machines by then; None: as they were. `collective`: BEGAN: one
    per action of the plan, whether it needs a vote. `touched`: ACTION_DONE, FAILED, STOPPED: whether this
    rank's weights are no longer the old ones. `serves`: COMMITTED: whether nothing is missing that a step
    needs. `held`: COMMITTED: whether the group is held from here on; None: as it was. `step`: ENTERED: the
    number of the step, where several were entered since; 0: the next one.
    """

    event: Event
    weights: int | None = None
    kv: int | None = None
    collective: tuple[bool, ...] = ()
    touched: bool = False
    serves: bool = True
    step: int = 0
    held: bool | None = None


@dataclass(frozen=True)
class LookRow:
    """What follows in a phase when the conditions hold.

    `to`: the next phase; None: the same. `says`: what the rank writes in its status word. `change`: what else
    it remembers. `broken`: the rule of the protocol that is broken if this row is ever taken; empty for all
    others.
    """

    phase: Phase
    when: tuple[When, ...]
    todo: Todo
    to: Phase | None = None
    says: StatusCode | None = None
    change: Effect | None = None
    broken: str = ""


@dataclass(frozen=True)
class OutcomeRow:
    """What follows in a phase when something was done.

    `when`: conditions of the rank itself; all must hold. `to`: the next phase; IDLE forgets the command.
    `says`: what the rank writes in its status word. `change`: what else it remembers.
    """

    phase: Phase
    event: Event
    when: tuple[When, ...]
    to: Phase
    says: StatusCode | None = None
    change: Effect | None = None


_P, _W, _T, _E, _C, _S = Phase, When, Todo, Event, Effect, StatusCode

#: Phases that an ABORT ends. Not VOTING, see above, nor those in which the rank ends the command already.
ABORTABLE = (_P.BEGINNING, _P.DRAINING, _P.PARKING, _P.WORKING, _P.PREPARED, _P.FAILED)

#: Phases that the ABORT of a hot update ends; behind STAGED the rank follows a commit.
HOT_ABORTABLE = (_P.BEGINNING, _P.STAGING, _P.STAGED, _P.FAILED)

LOOKS: tuple[LookRow, ...] = (
    # an ABORT comes before everything else; a hot update has touched nothing, so no rank waits for another
    *(LookRow(phase, (_W.HOT_ABORTED,), _T.KEEP, _P.SETTLING) for phase in HOT_ABORTABLE),
    *(LookRow(phase, (_W.ABORTED,), _T.UNDO, _P.STOPPING) for phase in ABORTABLE),
    # no command at hand
    LookRow(_P.IDLE, (_W.NEW, _W.HOT_ABORTED), _T.KEEP, _P.SETTLING, change=_C.TAKES_COMMAND),
    LookRow(_P.IDLE, (_W.NEW, _W.ABORTED), _T.UNDO, _P.STOPPING, change=_C.TAKES_COMMAND),
    *(
        LookRow(
            _P.IDLE, (_W.NEW, commit), _T.WAIT, broken="nothing is committed before every rank is PREPARED"
        )
        for commit in (_W.COMMITTED, _W.HOT_COMMITTED)
    ),
    LookRow(_P.IDLE, (_W.NEW,), _T.BEGIN, _P.BEGINNING, change=_C.TAKES_COMMAND),
    LookRow(_P.IDLE, (_W.BEHIND,), _T.JOIN),
    LookRow(_P.IDLE, (_W.MAY_STEP,), _T.SERVE),
    LookRow(_P.IDLE, (), _T.WAIT),
    # on the way to the step at which all stand
    LookRow(_P.BEGINNING, (_W.BEHIND,), _T.JOIN),
    LookRow(_P.BEGINNING, (), _T.BEGIN),
    LookRow(_P.DRAINING, (_W.BROKEN,), _T.WAIT),  # what it did last was no whole step: it stands nowhere
    LookRow(_P.DRAINING, (_W.BEHIND,), _T.JOIN),
    LookRow(_P.DRAINING, (), _T.DRAIN),
    # a helper takes no part in steps: what one rank did proves that all stand
    LookRow(
        _P.PARKING,
        (_W.IS_HELPER, _W.HOT_COMMITTED, _W.ANY_COMMITTED),
        _T.COMMIT,
        _P.COMMITTING,
        change=_C.ACCEPTS,
    ),
    LookRow(_P.PARKING, (_W.IS_HELPER, _W.HOT_COMMITTED), _T.WAIT),
    LookRow(_P.PARKING, (_W.IS_HELPER, _W.ANY_ACCEPTED), _T.ACCEPT),
    LookRow(_P.PARKING, (_W.IS_HELPER,), _T.WAIT),
    # a rank says that it stands before it looks at the others; PREPARED is not taken back by a lesser code
    LookRow(_P.PARKING, (_W.WALKS, _W.HOT), _T.LOOK, change=_C.STANDS),
    LookRow(_P.PARKING, (_W.WALKS,), _T.LOOK, says=_S.PARKING, change=_C.STANDS),
    LookRow(_P.PARKING, (_W.BEHIND,), _T.JOIN),
    LookRow(_P.PARKING, (_W.BROKEN,), _T.WAIT),
    LookRow(_P.PARKING, (_W.ALL_STAND, _W.HOT_COMMITTED), _T.COMMIT, _P.COMMITTING, change=_C.ACCEPTS),
    LookRow(_P.PARKING, (_W.ALL_STAND,), _T.ACCEPT),
    LookRow(_P.PARKING, (), _T.WAIT),
    # the plan, one action at a time
    LookRow(_P.WORKING, (_W.PLAN_DONE,), _T.FINISH),
    LookRow(_P.WORKING, (_W.COLLECTIVE_NEXT,), _T.LOOK, _P.VOTING, says=_S.RUNNING, change=_C.VOTES),
    LookRow(_P.WORKING, (), _T.RUN, says=_S.RUNNING),
    LookRow(_P.VOTING, (_W.ALL_READY,), _T.RUN),
    LookRow(_P.VOTING, (_W.NEVER_READY,), _T.LEAVE_VOTE),
    LookRow(_P.VOTING, (), _T.WAIT),
    # beside what is served
    LookRow(_P.STAGING, (_W.BEHIND,), _T.JOIN),
    LookRow(_P.STAGING, (_W.ALL_ANSWERED,), _T.STAGE),
    LookRow(_P.STAGING, (_W.MAY_STEP,), _T.SERVE),
    LookRow(_P.STAGING, (), _T.WAIT),
    LookRow(_P.STAGED, (_W.HOT_COMMITTED, _W.IS_HELPER), _T.LOOK, _P.PARKING),
    LookRow(_P.STAGED, (_W.HOT_COMMITTED,), _T.LOOK, _P.DRAINING),
    LookRow(_P.STAGED, (_W.BEHIND,), _T.JOIN),
    LookRow(_P.STAGED, (_W.MAY_STEP,), _T.SERVE),
    LookRow(_P.STAGED, (), _T.WAIT),
    # the decision
    LookRow(_P.PREPARED, (_W.COMMITTED,), _T.COMMIT, _P.COMMITTING),
    LookRow(_P.PREPARED, (), _T.WAIT),
    LookRow(_P.COMMITTING, (_W.BROKEN,), _T.WAIT),  # a flip that raised: what the rank holds is unknown
    LookRow(_P.COMMITTING, (), _T.COMMIT),
    LookRow(_P.FAILED, (_W.NOT_ACCEPTED, _W.BEHIND), _T.JOIN),
    LookRow(_P.FAILED, (_W.HOT, _W.MAY_STEP), _T.SERVE),
    LookRow(_P.FAILED, (), _T.WAIT),
    # the way back
    LookRow(_P.STOPPING, (), _T.UNDO),
    LookRow(_P.STOPPED, (_W.ALL_STOPPED_ANY_TOUCHED,), _T.DROP, _P.SETTLING, change=_C.TOUCHED),
    LookRow(_P.STOPPED, (_W.ALL_STOPPED,), _T.KEEP, _P.SETTLING, change=_C.UNTOUCHED),
    LookRow(_P.STOPPED, (_W.NOT_ACCEPTED, _W.BEHIND), _T.JOIN),
    LookRow(_P.STOPPED, (), _T.WAIT),
    LookRow(_P.SETTLING, (_W.TOUCHED,), _T.DROP),
    LookRow(_P.SETTLING, (), _T.KEEP),
)

OUTCOMES: tuple[OutcomeRow, ...] = (
    OutcomeRow(_P.BEGINNING, _E.BEGAN, (_W.HOT, _W.IS_HELPER), _P.STAGING, _S.PARKING),
    OutcomeRow(_P.BEGINNING, _E.BEGAN, (_W.HOT,), _P.STAGING, _S.DRAINING),
    OutcomeRow(_P.BEGINNING, _E.BEGAN, (_W.RELEASES, _W.HELD), _P.WORKING, _S.ACCEPTED, _C.ACCEPTS),
    OutcomeRow(_P.BEGINNING, _E.BEGAN, (_W.IS_HELPER,), _P.PARKING, _S.PARKING),
    OutcomeRow(_P.BEGINNING, _E.BEGAN, (), _P.DRAINING, _S.DRAINING),
    OutcomeRow(_P.BEGINNING, _E.REFUSED, (), _P.FAILED, _S.REFUSED),
    OutcomeRow(_P.DRAINING, _E.DRAINED, (_W.HOT,), _P.PARKING, change=_C.STANDS),
    OutcomeRow(_P.DRAINING, _E.DRAINED, (), _P.PARKING, _S.PARKING, change=_C.STANDS),
    OutcomeRow(_P.PARKING, _E.ACCEPTED, (), _P.WORKING, _S.ACCEPTED, change=_C.ACCEPTS),
    *(
        OutcomeRow(phase, _E.ACTION_DONE, (), _P.WORKING, change=_C.NEXT_ACTION)
        for phase in (_P.WORKING, _P.VOTING)
    ),
    OutcomeRow(_P.WORKING, _E.FINISHED, (_W.CLEARS,), _P.IDLE, _S.DONE_CLEARED),
    OutcomeRow(_P.WORKING, _E.FINISHED, (), _P.PREPARED, _S.PREPARED),
    OutcomeRow(_P.STAGING, _E.STAGED, (), _P.STAGED, _S.PREPARED),
    OutcomeRow(_P.COMMITTING, _E.COMMITTED, (), _P.IDLE, _S.DONE_COMMITTED),
    OutcomeRow(_P.STOPPING, _E.STOPPED, (_W.TOUCHED,), _P.STOPPED, _S.STOPPED_TOUCHED),
    OutcomeRow(_P.STOPPING, _E.STOPPED, (), _P.STOPPED, _S.STOPPED_UNTOUCHED),
    OutcomeRow(_P.SETTLING, _E.KEPT, (), _P.IDLE, _S.DONE_KEPT),
    OutcomeRow(_P.SETTLING, _E.CLEARED, (), _P.IDLE, _S.DONE_CLEARED),
    OutcomeRow(_P.SETTLING, _E.FAULTED, (), _P.IDLE, _S.DONE_FAULTED),
    *(
        OutcomeRow(phase, _E.FAILED, (), _P.FAILED, _S.FAILED)
        for phase in (_P.BEGINNING, _P.DRAINING, _P.PARKING, _P.WORKING, _P.VOTING, _P.STAGING)
    ),
    *(
        OutcomeRow(phase, _E.EXPIRED, (), _P.FAILED, _S.FAILED)
        for phase in (_P.BEGINNING, _P.WORKING, _P.STAGING)  # between two actions, before the next vote
    ),
    *(
        OutcomeRow(phase, _E.EXPIRED, (_W.IN_PLACE,), _P.FAILED, _S.FAILED)
        for phase in (_P.DRAINING, _P.PARKING)
    ),
)

#: Which of the configured deadlines a wait in a phase has; a vote has that of its action. Where no row of
#: EXPIRED is, a report is all that follows.
DEADLINES: dict[Phase, str] = {
    _P.BEGINNING: "arguments_s",
    _P.DRAINING: "drain_s",
    _P.PARKING: "park_s",
    _P.PREPARED: "decision_s",
    _P.FAILED: "decision_s",
    _P.STOPPED: "decision_s",
}

#: What each phase means, in one line.
MEANINGS: dict[Phase, str] = {
    _P.IDLE: "no command; serves if it holds all that a step needs",
    _P.BEGINNING: "reads the arguments, checks that the command is legal here",
    _P.DRAINING: "admits no requests, steps on until the in-flight policy is satisfied",
    _P.PARKING: "stands behind a step until all stand behind the same one",
    _P.WORKING: "runs its plan, one action per look",
    _P.VOTING: "has voted for a collective action, waits for the votes of all",
    _P.PREPARED: "all that can fail is done; only a decision or a new epoch counts",
    _P.COMMITTING: "serves the new version from here on",
    _P.FAILED: "has said why it cannot go on, waits for ABORT",
    _P.STOPPING: "takes back what can be taken back",
    _P.STOPPED: "has stopped, waits until all have: the outcome is the group's",
    _P.SETTLING: "keeps what it had, or drops everything, as the group found",
    _P.STAGING: "loads beside what it serves",
    _P.STAGED: "PREPARED beside what it serves, waits for the decision",
}
