"""Why a group does not serve, in sentences: from its facts to text and to plain values. Pure."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wsm.explanation.facts import FailureFacts, GroupFacts, RankFacts
from wsm.explanation.ranks import Wait, rank_sentence, wait_of
from wsm.explanation.verdicts import serves, verdict
from wsm.printable import printable
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, JournalEntry

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
