"""What outlives a server stands in one file of all servers, which go on without it where it is unusable."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from living_group import eventually

from tests.needs import OWN_MOUNTS
from wsm.http import kept
from wsm.http.kept import KeptRequests
from wsm.metrics.history import ServerCounts


def request(name: str, state: str = "running", **more: object) -> dict[str, object]:
    """A request as commands keep it."""
    said = {"request_id": name, "operation": "hold", "surface": "vllm", "run_id": "r", "asked": {}}
    return {**said, "state": state, **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "http.sqlite"


def test_what_is_kept_and_remembered_outlives_a_server_and_is_bounded(path: Path, monkeypatch) -> None:
    first = KeptRequests(path)
    first.keep(request("a"))
    first.keep(request("a", "failed"))
    first.remember("pulled", "/local", ["7", "7.reused-0123", "/w@d", True])
    first.remember("unfit", "/w@d", {"code": "digest-mismatch"})
    first.remember("unfit", "/w@d", None)
    again = KeptRequests(path)
    assert again.request("a") == request("a", "failed")
    assert again.note("pulled", "/local") == ["7", "7.reused-0123", "/w@d", True]
    assert again.note("unfit", "/w@d") is None
    monkeypatch.setattr(kept, "KEPT_NOTES", 2)
    monkeypatch.setattr(kept, "KEPT_BYTES", 4000)
    for number in range(4):
        again.remember("pulled", f"/{number}", [number])
    for name in "abcdefghijkl":
        again.keep(request(name, error="x" * 1000))
    for one in (again, KeptRequests(path)):
        assert [one.note("pulled", f"/{number}") for number in range(4)] == [None, None, [2], [3]]
        assert [name for name in "abcdefghijkl" if one.request(name)] == ["j", "k", "l"]


def test_what_is_forgotten_is_told_to_others_for_as_long_as_there_is_room(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kept, "KEPT_REQUESTS", 3)
    first = KeptRequests(path)
    for number in range(6):
        first.remember("begun", f"{number}", 1)
        first.remember("begun", f"{number}", None)
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT name, value FROM kept ORDER BY change").fetchall() == [
            (f"{number}", None) for number in (3, 4, 5)
        ]
    file.close()


def test_two_servers_of_one_group_have_each_others_requests_and_notes(path: Path) -> None:
    first, second = KeptRequests(path), KeptRequests(path)
    first.remember("begun", "sglang", {"until": 1})
    first.keep(request("a"))
    second.remember("begun", "sglang", {"until": 2})
    assert second.request("a") == request("a")
    second.keep(request("b"))
    first.keep(request("c"))
    first.remember("begun", "vllm", {"until": 3})
    second.catch_up()
    for one in (first, second, KeptRequests(path)):
        assert [name for name in "abc" if one.request(name)] == ["a", "b", "c"]
        assert (one.note("begun", "sglang"), one.note("begun", "vllm")) == ({"until": 2}, {"until": 3})


def test_of_servers_that_claim_one_name_at_once_one_does(path: Path) -> None:
    servers = [KeptRequests(path) for _ in range(4)]
    together = threading.Barrier(len(servers))
    for number in range(20):
        found: dict[int, object] = {}

        def claims(place: int, found: dict[int, object] = found, name: str = f"r{number}") -> None:
            together.wait(10)
            said = servers[place].claim(request(name, server=place), lambda _: False)
            found[place] = None if said is None else said["server"]

        asking = [threading.Thread(target=claims, args=(place,)) for place in range(len(servers))]
        for each in asking:
            each.start()
        for each in asking:
            each.join(20)
        (winner,) = [place for place, standing in found.items() if standing is None]
        assert set(found.values()) == {None, winner}
    assert servers[0].claim(request("r1", "failed"), lambda _: True) is None, "free again"
    assert KeptRequests(path).request("r1") == request("r1", "failed")


def damage_all(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another(path: Path) -> None:
    path.unlink()


def later(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 9")
    file.close()


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/full")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.slow_but("damage_all", "empty", "link", "directory")
@pytest.mark.parametrize("harm", [damage_all, empty, another, later, link, directory])
def test_a_server_goes_on_without_a_file_that_is_unusable_and_says_so_once(
    path: Path, harm, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(kept, "WAIT_S", 30.0)  # cores that are busy are no harm
    counts = ServerCounts()
    first = KeptRequests(path, counts)
    first.keep(request("a"))
    harm(path)
    caplog.clear()
    for state in ("running", "failed", "succeeded-not", "running"):
        first.keep(request("b", state))
        assert first.request("b") == request("b", state)
    assert first.request("a") is not None
    assert len(caplog.records) == counts.file_faults == (harm is not another)
    assert (first.fault != "") is (harm is not another)
    if harm in (later, link, directory):
        assert len(caplog.records) == 1
        assert KeptRequests(path).request("b") is None
        path.rmdir() if path.is_dir() else path.unlink()
        first.keep(request("c"))
        assert first.fault == "", "it is used again"
    after = KeptRequests(path)
    assert [name for name in "abc" if after.request(name)] == ["a", "b", *("c" if first.request("c") else "")]


#: A server that keeps more requests than there is room for.
KEEPS = """
import sys
from pathlib import Path
from wsm import log
from wsm.http import kept
from wsm.http.kept import KeptRequests

log.configure()
kept.WAIT_S = 60.0  # a core that others have makes no other fault of it
first = KeptRequests(Path(sys.argv[1]))
for number in range(200):
    said = {"request_id": f"r{number}", "operation": "hold", "surface": "vllm", "run_id": "r"}
    first.keep({**said, "asked": {"name": "x" * 500}, "state": "running"})
print(sum(first.request(f"r{number}") is not None for number in range(200)), first.fault)
"""


@pytest.mark.slow
@pytest.mark.needs("mounts")
@pytest.mark.parametrize(
    ("mounted", "says"),
    [
        ("mount --bind $0 $0 && mount -o remount,bind,ro $0", "Read-only file system"),
        ("mount -t tmpfs -o size=32k none $0", "database or disk is full"),
    ],
)
def test_a_disk_that_is_read_only_or_full_stops_no_command_and_is_said_once(
    tmp_path: Path, mounted: str, says: str
) -> None:
    apart = [*OWN_MOUNTS, "sh", "-c", f'{mounted} && exec "$@"', tmp_path, sys.executable, "-c", KEEPS]
    done = subprocess.run([*apart, tmp_path / "http.sqlite"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("200 the server's file of requests"), done.stderr
    assert says in done.stdout
    assert done.stderr.count(says) == 1
    assert "Traceback" not in done.stderr


def test_a_file_system_that_hangs_is_waited_for_once_and_written_when_it_answers(
    path: Path, monkeypatch, caplog
) -> None:
    first = KeptRequests(path)
    first.keep(request("a"))
    monkeypatch.setattr(kept, "WAIT_S", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")  # no transaction comes to its end while this goes on
    for name in ("b", "c", "d"):
        first.keep(request(name))
        assert first.request(name) is not None
        monkeypatch.setattr(kept, "WAIT_S", "not again: waiting for this raises")
    assert [record.message for record in caplog.records if "no answer" in record.message]
    assert len(caplog.records) == 1
    other.rollback()
    other.close()
    monkeypatch.undo()
    first.keep(request("e"))
    eventually(lambda: all(KeptRequests(path).request(name) for name in "abcde"))


@pytest.mark.parametrize(
    "damaged",
    [
        *("{", "7", '{"request_id": "a"}', '{"state": null}', '{"state": "succeeded", "receipt": {}}'),
        *('{"state": "running", "request_id": "a"}', json.dumps({**request("a"), "state": 7})),
        json.dumps({**request("a"), "asked": []}),
    ],
)
def test_a_request_that_lacks_what_its_readers_need_is_left_out(path: Path, damaged: str) -> None:
    first = KeptRequests(path)
    first.keep(request("a"))
    first.keep(request("b"))
    first.remember("called", "word", "7")
    with sqlite3.connect(path) as file:
        file.execute("UPDATE kept SET value = ? WHERE name = 'a'", (damaged,))
        file.execute("UPDATE kept SET value = '{' WHERE name = 'word'")
    file.close()
    again = KeptRequests(path)
    assert (again.request("a"), again.request("b"), again.note("called", "word")) == (
        None,
        request("b"),
        None,
    )


def test_a_server_that_was_forked_off_keeps_its_own(path: Path) -> None:
    first = KeptRequests(path)
    first.keep(request("a"))
    child = os.fork()
    if child == 0:
        own = KeptRequests(path)
        own.keep(request("b"))
        os._exit(0 if own.request("a") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    first.catch_up()
    assert first.request("b") == request("b")


def test_a_file_that_an_earlier_release_has_left_is_read(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE kept (kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT, change INTEGER NOT NULL, "
            "PRIMARY KEY (kind, name))"
        )
        file.execute("INSERT INTO kept VALUES ('request', 'a', ?, 1)", (json.dumps(request("a", "failed")),))
        file.execute("PRAGMA user_version = 1")
    file.close()
    assert KeptRequests(path).request("a") == request("a", "failed")


def test_what_another_server_has_said_since_outlives_a_file_that_was_begun_anew(path: Path) -> None:
    first, second = KeptRequests(path), KeptRequests(path)
    first.keep(request("a"))
    second.keep(request("b"))
    path.unlink()
    first.keep(request("a", "failed"))
    second.keep(request("c"))
    for one in (first, second, KeptRequests(path)):
        one.catch_up()
        assert [one.request(name) for name in "abc"] == [request("a", "failed"), request("b"), request("c")]


def test_what_a_server_could_not_write_is_written_once(path: Path) -> None:
    first = KeptRequests(path)
    path.mkdir()
    first.keep(request("a"))
    path.rmdir()
    first.keep(request("b"))
    second = KeptRequests(path)
    second.keep(request("a", "failed"))
    first.keep(request("c"))
    for one in (first, second, KeptRequests(path)):
        one.catch_up()
        assert [one.request(name) for name in "abc"] == [request("a", "failed"), request("b"), request("c")]
