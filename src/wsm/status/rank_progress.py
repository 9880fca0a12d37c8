"""What each rank does for the last command: whom the others wait for, which failure is the cause. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wsm.states.vocabulary import ALL_TAGS, Tag, sentence_of
from wsm.states.words import (
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
    code_name,
    steps_ahead,
)
from wsm.status.facts import (
    DEAD,
    STOPPED,
    FailureFacts,
    GroupFacts,
    RankFacts,
    who,
)

#: Errors of ranks that only repeat that another rank failed.
_ECHOES = frozenset(("peer-never-ready", "command-aborted"))


#: Errors of a rank that waited for another one: told only where that one has nothing to tell.
_WAITS = frozenset(("action-interrupted", "peer-failed", "wait-expired"))


_DOES = {
    StatusCode.NONE: "has not answered",
    StatusCode.ATTACHED: "has not answered",
    StatusCode.DRAINING: "is draining",
    StatusCode.PARKING: "has stopped stepping",
    StatusCode.ACCEPTED: "has accepted it",
    StatusCode.RUNNING: "is running",
    StatusCode.PREPARED: "is prepared",
    StatusCode.FAILED: "has failed",
    StatusCode.REFUSED: "has refused it",
    StatusCode.STOPPED_UNTOUCHED: "has stopped",
    StatusCode.STOPPED_TOUCHED: "has stopped",
}


def waited_for(group: GroupFacts) -> dict[int, str]:
    """Return the ranks that the others wait for in the last command, and what each is doing.

    Those whose processes are stopped or gone where there are such; else the least advanced of all that are
    not done, and the ranks that hold these up inside a step.
    """
    late = late_ranks(group)
    stuck = {rank: what for rank, what in late.items() if group.ranks[rank].life in (STOPPED, DEAD)}
    return stuck or late


def late_ranks(group: GroupFacts) -> dict[int, str]:
    """Return the least advanced ranks that are not done, those that hold them up, and what each does."""
    open_ranks = [rank for rank in group.ranks if not is_done(rank, group)]
    least = min((_progress(rank, group) for rank in open_ranks), default=None)
    found = {rank.number: doing(rank, group) for rank in open_ranks if _progress(rank, group) == least}
    for rank in group.ranks:
        held_up = [] if rank.number in found else [other for other in found if _holds_up(rank, other, group)]
        if rank.number not in found and rank.life == STOPPED:
            found[rank.number] = doing(rank, group)
        elif held_up:
            other = group.ranks[held_up[0]]
            step = other.step.step if other.step is not None else 0
            found[rank.number] = f"has not entered step {step}, in which {who(other.number)} is"
    return found


def doing(rank: RankFacts, group: GroupFacts) -> str:
    """Say in a few words what a rank is doing for the command at hand; without times."""
    command = group.command
    code = None if command is None else rank.code(command)
    if rank.life == DEAD:
        return "is gone"
    stopped = "; its process is stopped" if rank.life == STOPPED else ""
    inside = rank.action if rank.action is not None and rank.action.seconds is not None else None
    if code is None or command is None:
        return f"has not answered{stopped}"
    if code is StatusCode.RUNNING and inside is None:
        before = rank.action.name if rank.action is not None else f"action {_index(rank)} of its plan"
        return f"waits for votes before {before}{stopped}"
    what = "is staging" if code_name(command.operation, code) == "STAGING" else _DOES.get(code, "is done")
    return f"{what}{f' {inside.name}' if inside is not None else ''}{stopped}"


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


def is_done(rank: RankFacts, group: GroupFacts) -> bool:
    """Whether a rank is done with the last command; without one, whether it has joined the epoch."""
    command = group.command
    if command is None:
        return False
    if command.operation is Operation.NONE:
        return rank.status is not None and rank.status.epoch == command.epoch
    code = rank.code(command)
    return code is not None and code.is_terminal


def asked(group: GroupFacts) -> str:
    """Name the last command: ``update to version 7``, ``clear of the KV cache``."""
    command, arguments = group.command, group.arguments
    if command is None:
        return "last command"
    clears = arguments.clears if arguments is not None else command.operation is Operation.CLEAR
    tags = ALL_TAGS if arguments is None else arguments.tags
    half = "" if tags == ALL_TAGS else f" of {sentence_of(tags)}"
    if clears:
        return f"clear{half}"
    version = "" if group.asked_version is None else f" to version {group.asked_version}"
    if arguments is not None and arguments.restores:
        return f"restore of version {group.asked_version}"
    kind = "hot update" if command.operation.is_hot else "update"
    return f"{kind}{half}" if tags == {Tag.KV_CACHE} else f"{kind}{half}{version}"


def version_before(group: GroupFacts) -> str | None:
    """Return the version that is known to be good: that was committed last, or served last."""
    return group.committed.version if group.committed.version is not None else group.served_version


def controller_in_words(group: GroupFacts) -> str:
    """Say of the process that has the controller role which one it is and what it commands."""
    pid, command = group.controller_pid, group.command
    role = ""
    if pid is not None and pid == group.supervisor_pid:
        role = "the supervisor, "
    elif pid is not None and pid == group.starter_pid:
        role = "which started the group and "
    if command is None or command.operation is Operation.NONE:
        return f"{role}waits for the ranks" if role else "which is about to command it"
    over = "has ended" if is_over(group) else "carries out"
    return f"{role}{'' if role.endswith('and ') else 'which '}{over} the {asked(group)}"


def has_failed(rank: RankFacts, group: GroupFacts) -> bool:
    """Whether the rank has failed, or refused, the last command."""
    code = None if group.command is None else rank.code(group.command)
    return code is not None and code.is_failure


def overdue_s(rank: RankFacts) -> float:
    """By how many seconds the rank's action has outlasted its deadline; below 0: it has time left."""
    action = rank.action
    return 0.0 if action is None or action.seconds is None else action.seconds - action.deadline_s


def is_over(group: GroupFacts) -> bool:
    """Whether every rank is done with the last command."""
    return all(is_done(rank, group) for rank in group.ranks)


def _holds_up(rank: RankFacts, other: int, group: GroupFacts) -> bool:
    """Whether `other` is inside a step that `rank` has not entered: no rank leaves it before all are in."""
    inside, here = group.ranks[other].step, rank.step
    return (
        inside is not None
        and here is not None
        and (inside.epoch, inside.kind) == (here.epoch, StepKind.RUNNING)
        and steps_ahead(inside.step, here.step) > 0
    )


def _progress(rank: RankFacts, group: GroupFacts) -> tuple[int, ...]:
    code = None if group.command is None else rank.code(group.command)
    if code is None or rank.status is None:
        return (-1,)
    return (code, rank.status.action, rank.status.ready)


def _index(rank: RankFacts) -> int:
    return 0 if rank.status is None else rank.status.action


def first_failure(failures: Iterable[FailureFacts]) -> FailureFacts | None:
    """Return the failure that is the cause of the others, if one is: echoes never, waits last."""
    found = [one for one in failures if one.report.error not in _ECHOES]
    return min(found, key=lambda one: one.report.error in _WAITS, default=None)


def is_echo(error: str) -> bool:
    """Whether a rank's error only repeats that another rank failed."""
    return error in _ECHOES


def is_wait(error: str) -> bool:
    """Whether a rank's error says only that it waited for another one."""
    return error in _WAITS


def is_current(failure: FailureFacts, group: GroupFacts) -> bool:
    """Whether a failure belongs to the last command."""
    command = group.command
    return command is not None and (failure.epoch, failure.sequence) == command[:2]


def current_failures(group: GroupFacts) -> list[FailureFacts]:
    """Return the failures of the last command, by rank."""
    return [
        rank.failure
        for rank in group.ranks
        if rank.failure is not None and is_current(rank.failure, group) and not rank.failure.is_no_fault
    ]
