"""``wsm metrics`` on real groups: serving, after a failure, dead; printed and over HTTP."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from command_line import Run, Start
from commanded_group import LivingGroup
from prometheus_client.parser import text_string_to_metric_families

from wsm import Controller, WsmError
from wsm.journal import entry as kinds
from wsm.journal.entry import JournalEntry


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (
            one.name,
            *(f"{name}={value}" for name, value in sorted(one.labels.items()) if name != "group"),
        ): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


@pytest.mark.processes
def test_metrics_tell_what_a_group_did_and_holds_also_when_it_is_dead(group: LivingGroup, wsm: Run) -> None:
    def told() -> dict[tuple[str, ...], float]:
        ended = wsm("metrics", group.name)
        assert (ended.code, ended.err) == (0, "")
        return samples(ended.out)

    def counted(found, operation: str, outcome: str) -> float:
        return found.get(("wsm_command_seconds_count", f"operation={operation}", f"outcome={outcome}"), 0)

    before = told()
    assert before["wsm_serving",] == 0
    group.serve(1)
    with Controller(group.name) as controller:
        controller.update(2)
        with pytest.raises(WsmError):
            controller.update(9)
        controller.hold(owner="trainer")
        held = told()
        controller.release(owner="trainer")
    now = told()
    assert held["wsm_hold_info", "owner=trainer"] == held["wsm_held",] == 1
    assert (now["wsm_up",], now["wsm_serving",], now["wsm_held",]) == (1, 1, 0)
    assert counted(now, "update", "updated") - counted(before, "update", "updated") == 2
    assert counted(now, "release", "released") - counted(before, "release", "released") == 1
    failed = {key: value for key, value in now.items() if key[0] == "wsm_command_errors_total"}
    assert sum(failed.values()) >= 1
    assert now["wsm_version_info", "version=2"] == 1
    assert now["wsm_loaded_bytes_total",] > before["wsm_loaded_bytes_total",]
    assert now["wsm_load_seconds_count",] - before["wsm_load_seconds_count",] == 4, "two ranks, two versions"
    assert now["wsm_state", "machine=weights", "rank=1", "wsm_state=NORMAL"] == 1
    assert now["wsm_action_seconds_count", "action=load_weights"] >= 4
    group.kill(0)
    assert told()["wsm_finding_info", "finding=rank-lost"] == 1
    group.kill(1)
    dead = told()
    assert (dead["wsm_up",], dead["wsm_serving",]) == (1, 0)
    assert dead["wsm_rank_life", "rank=0", "wsm_rank_life=dead"] == 1
    assert counted(dead, "update", "updated") == counted(now, "update", "updated")
    assert wsm("metrics", "nosuch").code == 2


def get(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:  # noqa: S310 - loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


@pytest.mark.processes
def test_metrics_are_served_on_the_loopback_to_who_asks_by_its_name(
    group: LivingGroup, start_wsm: Start
) -> None:
    process = start_wsm("metrics", "--http", "127.0.0.1:0", "--aliases", "vllm")
    said = process.stdout.readline()
    address = said.split()[2].rstrip(";")
    status, text = get(address)
    assert status == 200
    assert f'wsm_up{{group="{group.name}"}} 1.0' in text
    assert "vllm:rl_weight_update_operations_in_flight" in text
    assert get(address, Host="rebound.example")[0] == 421
    assert get(address.replace("/metrics", "/"))[0] == 404
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "nowhere", "127.0.0.1:99999", "10.1.2.3:80"])
def test_an_address_that_others_reach_is_refused(wsm: Run, address: str) -> None:
    ended = wsm("metrics", "--http", address)
    assert ended.code == 2
    assert json.dumps(address)[1:-1] in ended.err


def test_journals_of_one_group_or_of_two_become_a_trace(tmp_path: Path, wsm: Run) -> None:
    def line(kind: str, at: int, rank: int, **facts) -> str:
        return JournalEntry(kind, at, at, rank, 1, 2, facts).to_line() + "\n"

    for group in ("actor", "critic"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "rank0.ndjson").write_text(
            line(kinds.STARTED, 1, 0, pid=1)
            + line(kinds.ACTION_STARTED, 2_000, 0, name="load")
            + line(kinds.ACTION_FINISHED, 9_000, 0, name="load", seconds=7e-6)
        )
    out = tmp_path / "out.json"
    assert wsm("trace", tmp_path / "actor", "--out", out).code == 0
    one = json.loads(out.read_text())["traceEvents"]
    assert [event["dur"] for event in one if event["name"] == "load"] == [7.0]
    assert wsm("trace", tmp_path / "actor", tmp_path / "critic", "--out", out).code == 0
    both = json.loads(out.read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in both if event["name"] == "process_name"}
    assert tracks == {f"{tmp_path / group}: rank 0" for group in ("actor", "critic")}
