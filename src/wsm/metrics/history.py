"""Counts and histograms: of what journals tell of a group, and of what a server over HTTP answered. Pure.

Not the counters of ``prometheus_client``: those belong to the process that counts, and within an engine that
sets ``PROMETHEUS_MULTIPROC_DIR`` they are files of it. What is counted here was written down by others, and
is counted anew by each exporter.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry

#: Upper bounds in seconds, up to what vLLM's have: an update of a large model takes minutes.
BOUNDS: Final = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)

#: Longer names, and more of them, are no action's or error's: a journal that was damaged names them.
_LONGEST_NAME, _MOST_NAMES = 100, 1000

#: How a command ended that nothing told the end of: its controller died, or stopped waiting.
UNTOLD: Final = "untold"

#: How a command ended whose journal says it in words alone.
_UNNAMED: Final = "ended"


#: Counters of entries that a night is looked at for, by their kind.
EVENTS: Final = {
    kinds.STARTED: ("wsm_rank_starts", "Processes that began as this rank."),
    kinds.RANK_LOST: ("wsm_ranks_lost", "Times that a controller found the process of this rank gone."),
    kinds.STEP_BROKEN: ("wsm_steps_broken", "Steps that raised."),
    kinds.WAIT_EXPIRED: ("wsm_waits_expired", "Waits that passed their deadline, or actions that did."),
    kinds.INTERRUPTED: ("wsm_interruptions", "Times that communicators were broken under a collective."),
}


class Durations:
    """How often something took how long."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect.bisect_left(BOUNDS, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Return how many took at most so long, the last of them any time."""
        return list(zip((*map(str, BOUNDS), "+Inf"), itertools.accumulate(self.counts), strict=True))


class _ByNames(defaultdict[tuple[str, ...], Any]):
    """Counts, or durations, by the names that they are of; past so many names all others are one."""

    def add(self, *names: object) -> None:
        """Count one more."""
        self[self._labels(names)] += 1

    def took(self, seconds: object, *names: object) -> None:
        """Count one more duration, if that is a time at all."""
        if isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds >= 0:
            self[self._labels(names)].add(seconds)

    def _labels(self, names: Iterable[object]) -> tuple[str, ...]:
        labels = tuple(str(name)[:_LONGEST_NAME] for name in names)
        return labels if labels in self or len(self) < _MOST_NAMES else ("other",) * len(labels)


class ServerCounts:
    """What a server over HTTP did since it began.

    Attributes
    ----------
    requests : durations by route, method and status
        Until the last byte of the answer.
    unsupported : counts by surface and verb
        Verbs of trainers that were refused, since they cannot be honoured.
    texts_waiting : int
        Requests for text that wait in a hold now.
    file_faults : int
        Times that the file of requests was found damaged or emptied, or could not be used any more.
    """

    def __init__(self) -> None:
        self.requests, self.unsupported = _ByNames(Durations), _ByNames(int)
        self.texts_waiting = self.file_faults = 0


class JournalCounts:
    """What one group's journals told so far.

    Entries of each participant come in their own order; those of different ones in any.

    Attributes
    ----------
    commands : durations by operation and outcome
        From the command's word to the answer of its controller.
    pauses, staging : durations by operation
        The longest time that a rank could not serve, and that a hot update staged; of receipts.
    actions : durations by action
        Of all ranks.
    loads : durations
        Of actions that loaded a version, per rank.
    command_errors : counts by operation and the error's code
    action_errors : counts by rank, action and the error's code
    events : counts by rank and kind of entry
        What should not happen: lost ranks, broken steps, expired waits, interruptions; and starts.
    decisions : counts by decision
    loaded_bytes : float
        Of all ranks, by committed updates.
    lost_lines, unreadable_lines : int
        Of journals, so that nothing of them is counted.
    open : (operation, at_ns) or None
        The last command that was issued, while nothing told its end.
    """

    def __init__(self) -> None:
        self.commands, self.pauses, self.staging = (_ByNames(Durations) for _ in range(3))
        self.actions, self.loads = _ByNames(Durations), _ByNames(Durations)
        self.loads[()] = Durations()  # has no labels, so it is told from the beginning
        self.command_errors, self.action_errors = _ByNames(int), _ByNames(int)
        self.events, self.decisions = _ByNames(int), _ByNames(int)
        self.loaded_bytes = 0.0
        self.lost_lines = self.unreadable_lines = 0
        self.open: tuple[str, int] | None = None
        self._issued: JournalEntry | None = None

    def take(self, entry: JournalEntry) -> None:
        """Count one entry."""
        if entry.rank == CONTROLLER:
            self._of_controller(entry)
        elif entry.kind == kinds.ACTION_FINISHED:
            self._finished(entry.facts)
        elif entry.kind == kinds.ACTION_FAILED:
            self.action_errors.add(entry.rank, entry.facts.get("name"), entry.facts.get("error"))
        elif entry.kind in EVENTS:
            self.events.add(entry.rank, entry.kind)

    def _finished(self, facts: Mapping[str, Any]) -> None:
        self.actions.took(facts.get("seconds"), facts.get("name"))
        if "version" in facts:
            self.loads.took(facts.get("seconds"))

    def _of_controller(self, entry: JournalEntry) -> None:
        if entry.kind == kinds.COMMAND_ISSUED:
            if self._issued is not None:
                self._over(self._issued, entry.at_ns, UNTOLD, {})
            self._issued = entry
            self.open = _operation(entry), entry.at_ns
        elif entry.kind == kinds.COMMAND_OVER:
            issued = self._issued
            if issued is not None and (issued.epoch, issued.sequence) == (entry.epoch, entry.sequence):
                self._over(issued, entry.at_ns, str(entry.facts.get("ended", _UNNAMED)), entry.facts)
                self._issued = self.open = None
        elif entry.kind == kinds.DECISION:
            self.decisions.add(entry.facts.get("operation"))
        elif entry.kind == kinds.RANK_LOST:
            self.events.add(entry.facts.get("lost"), entry.kind)

    def _over(self, issued: JournalEntry, at_ns: int, ended: str, told: Mapping[str, Any]) -> None:
        operation = _operation(issued)
        self.commands.took(max(at_ns - issued.at_ns, 0) / 1e9, operation, ended)
        self.pauses.took(told.get("pause_s"), operation)
        self.staging.took(told.get("staging_s"), operation)
        if "error" in told:
            self.command_errors.add(operation, told["error"])
        loaded = told.get("bytes")
        if isinstance(loaded, int) and loaded > 0:
            self.loaded_bytes += loaded


def _operation(issued: JournalEntry) -> str:
    return str(issued.facts.get("operation", "command")).lower()
