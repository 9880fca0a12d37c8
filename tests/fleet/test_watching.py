"""A watcher keeps a fleet of real servers at its target, and lists those that may get text."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fleet.served_replica import until
from tests.forkserver import FOR_COMMANDS
from wsm import fleet
from wsm.fleet.watching import FleetWatch
from wsm.http.errors import upstream_unreachable
from wsm.states.fleet import NamedContent, next_target
from wsm.strategies.snapshot.store import content_of
from wsm.strategies.trainer.targets import newest_target, set_target

PATIENCE_S = 60.0


class Watching:
    """`wsm fleet watch` as a process of its own."""

    def __init__(self, store: Path, listed: Path, routable: Path) -> None:
        named = [
            "--store",
            store,
            "--replicas",
            listed,
            "--every",
            "0.5",
            "--routable",
            routable,
            "--http",
            "0",
        ]
        said = routable.with_suffix(f".{time.monotonic_ns()}")
        with said.open("w") as told:
            self.process = FOR_COMMANDS.start("-m", "wsm", "fleet", "watch", *named, stderr=told)
        until(lambda: "\n" in said.read_text())
        self.url = said.read_text().splitlines()[0].split()[-1].removesuffix("/wsm/v1/fleet/routable")

    def workers(self) -> dict[str, str]:
        said = httpx.get(f"{self.url}/workers").json()
        assert said["total"] == len(said["workers"])
        assert all(worker["is_healthy"] and worker["age_s"] < 1.5 for worker in said["workers"])
        return {worker["url"]: worker["version"] for worker in said["workers"]}

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def watch(store: Path, tmp_path: Path):
    with contextlib.ExitStack() as undo:

        def start(replicas: Any) -> Watching:
            listed = tmp_path / "replicas.json"
            listed.write_text(json.dumps([each.url for each in replicas]))
            made = Watching(store, listed, tmp_path / "routable")
            undo.callback(made.process.close)
            return made

        yield start


@pytest.mark.slow
@pytest.mark.processes
def test_it_brings_every_replica_to_each_new_target_and_lists_who_serves_it(
    make_fleet, store, watch, tmp_path
) -> None:
    replicas = make_fleet(2)
    urls = {each.url for each in replicas}
    watcher = watch(replicas)
    assert watcher.workers() == {}, "there is no target"
    for version in ("1", "2"):
        target = next_target(newest_target(store), content(store, version), replicas=2)
        assert set_target(store, target)
        until(lambda version=version: watcher.workers() == dict.fromkeys(urls, version))
    until(lambda: [each.label for each in newest_target(store).allowed] == ["2"])
    until(lambda: set((tmp_path / "routable").read_text().splitlines()) == urls)
    plain = httpx.get(f"{watcher.url}/wsm/v1/fleet/routable", headers={"Accept": "text/plain"})
    assert set(plain.text.splitlines()) == urls
    assert watcher.end() == 130


@pytest.mark.slow
@pytest.mark.processes
def test_one_that_hangs_is_left_out_and_comes_back_once_it_has_proved_what_it_serves(
    make_fleet, store, watch
) -> None:
    replicas = make_fleet(2)
    both = {each.url for each in replicas}
    assert fleet.update(store, 1, [each.replica for each in replicas]).exit_code == 0
    one, other = watch(replicas), watch(replicas)  # two at once do no harm
    until(lambda: one.workers().keys() == other.workers().keys() == both)
    replicas[0].freeze()
    until(lambda: one.workers().keys() == other.workers().keys() == {replicas[1].url})
    assert set_target(store, next_target(newest_target(store), content(store, "2"), replicas=2))
    until(lambda: one.workers() == {replicas[1].url: "2"})
    replicas[0].thaw()
    until(lambda: one.workers() == other.workers() == dict.fromkeys(both, "2"))


def content(store: Path, label: str) -> NamedContent:
    found = content_of(store, label)
    assert found is not None
    return found


class Answering:
    """What a replica says, without one."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said
        self.silent = False

    async def status(self) -> dict[str, Any]:
        if self.silent:
            raise upstream_unreachable(url="http://127.0.0.1:1", reason="silent")
        return {"name": "policy", "serving": True, "request_id": None, "decision_left_s": None, **self.said}


def test_a_proof_counts_for_three_looks_and_for_what_the_newest_target_allows(store) -> None:
    every_s = 1000.0
    first = next_target(None, content(store, "1"))
    assert set_target(store, first)
    replica = Answering({"version": "1", "manifest_digest": first.content.digest})
    watch = FleetWatch(
        store,
        lambda: [fleet.Replica("http://127.0.0.1:1")],
        every_s=every_s,
        connect=lambda _replica: replica,
    )

    def listed(*, asked_before: float) -> bool:
        asyncio.run(watch.look(time.monotonic() - asked_before * every_s))
        return bool(watch.routable()["total"])

    assert listed(asked_before=2.9)
    assert not listed(asked_before=3.1)
    assert listed(asked_before=2.9)
    replica.silent = True
    assert listed(asked_before=0), "silence takes no proof away"
    replica.silent = False
    replica.said["serving"] = False
    assert not listed(asked_before=0), "it takes no text"
    replica.said["serving"] = True
    assert listed(asked_before=0)
    assert set_target(store, next_target(first, content(store, "2"), strict=True))
    assert not listed(asked_before=0), "it serves what is allowed no longer"


def test_a_list_that_cannot_be_written_for_a_while_ends_no_watcher(store, tmp_path) -> None:
    first = next_target(None, content(store, "1"))
    assert set_target(store, first)
    replica = Answering({"version": "1", "manifest_digest": first.content.digest})
    watch = FleetWatch(
        store, lambda: [fleet.Replica("http://127.0.0.1:1")], every_s=0.05, connect=lambda _replica: replica
    )
    listed = tmp_path / "later" / "routable"

    async def watches() -> None:
        watching = asyncio.ensure_future(watch.run(listed))
        for met in (lambda: watch.routable()["total"] == 1, listed.exists):
            deadline = time.monotonic() + PATIENCE_S
            while not met():
                assert time.monotonic() < deadline
                assert not watching.done()
                await asyncio.sleep(0.05)
            listed.parent.mkdir(exist_ok=True)
        watching.cancel()
        await asyncio.wait({watching})

    asyncio.run(watches())
