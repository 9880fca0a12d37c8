"""What is known of a group as text for people and as plain values for programs. Pure.

The first sentence, of :mod:`.rules`, says what the group does or holds and why; then what was asked last,
what each rank is doing and waits for, what failed, and what to do. What belongs to an older
command stands apart.
"""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from wsm.printable import printable
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, JournalEntry
from wsm.states.words import (
    FEW_SEQUENCES,
    CommandWord,
    Decider,
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    code_name,
)
from wsm.status._advice import Advice, Finding
from wsm.status.facts import FailureFacts, GroupFacts, GroupStatus, RankFacts, RankStatus, named, who
from wsm.status.rank_progress import asked, is_current, is_done, late_ranks, not_parked
from wsm.status.rules import find

#: How wide the text is.
COLUMNS = 80

#: How many of the last transitions are told.
TRANSITIONS = 50

_SECOND_NS = 1_000_000_000
_TOLD = frozenset(
    (kinds.TRANSITION, kinds.DECISION, kinds.COMMAND_ISSUED, kinds.COMMAND_OVER, kinds.RANK_LOST)
)
_LOOSE_ENDS = frozenset((kinds.ACTION_STARTED, kinds.ACTION_FINISHED, kinds.ACTION_FAILED))
_HEADINGS = ("rank", "pid", "life", "weights", "KV", "step", "code/sequence")
_RIGHT = (True, True, False, False, False, False, False)


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
        For what.
    seconds : float or None
        How long so far.
    left_s : float or None
        Seconds left of its deadline, negative beyond it; None where it cannot be known from outside.
    """

    rank: int
    ranks: tuple[int, ...]
    what: str
    seconds: float | None = None
    left_s: float | None = None


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
    finding : str
        Its code: an entry of the runbook in docs/operating.md.
    sentences : tuple of str
        What was asked last, and what every rank is doing.
    waits : tuple of Wait
        Which rank waits for which.
    errors : tuple of FailureFacts
        What failed in the last command, by rank.
    earlier : tuple of FailureFacts
        The last failures of ranks in older commands, the latest first.
    advice : tuple of str
        What to do next.
    commands : tuple of str
        The shell commands that the advice names.
    transitions : tuple of JournalEntry
        The last transitions of all ranks and the last words of controllers, oldest first.
    facts : GroupFacts
        What all that was told from.
    """

    group: str
    serving: bool
    headline: str
    finding: str
    sentences: tuple[str, ...]
    waits: tuple[Wait, ...]
    errors: tuple[FailureFacts, ...]
    earlier: tuple[FailureFacts, ...]
    advice: tuple[str, ...]
    commands: tuple[str, ...]
    transitions: tuple[JournalEntry, ...]
    facts: GroupFacts

    def text(self, *, transitions: int = TRANSITIONS) -> str:
        """Return everything as text of at most 80 columns where words allow it."""
        told = self.transitions[-transitions:] if transitions else ()
        earlier = [_wrapped(f"{_age(one)}{_failure(one)}", bullet="- ") for one in self.earlier]
        parts = [
            _wrapped(f"{self.group} {self.headline}."),
            "\n".join(_wrapped(sentence, bullet="- ") for sentence in self.sentences),
            "\n".join(_wrapped(_failure(error), bullet="! ") for error in self.errors),
            "\n".join(_wrapped(advice, bullet="> ") for advice in self.advice),
            "\n".join(["Earlier:", *earlier]) if earlier else "",
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
            "finding": self.finding,
            "sentences": list(self.sentences),
            "waits": [asdict(wait) for wait in self.waits],
            "errors": [asdict(error) for error in self.errors],
            "earlier": [asdict(error) for error in self.earlier],
            "advice": list(self.advice),
            "commands": list(self.commands),
            "epoch": None if command is None else command.epoch,
            "sequence": None if command is None else command.sequence,
            "operation": None if command is None else command.operation.name,
            "version": self.facts.committed.version,
            "request_id": self.facts.request_id,
            "controller_pid": self.facts.controller_pid,
            "owner_pid": self.facts.owner_pid,
            "supervisor_pid": self.facts.supervisor_pid,
            "damaged": list(self.facts.damaged),
            "ranks": [_rank_mapping(rank, self.facts) for rank in self.facts.ranks],
            "transitions": [{**one._asdict(), "facts": dict(one.facts)} for one in self.transitions],
        }


def explain(group: GroupFacts) -> Explanation:
    """Turn the facts of a group into sentences."""
    found = _found(group)
    waits = [wait_of(rank, group) for rank in group.ranks]
    failures = [
        rank.failure for rank in group.ranks if rank.failure is not None and not rank.failure.is_no_fault
    ]
    older = [one for one in failures if not is_current(one, group)]
    return Explanation(
        group=group.name,
        serving=group.serving,
        headline=found.sentence,
        finding=found.code,
        sentences=tuple(_sentences(group)),
        waits=tuple(wait for wait in waits if wait is not None),
        errors=tuple(one for one in failures if is_current(one, group)),
        earlier=tuple(sorted(older, key=lambda one: (one.epoch, one.sequence), reverse=True)),
        advice=tuple(advice.text for advice in found.advice),
        commands=tuple(command for advice in found.advice for command in advice.commands),
        transitions=tuple(one for one in group.journal if one.kind in _TOLD)[-TRANSITIONS:],
        facts=group,
    )


def status_of(group: GroupFacts) -> GroupStatus:
    """Return what programs get of the facts of a group whose words are whole."""
    command = group.command or CommandWord(0, 0, Operation.NONE)
    found = _found(group)
    is_written = not command.operation.is_commit or group.committed.sequence == command.sequence
    return GroupStatus(
        name=group.name,
        run_id=group.run_id,
        epoch=command.epoch,
        sequence=command.sequence,
        operation=command.operation.name,
        over=is_written and all(is_done(rank, group) for rank in group.ranks),
        version=group.committed.version,
        controller_pid=group.controller_pid,
        owner_pid=group.owner_pid,
        ranks=tuple(_rank_status(rank, command) for rank in group.ranks),
        controller_stopped=group.controller_stopped,
        supervisor_pid=group.supervisor_pid if group.supervisor_life in ("alive", "stopped") else None,
        headline=found.short,
        because=found.because,
        advice=tuple(advice.text for advice in found.advice),
        hold=group.hold,
        decision_left_s=group.decision_left_s,
    )


def status_text(group: GroupFacts) -> str:
    """Return the whole picture of one group: what is found, and a table of ranks that fits 80 columns."""
    command, found = group.command, _found(group)
    words = [] if command is None else [f"epoch {command.epoch}", f"sequence {command.sequence}"]
    if command is not None:
        words[-1] += f" ({command.operation.name})"
    if group.committed.version is not None:
        words.append(f"committed version {group.committed.version}")
    roles = {
        "owner": group.owner_pid,
        "supervisor": group.supervisor_pid if group.supervisor_life in ("alive", "stopped") else None,
        "controller": group.controller_pid,
    }
    busy = _busy(group, found)
    processes = [f"{role} pid {pid}" for role, pid in roles.items() if pid is not None]
    return "\n".join(
        (
            _wrapped(f"{group.name} {found.sentence}."),
            *(_wrapped(advice.text, bullet="> ") for advice in found.advice),
            "",
            *_table(group),
            "",
            *(_wrapped(one, bullet="- ") for one in busy),
            *([""] if busy else []),
            ", ".join(words),
            *([", ".join(processes)] if processes else []),
            *([] if group.serving else [f"'wsm explain {group.name}' says more"]),
        )
    )


def _found(group: GroupFacts) -> Finding:
    """Return what the rules find, and what is to be done besides before its numbers end."""
    found, command = find(group), group.command
    if command is None or command.commands_left >= FEW_SEQUENCES:
        return found
    ends = f"{command.commands_left} more commands can be given to this group. Before that end all of its"
    advice = Advice(f"{ends} processes and start it again: it counts from 0 then.")
    return replace(found, advice=(*found.advice, advice))


def status_line(group: GroupFacts) -> str:
    """Return one group in one line, for a list of several."""
    return textwrap.shorten(printable(f"{group.name} {find(group).sentence}"), COLUMNS, placeholder=" ...")


def rank_sentence(rank: RankFacts, group: GroupFacts) -> str:
    """Say what a rank is doing now, or did last."""
    what = _doing(rank, group)
    if rank.life == "dead":
        gone = f"process {rank.pid} is gone" if rank.pid else "process is gone"
        return f"{_name(rank)}, whose {gone}, last said that it {what}."
    stopped = f"; its process {rank.pid} is stopped" if rank.life == "stopped" else ""
    return f"{_name(rank)} {what}{stopped}."


def wait_of(rank: RankFacts, group: GroupFacts) -> Wait | None:
    """Return for whom a rank waits; None if it waits for nothing, or cannot wait any more."""
    command, status = group.command, rank.status
    if command is None or status is None or rank.life in ("dead", "never"):
        return None
    rule = _WAITS.get(rank.code(command) or StatusCode.NONE)
    return None if rule is None else rule(rank, status, group)


def _sentences(group: GroupFacts) -> list[str]:
    if group.problem:
        return []
    found = [_command(group)]
    for rank in group.ranks:
        found.append(rank_sentence(rank, group))
        if rank.life == "dead" and (action := _died_in(rank.rank, group)) is not None:
            found.append(f"When it died, {who(rank.number)} was inside {action}.")
    return found


def _command(group: GroupFacts) -> str:
    command = group.command
    if command is None:
        return "What was asked last cannot be read."
    version = group.committed.version
    held = "No version was ever committed" if version is None else f"Version {version} was committed last"
    if command.operation.name == "NONE":
        return f"{held}; nothing was asked in epoch {command.epoch} yet."
    request = f" by request {group.request_id}" if group.request_id else ""
    by = f", process {group.controller_pid}" if group.controller_pid else ""
    how = {
        Operation.COMMIT: "committed",
        Operation.HOT_COMMIT: "committed",
        Operation.ABORT: "aborted",
        Operation.HOT_ABORT: "aborted",
    }.get(command.operation)
    decided = "" if how is None else f"; it was {how}"
    if any(
        rank.failure is not None and rank.failure.is_no_fault and is_current(rank.failure, group)
        for rank in group.ranks
    ):
        decided = "; it found nothing to do"
    return (
        f"{held}; the last command is the {asked(group)}{request}{by} (epoch {command.epoch}, sequence "
        f"{command.sequence}){decided}."
    )


def _busy(group: GroupFacts, found: Finding) -> list[str]:
    """Return the sentences of the ranks that a command under way waits for."""
    if found.code not in ("under-way", "action-overdue", "rank-stopped", "joining"):
        return []
    late = {*late_ranks(group), *found.ranks}
    return [rank_sentence(rank, group) for rank in group.ranks if rank.number in late]


def _died_in(rank: int, group: GroupFacts) -> str | None:
    """Return the action that a rank's journal leaves open."""
    last = [one for one in group.journal if one.rank == rank and one.kind in _LOOSE_ENDS]
    return str(last[-1].facts.get("name")) if last and last[-1].kind == kinds.ACTION_STARTED else None


def _failure(failure: FailureFacts) -> str:
    report = failure.report
    what = "refused" if failure.refused else "failed in"
    where = "" if failure.refused else f" {report.action}"
    return f"Rank {report.rank} {what}{where} (sequence {failure.sequence}): {report.message}"


def _age(failure: FailureFacts) -> str:
    age_s = failure.age_s
    if age_s is None:
        return ""
    return f"{age_s:.0f} s ago: " if age_s < 600 else f"{age_s / 60:.0f} min ago: "


def _doing(rank: RankFacts, group: GroupFacts) -> str:
    status, command = rank.status, group.command
    if rank.life == "never":
        return "has not attached yet"
    if status is None or command is None:
        return "has said nothing that can be read"
    if status.epoch < command.epoch:
        return f"has not joined epoch {command.epoch} yet; it is still in epoch {status.epoch}"
    if rank.is_broken and rank.step is not None:
        return f"broke: its step {rank.step.step} raised, or its communicators were cut"
    return _answering(rank, group, command)


def _answering(rank: RankFacts, group: GroupFacts, command: CommandWord) -> str:
    code = rank.code(command)
    if command.operation is Operation.NONE:
        return _CODES[StatusCode.ATTACHED]
    if code is None:
        return f"has not answered the {asked(group)} (sequence {command.sequence}) yet{_where(rank)}"
    wait = wait_of(rank, group)
    if wait is not None:
        waits = "waits for" if wait.seconds is None else f"has been waiting {wait.seconds:.1f} s for"
        return f"{_said(rank, code, group)} and {waits} {wait.what}{_left(wait.left_s)}"
    if rank.action is not None and rank.action.seconds is not None:
        if rank.life == "dead":
            return f"is inside {rank.action.name}"
        left_s = rank.action.deadline_s - rank.action.seconds
        return f"has been inside {rank.action.name} for {rank.action.seconds:.1f} s{_left(left_s)}"
    since = "" if code.is_terminal or rank.told_s is None else f", which it said {rank.told_s:.1f} s ago"
    return f"{_said(rank, code, group)}{'' if rank.life == 'dead' else since}"


def _said(rank: RankFacts, code: StatusCode, group: GroupFacts) -> str:
    command = group.command
    if command is not None and code_name(command.operation, code) == "STAGING":
        return "stages the new version beside the one that serves"
    if code in (StatusCode.DONE_CLEARED, StatusCode.DONE_COMMITTED, StatusCode.DONE_KEPT):
        return f"is done and {_holds(rank, code, group)}"
    return _CODES[code]


def _holds(rank: RankFacts, code: StatusCode, group: GroupFacts) -> str:
    version = group.committed.version
    held = [
        what
        for what, state in (
            (f"version {version}", rank.weights),
            ("the KV cache" if rank.helper else "a KV cache", rank.kv),
        )
        if state == "NORMAL"
    ]
    if rank.weights == rank.kv == "NORMAL":
        verb = "serves" if code is StatusCode.DONE_COMMITTED else "kept"
        if group.hold is not None:
            verb = "stands with"
        return f"{verb} version {version}"
    return f"holds {held[0]} alone" if held else "holds nothing"


def _where(rank: RankFacts) -> str:
    if rank.step is None:
        return ""
    return f"; it is in step {rank.step.step} or earlier" if rank.step.kind is StepKind.RUNNING else ""


def _left(left_s: float | None) -> str:
    if left_s is None:
        return ""
    return (
        f", {left_s:.1f} s before its deadline" if left_s >= 0 else f", {-left_s:.1f} s beyond its deadline"
    )


def _name(rank: RankFacts) -> str:
    """Call a rank by its number, and a KV-cache process what it is, at the beginning of a sentence."""
    return "The KV-cache process" if rank.helper else f"Rank {rank.rank}"


def _parking(rank: RankFacts, status: StatusWord, group: GroupFacts) -> Wait:
    steps = [one.step for one in group.ranks if one.step is not None]
    late = () if rank.step is None else not_parked(steps, sequence=status.sequence, step=rank.step.step)
    what = f"{named(late)} to stop at the same step" if late else "nothing that can be seen"
    return Wait(rank.rank, tuple(late), what, rank.told_s)


def _running(rank: RankFacts, status: StatusWord, group: GroupFacts) -> Wait | None:
    if rank.action is None or rank.action.seconds is not None or status.ready <= status.action:
        return None  # it is inside: inside a collective it is waited for like every other
    late = tuple(one.rank for one in group.ranks if _ready(one, group) <= status.action)
    what = f"{named(late)} to be ready for {rank.action.name}" if late else f"its turn in {rank.action.name}"
    left_s = None if rank.told_s is None else rank.action.deadline_s - rank.told_s
    return Wait(rank.rank, late, what, rank.told_s, left_s)


_DECISIONS = {
    Decider.CONTROLLER: "the controller's decision",
    Decider.CALLER: "its caller's decision",
    Decider.OUTSIDE: "a decision that is made outside",
}


def _prepared(rank: RankFacts, _status: StatusWord, group: GroupFacts) -> Wait | None:
    command = group.command
    if command is None or command.operation.is_decision:
        return None
    late = tuple(one.rank for one in group.ranks if one.code(command) is not StatusCode.PREPARED)
    what = f"{named(late)} to be prepared" if late else _DECISIONS[command.decider]
    return Wait(rank.rank, late, what, rank.told_s)


def _failed(rank: RankFacts, _status: StatusWord, group: GroupFacts) -> Wait | None:
    if group.command is None or group.command.operation.is_decision:
        return None
    return Wait(rank.rank, (), "the controller's decision", rank.told_s)


def _ended(rank: RankFacts, _status: StatusWord, group: GroupFacts) -> Wait:
    late = tuple(one.rank for one in group.ranks if _code(one, group.command) < StatusCode.STOPPED_UNTOUCHED)
    what = f"{named(late)} to stop" if late else "nothing that can be seen"
    return Wait(rank.rank, late, what, rank.told_s)


def _code(rank: RankFacts, command: CommandWord | None) -> StatusCode:
    return (None if command is None else rank.code(command)) or StatusCode.NONE


def _ready(rank: RankFacts, group: GroupFacts) -> int:
    if group.command is None or rank.code(group.command) is None or rank.status is None:
        return 0
    return rank.status.ready


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
    by = "controller" if one.rank == CONTROLLER else f"r{one.rank}"
    facts = one.facts
    if one.kind == kinds.TRANSITION:
        what = f"{facts.get('machine')}: {facts.get('source')} --{facts.get('event')}--> {facts.get('dest')}"
    else:
        what = f"{one.kind} {' '.join(f'{key}={value}' for key, value in facts.items())}"
    return _wrapped(f"{_time(one.wall_ns)} {by} s{one.sequence} {what}", "  ", rest=" " * 6)


def _time(wall_ns: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(wall_ns // _SECOND_NS, tz=dt.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{wall_ns} ns"
    return f"{moment:%H:%M:%S}.{wall_ns % _SECOND_NS // 1_000_000:03d}"


def _table(group: GroupFacts) -> list[str]:
    rows = [_HEADINGS, *(_row(rank, group) for rank in group.ranks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    # The widest words that there are leave room for one space between columns.
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else " "
    return [gap.join(_aligned(row, widths)).rstrip() for row in rows]


def _row(rank: RankFacts, group: GroupFacts) -> tuple[str, ...]:
    if rank.life == "never":
        return (str(rank.rank), "-", rank.life, "-", "-", "-", "-")
    told = _rank_status(rank, group.command or CommandWord(0, 0, Operation.NONE))
    step = "KV cache" if rank.helper else f"{told.step_kind} {told.step}"
    code = f"{told.code}({told.action})" if told.code == "RUNNING" else told.code
    return (
        str(rank.rank),
        str(rank.pid or "-"),
        rank.life,
        rank.weights,
        rank.kv,
        step,
        f"{code}/{told.sequence}",
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, _RIGHT, strict=True)
    ]


def _rank_status(rank: RankFacts, command: CommandWord) -> RankStatus:
    status = rank.status or StatusWord(0, 0, StatusCode.NONE)
    inside = rank.action is not None and rank.action.seconds is not None
    return RankStatus(
        rank=rank.rank,
        life=rank.life,
        pid=rank.pid,
        weights=rank.weights,
        kv=rank.kv,
        code=code_name(command.operation, status.code),
        epoch=status.epoch,
        sequence=status.sequence,
        action=status.action,
        step_kind=rank.step_kind or "none",
        step=0 if rank.step is None else rank.step.step,
        heartbeat=rank.heartbeat,
        doing=rank.action.name if inside and rank.action is not None else None,
        since_s=rank.told_s,
        staged_bytes=rank.staged_bytes,
    )


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
        "step_kind": rank.step_kind,
        "since_s": rank.told_s,
        "staged_bytes": rank.staged_bytes,
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
    StatusCode.STOPPED_TOUCHED: "has stopped, its weights partly overwritten,",
    StatusCode.DONE_FAULTED: "is done, and could not release what it held",
}

_WAITS: dict[StatusCode, Callable[[RankFacts, StatusWord, GroupFacts], Wait | None]] = {
    StatusCode.PARKING: _parking,
    StatusCode.RUNNING: _running,
    StatusCode.PREPARED: _prepared,
    StatusCode.FAILED: _failed,
    StatusCode.REFUSED: _failed,
    StatusCode.STOPPED_UNTOUCHED: _ended,
    StatusCode.STOPPED_TOUCHED: _ended,
}
