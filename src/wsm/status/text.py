"""The status of a group as text for people and as plain values for programs. Pure.

The first sentence, of :mod:`.rules`, says what the group does or holds and why; then what was asked last,
what each rank is doing and waits for, what failed, and what to do. What belongs to an older
command stands apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from wsm.journal import entry as kinds
from wsm.journal.entry import JournalEntry
from wsm.printable import printable
from wsm.states.words import Operation, StatusCode
from wsm.status.culprits import DOES, Wait, late_ranks, wait_of
from wsm.status.facts import FailureFacts, ForeignPid, GroupStatus, RankStatus, named, process, who
from wsm.status.rules import Finding, find

#: The width of the text.
COLUMNS = 80

#: The number of transitions that are kept.
TRANSITIONS = 50

#: A repair is mentioned for so many seconds.
_RECENT_S = 600

_SECOND_NS = 1_000_000_000
_TOLD = (
    *(kinds.TRANSITION, kinds.DECISION, kinds.COMMAND_ISSUED),
    *(kinds.COMMAND_OVER, kinds.RANK_LOST, kinds.RANK_REPLACED),
)
_LOOSE_ENDS = frozenset((kinds.ACTION_STARTED, kinds.ACTION_FINISHED, kinds.ACTION_FAILED))
#: What is told of the group itself; the first three are not known where the command's word is damaged.
EXPLAINED_OF_COMMANDS = ("epoch", "sequence", "operation")
EXPLAINED_OF_GROUPS = ("version", "request_id", "controller_pid", "owner_pid", "supervisor_pid")
#: What is told of a rank, besides the last words of it.
EXPLAINED_OF_RANKS = (
    *("rank", "life", "pid", "pid_namespace", "weights", "kv", "step_kind", "staged_bytes", "plan"),
    *("since_s", "action"),
)
_HEADINGS = ("rank", "pid", "life", "weights", "KV", "step", "code/sequence")


@dataclass(frozen=True)
class Explanation:
    """An explanation of why a group serves or does not.

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
        Sentences about the last command and about each rank.
    waits : tuple of Wait
        The waits of ranks.
    errors : tuple of FailureFacts
        The failures of the last command, by rank.
    earlier : tuple of FailureFacts
        The last failures of ranks in older commands, the latest first.
    repairs : tuple of str
        Sentences about the ranks that were replaced in the last ten minutes, the latest first.
    advice : tuple of str
        The next things to do.
    commands : tuple of str
        The shell commands that the advice names.
    transitions : tuple of JournalEntry
        The last transitions of all ranks and the last words of controllers, oldest first.
    facts : GroupStatus
        The status that all this was made from.
    """

    group: str
    serving: bool
    headline: str
    finding: str
    sentences: tuple[str, ...]
    waits: tuple[Wait, ...]
    errors: tuple[FailureFacts, ...]
    earlier: tuple[FailureFacts, ...]
    repairs: tuple[str, ...]
    advice: tuple[str, ...]
    commands: tuple[str, ...]
    transitions: tuple[JournalEntry, ...]
    facts: GroupStatus

    def text(self) -> str:
        """Return it as text of at most 80 columns where words allow it; transitions are not in it."""
        before = [*self.repairs, *(_failure(one, with_age=True) for one in self.earlier)]
        return _blocks(
            [_wrapped(f"{self.group} {self.headline}.")],
            _listed("- ", self.sentences),
            _listed("! ", map(_failure, self.errors)),
            _listed("> ", self.advice),
            ["Earlier:", *_listed("- ", before)] if before else [],
        )

    def to_mapping(self) -> Mapping[str, Any]:
        """Return plain values, ready for JSON."""
        facts = self.facts
        told = {name: value for name, value in vars(self).items() if name not in ("facts", "transitions")}
        return {
            **msgspec.to_builtins(told),
            "transitions": [msgspec.structs.asdict(one) for one in self.transitions],
            **{name: getattr(facts, name) if facts.epoch else None for name in EXPLAINED_OF_COMMANDS},
            **{name: getattr(facts, name) for name in EXPLAINED_OF_GROUPS},
            "damaged": list(facts.damaged),
            "ranks": [_rank_mapping(rank, facts) for rank in facts.ranks],
        }


def explain(group: GroupStatus) -> Explanation:
    """Turn the facts of a group into sentences."""
    found = find(group)
    return Explanation(
        group=group.name,
        serving=group.serving,
        headline=found.sentence,
        finding=found.code,
        sentences=tuple(_sentences(group)),
        waits=tuple(wait for rank in group.ranks if (wait := wait_of(rank, group)) is not None),
        errors=tuple(group.failures),
        earlier=tuple(group.earlier),
        repairs=tuple(_repairs(group)),
        advice=tuple(advice.text for advice in found.advice),
        commands=tuple(command for advice in found.advice for command in advice.commands),
        transitions=tuple(one for one in group.journal if one.kind in _TOLD)[-TRANSITIONS:],
        facts=group,
    )


def status_of(group: GroupStatus) -> GroupStatus:
    """Return the status with what the rules say of it."""
    found = find(group)
    advice = tuple(advice.text for advice in found.advice)
    return replace(group, headline=found.short, because=found.because, advice=advice)


def status_text(group: GroupStatus) -> str:
    """Return the whole picture of one group: what is found, and a table of ranks that fits 80 columns."""
    found, words = find(group), []
    if group.epoch:
        words = [f"epoch {group.epoch}", f"sequence {group.sequence} ({group.operation})"]
    if group.version is not None:
        words.append(f"committed version {group.version}")
    roles = {"owner": group.owner_pid, "supervisor": group.supervisor_pid, "controller": group.controller_pid}
    processes = [f"{role} pid {pid}" for role, pid in roles.items() if pid is not None]
    return _blocks(
        [_wrapped(f"{group.name} {found.sentence}."), *_listed("> ", [one.text for one in found.advice])],
        _table(group) if group.ranks else [],
        _listed("- ", _busy(group, found)),
        [
            *(", ".join(words), ", ".join(processes)),
            *map(_wrapped, _of_another_container(group)),
            *([] if group.serving else [f"'wsm explain {group.name}' says more"]),
        ],
    )


def status_line(group: GroupStatus) -> str:
    """Return one group in one line, for a list of several."""
    return textwrap.shorten(printable(f"{group.name} {find(group).sentence}"), COLUMNS, placeholder=" ...")


def rank_sentence(rank: RankStatus, group: GroupStatus) -> str:
    """Say what a rank is doing now, or did last."""
    what = _doing(rank, group)
    if rank.life == "dead":
        gone = f"{process(rank.pid)} is gone" if rank.pid else "process is gone"
        said = "" if rank.epoch < group.epoch else "last said that it "
        return f"{_name(rank)}, whose {gone}, {said}{what}."
    stopped = f"; its process {rank.pid} is stopped" if rank.life == "stopped" else ""
    return f"{_name(rank)} {what}{stopped}."


def _sentences(group: GroupStatus) -> list[str]:
    if group.problem:
        return []
    found = [_command(group), *_of_another_container(group)]
    for rank in group.ranks:
        found.append(rank_sentence(rank, group))
        last = [one for one in group.journal if one.rank == rank.rank and one.kind in _LOOSE_ENDS]
        if rank.life == "dead" and last and last[-1].kind == kinds.ACTION_STARTED:
            found.append(f"When it died, {who(rank.number)} was inside {last[-1].facts.get('name')}.")
    return found


def _of_another_container(group: GroupStatus) -> list[str]:
    """Say which pids are none of this pid namespace, and what cannot be known of such processes."""
    pids = (group.owner_pid, group.supervisor_pid, *(rank.pid for rank in group.ranks))
    found = sorted({pid.namespace for pid in pids if isinstance(pid, ForeignPid)})
    ranks = [rank.number for rank in group.ranks if isinstance(rank.pid, ForeignPid)]
    if not found:
        return []
    told = f"The pids of {named(ranks)} are of" if ranks else "Pids of its processes are of"
    spaces = f"pid namespace {', '.join(map(str, found))}, another container"
    return [f"{told} {spaces}: whether a process is stopped there is not known here."]


def _command(group: GroupStatus) -> str:
    command = group.command
    if not group.epoch:
        return "What was asked last cannot be read."
    version = group.committed.version
    last = "No version was ever committed" if version is None else f"Version {version} was committed last"
    if command.operation.name == "NONE":
        return f"{last}; nothing was asked in epoch {command.epoch} yet."
    request = f" by request {group.request_id}" if group.request_id else ""
    by = f", process {group.controller_pid}" if group.controller_pid else ""
    decided = "; it was committed" if command.operation.is_commit else ""
    if command.operation.is_abort:
        decided = "; it found nothing to do" if group.found_nothing_to_do else "; it was aborted"
    return (
        f"{last}; the last command is the {group.asked}{request}{by} (epoch {command.epoch}, sequence "
        f"{command.sequence}){decided}."
    )


def _busy(group: GroupStatus, found: Finding) -> list[str]:
    """Return the sentences of the ranks that a command under way waits for."""
    if found.code not in ("under-way", "action-overdue", "rank-stopped", "joining"):
        return []
    late = {*late_ranks(group), *found.ranks}
    return [rank_sentence(rank, group) for rank in group.ranks if rank.number in late]


def _failure(failure: FailureFacts, *, with_age: bool = False) -> str:
    report, age_s, age = failure.report, failure.age_s, ""
    if with_age and age_s is not None:
        age = f"{age_s:.0f} s ago: " if age_s < _RECENT_S else f"{age_s / 60:.0f} min ago: "
    what = "refused" if failure.refused else f"failed in {report.action}"
    return f"{age}Rank {report.rank} {what} (sequence {failure.sequence}): {report.message}"


def _repairs(group: GroupStatus) -> Iterator[str]:
    """Say which ranks were replaced in the last ten minutes, and how soon the group served again."""
    for one in reversed(group.journal):
        ago_s, facts = (group.read_at_ns - one.at_ns) / 1e9, one.facts
        if one.kind == kinds.RANK_REPLACED and ago_s < _RECENT_S:
            in_epoch = [each for each in group.journal if each.epoch == one.epoch]
            over = [each.at_ns for each in in_epoch if each.facts.get("ended") == "updated"]
            then = f"; the group served again {(over[0] - one.at_ns) / 1e9:.0f} s later" if over else ""
            who_ended = f"rank {facts.get('replaced')} (process {facts.get('pid')}) {facts.get('cause')}"
            yield f"{ago_s:.0f} s ago: {who_ended}, and was replaced{then}"


def _doing(rank: RankStatus, group: GroupStatus) -> str:
    if rank.life == "never":
        return "has not attached yet"
    if not (rank.epoch and group.epoch):
        return "has said nothing that can be read"
    if rank.epoch < group.epoch:
        return f"has not joined epoch {group.epoch} yet: its last word is of epoch {rank.epoch}"
    if rank.is_broken:
        return f"broke: its step {rank.step} raised, or its communicators were cut"
    if group.command.operation is Operation.NONE:
        return DOES[StatusCode.ATTACHED]
    return _answering(rank, group)


def _answering(rank: RankStatus, group: GroupStatus) -> str:
    code = group.answer(rank)
    if code is None:
        where = f"; it is in step {rank.step} or earlier" if rank.step_kind == "running" else ""
        return f"has not answered the {group.asked} (sequence {group.sequence}) yet{where}"
    wait = wait_of(rank, group)
    if wait is not None:
        waits = "waits for" if wait.seconds is None else f"has been waiting {wait.seconds:.1f} s for"
        return f"{_said(rank, code, group)} and {waits} {wait.what}{_left(wait.left_s)}"
    if rank.action is not None and rank.action.seconds is not None:
        if rank.life == "dead":
            return f"is inside {rank.action.name}"
        left_s = rank.action.deadline_s - rank.action.seconds
        return f"has been inside {rank.action.name} for {rank.action.seconds:.1f} s{_left(left_s)}"
    is_old = code.is_terminal or rank.since_s is None or rank.life == "dead"
    return f"{'' if is_old else f'said {rank.since_s:.1f} s ago that it '}{_said(rank, code, group)}"


def _said(rank: RankStatus, code: StatusCode, group: GroupStatus) -> str:
    if rank.code == "STAGING":
        return "stages the new version beside the one that serves"
    if code in (StatusCode.DONE_CLEARED, StatusCode.DONE_COMMITTED, StatusCode.DONE_KEPT):
        return f"is done and {_holds(rank, code, group)}"
    return DOES[code]


def _holds(rank: RankStatus, code: StatusCode, group: GroupStatus) -> str:
    version = group.committed.version
    if rank.weights == rank.kv == "NORMAL":
        verb = "serves" if code is StatusCode.DONE_COMMITTED else "kept"
        return f"{verb if group.hold is None else 'stands with'} version {version}"
    if rank.weights == "NORMAL":
        return f"holds version {version} alone"
    kv_cache = "the KV cache" if rank.helper else "a KV cache"
    return f"holds {kv_cache} alone" if rank.kv == "NORMAL" else "holds nothing"


def _left(left_s: float | None) -> str:
    if left_s is None:
        return ""
    return f", {abs(left_s):.1f} s {'before' if left_s >= 0 else 'beyond'} its deadline"


def _name(rank: RankStatus) -> str:
    """Call a rank by its number, and a KV-cache process what it is, at the beginning of a sentence."""
    return "The KV-cache process" if rank.helper else f"Rank {rank.rank}"


def _blocks(*blocks: Iterable[str]) -> str:
    """Join lines to blocks with an empty line between them; what is empty is left out."""
    return "\n\n".join(filter(None, ("\n".join(filter(None, lines)) for lines in blocks)))


def _listed(bullet: str, texts: Iterable[str]) -> list[str]:
    return [_wrapped(text, bullet) for text in texts]


def _wrapped(text: str, bullet: str = "") -> str:
    return textwrap.fill(
        printable(" ".join(text.split())),
        COLUMNS,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(group: GroupStatus) -> list[str]:
    rows = [_HEADINGS, *map(_row, group.ranks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    # The widest words that there are leave room for one space between columns.
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else " "
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        padded[:2] = [cell.rjust(width) for cell, width in zip(row[:2], widths, strict=False)]
        lines.append(gap.join(padded).rstrip())
    return lines


def _row(rank: RankStatus) -> tuple[str, ...]:
    if rank.life == "never":
        return (str(rank.rank), "-", rank.life, "-", "-", "-", "-")
    told = rank.to_mapping()
    step = "KV cache" if rank.helper else f"{told['step_kind']} {told['step']}"
    index = f"({told['action']})" if rank.code == "RUNNING" else ""
    return (
        str(rank.rank),
        str(rank.pid or "-"),
        rank.life,
        rank.weights,
        rank.kv,
        step,
        f"{rank.code}{index}/{rank.sequence}",
    )


def _rank_mapping(rank: RankStatus, group: GroupStatus) -> Mapping[str, Any]:
    code = group.answer(rank)
    return {
        **{name: getattr(rank, name) for name in EXPLAINED_OF_RANKS},
        "code": None if code is None else code.name,
        "epoch": rank.epoch or None,
        "step": None if rank.step_kind is None else rank.step,
        "action": None if rank.action is None else asdict(rank.action),
    }
