"""``wsm serve`` as a process, the options of its surfaces, and ``wsm --url`` against it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from command_line import Run, Start
from commanded_group import LivingGroup

pytestmark = pytest.mark.processes

ADMIN, READ = "an admin's long token".replace(" ", "-"), "a-reader-s-long-token"


@pytest.fixture
def serve(group: LivingGroup, start_wsm: Start, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`serve(option, ...)`: the address of a server for the group, which ends well with the test."""
    servers = []

    def start(*options: object) -> str:
        receipts = tmp_path / "http.sqlite"
        servers.append(start_wsm("serve", group.name, "--http", "0", "--receipts", receipts, *options))
        said = servers[-1].stdout.readline()
        assert "is commanded at" in said, servers[-1].communicate(timeout=20)[1]
        return said.split()[4].rstrip(";")

    yield start
    for server in servers:
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=60)
        assert not any(token in out + err for token in (ADMIN, READ))


def test_a_group_is_commanded_through_its_server_by_the_words_of_this_command_line(
    group: LivingGroup, serve: Callable[..., str], wsm: Run
) -> None:
    url = serve("--port", "0")
    assert wsm("--url", url, "update", group.name, "--version", 1).code == 0
    held = wsm("--url", url, "hold", group.name)
    assert held.code == 0, held.err
    state = json.loads(wsm("--url", url, "status", group.name, "--json").out)
    assert (state["version"], state["hold"]["owner"], state["closed"]) == ("1", "http:native", None)
    assert wsm("--url", url, "release", group.name).code == 0
    assert wsm("--url", url, "explain", group.name).code == 0
    assert wsm("--url", url, "clear", group.name).code == 0
    missing = wsm("--url", url, "update", group.name, "--version", 99)
    assert (missing.code, "99" in missing.err) == (1, True)
    assert wsm("--url", url, "status", "another").code != 0
    assert wsm("--url", "http://127.0.0.1:1", "status", group.name).code == 1


def test_a_caller_that_is_interrupted_says_that_its_server_goes_on(
    group: LivingGroup, serve: Callable[..., str], start_wsm: Start
) -> None:
    group.serve(1)
    group.stop(1)
    command = start_wsm("--url", serve(), "update", group.name, "--version", 2)
    group.until(lambda now: not now.over)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert (command.returncode, "the server goes on with the command" in err) == (130, True)
    group.resume(1)
    assert group.until(lambda now: now.over and now.version == "2").serving


@pytest.mark.slow
def test_tokens_of_a_file_are_asked_of_this_host_too(
    group: LivingGroup, serve: Callable[..., str], wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin {ADMIN}\nread {READ}\n")
    tokens.chmod(0o600)
    url = serve("--token-file", tokens)
    assert httpx.get(f"{url}/health").status_code == 304, "FastDeploy's, which is the first of all surfaces"
    for token, seen, commanded in ((None, 1, 1), (f"{ADMIN}x", 1, 1), (READ, 0, 1), (ADMIN, 0, 0)):
        monkeypatch.setenv("WSM_TOKEN", token) if token else monkeypatch.delenv("WSM_TOKEN", raising=False)
        assert wsm("--url", url, "status", group.name).code == seen, token
        assert wsm("--url", url, "update", group.name, "--version", 1).code == commanded, token


@pytest.mark.slow
def test_a_server_says_of_itself_what_its_options_say(serve: Callable[..., str]) -> None:
    url = serve(
        *("--surface", "fastdeploy,sglang", "--fastdeploy-generation", "2.4", "--served-model-name", "actor"),
        *("--server-info", "dtype=bfloat16", "--server-info", "tp_size=8", "--server-info", "attention=a=b"),
    )
    info = httpx.get(f"{url}/server_info").json()
    assert [info[key] for key in ("dtype", "tp_size", "attention")] == ["bfloat16", 8, "a=b"]
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "actor"
    cleared = httpx.get(f"{url}/clear_load_weight")
    assert (cleared.status_code, cleared.content) == (200, b"")
    unwell = httpx.get(f"{url}/health")
    assert (unwell.status_code, unwell.content) == (304, b"")


@pytest.mark.parametrize(
    "options",
    [
        ("--server-info", "dtype"),
        ("--server-info", "=1"),
        ("--fastdeploy-generation", "3"),
        ("--surface", "nosuch"),
        ("--http", "0.0.0.0:0"),
        ("--trust", "10.0.0.0/33"),
        ("--token-file", "/nonexistent"),
        ("--upstream", "ftp://127.0.0.1"),
    ],
    ids=" ".join,
)
def test_an_option_that_says_nothing_is_wrong_usage(group: LivingGroup, wsm: Run, options) -> None:
    ended = wsm("serve", group.name, "--http", "0", *options)
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
