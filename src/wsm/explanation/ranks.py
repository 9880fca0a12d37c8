"""What one rank is doing, in a sentence, and for whom it waits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wsm.explanation.facts import GroupFacts, RankFacts
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord, StepKind, code_name


@dataclass(frozen=True)
class Wait:
    """A wait of one rank.

    Parameters
    ----------
    rank : int
        Who waits.
    ranks : tuple of int
        For whom; empty: for the controller.
    what : str
        For what.
    seconds : float or None
        How long so far.
    left_s : float or None
        Seconds left of its deadline, negative beyond it; None where nobody outside knows it.
    """

    rank: int
    ranks: tuple[int, ...]
    what: str
    seconds: float | None = None
    left_s: float | None = None


def rank_sentence(rank: RankFacts, group: GroupFacts) -> str:
    """Say what a rank is doing now, or did last."""
    what = _doing(rank, group)
    if rank.life == "dead":
        gone = f"process {rank.pid} is gone" if rank.pid else "process is gone"
        return f"{name(rank)}, whose {gone}, last said that it {what}."
    stopped = f"; its process {rank.pid} is stopped" if rank.life == "stopped" else ""
    return f"{name(rank)} {what}{stopped}."


def wait_of(rank: RankFacts, group: GroupFacts) -> Wait | None:
    """Return for whom a rank waits; None if it waits for nobody, or cannot wait any more."""
    command, status = group.command, rank.status
    if command is None or status is None or rank.life in ("dead", "never"):
        return None
    rule = _WAITS.get(rank.code(command) or StatusCode.NONE)
    return None if rule is None else rule(rank, status, group)


def name(rank: RankFacts) -> str:
    """Call a rank by its number, and a KV-cache process what it is."""
    return "The KV-cache process" if rank.helper else f"Rank {rank.rank}"


def named(ranks: Sequence[int]) -> str:
    """List ranks as in a sentence."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _doing(rank: RankFacts, group: GroupFacts) -> str:
    status, command = rank.status, group.command
    if rank.life == "never":
        return "was never there"
    if status is None or command is None:
        return "has said nothing that can be read"
    if status.epoch < command.epoch:
        return f"has not joined epoch {command.epoch} yet; it is still in epoch {status.epoch}"
    if rank.step is not None and rank.step.kind is StepKind.BROKEN:
        return f"broke: its step {rank.step.step} raised, or its communicators were cut"
    return _answering(rank, group, command)


def _answering(rank: RankFacts, group: GroupFacts, command: CommandWord) -> str:
    code = rank.code(command)
    if command.operation is Operation.NONE:
        return _CODES[StatusCode.ATTACHED]
    if code is None:
        return f"has not answered {command.operation.name} (sequence {command.sequence}) yet{_where(rank)}"
    wait = wait_of(rank, group)
    if wait is not None:
        waits = "waits for" if wait.seconds is None else f"has waited {wait.seconds:.1f} s for"
        return f"{_said(rank, code, command)} and {waits} {wait.what}{_left(wait.left_s)}"
    if rank.action is not None and rank.action.seconds is not None:
        if rank.life == "dead":
            return f"is inside {rank.action.name}"
        left_s = rank.action.deadline_s - rank.action.seconds
        return f"has been inside {rank.action.name} for {rank.action.seconds:.1f} s{_left(left_s)}"
    since = "" if code.is_terminal or rank.told_s is None else f", which it said {rank.told_s:.1f} s ago"
    return f"{_said(rank, code, command)}{'' if rank.life == 'dead' else since}"


def _said(rank: RankFacts, code: StatusCode, command: CommandWord) -> str:
    held = [half for half, state in (("weights", rank.weights), ("a KV cache", rank.kv)) if state == "NORMAL"]
    if code is StatusCode.DONE_CLEARED and held:  # a command about one half
        return f"{_CODES[code].removesuffix('no weights')}{held[0]} alone"
    staging = code_name(command.operation, code) == "STAGING"
    return "stages the new version beside the one that serves" if staging else _CODES[code]


def _where(rank: RankFacts) -> str:
    if rank.step is None:
        return ""
    return f"; it is in or behind step {rank.step.step}" if rank.step.kind is StepKind.RUNNING else ""


def _left(left_s: float | None) -> str:
    if left_s is None:
        return ""
    return (
        f", {left_s:.1f} s before its deadline" if left_s >= 0 else f", {-left_s:.1f} s beyond its deadline"
    )


def _parking(rank: RankFacts, status: StatusWord, group: GroupFacts) -> Wait:
    here = None if rank.step is None else (StepKind.PARKED, status.sequence, rank.step.step)
    late = tuple(
        one.rank
        for one in group.ranks
        if one.step is not None and (one.step.kind, one.step.sequence, one.step.step) != here
    )
    what = f"{named(late)} to stand there, too" if late else "nobody that can be seen"
    return Wait(rank.rank, late, what, rank.told_s)


def _running(rank: RankFacts, status: StatusWord, group: GroupFacts) -> Wait | None:
    if rank.action is None or rank.action.seconds is not None or status.ready <= status.action:
        return None  # it is inside, and whoever is inside a collective is waited for like everybody else
    late = tuple(one.rank for one in group.ranks if _ready(one, group) <= status.action)
    what = f"{named(late)} to be ready for {rank.action.name}" if late else f"its turn in {rank.action.name}"
    left_s = None if rank.told_s is None else rank.action.deadline_s - rank.told_s
    return Wait(rank.rank, late, what, rank.told_s, left_s)


def _prepared(rank: RankFacts, _status: StatusWord, group: GroupFacts) -> Wait | None:
    command = group.command
    if command is None or command.operation.is_decision:
        return None
    late = tuple(one.rank for one in group.ranks if one.code(command) is not StatusCode.PREPARED)
    what = f"{named(late)} to be prepared" if late else "the controller's decision"
    return Wait(rank.rank, late, what, rank.told_s)


def _failed(rank: RankFacts, _status: StatusWord, group: GroupFacts) -> Wait | None:
    if group.command is None or group.command.operation.is_decision:
        return None
    return Wait(rank.rank, (), "the controller's decision", rank.told_s)


def _stopped(rank: RankFacts, _status: StatusWord, group: GroupFacts) -> Wait:
    late = tuple(one.rank for one in group.ranks if _code(one, group.command) < StatusCode.STOPPED_UNTOUCHED)
    what = f"{named(late)} to stop, too" if late else "nobody that can be seen"
    return Wait(rank.rank, late, what, rank.told_s)


def _code(rank: RankFacts, command: CommandWord | None) -> StatusCode:
    return (None if command is None else rank.code(command)) or StatusCode.NONE


def _ready(rank: RankFacts, group: GroupFacts) -> int:
    if group.command is None or rank.code(group.command) is None or rank.status is None:
        return 0
    return rank.status.ready


_CODES = {
    StatusCode.NONE: "has said nothing",
    StatusCode.ATTACHED: "has joined this epoch and seen no command in it",
    StatusCode.DRAINING: "lets its running requests come to their end",
    StatusCode.PARKING: "stands still",
    StatusCode.ACCEPTED: "has accepted the command",
    StatusCode.RUNNING: "works through its plan",
    StatusCode.PREPARED: "is prepared",
    StatusCode.FAILED: "has failed",
    StatusCode.REFUSED: "has refused the command",
    StatusCode.STOPPED_UNTOUCHED: "has stopped, its old weights whole,",
    StatusCode.STOPPED_TOUCHED: "has stopped, its weights not whole,",
    StatusCode.DONE_KEPT: "is done and kept what it had",
    StatusCode.DONE_CLEARED: "is done and holds no weights",
    StatusCode.DONE_COMMITTED: "is done and has the new version",
    StatusCode.DONE_FAULTED: "is done, and its teardown failed",
}

_WAITS: dict[StatusCode, Callable[[RankFacts, StatusWord, GroupFacts], Wait | None]] = {
    StatusCode.PARKING: _parking,
    StatusCode.RUNNING: _running,
    StatusCode.PREPARED: _prepared,
    StatusCode.FAILED: _failed,
    StatusCode.REFUSED: _failed,
    StatusCode.STOPPED_UNTOUCHED: _stopped,
    StatusCode.STOPPED_TOUCHED: _stopped,
}
