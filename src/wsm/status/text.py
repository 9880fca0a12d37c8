"""Why a group does not serve, in sentences: from its facts to text and to plain values. Pure."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wsm.printable import printable
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, JournalEntry
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord, StepKind, code_name
from wsm.status.facts import FailureFacts, GroupFacts, RankFacts, named
from wsm.status.rules import serves, verdict

#: How wide the text is.
COLUMNS = 80

#: How many of the last transitions are told.
TRANSITIONS = 50

_SECOND_NS = 1_000_000_000
_TOLD = frozenset(
    (kinds.TRANSITION, kinds.DECISION, kinds.COMMAND_ISSUED, kinds.COMMAND_OVER, kinds.RANK_LOST)
)
_LOOSE_ENDS = frozenset((kinds.ACTION_STARTED, kinds.ACTION_FINISHED, kinds.ACTION_FAILED))


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


@dataclass(frozen=True)
class Explanation:
    """Why a group serves or does not.

    Parameters
    ----------
    group : str
        Its name.
    serving : bool
        Whether every rank may step.
    headline : str
        The one thing to know.
    sentences : tuple of str
        What was asked last, and what every rank is doing.
    waits : tuple of Wait
        Who waits for whom.
    errors : tuple of FailureFacts
        The last failure of every rank that ever failed.
    advice : tuple of str
        What to do next.
    transitions : tuple of JournalEntry
        The last transitions of all ranks and the last words of controllers, oldest first.
    facts : GroupFacts
        What all that was told from.
    """

    group: str
    serving: bool
    headline: str
    sentences: tuple[str, ...]
    waits: tuple[Wait, ...]
    errors: tuple[FailureFacts, ...]
    advice: tuple[str, ...]
    transitions: tuple[JournalEntry, ...]
    facts: GroupFacts

    def text(self, *, transitions: int = TRANSITIONS) -> str:
        """Return everything as text of at most 80 columns where words allow it."""
        told = self.transitions[-transitions:] if transitions else ()
        parts = [
            _wrapped(f"{self.group} {self.headline}."),
            "\n".join(_wrapped(sentence, bullet="- ") for sentence in self.sentences),
            "\n".join(_wrapped(_error(error), bullet="! ") for error in self.errors),
            "\n".join(_wrapped(advice, bullet="> ") for advice in self.advice),
            "\n".join(["Last transitions:", *map(_line, told)]) if told else "",
        ]
        return "\n\n".join(part for part in parts if part)

    def to_mapping(self) -> Mapping[str, Any]:
        """Return plain values, ready for JSON."""
        command = self.facts.command
        return {
            "group": self.group,
            "serving": self.serving,
            "headline": self.headline,
            "sentences": list(self.sentences),
            "waits": [asdict(wait) for wait in self.waits],
            "errors": [asdict(error) for error in self.errors],
            "advice": list(self.advice),
            "epoch": None if command is None else command.epoch,
            "sequence": None if command is None else command.sequence,
            "operation": None if command is None else command.operation.name,
            "version": self.facts.committed.version,
            "request_id": self.facts.request_id,
            "controller_pid": self.facts.controller_pid,
            "owner_pid": self.facts.owner_pid,
            "damaged": list(self.facts.damaged),
            "ranks": [_rank_mapping(rank, self.facts) for rank in self.facts.ranks],
            "transitions": [{**one._asdict(), "facts": dict(one.facts)} for one in self.transitions],
        }


def explain(group: GroupFacts) -> Explanation:
    """Turn the facts of a group into sentences."""
    headline, advice = verdict(group)
    waits = [wait_of(rank, group) for rank in group.ranks]
    return Explanation(
        group=group.name,
        serving=serves(group),
        headline=headline,
        sentences=tuple(_sentences(group)),
        waits=tuple(wait for wait in waits if wait is not None),
        errors=tuple(rank.failure for rank in group.ranks if rank.failure is not None),
        advice=advice,
        transitions=tuple(one for one in group.journal if one.kind in _TOLD)[-TRANSITIONS:],
        facts=group,
    )


def _sentences(group: GroupFacts) -> list[str]:
    if group.problem:
        return []
    found = [_command(group)]
    for rank in group.ranks:
        found.append(rank_sentence(rank, group))
        if rank.life == "dead" and (action := _died_in(rank.rank, group)) is not None:
            found.append(f"When it died, rank {rank.rank} was inside {action}.")
    return found


def _command(group: GroupFacts) -> str:
    command = group.command
    if command is None:
        return "What was asked last cannot be read."
    version = group.committed.version
    held = "No version was ever committed" if version is None else f"Version {version} was committed last"
    if command.operation.name == "NONE":
        return f"{held}; nothing was asked in epoch {command.epoch} yet."
    who = f" for request {group.request_id}" if group.request_id else ""
    by = f" by process {group.controller_pid}" if group.controller_pid else ""
    kind = "decided" if command.operation.is_decision else "asked"
    return (
        f"{held}; {command.operation.name} was {kind}{by}{who} (epoch {command.epoch}, "
        f"sequence {command.sequence})."
    )


def _died_in(rank: int, group: GroupFacts) -> str | None:
    """Return the action that a rank's journal leaves open."""
    last = [one for one in group.journal if one.rank == rank and one.kind in _LOOSE_ENDS]
    return str(last[-1].facts.get("name")) if last and last[-1].kind == kinds.ACTION_STARTED else None


def _error(failure: FailureFacts) -> str:
    report = failure.report
    what = "refused" if failure.refused else "failed in"
    where = "" if failure.refused else f" {report.action}"
    return f"Rank {report.rank} {what}{where} (sequence {failure.sequence}): {report.message}"


def _wrapped(text: str, bullet: str = "", *, rest: str | None = None) -> str:
    return textwrap.fill(
        printable(" ".join(text.split())),
        COLUMNS,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet) if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _line(one: JournalEntry) -> str:
    who = "controller" if one.rank == CONTROLLER else f"r{one.rank}"
    facts = one.facts
    if one.kind == kinds.TRANSITION:
        what = f"{facts.get('machine')}: {facts.get('source')} --{facts.get('event')}--> {facts.get('dest')}"
    else:
        what = f"{one.kind} {' '.join(f'{key}={value}' for key, value in facts.items())}"
    return _wrapped(f"{_time(one.wall_ns)} {who} s{one.sequence} {what}", "  ", rest=" " * 6)


def _time(wall_ns: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(wall_ns // _SECOND_NS, tz=dt.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{wall_ns} ns"
    return f"{moment:%H:%M:%S}.{wall_ns % _SECOND_NS // 1_000_000:03d}"


def _rank_mapping(rank: RankFacts, group: GroupFacts) -> Mapping[str, Any]:
    code = None if group.command is None else rank.code(group.command)
    return {
        "rank": rank.rank,
        "life": rank.life,
        "pid": rank.pid,
        "weights": rank.weights,
        "kv": rank.kv,
        "code": None if code is None else code.name,
        "epoch": None if rank.status is None else rank.status.epoch,
        "step": None if rank.step is None else rank.step.step,
        "step_kind": None if rank.step is None else rank.step.kind.name.lower(),
        "since_s": rank.told_s,
        "plan": rank.plan,
        "action": None if rank.action is None else asdict(rank.action),
    }


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
