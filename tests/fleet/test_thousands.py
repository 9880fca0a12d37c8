"""Thousands of replicas in memory, brought by the real roll: one costs the same however many there are."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from wsm import fleet
from wsm.errors import RefusedError
from wsm.fleet import FleetWatch, Replica
from wsm.http.errors import request_unknown
from wsm.receipt import Outcome, Receipt
from wsm.strategies.snapshot.store import content_of

#: Bytes that a pass may need for one replica, with its task; what may be there of it behind; and of the rest.
BYTES_EACH, BYTES_KEPT, BYTES_BESIDE = 8 << 10, 1 << 9, 8 << 20


class ReplicaInMemory:
    """Answers as a server of a group does, and counts what it is asked."""

    def __init__(self, name: str, contents: dict[str, str], asked: Counter[str]) -> None:
        self._name, self._contents, self._asked = name, contents, asked
        self._held: tuple[str, str] | None = None
        self._prepared: tuple[str, str] | None = None

    async def status(self) -> dict[str, Any]:
        self._asked[self._name] += 1
        await asyncio.sleep(0)
        version, digest = self._held or (None, None)
        said = {"name": self._name, "serving": self._held is not None, "version": version}
        return {**said, "manifest_digest": digest, "request_id": None, "decision_left_s": None}

    async def request(self, request_id: str) -> dict[str, Any]:
        self._asked[self._name] += 1
        raise request_unknown(request_id=request_id)

    async def command(self, operation: str, request_id: str | None = None, **keywords: Any) -> Receipt:
        self._asked[self._name] += 1
        await asyncio.sleep(0)
        if operation == "prepare" and self._held is None:
            raise RefusedError("nothing serves", code="nothing-served")
        if operation == "commit":
            self._held = self._prepared
        else:
            self._prepared = keywords["version"], self._contents[keywords["version"]]
            if operation == "update":
                self._held = self._prepared
        done = Outcome.PREPARED if operation == "prepare" else Outcome.UPDATED
        label, digest = self._prepared or ("", "")
        return Receipt(str(request_id), done, 1, 1, label, None, digest, True, 0.0, 0.0, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_what_a_pass_asks_and_keeps_of_each_replica_is_the_same_however_many_there_are(
    store: Path, count: int
) -> None:
    asked: Counter[str] = Counter()
    listed = [Replica(f"http://replica-{number}") for number in range(count)]
    contents = {label: content_of(store, label).digest for label in ("1", "2")}
    made = {each: ReplicaInMemory(each.url, contents, asked) for each in listed}

    def passes(version: int) -> int:
        """Bring all to a version; return the messages to each."""
        asked.clear()
        begun = time.monotonic()
        report = fleet.update(store, version, listed, at_a_time=32, connect=made.__getitem__)
        sys.stdout.write(f"{count} replicas came to version {version} in {time.monotonic() - begun:.1f} s\n")
        assert report.exit_code == 0
        [messages] = set(asked.values())
        return messages

    # Two looks, whether the request id is free, and the command; the first was refused hot, and is in place.
    assert [passes(1), passes(2), passes(1), passes(1)] == [6, 5, 5, 1]
    rows: list[int] = []

    def told(_row: fleet.ReplicaRow) -> None:
        if not rows:  # behind the manifest, whose reader has a buffer of its own
            tracemalloc.start()
        rows.append(1)

    try:
        assert (
            fleet.update(store, 2, listed, at_a_time=32, connect=made.__getitem__, told=told).exit_code == 0
        )
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sys.stdout.write(f"of each {peak // count} bytes at most, and {kept // count} behind it\n")
    assert peak < BYTES_BESIDE + BYTES_EACH * count
    assert kept < BYTES_BESIDE + BYTES_KEPT * count

    async def watches() -> int:
        watch = FleetWatch(store, lambda: listed, every_s=600.0, connect=made.__getitem__)
        await watch.look(time.monotonic())
        await watch.close()
        return int(watch.routable()["total"])

    asked.clear()
    assert asyncio.run(watches()) == count
    assert set(asked.values()) == {1}
