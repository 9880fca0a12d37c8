"""From the journals of ranks to spans: what each rank held when, and how long every action took.

Knows journal entries and spans; reads no file and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wsm.demo.timeline import TimelineSpan
from wsm.states import journal as kinds
from wsm.states.journal import JournalEntry
from wsm.states.vocabulary import KVState, WeightState

_LANES = {"weights": "weights", "kv": "kv_cache"}
_ENDS = (kinds.ACTION_FINISHED, kinds.ACTION_FAILED)


@dataclass
class _RankSoFar:
    """Where a rank is, and since when."""

    states: dict[str, tuple[str, int]] = field(default_factory=dict)
    action: JournalEntry | None = None


def journal_spans(entries: Iterable[JournalEntry], *, end_ns: int) -> list[TimelineSpan]:
    """Return the spans of every rank.

    Parameters
    ----------
    entries : iterable of JournalEntry
        Of one or several ranks, each rank's in its own order, from its start on.
    end_ns : int
        Where states end that nothing followed.

    Returns
    -------
    list of Span
        Lanes ``weights`` and ``kv_cache`` (states, without gaps) and ``actions``, per track ``rank N``.
    """
    ranks: dict[int, _RankSoFar] = {}
    spans: list[TimelineSpan] = []
    for entry in entries:
        so_far = ranks.setdefault(entry.rank, _RankSoFar())
        if entry.kind == kinds.STARTED:
            so_far.states = {
                "weights": (WeightState.CLEARED.name, entry.at_ns),
                "kv": (KVState.CLEARED.name, entry.at_ns),
            }
        elif entry.kind == kinds.TRANSITION:
            spans += _state_left(so_far, entry)
        elif entry.kind == kinds.ACTION_STARTED:
            so_far.action = entry
        elif entry.kind in _ENDS and so_far.action is not None:
            spans.append(_action(so_far.action, entry))
            so_far.action = None
    for rank, so_far in ranks.items():
        spans += [
            TimelineSpan(f"rank {rank}", _LANES[machine], state, since, max(end_ns, since))
            for machine, (state, since) in so_far.states.items()
        ]
    return spans


def _state_left(so_far: _RankSoFar, entry: JournalEntry) -> list[TimelineSpan]:
    machine, dest = entry.facts["machine"], entry.facts["dest"]
    before = so_far.states.get(machine)
    if before is not None and before[0] == dest:
        return []
    so_far.states[machine] = (dest, entry.at_ns)
    if before is None:
        return []
    facts = {"left_by": entry.facts["event"], "epoch": entry.epoch, "sequence": entry.sequence}
    return [TimelineSpan(f"rank {entry.rank}", _LANES[machine], before[0], before[1], entry.at_ns, facts)]


def _action(started: JournalEntry, ended: JournalEntry) -> TimelineSpan:
    facts = {"epoch": started.epoch, "sequence": started.sequence}
    if ended.kind == kinds.ACTION_FAILED:
        facts["error"] = ended.facts["message"]
    return TimelineSpan(
        f"rank {started.rank}", "actions", started.facts["name"], started.at_ns, ended.at_ns, facts
    )
