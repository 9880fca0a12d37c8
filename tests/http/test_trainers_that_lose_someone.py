"""A rank, the server or the trainer is killed at every verb of every client; its end is written first.

=========  =============================================================================================
killed     the group then has what it had before the verb or behind it, held or open likewise, and
=========  =============================================================================================
rank       the keeper has replaced it, and restored that; the caller got 200, or a 503 to ask again
server     or, where an update in place was under way undecided, nothing (CLEARED), under the same hold
trainer    always what is behind the verb: a caller that disconnects abandons nothing
=========  =============================================================================================

In each case a new trainer, against a new server if need be, begins its step anew and brings its version.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_group import KeptGroup, kept_group
from living_group import PATIENCE_S, eventually

from tests.forkserver import FOR_COMMANDS

pytestmark = [pytest.mark.processes, pytest.mark.slow]

#: What a client sends at each step, in its order: method, path, body; `{}` is the number of the version.
STEPS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "sglang": [
        ("POST", "/pause_generation", {}),
        ("GET", "/flush_cache", {}),
        ("POST", "/update_weights_from_disk", {"model_path": "/w/weight_v{:06d}", "weight_version": "{}"}),
        ("POST", "/continue_generation", {}),
    ],
    "prime-rl": [
        ("POST", "/pause?mode=keep&clear_cache=false", {}),
        ("POST", "/update_weights", {"weight_dir": "/w/step_{}"}),
        ("POST", "/resume", {}),
    ],
    "areal": [
        ("POST", "/areal_pause_generation", {}),
        ("POST", "/areal_update_weights", {"model_path": "/w/weight_update_v{}"}),
        ("POST", "/areal_continue_generation", {}),
    ],
    "fastdeploy": [
        ("POST", "/v1/pause", {}),
        ("POST", "/v1/update_weights", {"version": "{}"}),
        ("POST", "/v1/resume", {}),
    ],
}


class Server:
    """The process that answers."""

    def __init__(self, kept: KeptGroup, surface: str) -> None:
        program = Path(__file__).with_name("served_group.py")
        named = (kept.group.name, kept.group.directory, surface)
        self.process = FOR_COMMANDS.start(program, *named, stderr=None)
        self.base = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def kill(self) -> None:
        self.process.close()


def sent(base: str, surface: str, verb: int, version: int, timeout_s: float = 60) -> httpx.Response:
    method, path, body = STEPS[surface][verb]
    content = {name: value.format(version) for name, value in body.items()}
    return httpx.request(method, base + path, json=content if method == "POST" else None, timeout=timeout_s)


def brings(base: str, surface: str, version: int) -> None:
    """A trainer's whole step; what is answered 503, or 500 of FastDeploy's, is asked again."""
    for verb in range(len(STEPS[surface])):
        deadline = time.monotonic() + PATIENCE_S
        while (answer := sent(base, surface, verb, version)).status_code != 200:
            again = answer.status_code == 503 or "retry-after" in answer.headers
            assert again, (STEPS[surface][verb], answer.text)
            assert time.monotonic() < deadline
            time.sleep(0.1)


def known(kept: KeptGroup) -> tuple[str | None, bool]:
    """The version that the group has, and whether it is held."""
    status = kept.controller.status()
    return (None if status.state == "CLEARED" else status.version), status.hold is not None


def until_one_of(kept: KeptGroup, allowed: list[tuple[str | None, bool]]) -> None:
    """Wait until the group is done, and has one of these."""
    deadline = time.monotonic() + PATIENCE_S
    while not (kept.controller.status().over and known(kept) in allowed):
        assert time.monotonic() < deadline, f"{known(kept)}, and not one of {allowed}"
        time.sleep(0.01)


def states(verb: int, verbs: int, version: int) -> list[tuple[str | None, bool]]:
    """What the group has before a verb and behind it."""
    update = verbs - 2
    old, new = str(version - 1), str(version)
    return [(old if at <= update else new, 0 < at < verbs) for at in (verb, verb + 1)]


def struck(
    victim: str, kept: KeptGroup, server: Server, *, surface: str, verb: int, version: int
) -> int | None:
    """Send a verb, and kill the victim while it is under way; return what it was answered."""
    if victim == "trainer":
        with contextlib.suppress(httpx.TimeoutException):
            sent(server.base, surface, verb, version, timeout_s=0.01)
        return None
    answers: list[int] = []

    def ask() -> None:
        with contextlib.suppress(httpx.TransportError):
            answers.append(sent(server.base, surface, verb, version).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.01)
    kept.kill(1) if victim == "rank" else server.kill()
    asking.join(PATIENCE_S)
    return answers[0] if answers else None


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptGroup]:
    with kept_group(tmp_path, restarts=50) as group:
        yield group


@pytest.mark.parametrize("victim", ["rank", "server", "trainer"])
@pytest.mark.parametrize("surface", STEPS)
def test_whatever_is_killed_at_a_verb_leaves_a_group_that_the_next_trainer_updates(
    kept: KeptGroup, surface: str, victim: str
) -> None:
    server, version, verbs = Server(kept, surface), 1, len(STEPS[surface])
    try:
        for verb in range(verbs):
            version += 1
            kept.group.publish(version)
            for before in range(verb):
                assert sent(server.base, surface, before, version).status_code == 200
            answered = struck(victim, kept, server, surface=surface, verb=verb, version=version)
            if victim == "rank":
                assert answered in ({200, 500} if surface == "fastdeploy" else {200, 503})
                eventually(
                    lambda: len(kept.told) and not kept.group.programs[1].has_ended(), "it is replaced"
                )
                kept.until_whole()
            if victim == "server":
                server = Server(kept, surface)
            allowed = states(verb, verbs, version)[victim == "trainer" :]
            if victim == "server" and verb == verbs - 2:
                allowed.append((None, True))
            until_one_of(kept, allowed)
            version += 1
            kept.group.publish(version)
            brings(server.base, surface, version)
            assert known(kept) == (str(version), False)
        kept.group.await_steps()
        kept.group.assert_steps_are_pure()
    finally:
        if server.process.poll() is None:
            server.kill()
