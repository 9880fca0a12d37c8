"""``wsm --url`` against the server of a vLLM, over a socket."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import uvicorn
from click.testing import CliRunner

from tests.cli.command_line import SEPARATE
from tests.vllm.test_endpoint import played, vllm  # noqa: F401 - of each test here, too
from wsm.cli import main
from wsm.strategies import AdoptSettings, adopt


def run_wsm(url, *words):
    with CliRunner(**SEPARATE).isolation() as (out, err, *_):
        code = main.run(["--url", url, *words], main.wsm)
        return code, out.getvalue().decode(), err.getvalue().decode()


@pytest.fixture
def commanded(one, two, tmp_path):
    """A vLLM that serves one of two published versions, and `wsm`, which runs a command line against it."""
    store = tmp_path / "store"
    for where in (one, two):
        adopt(where, AdoptSettings(store, [tmp_path], durable=False), version=where.name)

    told, over = queue.Queue(), threading.Event()

    async def served(at):
        server = uvicorn.Server(uvicorn.Config(at.app, lifespan="off", log_level="warning"))
        listening = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        told.put((at.client, listening.getsockname()[1]))
        await asyncio.to_thread(over.wait)
        server.should_exit = True
        await serving

    options = {"additional_config": {"wsm": {"store": str(store)}}}
    server = threading.Thread(target=played, args=(one, served), kwargs=options)
    server.start()
    client, port = told.get(timeout=60)

    yield SimpleNamespace(client=client, wsm=partial(run_wsm, f"http://127.0.0.1:{port}"))
    over.set()
    server.join()


def test_the_command_line_updates_a_vllm_and_says_what_it_serves(commanded):
    client, wsm = commanded.client, commanded.wsm
    code, out, err = wsm("status", "vllm")
    assert (code, err) == (0, "")
    assert "Version one, whole on 2 ranks, serves" in out
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [["rank", rank, "alive"] for rank in "01"]
    code, out, err = wsm("update", "vllm", "--version", "two")
    assert (code, err) == (0, "")
    assert (client.version, client.engine.fills) == ("two", [2.0, 2.0])
    code, out, err = wsm("prepare", "vllm", "--version", "one", "--request-id", "back")
    assert code == 0, err
    assert json.loads(wsm("status", "vllm", "--json")[1])["request_id"] == "back"
    code, out, err = wsm("commit", "vllm", "--request-id", "back")
    assert (code, client.version) == (0, "one"), err
    code, out, err = wsm("explain", "vllm")
    assert (code, json.loads(out)["open"]) == (0, True)


def test_the_command_line_holds_a_vllm_until_it_releases_it(commanded):
    client, wsm = commanded.client, commanded.wsm
    for said in ("vllm is held by", "vllm was held already"):
        code, out, err = wsm("hold", "vllm", "--in-flight", "drain")
        assert (code, said in out, client.paused, client.mode) == (0, True, True, "wait"), err
    hold = json.loads(wsm("status", "vllm", "--json")[1])["hold"]
    assert (hold["lease_s"], hold["on_lease"]) == (None, "stay"), "as its help says"
    for said in ("vllm is released", "vllm was open already"):
        code, out, err = wsm("release", "vllm")
        assert (code, said in out, client.paused) == (0, True, False), err


REFUSED = {
    "partial": ["update", "vllm", "--version", "two", "--partial"],
    "hot": ["update", "vllm", "--version", "two", "--hot"],
    "tags": ["update", "vllm", "--version", "two", "--tags", "weights"],
    "after": ["update", "vllm", "--version", "two", "--after", "held"],
    "wait_s": ["update", "vllm", "--version", "two", "--wait", "5"],
    "a version of the store": ["update", "vllm"],
    "hot:": ["prepare", "vllm", "--version", "two", "--in-place"],
    "/wsm/v1/clear": ["clear", "vllm"],
}


@pytest.mark.slow
def test_what_a_vllm_has_not_is_refused_by_its_name(commanded):
    for named, words in REFUSED.items():
        code, _, err = commanded.wsm(*words)
        assert (code, named in err) == (1, True), err
        assert "bug" not in err
    assert commanded.client.engine.fills == [1.0, 1.0]
