"""What becomes of a server's updates: receipts, journal lines for those who listen, counts for a scrape."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from wsm import log
from wsm.clock import monotonic_ns
from wsm.committed_record import CommittedRecord
from wsm.http import errors
from wsm.http.native._events import new_events
from wsm.journal.entry import COMMAND_ISSUED, COMMAND_OVER, CONTROLLER, RING_BYTES, JournalEntry, LineRing
from wsm.metrics.history import JournalCounts
from wsm.receipt import Outcome, Receipt
from wsm.states.holding import Hold
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import Operation
from wsm.status import GroupStatus
from wsm.status.facts import RankStatus
from wsm.vllm.fanout import EngineRanks, UpdateEnd

#: What the group is called whose ranks are vLLM's workers.
GROUP = "vllm"
#: What a receipt says of its proof.
_BYTES = "digests of the checkpoint's bytes as every rank's loaders got them"
_AND_PARAMETERS = ", and vLLM's checksums of every rank's parameters, as at this version's first load"
_ALONE = " alone; vLLM's checksums do not see all parameters here, or were not asked for"
_PUSHED = (
    "pushed, witnessed: digests of what every rank's model was given; until all had it, nothing kept the "
    "weights before, so it was not all or nothing"
)
#: vLLM's own handlers show what is said below its name.
_LOG = log.EventLogger(logging.getLogger("vllm.wsm"), {})
#: What the native API calls outcomes that are no errors.
_NATIVE = {"committed": Outcome.UPDATED, "prepared": Outcome.PREPARED, "aborted": Outcome.ABORTED}


class UpdateJournal:
    """The last lines, as a controller writes them, and receipts, and counts of all. One update at a time."""

    def __init__(self, ranks: EngineRanks) -> None:
        self.bytes = memoryview(bytearray(RING_BYTES))
        self.receipts: deque[dict[str, Any]] = deque(maxlen=256)
        self._asked: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=256)
        self._ranks = ranks
        self._counts = JournalCounts()
        self._started_s, self._ring = time.time(), LineRing(self, 0)
        self._at = 1, 0

    def known(self, request_id: str) -> dict[str, Any] | None:
        """Return the receipt of a request; None: it has none yet, or no more."""
        return next((each for each in reversed(self.receipts) if each["request_id"] == request_id), None)

    def require_same(self, request_id: str, asked: Mapping[str, Any]) -> None:
        """Refuse a request id under which something else was asked (code ``request-id-used``)."""
        if dict(self._asked).get(request_id, asked) != asked:
            raise errors.request_id_used(request_id=request_id, operation="update")

    def begin(self, request_id: str, asked: Mapping[str, Any]) -> None:
        """Tell that an update begins, and keep what was asked under its request id."""
        self._asked.append((request_id, asked))
        epoch, sequence = self._ranks.command[:2] if self._ranks.command else self._at
        self._at = epoch, sequence + 1
        self._tell(COMMAND_ISSUED, operation=Operation.UPDATE.name, request_id=request_id)

    def end(self, told: Mapping[str, Any], end: UpdateEnd, *, is_open: bool, serving: bool) -> dict[str, Any]:
        """Tell how it has ended, and return its receipt; the arguments are those of :meth:`receipt`."""
        outcome = "committed" if end.committed else "rolled-back" if end.restored else "refused"
        if end.errors and end.errors[0]["code"] == "aborted":
            outcome = "aborted"
        if not is_open:
            outcome = "unknown" if self._ranks.fault else "closed"
        receipt = self.receipt(told, end, outcome, is_open=is_open, serving=serving)
        serves, error = receipt["serves"], receipt.get("error")
        facts: dict[str, Any] = {"ended": outcome, "outcome": f"version {serves} serves"}
        if error is not None:
            facts |= {"outcome": error["message"], "error": error["code"]}
            why = {name: error[name] for name in ("rank", "code", "message") if name in error}
            say = _LOG.warning if is_open else _LOG.error
            say(log.COMMAND_FAILED, version=told["version"], outcome=outcome, serves=serves, **why)
        elif end.committed:
            nbytes = sum(vote["bytes"] for vote in end.votes)
            facts |= {"pause_s": receipt["receipt"]["pause_s"], "bytes": nbytes}
        self._tell(COMMAND_OVER, **facts)
        return receipt

    def receipt(
        self, told: Mapping[str, Any], end: UpdateEnd, outcome: str, *, is_open: bool, serving: bool
    ) -> dict[str, Any]:
        """Return the receipt of an update.

        `told`: what was asked. `end`: how it has ended, or how far it is. `is_open`: whether what the ranks
        have committed serves. `serving`: whether vLLM answers text, too.
        """
        ranks, digest = self._ranks, end.votes[0]["digest"] if end.votes else None
        if outcome in _NATIVE:
            held = (told["version"], digest) if outcome != "aborted" else (ranks.version, ranks.digest)
            seconds = end.ms.get("over", 0.0) / 1000
            pause_s = round(seconds - end.ms["voted"] / 1000, 4) if end.committed else 0.0
            terms = ("request_id", "previous_version", "hot", "lease_s", "warning")
            epoch, sequence = ranks.command[:2] if ranks.command else self._at
            said = Receipt(
                outcome=_NATIVE[outcome],
                epoch=epoch,
                sequence=sequence,
                version=held[0],
                manifest_digest=held[1],
                loaded=end.committed,
                seconds=seconds,
                pause_s=pause_s,
                ranks=(),
                serving=serving,
                **{name: told[name] for name in terms},
            )
            native: dict[str, Any] = {"receipt": said.to_mapping()}
        else:
            unsaid = {"code": outcome, "message": f"it is {outcome}"}
            native = {"error": next(iter(end.errors), unsaid)}
        whole = end.fingerprints and all(end.fingerprints)
        proof = _PUSHED if told["pushed"] else f"{_BYTES}{_AND_PARAMETERS if whole else _ALONE}"
        of_nodes = [each["memory_bytes"] + each["kept_bytes"] for each in end.votes]
        receipt = {
            **told,
            **native,
            "outcome": outcome,
            "serves": ranks.version if is_open else None,
            "digest": digest,
            "proof": proof if end.committed else None,
            "fingerprints": end.fingerprints,
            "votes": end.votes,
            "node_memory_bytes": max(of_nodes, default=0),
            "errors": end.errors,
            "ms": end.ms,
            "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        }
        self.receipts.append(receipt)
        return receipt

    async def look(self, seen: dict[str, list[int]]) -> list[bytes]:
        """Return what is new to a stream of events."""
        return new_events("", [self._ring], seen)

    def families(self, hold: Hold | None, *, loads: bool) -> list[Any]:
        """Return what a scrape gets: the ranks as a group, held, or updated where an update `loads`."""
        from wsm.metrics.families import families  # noqa: PLC0415 - vLLM has what it is made of

        ranks, view = self._ranks, self._ranks.view()
        whole = WeightState.UPDATING if loads else WeightState.NORMAL  # a rank that loads says nothing of it
        participants = [
            RankStatus(rank, status=said, weights=weights.name, kv=KVState(said.kv).name)
            for rank, said in enumerate(view.statuses)
            for weights in [WeightState(said.weights) or whole]
        ]
        committed = CommittedRecord(view.committed.sequence, ranks.version, ranks.digest, hold=hold)
        status = GroupStatus(GROUP, command=view.command, committed=committed, ranks=tuple(participants))
        return families([(status, self._counts)], now_ns=monotonic_ns(), started_s=self._started_s)

    def _tell(self, kind: str, **facts: Any) -> None:
        entry = JournalEntry(kind, monotonic_ns(), time.time_ns(), CONTROLLER, *self._at, facts)
        self._counts.take(entry)
        self._ring.append(entry.to_line())
