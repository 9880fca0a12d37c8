"""What becomes of a server's updates: journal lines for those who listen, and counts for a scrape."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from wsm.clock import monotonic_ns
from wsm.committed_record import CommittedRecord
from wsm.http.native._events import new_events
from wsm.journal.entry import COMMAND_ISSUED, COMMAND_OVER, CONTROLLER, JournalEntry
from wsm.journal.lines import RING_BYTES, LineRing
from wsm.metrics.history import JournalCounts
from wsm.states.holding import ClosedBy, ClosedHold, Hold
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, Operation
from wsm.status import GroupStatus
from wsm.status.facts import RankStatus
from wsm.vllm.fanout import EngineRanks

#: What the group is called whose ranks are vLLM's workers.
GROUP = "vllm"


class UpdateJournal:
    """The last lines, as a controller writes them, and counts of all. One update at a time."""

    def __init__(self) -> None:
        self.bytes = memoryview(bytearray(RING_BYTES))
        self._counts = JournalCounts()
        self._started_s, self._ring = time.time(), LineRing(self, 0)
        self._at = 1, 0

    async def look(self, seen: dict[str, list[int]]) -> list[bytes]:
        """Return what is new to a stream of events."""
        return new_events("", [self._ring], seen)

    def begin(self, request_id: str, last: CommandWord | None) -> None:
        """Tell that an update begins; `last`: the command before it."""
        epoch, sequence = last[:2] if last else self._at
        self._at = epoch, sequence + 1
        self._tell(COMMAND_ISSUED, operation=Operation.UPDATE.name, request_id=request_id)

    def end(self, receipt: Mapping[str, Any]) -> None:
        """Tell how it has ended."""
        facts: dict[str, Any] = {
            "ended": receipt["outcome"],
            "outcome": f"version {receipt['version']} serves",
        }
        if "error" in receipt:
            error = receipt["error"]
            facts |= {"outcome": error["message"], "error": error["code"]}
        if receipt["outcome"] == "committed":
            nbytes = sum(vote["bytes"] for vote in receipt["votes"])
            facts |= {"pause_s": receipt["receipt"]["pause_s"], "bytes": nbytes}
        self._tell(COMMAND_OVER, **facts)

    def families(self, ranks: EngineRanks, closed: str | None) -> list[Any]:
        """Return what a scrape gets: the ranks as a group, which a gate that is `closed`, and why, holds."""
        from wsm.metrics.families import families  # noqa: PLC0415 - vLLM has what it is made of

        view, hold = ranks.view(), None
        if closed is not None:
            hold = Hold(GROUP, GROUP, closed=ClosedHold(GROUP, "update", closed, by=ClosedBy.FAILED))
        participants = [
            RankStatus(rank, status=said, weights=WeightState(said.weights).name, kv=KVState(said.kv).name)
            for rank, said in enumerate(view.statuses)
        ]
        committed = CommittedRecord(view.committed.sequence, ranks.version, ranks.digest, hold=hold)
        status = GroupStatus(GROUP, command=view.command, committed=committed, ranks=tuple(participants))
        return families([(status, self._counts)], now_ns=monotonic_ns(), started_s=self._started_s)

    def _tell(self, kind: str, **facts: Any) -> None:
        entry = JournalEntry(kind, monotonic_ns(), time.time_ns(), CONTROLLER, *self._at, facts)
        self._counts.take(entry)
        self._ring.append(entry.to_line())
