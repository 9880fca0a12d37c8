"""Hold a journal against the tables, and name the first entry that no rank can have lived.

Every entry is taken in by the same tables and joint rules that drive the machines. The rules are in
:mod:`.rank_history`, which follows one rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wsm.states.entry import STARTED, JournalEntry
from wsm.states.joint import JointState
from wsm.states.rank_history import RankHistory


@dataclass(frozen=True)
class ImpossibleEntry:
    """The first entry that is no behaviour of the tables.

    Parameters
    ----------
    index : int
        Its place among the entries, from 0.
    entry : JournalEntry
        The entry.
    reason : str
        Which rule it breaks.
    """

    index: int
    entry: JournalEntry
    reason: str

    def __str__(self) -> str:
        entry = self.entry
        return (
            f"entry {self.index} ({entry.kind}, rank {entry.rank}, epoch {entry.epoch}, "
            f"sequence {entry.sequence}): {self.reason}"
        )


@dataclass(frozen=True)
class Replay:
    """What came of holding a journal against the tables.

    Parameters
    ----------
    entries : int
        How many were taken in; all of them if nothing was impossible.
    states : dict of int to JointState
        Where each rank was in the end; ranks of which the journal does not tell both states are absent.
    impossible : ImpossibleEntry or None
        The first impossible entry.
    """

    entries: int
    states: dict[int, JointState]
    impossible: ImpossibleEntry | None


def replay(entries: Iterable[JournalEntry]) -> Replay:
    """Re-drive the tables with the entries of one or several ranks.

    Parameters
    ----------
    entries : iterable of JournalEntry
        In the order in which each rank wrote them; different ranks may be interleaved in any way.
    """
    histories: dict[int, RankHistory] = {}
    count, impossible = 0, None
    for entry in entries:
        if entry.kind == STARTED or entry.rank not in histories:
            histories[entry.rank] = RankHistory()
        reason = histories[entry.rank].take(entry)
        if reason is not None:
            impossible = ImpossibleEntry(count, entry, reason)
            break
        count += 1
    states = {rank: joint for rank, history in histories.items() if (joint := history.joint) is not None}
    return Replay(count, states, impossible)
