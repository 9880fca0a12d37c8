"""A fleet of two real vLLM servers and a real group: one store, one target."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from tests.leftovers import group_name
from tests.vllm.server import VllmServer
from wsm import load_config
from wsm.group_segment import own_group
from wsm.states.fleet import next_target
from wsm.strategies import AdoptSettings, adopt
from wsm.strategies.snapshot.store import content_of
from wsm.strategies.trainer.targets import newest_target, set_target

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
EXTENSION = ("--worker-extension-cls", "wsm.vllm.Worker", "--dtype", "bfloat16")


@pytest.fixture(scope="module")
def models(models):
    """As they are, and in a store."""
    for name in "AB":
        adopt(models / name, AdoptSettings(models / "store", [models], durable=False), version=name)
    return models


@pytest.fixture
def start(models, tmp_path):
    """Starts vLLM with A."""
    with ExitStack() as started:

        def starts():
            place, fleet = Path(tempfile.mkdtemp(dir=tmp_path)), str(models / "store")
            return started.enter_context(VllmServer(place, models / "A", *EXTENSION, WSM_FLEET=fleet))

        yield starts


@pytest.fixture
def served_group(models, tmp_path):
    """The address of a group's ``wsm serve``."""
    name, file = group_name("fleet"), tmp_path / "wsm.yaml"
    places = {"snapshot": {"directory": str(models / "store"), "shared_directory": str(tmp_path)}}
    file.write_text(yaml.safe_dump({"name": name, "ranks": 1, "journal_directory": str(tmp_path), **places}))
    segment = own_group(load_config(file))
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    program = [sys.executable, Path(__file__).with_name("group_rank.py"), file, models / "A"]
    processes = [subprocess.Popen([*map(str, program)], **piped)]
    try:
        assert processes[0].stdout.readline() == "attached\n"
        serve = ["serve", name, "--http", "0", "--fleet", str(models / "store")]
        processes.append(subprocess.Popen([sys.executable, "-m", "wsm", *serve], **piped))
        yield processes[1].stdout.readline().split()[4].rstrip(";")
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        segment.unlink()
        segment.close()


@pytest.fixture
def serve_fleet(models):
    """Starts ``wsm fleet serve``, and returns what asks it."""
    started = []

    def starts(urls, tokens):
        named = ["--store", str(models / "store"), "--replicas", urls, "--token-file", str(tokens)]
        program = [sys.executable, "-m", "wsm", "fleet", "serve", *named, "--http", "0", "--surface", "vllm"]
        started.append(subprocess.Popen(program, stdout=subprocess.PIPE, text=True))
        url = started[-1].stdout.readline().split()[5].rstrip(";")
        return lambda verb, body=None: httpx.post(f"{url}/{verb}", json=body, timeout=120)

    yield starts
    for process in started:
        process.kill()
        process.communicate()


def is_closed(server):
    status, answer = server.generate()
    assert (status, answer["error"]["code"]) == (503, "fleet-stale"), answer
    return server.call("GET", "/wsm/v1/ready")[0] == 503


@pytest.mark.slow
def test_vllm_servers_and_a_group_come_to_one_version_and_no_server_takes_text_for_another(
    start, served_group, serve_fleet, models, tmp_path
):
    store, tokens = models / "store", tmp_path / "tokens"
    server = start()
    assert is_closed(server), "no target allows anything"
    first = content_of(store, "B")
    assert set_target(store, next_target(newest_target(store), first))
    assert is_closed(server), "it was started with A"
    other = start()
    assert other.versions() == ["B"], "it has brought the target before it listens"
    status, answer = server.update(models / "A")
    assert (status, answer["error"]["code"]) == (409, "not-the-fleets")

    def fleet_update(version, *servers, exit_code=0):
        tokens.write_text("".join(f"{each.url} key\n" for each in servers))
        tokens.chmod(0o600)
        program = [sys.executable, "-m", "wsm", "fleet", "update", version, "--store", str(store)]
        urls = ",".join([*(each.url for each in servers), served_group])
        listed = ["--replicas", urls, "--token-file", str(tokens)]
        ended = subprocess.run([*program, *listed], capture_output=True, text=True, check=False)
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        status = server.call("GET", "/wsm/v1/status")[1]
        assert status["manifest_digest"] == content_of(store, version).digest
        assert status["fleet"]["state"] == "ready"
        assert {version} >= set(server.versions())
        return len(server.call("GET", "/wsm/v1/receipts")[1]["receipts"])

    assert [fleet_update(each, server, other) for each in "BBAB"] == [2, 2, 4, 6], "prepared and committed"
    assert other.versions() == ["B"]
    other.process.kill()
    assert fleet_update("A", server, other, exit_code=1) == 8, "the one that is gone fails in its own row"
    other.close()
    assert fleet_update("B", server) == 10
    other = start()
    assert other.versions() == ["B"], "B alone is allowed, and vLLM has started with A again"
    assert fleet_update("B", server, other) == 10

    trainer = serve_fleet(f"{server.url},{other.url},{served_group}", tokens)
    assert trainer("pause").status_code == 200
    for each in (server, other):
        assert each.call("GET", "/is_paused")[1] == {"is_paused": True}
        assert each.call("POST", "/resume")[1]["error"]["code"] == "held-by-another"
    answer = trainer("update_weights", {"update_info": {"version": "A"}})
    assert answer.status_code == 200, answer.text
    for each in (server, other):
        status = each.call("GET", "/wsm/v1/status")[1]
        assert (status["version"], status["hold"]["owner"]) == ("A", "http:fleet-vllm")
    assert trainer("resume").status_code == 200
    assert server.versions() == other.versions() == ["A"]
