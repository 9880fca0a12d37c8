"""A fleet of real servers is brought to a version; what stops half-way goes on with the same call."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
from small_model import publish

from tests.forkserver import FOR_COMMANDS
from tests.raising import raising
from wsm import fleet
from wsm.fleet import rolling
from wsm.fleet.replicas import fleet_shrinks
from wsm.http import Client
from wsm.states.fleet import FleetState, next_target
from wsm.strategies.snapshot.store import content_of
from wsm.strategies.trainer.targets import newest_target, set_target

pytestmark = pytest.mark.processes


def codes(report: fleet.FleetReport) -> list[str | None]:
    return [row.code for row in report.rows]


def versions(replicas) -> list[str | None]:
    return [httpx.get(f"{each.url}/wsm/v1/status").json()["version"] for each in replicas]


def test_all_come_to_the_version_and_the_same_call_again_asks_nothing_of_them(make_fleet, store) -> None:
    replicas = make_fleet(2)
    listed = [each.replica for each in replicas]
    first = fleet.update(store, 1, listed)
    assert (first.exit_code, codes(first)) == (0, [None, None])
    told: list[FleetState] = []
    second = fleet.update(store, 2, listed, at_a_time=2, told=lambda row: told.append(row.state))
    assert second.exit_code == 0
    assert FleetState.STAGED in told
    assert {(row.version, row.digest, row.state) for row in second.rows} == {
        ("2", second.target.content.digest, FleetState.READY)
    }
    settled = newest_target(store)
    assert settled is not None
    assert [each.label for each in settled.allowed] == ["2"], "all serve it, so nothing else is allowed"
    sequences = [httpx.get(f"{each.url}/wsm/v1/status").json()["sequence"] for each in replicas]
    again = fleet.update(store, 2, listed)
    assert (again.exit_code, newest_target(store)) == (0, settled)
    assert sequences == [httpx.get(f"{each.url}/wsm/v1/status").json()["sequence"] for each in replicas]


@pytest.mark.slow
def test_a_failed_step_stops_the_rest_or_takes_all_back_and_the_table_says_which(make_fleet, store) -> None:
    replicas = make_fleet(2)
    listed = [each.replica for each in replicas]
    assert fleet.update(store, 1, listed).exit_code == 0
    publish(store, 3)
    part = max((store / "versions" / "3").glob("*tp1*"), key=lambda path: path.stat().st_size)
    whole = part.read_bytes()
    part.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    stopped = fleet.update(store, 3, listed, stage_ahead=1)
    assert (stopped.exit_code, versions(replicas)) == (1, ["1", "1"])
    assert codes(stopped)[0] == "rank-failed"
    assert codes(stopped)[1] is None, "nothing was asked of the second one"
    back = fleet.update(store, 3, listed, on_failure="back")
    assert (back.exit_code, back.went_back, versions(replicas)) == (1, True, ["1", "1"])
    assert back.target.content.label == "1"
    part.write_bytes(whole)
    assert fleet.update(store, 3, listed).exit_code == 0


@pytest.mark.slow
def test_a_replica_that_does_not_answer_fails_in_its_own_row_and_comes_with_the_next_call(
    make_fleet, store, monkeypatch
) -> None:
    replicas = make_fleet(2)
    listed = [each.replica for each in replicas]
    monkeypatch.setattr(rolling, "_LOOK_S", 2.0)
    replicas[0].freeze()
    late = fleet.update(store, 1, listed)
    assert (late.exit_code, codes(late)) == (1, ["step-timeout", None])
    assert late.rows[0].state is FleetState.STALE
    replicas[0].thaw()
    replicas[1].kill_server()
    half = fleet.update(store, 1, listed)
    assert (half.exit_code, codes(half)) == (1, [None, "upstream-unreachable"])
    replicas[1].restart_server()
    assert fleet.update(store, 1, listed).exit_code == 0


@pytest.mark.slow
def test_a_server_that_dies_between_prepare_and_commit_is_committed_by_the_next_call(
    make_fleet, store
) -> None:
    replicas = make_fleet(1)
    listed = [replicas[0].replica]
    assert fleet.update(store, 1, listed).exit_code == 0

    def kills(row: fleet.ReplicaRow) -> None:
        if row.state is FleetState.STAGED:
            replicas[0].kill_server()

    died = fleet.update(store, 2, listed, told=kills, deadline_s=8.0)
    assert (died.exit_code, codes(died)) == (1, ["upstream-unreachable"])
    replicas[0].restart_server()
    assert versions(replicas) == ["1"]
    assert fleet.update(store, 2, listed).exit_code == 0
    with Client(replicas[0].url) as client:
        named = f"fleet-{died.target.generation}-{replicas[0].group.name}-prepare"
        assert client.request(named)["state"] == "succeeded", "what stood prepared was committed"


@pytest.mark.slow
def test_an_older_caller_ends_once_a_newer_target_is_there_and_leaves_what_the_newer_takes_back(
    make_fleet, store
) -> None:
    replicas = make_fleet(1)
    listed = [replicas[0].replica]
    assert fleet.update(store, 1, listed).exit_code == 0
    publish(store, 3)

    def passes(row: fleet.ReplicaRow) -> None:
        if row.state is FleetState.STAGED:
            content = content_of(store, "3")
            assert content is not None
            set_target(store, next_target(newest_target(store), content))

    older = fleet.update(store, 2, listed, told=passes)
    assert (older.exit_code, versions(replicas)) == (3, ["1"])
    newer = fleet.update(store, 3, listed)
    assert (newer.exit_code, versions(replicas)) == (0, ["3"])


@pytest.mark.slow
def test_a_target_that_another_process_settles_meanwhile_is_no_other_one(make_fleet, store) -> None:
    """As a watcher does, whose looks find first that all serve it."""
    replicas = make_fleet(1)
    listed = [replicas[0].replica]
    assert fleet.update(store, 1, listed).exit_code == 0

    def settles(row: fleet.ReplicaRow) -> None:
        if row.state is FleetState.STAGED:
            rolled = newest_target(store)
            assert rolled is not None
            set_target(store, next_target(rolled, rolled.content, strict=True))

    report = fleet.update(store, 2, listed, told=settles)
    assert (report.exit_code, codes(report), versions(replicas)) == (0, [None], ["2"])


@pytest.mark.slow
def test_a_cancelled_caller_leaves_whole_versions_and_two_callers_at_once_converge(make_fleet, store) -> None:
    replicas = make_fleet(2)
    listed = [each.replica for each in replicas]
    assert fleet.update(store, 1, listed).exit_code == 0

    async def cancelled() -> None:
        staged = asyncio.Event()
        calling = asyncio.ensure_future(
            fleet.update_async(
                store, 2, listed, told=lambda row: staged.set() if row.state is FleetState.STAGED else None
            )
        )
        await asyncio.wait_for(staged.wait(), 60)
        calling.cancel()
        await asyncio.wait({calling})

    asyncio.run(cancelled())
    assert set(versions(replicas)) <= {"1", "2"}

    async def both() -> list[fleet.FleetReport]:
        return await asyncio.gather(*(fleet.update_async(store, 2, listed) for _ in range(2)))

    asyncio.run(both())
    assert fleet.update(store, 2, listed).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_caller_that_is_killed_leaves_whole_versions_and_the_next_call_converges_in_two_looks(
    make_fleet, store, kills: int
) -> None:
    replicas = make_fleet(2, "--fleet", store)
    listed = [each.replica for each in replicas]
    urls = ",".join(each.url for each in replicas)

    def calls(version: int, *line: int) -> tuple[int | None, str]:
        program = Path(__file__).parent / "killed_caller.py"
        with FOR_COMMANDS.start(program, store, version, urls, *line, stderr=None, text=True) as calling:
            said, _ = calling.communicate()
        return calling.returncode, said

    assert fleet.update(store, 1, listed).exit_code == 0
    lines, exit_code = map(int, calls(2)[1].split())
    assert exit_code == 0
    ended: set[int] = set()
    for number in range(kills):
        version = 1 + number % 2
        ended.add(calls(version, 1 + lines * number // kills)[0])
        assert set(versions(replicas)) <= {"1", "2"}
        second = fleet.update(store, version, listed)
        assert (second.exit_code, versions(replicas)) == (0, [str(version)] * 2)
        assert all(row.looks <= 2 for row in second.rows)
    assert -signal.SIGKILL in ended


def test_a_short_list_and_a_version_that_is_not_there_are_refused(make_fleet, store) -> None:
    listed = [make_fleet(1)[0].replica]
    many = [fleet.Replica(f"http://127.0.0.1:{port}") for port in (1, 2, 3)]
    fleet.update(store, 1, many, deadline_s=4.0)
    with raising(fleet_shrinks):
        fleet.update(store, 1, listed)
    assert fleet.update(store, 1, listed, force=True).exit_code == 0
    with raising(rolling.not_published):
        fleet.update(store, 9, listed)
