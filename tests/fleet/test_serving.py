"""A trainer commands a fleet of real servers as one, through ``wsm fleet serve``."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_model import SPECS, publish

from tests.fleet.served_replica import until
from tests.forkserver import FOR_COMMANDS
from wsm import Controller, fleet
from wsm.controller.errors import hold_closed
from wsm.strategies.trainer.targets import address, newest_target

sys.path.insert(0, str(Path(__file__).parents[1] / "strategies" / "shared"))
from written_checkpoint import write_checkpoint

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0


class ServedFleet:
    """`wsm fleet serve` as a process of its own, with vLLM's verbs."""

    def __init__(self, store: Path, listed: Path, *options: object) -> None:
        named = ["--store", store, "--replicas", listed, "--every", "0.3", "--lease", "4", "--http", "0"]
        command = ["-m", "wsm", "fleet", "serve", *named, "--surface", "vllm", *options]
        self.process = FOR_COMMANDS.start(*command, stderr=None, text=True)
        self.url = self.process.stdout.readline().split()[5].rstrip(";")

    def asked(self, verb: str, body: object = None) -> httpx.Response:
        return httpx.post(f"{self.url}/{verb}", json=body, timeout=PATIENCE_S)

    def update(self, version: str) -> httpx.Response:
        return self.asked("update_weights", {"update_info": {"version": version}})

    def routable(self) -> list[str]:
        said = httpx.get(f"{self.url}/workers").json()
        return [worker["url"] for worker in said["workers"]]

    def close(self) -> None:
        self.process.close()


@pytest.fixture
def serve(store: Path, tmp_path: Path) -> Iterator[Callable[..., ServedFleet]]:
    made: list[ServedFleet] = []

    def start(replicas: Any, *options: object) -> ServedFleet:
        listed = tmp_path / "replicas.json"
        listed.write_text(json.dumps([each.url for each in replicas]))
        made.append(ServedFleet(store, listed, *options))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def replicas(make_fleet, store):
    """Two that serve version 1, and read their target."""
    made = make_fleet(2, "--fleet", store)
    assert fleet.update(store, 1, [each.replica for each in made]).exit_code == 0
    return made


def standing(replica) -> tuple[str | None, bool, bool]:
    """Return the version, whether it is held, and whether that is closed."""
    said = httpx.get(f"{replica.url}/wsm/v1/status").json()
    return said["version"], said["hold"] is not None, said["closed"] is not None


def table(answer: httpx.Response) -> list[str | None]:
    """Return the codes of the table of a verb that was not done by all."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not-all")
    return [row["code"] for row in answer.json()["error"]["context"]["table"]]


OPEN, HELD, CLOSED = (False, False), (True, False), (True, True)


@pytest.mark.slow
def test_one_step_of_a_trainer_is_done_by_all_replicas_and_sets_their_target(serve, replicas, store) -> None:
    served = serve(replicas)
    assert address(store) == served.url
    until(lambda: len(served.routable()) == 2)
    assert served.asked("pause").status_code == 200
    assert served.routable() == []
    assert httpx.get(f"{served.url}/is_paused").json() == {"is_paused": True}
    assert served.update("2").json()["wsm"]["version"] == "2"
    assert newest_target(store).content.label == "2"
    assert [standing(each) for each in replicas] == [("2", *HELD)] * 2
    assert served.asked("resume").status_code == 200
    assert [standing(each) for each in replicas] == [("2", *OPEN)] * 2
    until(lambda: len(served.routable()) == 2)
    # In parts, and without a pause.
    assert served.asked("start_weight_update").status_code == 200
    assert served.update("1").status_code == 200
    assert {standing(each)[0] for each in replicas} == {"2"}
    assert served.asked("finish_weight_update").status_code == 200
    assert [standing(each) for each in replicas] == [("1", *OPEN)] * 2
    assert httpx.get(f"{served.url}/weight_info").json()["weight_version"] == "1"
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(PATIENCE_S) == 130


@pytest.mark.slow
def test_a_directory_is_adopted_once_for_all_replicas(serve, replicas, store, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine_of_a_fleet.py").write_text(
        "from wsm.strategies.snapshot.placement import Replicated\n"
        "def placed(specs):\n    return dict.fromkeys(specs, Replicated())\n"
    )
    config = tmp_path / "policy.yaml"
    of_group = {"ranks": 2, "snapshot": {"directory": str(store)}, "placements": "engine_of_a_fleet:placed"}
    config.write_text(json.dumps({"name": "policy", **of_group}))
    state = {spec.name: (spec, bytes([7]) * spec.nbytes) for spec in SPECS}
    written = write_checkpoint(tmp_path / "exchange" / "weight_v000012", state)
    served = serve(replicas, "--adopt-root", written.parent, "--config", config)
    outside = served.asked("update_weights", {"update_info": {"path": str(tmp_path)}})
    assert outside.status_code == 400
    told = served.asked("update_weights", {"update_info": {"path": str(written)}}).json()["wsm"]
    assert (told["version"], newest_target(store).content.label) == ("12", "12")
    assert [standing(each) for each in replicas] == [("12", *OPEN)] * 2


@pytest.mark.slow
def test_memory_that_is_let_go_comes_back_on_all_replicas(serve, replicas) -> None:
    served = serve(replicas)
    assert served.asked("sleep?level=2").status_code == 200
    assert httpx.get(f"{served.url}/is_sleeping").json() == {"is_sleeping": True}
    assert served.asked("wake_up").status_code == 200
    assert httpx.get(f"{served.url}/is_sleeping").json() == {"is_sleeping": False}
    assert served.asked("resume").status_code == 200
    assert [standing(each) for each in replicas] == [("1", *OPEN)] * 2


@pytest.mark.slow
def test_what_is_not_done_by_all_is_409_with_the_table_and_closes_what_has_the_old_weights(
    serve, replicas, store
) -> None:
    served = serve(replicas)
    publish(store, 3)
    part = max((store / "versions" / "3").glob("*tp1*"), key=lambda path: path.stat().st_size)
    whole = part.read_bytes()
    part.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    assert served.asked("pause").status_code == 200
    assert table(served.update("3"))[0] == "rank-failed"
    assert [standing(each) for each in replicas] == [("1", *CLOSED)] * 2
    assert table(served.asked("resume")) == ["hold-closed"] * 2
    assert [standing(each) for each in replicas] == [("1", *CLOSED)] * 2
    part.write_bytes(whole)
    assert served.asked("pause").status_code == 200
    replicas[1].kill_server()
    assert table(served.update("3")) == [None, "upstream-unreachable"]
    assert standing(replicas[0]) == ("3", *HELD), "it has what its trainer sent"
    replicas[1].restart_server()
    assert standing(replicas[1]) == ("1", *CLOSED)
    assert served.update("3").status_code == 200
    assert served.asked("resume").status_code == 200
    assert [standing(each) for each in replicas] == [("3", *OPEN)] * 2


@pytest.mark.slow
def test_a_pause_holds_all_or_none_and_a_dead_replica_counts_once_it_is_not_routable(serve, replicas) -> None:
    served = serve(replicas, "--every", "2")
    until(lambda: len(served.routable()) == 2)
    own = httpx.post(f"{replicas[1].url}/pause")  # a trainer of its own
    assert own.status_code == 200
    assert table(served.asked("pause")) == [None, "held-by-another"]
    assert [standing(each)[1:] for each in replicas] == [OPEN, HELD], "what could be held is released again"
    assert httpx.post(f"{replicas[1].url}/resume").status_code == 200
    until(lambda: len(served.routable()) == 2)
    replicas[1].kill_server()
    assert table(served.asked("pause")) == [None, "upstream-unreachable"], "text may still reach it"
    assert standing(replicas[0])[1:] == OPEN
    until(lambda: served.routable() == [replicas[0].url])
    assert served.asked("pause").status_code == 200
    replicas[1].restart_server()
    until(lambda: standing(replicas[1])[1:] == HELD)  # for as long as the fleet is held
    assert served.asked("resume").status_code == 200
    assert [standing(each)[1:] for each in replicas] == [OPEN] * 2


@pytest.mark.slow
def test_a_hold_lasts_while_its_server_lives_and_is_over_soon_after_its_death(serve, replicas) -> None:
    served = serve(replicas)
    assert served.asked("pause").status_code == 200
    renewed = [httpx.get(f"{each.url}/wsm/v1/status").json()["hold"]["renewed_ns"] for each in replicas]
    until(
        lambda: all(
            httpx.get(f"{each.url}/wsm/v1/status").json()["hold"]["renewed_ns"] > before + 5 * 10**9
            for each, before in zip(replicas, renewed, strict=True)
        )
    )
    served.process.kill()
    until(lambda: [standing(each)[1:] for each in replicas] == [OPEN] * 2)


@pytest.mark.slow
def test_no_closed_hold_is_opened_by_the_death_of_the_fleets_server_nor_by_its_release(
    serve, replicas
) -> None:
    served = serve(replicas)
    assert served.asked("pause").status_code == 200
    assert served.asked("update_weights", {}).status_code == 400, "pushed tensors are refused, which closes"
    assert [standing(each)[1:] for each in replicas] == [CLOSED] * 2
    served.process.kill()
    with Controller(replicas[0].group.name) as watched:
        until(lambda: watched.status().hold.left_s(time.monotonic_ns()) < -1)
    assert [standing(each)[1:] for each in replicas] == [CLOSED] * 2
    again = serve(replicas)
    assert table(again.asked("resume")) == ["hold-closed"] * 2
    assert again.update("2").status_code == 200
    assert again.asked("resume").status_code == 200
    # The same of a hold that a trainer of the replica's own has.
    assert httpx.post(f"{replicas[1].url}/pause").status_code == 200
    assert httpx.post(f"{replicas[1].url}/update_weights", json={}).status_code == 400
    assert table(again.asked("resume"))[1] == hold_closed.__name__.replace("_", "-")
    assert standing(replicas[1])[1:] == CLOSED
