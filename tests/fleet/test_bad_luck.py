"""What befalls a fleet, each on real servers: a row of the table tells it, and the next call converges."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from between import PATIENCE_S, Answer, Between, as_it_is
from commanded_group import COMMANDED_RANK
from small_model import publish

from tests.needs import OWN_MOUNTS
from tests.raising import raising
from wsm import fleet
from wsm.states.fleet import FleetState
from wsm.strategies.trainer.targets import newest_target

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def outcome(report: fleet.FleetReport) -> tuple[int, list[str | None]]:
    return report.exit_code, [row.code for row in report.rows]


def status(replica) -> dict[str, Any]:
    said: dict[str, Any] = httpx.get(f"{replica.url}/wsm/v1/status").json()
    return said


def held(replica) -> str | None:
    return status(replica)["version"]


def takes_text(replica) -> bool:
    """Whether text passes the gate; behind it nobody answers."""
    said = httpx.post(f"{replica.url}/v1/completions", json={"prompt": "a", "model": "m"})
    return said.status_code == 404


def routable(store: Path, listed: Sequence[fleet.Replica]) -> list[str]:
    """Return who may get text, as a watcher says that looks once."""
    watch = fleet.FleetWatch(store, lambda: listed, every_s=60.0)

    async def look() -> None:
        await watch.look(time.monotonic())
        await watch.close()

    asyncio.run(look())
    return [worker["url"] for worker in watch.routable()["workers"]]


@pytest.fixture
def between() -> Iterator[Callable[..., Between]]:
    made: list[Between] = []

    def stand(replica) -> Between:
        made.append(Between(replica.url))
        return made[-1]

    yield stand
    for each in made:
        each.close()


#: Answers to a look, and what they are called.
JUNK = {
    Answer(500, b"oops"): "http-status",
    Answer(200, b"<html>"): "http-status",
    Answer(200, b"[]"): "http-status",
    Answer(200, b'{"serving": true}'): "no-status",
}


def test_a_look_that_is_answered_500_or_by_something_else_fails_in_its_own_row(
    make_fleet, store, between
) -> None:
    one, other = make_fleet(2)
    ingress = between(one)
    listed = [fleet.Replica(ingress.url), other.replica]
    for junk, code in JUNK.items():
        ingress.harm = lambda _path, _ask, junk=junk: junk
        report = fleet.update(store, 1, listed)
        assert outcome(report) == (1, [code, None]), junk
        assert [row.state for row in report.rows] == [FleetState.STALE, FleetState.READY]
    ingress.harm = as_it_is
    assert outcome(fleet.update(store, 1, listed)) == (0, [None, None])


def test_a_commit_that_is_answered_500_stops_the_rest_and_the_next_call_finds_what_became_of_it(
    make_fleet, store, between
) -> None:
    replicas = make_fleet(2)
    ingress = between(replicas[0])
    listed = [fleet.Replica(ingress.url), replicas[1].replica]
    assert fleet.update(store, 1, listed).exit_code == 0

    def loses(path: str, ask: Callable[[], Answer]) -> Answer:
        said = ask()
        return Answer(500, b"oops") if path.endswith("/commit") else said

    ingress.harm = loses
    stopped = fleet.update(store, 2, listed, stage_ahead=1)
    assert outcome(stopped) == (1, ["http-status", None])
    assert stopped.rows[0].state is FleetState.FAILED
    assert [*map(held, replicas)] == ["2", "1"]
    committed = status(replicas[0])["sequence"]
    assert outcome(fleet.update(store, 2, listed)) == (0, [None, None])
    assert status(replicas[0])["sequence"] == committed, "it is not done again"


def test_a_server_of_another_group_is_asked_for_nothing(make_fleet, store) -> None:
    one, other = make_fleet(2)
    listed = [fleet.Replica(one.url, group=other.group.name), other.replica]
    report = fleet.update(store, 1, listed)
    assert outcome(report) == (1, ["wrong-group", None])
    assert (held(one), held(other)) == (None, "1")


def test_one_that_is_slow_by_ten_delays_only_its_own_row(make_fleet, store, between) -> None:
    """The slow one's commit is answered once the other has proved what it serves."""
    one, other = make_fleet(2)
    ingress, proved = between(one), threading.Event()
    listed = [fleet.Replica(ingress.url), other.replica]
    assert fleet.update(store, 1, listed).exit_code == 0
    late: list[bool] = []

    def slow(path: str, ask: Callable[[], Answer]) -> Answer:
        begun = time.monotonic()
        said = ask()
        time.sleep(min(9 * (time.monotonic() - begun), 5.0))  # less than a look waits, also on busy cores
        if path.endswith("/commit"):
            late.append(proved.wait(PATIENCE_S))
        return said

    def told(row: fleet.ReplicaRow) -> None:
        if row.replica is listed[1] and (row.version, row.state) == ("2", FleetState.READY):
            proved.set()

    ingress.harm = slow
    assert outcome(fleet.update(store, 2, listed, at_a_time=2, told=told)) == (0, [None, None])
    assert late == [True]


def test_one_that_comes_back_with_an_old_version_takes_no_text_until_the_next_call(make_fleet, store) -> None:
    replicas = make_fleet(2, "--fleet", store)
    listed = [each.replica for each in replicas]
    for version in (1, 2):
        assert fleet.update(store, version, listed).exit_code == 0
    replicas[0].restart_group(1)
    assert [*map(takes_text, replicas)] == [False, True]
    assert outcome(fleet.update(store, 2, listed)) == (0, [None, None])
    assert [(held(each), takes_text(each)) for each in replicas] == [("2", True)] * 2


def test_one_whose_store_shows_an_older_target_is_asked_again_until_it_sees_the_newest(
    make_fleet, store, tmp_path
) -> None:
    """As over NFS, whose directories are cached; for as long as it lasts it is told in its row."""
    lagging = tmp_path / "lagging"
    lagging.mkdir()
    (replica,) = make_fleet(1, "--fleet", lagging)
    listed = [replica.replica]

    def catches_up() -> None:
        shutil.copytree(store / "targets", lagging / "targets", dirs_exist_ok=True)

    for version in (1, 2):
        assert outcome(fleet.update(store, version, listed, deadline_s=4.0)) == (1, ["not-the-fleets"])
        catching_up = threading.Timer(0.5, catches_up)
        catching_up.start()
        assert outcome(fleet.update(store, version, listed)) == (0, [None])
        catching_up.join()
        catches_up()
        assert takes_text(replica)


def test_one_without_room_is_refused_with_numbers_and_drained_before_it_loads_in_its_turn(
    make_fleet, store, tmp_path
) -> None:
    finish = tmp_path / "finish"
    finish.touch()
    (scant,) = make_fleet(1, "--fleet", store, engine=(COMMANDED_RANK, finish))
    (roomy,) = make_fleet(1, "--fleet", store)
    listed = [scant.replica, roomy.replica]
    assert fleet.update(store, 1, listed).exit_code == 0
    finish.unlink()
    told: list[tuple[FleetState, str | None]] = []
    found: list[tuple[str | None, list[str], int]] = []

    def drains() -> None:
        """Its turn has come: what runs there is let end, and no router sends it more."""
        scant.group.until(lambda status: not status.over)
        ready = httpx.get(f"{scant.url}/wsm/v1/ready").status_code
        found.append((held(scant), routable(store, listed), ready))
        finish.touch()

    draining = threading.Thread(target=drains)

    def hears(row: fleet.ReplicaRow) -> None:
        if row.replica is listed[0]:
            told.append((row.state, row.error))
            if row.error is not None and row.state is FleetState.STALE and draining.ident is None:
                draining.start()

    report = fleet.update(store, 2, listed, told=hears)
    draining.join()
    assert outcome(report) == (0, [None, None])
    assert found == [("1", [roomy.url], 503)]
    assert routable(store, listed) == [scant.url, roomy.url]
    refused = [error for _, error in told if error is not None]
    assert "1000000 are available" in refused[0]
    assert [state for state, _ in told][-2:] == [FleetState.READY] * 2


def swapped(store: Path) -> None:
    """Let label 2 mean other content."""
    shutil.rmtree(store / "versions" / "2")
    publish(store, 2, content=9)


@pytest.mark.slow_but
@pytest.mark.parametrize(("first", "code"), [(1, "other-content"), (None, "not-the-fleets")])
def test_a_label_whose_content_changed_is_told_and_not_served_until_it_is_asked_for_anew(
    make_fleet, store, first, code
) -> None:
    (replica,) = make_fleet(1, "--fleet", store)
    listed = [replica.replica]
    if first is not None:
        assert fleet.update(store, first, listed).exit_code == 0

    def told(row: fleet.ReplicaRow) -> None:
        if (
            row.state is not FleetState.FAILED and row.version != "2"
        ):  # the target is set, nothing is prepared
            swapped(store)

    assert outcome(fleet.update(store, 2, listed, told=told)) == (1, [code])
    assert (held(replica), takes_text(replica)) == (("1", True) if first else (None, False))
    assert outcome(fleet.update(store, 2, listed)) == (0, [None])
    assert takes_text(replica)


def test_a_label_whose_content_changed_is_no_way_back(make_fleet, store) -> None:
    (replica,) = make_fleet(1)
    assert fleet.update(store, 2, [replica.replica]).exit_code == 0
    swapped(store)
    target = newest_target(store)
    with raising("no-way-back"):
        fleet.update(store, 1, [replica.replica], on_failure="back")
    assert (newest_target(store), held(replica)) == (target, "2")


class Unreadable:
    """A store whose targets cannot be read, from when it is told until it heals."""

    def __init__(self, store: Path, when: FleetState) -> None:
        self._targets, self._aside, self._when = store / "targets", store / "aside", when

    def told(self, row: fleet.ReplicaRow) -> None:
        if row.state is self._when and not self._aside.exists():
            self._targets.rename(self._aside)
            self._targets.write_text("")

    def heal(self) -> None:
        self._targets.unlink()
        self._aside.rename(self._targets)


def test_a_store_that_cannot_be_read_for_a_while_is_read_again_until_the_deadline(make_fleet, store) -> None:
    (replica,) = make_fleet(1, "--fleet", store)
    listed = [replica.replica]
    assert fleet.update(store, 1, listed).exit_code == 0
    lost = Unreadable(store, FleetState.STAGED)
    assert outcome(fleet.update(store, 2, listed, told=lost.told, deadline_s=4.0)) == (
        1,
        ["NotADirectoryError"],
    )
    assert (held(replica), takes_text(replica)) == ("1", True)
    lost.heal()
    healing = threading.Timer(0.5, lost.heal)

    def heals(row: fleet.ReplicaRow) -> None:
        if row.state is FleetState.STAGED:
            lost.told(row)
            healing.start()

    assert outcome(fleet.update(store, 2, listed, told=heals)) == (0, [None])
    healing.join()


def test_a_store_that_cannot_be_used_when_a_step_has_failed_is_no_way_back_yet(make_fleet, store) -> None:
    (replica,) = make_fleet(1)
    listed = [replica.replica]
    assert fleet.update(store, 1, listed).exit_code == 0
    part = max((store / "versions" / "2").glob("*tp1*"), key=lambda path: path.stat().st_size)
    part.write_bytes(bytes(part.stat().st_size))
    lost = Unreadable(store, FleetState.FAILED)
    stopped = fleet.update(store, 2, listed, on_failure="back", told=lost.told)
    assert (stopped.exit_code, stopped.went_back, held(replica)) == (1, False, "1")
    lost.heal()
    back = fleet.update(store, 2, listed, on_failure="back")
    assert (back.exit_code, back.went_back, held(replica)) == (1, True, "1")


@pytest.mark.needs("mounts")
@pytest.mark.parametrize(
    ("mounted", "says"),
    [
        ("mount --bind $0 $0 && mount -o remount,bind,ro $0", "Read-only file system"),
        ("mount -t tmpfs -o size=4k none $0/targets && head -c 4k /dev/zero > $0/targets/x", "No space left"),
    ],
)
def test_a_store_that_is_read_only_or_full_is_told_before_anything_is_asked(
    make_fleet, store, mounted: str, says: str
) -> None:
    (replica,) = make_fleet(1)
    assert fleet.update(store, 1, [replica.replica]).exit_code == 0
    before = status(replica)["sequence"]
    command = [
        sys.executable,
        "-m",
        "wsm",
        "fleet",
        "update",
        "2",
        "--store",
        store,
        "--replicas",
        replica.url,
    ]
    apart = [*OWN_MOUNTS, "sh", "-c", f'{mounted} && exec "$@"', store, *command]
    done = subprocess.run(apart, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert status(replica)["sequence"] == before
    assert outcome(fleet.update(store, 2, [replica.replica])) == (0, [None])
