"""The ranks that keep a command from its end: status, errors, metrics and deadlines ask here. Pure.

A rank that waits names the ranks that it waits for (:func:`waits_for`). A culprit is an open rank that waits
for none. Dead and stopped processes wait for none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from wsm.command import STEP, FailureReport
from wsm.journal.entry import CONTROLLER
from wsm.states.view import ACCEPTED
from wsm.states.words import Decider, Operation, StatusCode, StatusWord, StepKind, StepWord, steps_ahead
from wsm.status.facts import DEAD, NEVER, STOPPED, FailureFacts, GroupStatus, RankStatus, named, process, who

#: Errors of ranks that only repeat that another rank failed.
_ECHOES = frozenset(("peer-never-ready", "command-aborted"))

#: Errors of a rank that waited for another one: told only where that one has nothing to tell.
_WAITING = frozenset(("action-interrupted", "peer-failed", "wait-expired"))

#: The words for the codes of ranks that have answered a command.
DOES = {
    StatusCode.NONE: "has said nothing",
    StatusCode.ATTACHED: "has joined this epoch and seen no command in it",
    StatusCode.DRAINING: "is draining",
    StatusCode.PARKING: "has stopped stepping",
    StatusCode.ACCEPTED: "has accepted the command",
    StatusCode.RUNNING: "is running",
    StatusCode.PREPARED: "is prepared",
    StatusCode.FAILED: "has failed",
    StatusCode.REFUSED: "has refused the command",
    StatusCode.STOPPED_UNTOUCHED: "has stopped with its old weights whole",
    StatusCode.STOPPED_TOUCHED: "has stopped with its weights partly overwritten",
    StatusCode.DONE_FAULTED: "is done, and could not release what it held",
}

#: Seconds without a heartbeat after which a rank stands in its step.
_STANDS_S = 1.0


@dataclass(frozen=True)
class Wait:
    """A wait of one rank.

    Parameters
    ----------
    rank : int
        The rank that waits.
    ranks : tuple of int
        The ranks that it waits for; empty: the controller.
    what : str
        The event that it waits for.
    seconds : float or None
        The length of the wait so far.
    left_s : float or None
        Seconds left of its deadline, negative beyond it; None where it cannot be known from outside.
    """

    rank: int
    ranks: tuple[int, ...]
    what: str
    seconds: float | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class Culprit:
    """A rank that keeps others inside an action that is past its deadline, or that is inside of it itself.

    Parameters
    ----------
    rank : int
        The rank's number.
    action : str
        The action that it is in, or that it never entered.
    seconds : float
        The time that some rank has been inside of it.
    deadline_s : float
        The deadline of the action.
    stopped : bool
        Whether the process is stopped.
    entered : bool
        Whether it is in that action.
    step : int or None
        The step that it has not entered, in which others stand with that action; None: none.
    """

    rank: int
    action: str
    seconds: float
    deadline_s: float
    stopped: bool
    entered: bool = True
    step: int | None = None

    def sentence(self) -> str:
        """Say it, as the end of a sentence about the rank."""
        deadline = f"deadline is {self.deadline_s:.3g} s{'; its process is stopped' if self.stopped else ''}"
        if self.entered:
            return f"was {self.seconds:.1f} s in {self.action}, whose {deadline}"
        if self.step is None:
            others = f"in which others have been for {self.seconds:.1f} s"
            return f"did not enter {self.action}, {others}; its {deadline}"
        others = f"in which others have been in {self.action} for {self.seconds:.1f} s"
        return f"did not enter step {self.step}, {others}; its {deadline}"


def overdue(group: GroupStatus) -> tuple[Culprit, ...]:
    """Return the culprits of actions that are past their deadlines, the one to name first in front."""
    found: dict[int, Culprit] = {}
    for rank in sorted(group.ranks, key=_over_s, reverse=True):
        action = rank.action
        if action is None or action.seconds is None or _over_s(rank) <= 0 or group.is_done(rank):
            continue
        for number in _ends(rank.rank, group):
            if number == CONTROLLER or number in found:
                continue
            what = group.ranks[number]
            in_step = number != rank.rank and not action.collective and rank.step_kind is not None
            found[number] = Culprit(
                what.number,
                action.name,
                action.seconds,
                action.deadline_s,
                stopped=what.life == STOPPED,
                entered=not in_step and what.is_inside,
                step=rank.step if in_step else None,
            )
    return tuple(sorted(found.values(), key=lambda one: not one.stopped))


def _over_s(rank: RankStatus) -> float:
    """By how many seconds the rank's action has outlasted its deadline; below 0: it has time left."""
    action = rank.action
    return 0.0 if action is None or action.seconds is None else action.seconds - action.deadline_s


def late_ranks(group: GroupStatus) -> dict[int, str]:
    """Return the ranks that the last command waits for, and what each does; stopped and dead ones alone.

    Where the command waits for its controller alone, these are all that are not done.
    """
    open_ranks = [rank for rank in group.ranks if not group.is_done(rank)]
    ends = {end for rank in open_ranks for end in _ends(rank.rank, group) if end != CONTROLLER}
    late = [group.ranks[end] for end in sorted(ends)] or open_ranks
    stuck = [rank for rank in late if rank.life in (STOPPED, DEAD)]
    return {rank.number: _late_doing(rank, group) for rank in stuck or late}


def _late_doing(rank: RankStatus, group: GroupStatus) -> str:
    ahead = [one for one in group.ranks if rank.rank in _behind_in_step(one, group)]
    if not ahead or rank.life == STOPPED or not group.answer(rank):
        return doing(rank, group)
    return f"has not entered step {ahead[0].step}, in which {who(ahead[0].number)} is"


def waits_for(rank: RankStatus, group: GroupStatus) -> tuple[int, ...]:
    """Return the ranks that `rank` waits for, or :data:`CONTROLLER`; empty: others wait for it."""
    if rank.life in (STOPPED, DEAD, NEVER):
        return ()
    return _behind_in_step(rank, group) or _not_inside(rank, group) or _awaits_words(rank, group)


def _ends(rank: int, group: GroupStatus) -> tuple[int, ...]:
    """Return where the waits of a rank end: the ranks that wait for none."""
    found, looked, ahead = [], set(), [rank]
    while ahead:
        here = ahead.pop()
        if here in looked:
            continue
        looked.add(here)
        more = () if here == CONTROLLER else waits_for(group.ranks[here], group)
        ahead += more
        if not more:
            found.append(here)
    return tuple(sorted(found)) or (rank,)


def _behind_in_step(rank: RankStatus, group: GroupStatus) -> tuple[int, ...]:
    """Return the ranks that have not entered the step in which `rank` stands: none leaves it before that."""
    inside, beat_s = rank.step_word, rank.beat_s
    stands = beat_s is None or beat_s >= _STANDS_S  # of ranks that go on one is always the first in a step
    if not stands or rank.helper or inside.kind is not StepKind.RUNNING:
        return ()
    return tuple(
        other.rank
        for other in group.ranks
        if not other.helper
        and other.step_word.epoch == inside.epoch
        and steps_ahead(inside.step, other.step_word.step) > 0
    )


def _awaits_words(rank: RankStatus, group: GroupStatus) -> tuple[int, ...]:
    """Return the ranks whose words `rank` waits for."""
    wait = _wait(rank, group)
    return () if wait is None or rank.is_inside or _is_behind(rank, group) else wait[0]


def _not_inside(rank: RankStatus, group: GroupStatus) -> tuple[int, ...]:
    """Return the ranks that never entered the collective action which `rank` is in, else the stopped ones."""
    if rank.action is None or not (rank.is_inside and rank.action.collective):
        return ()
    running = [one for one in group.ranks if one is not rank and group.answer(one) is StatusCode.RUNNING]
    here = [one for one in running if one.status.action == rank.status.action]
    absent = [one.rank for one in here if not one.is_inside]
    return tuple(absent or [one.rank for one in here if one.life == STOPPED])


def _is_behind(rank: RankStatus, group: GroupStatus) -> bool:
    """Whether another rank is in a later step, so that a rank which stands has to follow it first."""
    code = group.answer(rank)
    if rank.helper or code is None or StatusCode.ACCEPTED <= code <= StatusCode.RUNNING:
        return False
    return any(
        not one.helper and steps_ahead(one.step, rank.step) > 0 and not group.is_done(one)
        for one in group.ranks
    )


# -- what is said of ranks ----------------------------------------------------------------------


def doing(rank: RankStatus, group: GroupStatus) -> str:
    """Say in a few words what a rank is doing for the command at hand; without times."""
    code = group.answer(rank)
    if rank.life == DEAD:
        return "is gone"
    if code is None:
        what = "has not answered"
    elif code is StatusCode.RUNNING and not rank.is_inside:
        action = f"action {rank.status.action} of its plan" if rank.action is None else rank.action.name
        what = f"waits for votes before {action}"
    else:
        does = "is staging" if rank.code == "STAGING" else DOES.get(code, "is done")
        what = f"{does} {rank.doing}" if rank.is_inside else does
    return f"{what}; its process is stopped" if rank.life == STOPPED else what


def in_sentence(late: Mapping[int, str]) -> str:
    """List ranks and what each is doing: ``rank 0 (has not answered) and rank 1 (is prepared)``."""
    return " and ".join(f"{who(rank)} ({what})" for rank, what in late.items())


def not_parked(steps: Sequence[StepWord], *, sequence: int, step: int) -> list[int]:
    """Return the ranks that are not parked behind `step` for command `sequence`."""
    here = (StepKind.PARKED, sequence, 0)
    found = [(word.kind, word.sequence, steps_ahead(word.step, step)) for word in steps]
    return [rank for rank, stands in enumerate(found) if stands != here]


def not_ready(statuses: Sequence[StatusWord], *, action: int) -> list[int]:
    """Return the participants that have not voted for the collective `action` of their plans."""
    return [rank for rank, word in enumerate(statuses) if word.ready <= action]


# -- the waits that the words of a command ask for ----------------------------------------------


def wait_of(rank: RankStatus, group: GroupStatus) -> Wait | None:
    """Return for whom a rank waits; None if it waits for nothing, or cannot wait any more."""
    found, left_s = _wait(rank, group), None
    if found is None:
        return None
    if rank.action is not None and rank.since_s is not None and group.answer(rank) is StatusCode.RUNNING:
        left_s = rank.action.deadline_s - rank.since_s
    late, what = found
    return Wait(rank.rank, () if late == (CONTROLLER,) else late, what, rank.since_s, left_s)


_Awaited: TypeAlias = tuple[tuple[int, ...], str]


def _wait(rank: RankStatus, group: GroupStatus) -> _Awaited | None:
    """Return the ranks that `rank` waits for, or :data:`CONTROLLER`, and for what."""
    command, code = group.command, group.answer(rank) or StatusCode.NONE
    if rank.life in (DEAD, NEVER):
        return None
    if command.operation.is_abort and code not in _WAIT_BEHIND_AN_ABORT:
        return None
    rule = _WAITS.get(code)
    return None if rule is None else rule(rank, group)


def _awaited(
    late: Iterable[RankStatus], to_do: str, otherwise: str = "something that cannot be seen from outside"
) -> _Awaited:
    ranks = {one.rank: one.number for one in late}
    return tuple(ranks), f"{named(list(ranks.values()))} {to_do}" if ranks else otherwise


def _of_the_engine(group: GroupStatus) -> list[RankStatus]:
    return [one for one in group.ranks if not one.helper]


def _staging(rank: RankStatus, group: GroupStatus) -> _Awaited | None:
    """A hot update is staged once every rank has answered it."""
    if group.operation != Operation.HOT_UPDATE.name or rank.is_inside:
        return None
    late = [one for one in _of_the_engine(group) if group.answer(one) is None]
    return _awaited(late, "to answer") if late else None


def _parking(rank: RankStatus, group: GroupStatus) -> _Awaited | None:
    if rank.helper and group.operation == Operation.HOT_UPDATE.name:
        return _staging(rank, group)
    ranks = _of_the_engine(group)
    if rank.helper:  # any rank that has accepted proves that all stand
        return _awaited([] if any(_has_stood(one, group) for one in ranks) else ranks, "to stand")
    steps = [one.step_word for one in ranks]
    late = [group.ranks[each] for each in not_parked(steps, sequence=rank.sequence, step=rank.step)]
    return _awaited([one for one in late if not group.is_done(one)], "to stop at the same step")


def _has_stood(rank: RankStatus, group: GroupStatus) -> bool:
    """Whether a rank shows that all ranks stood at one step for the command."""
    if group.command.operation.is_hot:
        return group.answer(rank) is StatusCode.DONE_COMMITTED
    return _ready(rank, group) > 0 or group.answer(rank) in ACCEPTED


def _running(rank: RankStatus, group: GroupStatus) -> _Awaited | None:
    if rank.action is None or rank.is_inside or rank.status.ready <= rank.status.action:
        return None  # it is inside: inside a collective it is waited for like every other
    late = [one for one in _of_the_engine(group) if _ready(one, group) <= rank.status.action]
    if any(map(group.has_failed, late)):
        late = []  # it leaves the vote, which cannot be won
    return _awaited(late, f"to be ready for {rank.action.name}", f"its turn in {rank.action.name}")


def _prepared(rank: RankStatus, group: GroupStatus) -> _Awaited | None:
    command = group.command
    if command.operation.is_decision:
        stands = rank.helper or rank.step_kind == "parked"
        return _parking(rank, group) if group.operation == "HOT_COMMIT" and stands else None
    late = [one for one in group.ranks if group.answer(one) is not StatusCode.PREPARED]
    if late:
        return _awaited(late, "to be prepared")
    whose = "the controller's" if command.decider is Decider.CONTROLLER else "its caller's"
    if group.controller_hung:
        return (CONTROLLER,), f"the decision of {process(group.controller_pid)}, which {group.unanswered}"
    return (CONTROLLER,), f"{whose} decision"


def _failed(_rank: RankStatus, group: GroupStatus) -> _Awaited | None:
    return None if group.command.operation.is_decision else ((CONTROLLER,), "the controller's decision")


def _ended(_rank: RankStatus, group: GroupStatus) -> _Awaited:
    codes = ((one, group.answer(one) or StatusCode.NONE) for one in group.ranks)
    return _awaited([one for one, code in codes if code < StatusCode.STOPPED_UNTOUCHED], "to stop")


def _ready(rank: RankStatus, group: GroupStatus) -> int:
    return 0 if group.answer(rank) is None else rank.status.ready


#: In which codes a rank waits although it has to stop: for votes, and for the others to stop.
_WAIT_BEHIND_AN_ABORT = (StatusCode.RUNNING, StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED)

_WAITS: Mapping[StatusCode, Callable[[RankStatus, GroupStatus], _Awaited | None]] = {
    StatusCode.DRAINING: _staging,
    StatusCode.PARKING: _parking,
    StatusCode.RUNNING: _running,
    StatusCode.PREPARED: _prepared,
    StatusCode.FAILED: _failed,
    StatusCode.REFUSED: _failed,
    StatusCode.STOPPED_UNTOUCHED: _ended,
    StatusCode.STOPPED_TOUCHED: _ended,
}


# -- whose fault it is that a command failed ----------------------------------------------------


def first_failure(failures: Iterable[FailureFacts]) -> FailureFacts | None:
    """Return the failure that is the cause of the others, if one is: echoes never, waits last."""
    found = [one for one in failures if one.report.error not in _ECHOES]
    return min(found, key=lambda one: one.report.error in _WAITING, default=None)


@dataclass(frozen=True)
class Situation:
    """The state of the ranks as a controller saw it when it decided, or when it gave up waiting.

    Parameters
    ----------
    late : mapping of int to str
        The ranks that the others waited for, and what each was doing.
    doing : mapping of int to str
        The ranks that were not done, and what each was doing.
    lost : tuple of int
        The ranks whose processes were gone.
    broken : tuple of int
        Of these, those whose last step had raised: mostly since another rank left them alone in a collective.
    hangs : tuple of Culprit
        The actions that had taken longer than they may.
    deadline_s : float
        The command's deadline, in seconds.
    gave_up : bool
        Whether the caller gave up.
    expired : bool
        Whether the deadline had passed.
    failed : tuple of int
        The ranks that had reported a failure of their own.
    """

    late: Mapping[int, str] = field(default_factory=dict)
    doing: Mapping[int, str] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    hangs: tuple[Culprit, ...] = ()
    deadline_s: float = 0.0
    gave_up: bool = False
    expired: bool = False
    failed: tuple[int, ...] = ()


class Blame(NamedTuple):
    """The cause of a command's failure; at most one of the three is given, none: it took too long.

    Parameters
    ----------
    lost : tuple of int
        The ranks whose processes are gone.
    hang : Culprit or None
        The action that a rank did not come out of.
    failure : FailureReport or None
        The report of a rank that failed.
    refused : bool
        Whether that rank refused the command.
    others : mapping of int to str
        The other failures, by rank.
    """

    lost: tuple[int, ...] = ()
    hang: Culprit | None = None
    failure: FailureReport | None = None
    refused: bool = False
    others: Mapping[int, str] = {}


def blame(then: Situation, failures: Mapping[int, tuple[FailureReport, bool]]) -> Blame:
    """Find the first cause.

    Parameters
    ----------
    then : Situation
        The state of the ranks when the command was decided or given up.
    failures : mapping of int to (FailureReport, bool)
        The reports of ranks that failed, and whether each refused the command.
    """
    found = [
        failures[rank]
        # What was reported only after the decision is no cause of it.
        for rank in sorted(failures, key=lambda rank: (rank not in then.failed, rank))
        # A step that raised only after the deadline raised because of a rank that was late then.
        if not (then.expired and rank not in then.failed and failures[rank][0].action == STEP)
    ]
    found.sort(key=lambda one: (one[0].error in _ECHOES, one[0].error in _WAITING))
    if found and found[0][0].error in _ECHOES:
        found = []  # no rank failed of itself: the controller had decided before
    if set(then.lost) - set(then.broken) or (then.lost and not found):
        return Blame(lost=then.lost)
    if then.hangs:
        hang = then.hangs[0]
        others = {
            one.rank: f"is in {one.action}, too" if one.entered else f"has not entered {one.action} either"
            for one in then.hangs
            if one is not hang
        }
        return Blame(hang=hang, others=others)
    if not found:
        return Blame()
    failure, refused = found[0]
    gone: Collection[int] = (*then.lost, *then.broken)
    others = {
        **{other.rank: other.message for other, _ in found[1:]},
        **dict.fromkeys(gone, "its process is gone"),
    }
    return Blame(failure=failure, refused=refused, others=others)


def late_then(failure: FailureReport, then: Situation) -> str:
    """Say which ranks were late when a rank failed that had only waited for others; else nothing."""
    late = {rank: what for rank, what in then.late.items() if rank != failure.rank}
    return f"; late then: {in_sentence(late)}" if late and failure.error in _WAITING else ""


def doings(group: GroupStatus) -> dict[int, str]:
    """Say what every rank that is not done with the command is doing."""
    return {rank.number: doing(rank, group) for rank in group.ranks if not group.is_done(rank)}
