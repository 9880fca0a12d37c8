"""A hold that was closed, since a push was refused, opens by other weights or an explicit word alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from living_group import LivingGroup, eventually

from wsm.errors import RefusedError
from wsm.http import Origin
from wsm.http.surfaces import SURFACES, AdoptedDirectory, SurfaceOptions

pytestmark = pytest.mark.processes

TRAINER = Origin("vllm")


@pytest.fixture
def surfaced(make_front: Callable[..., Any]) -> Callable[..., Any]:
    """`surfaced("vllm", ...)`: an app with these surfaces; a directory is the version that its name is."""

    def by_name(directory: str, label: str | None) -> AdoptedDirectory:
        number = directory.rpartition("_")[2]
        return AdoptedDirectory(label or number, f"{directory}@{number}")

    def make(*names: str) -> Any:
        return make_front(surfaces=[SURFACES[name](SurfaceOptions(adopt=by_name)) for name in names])

    return make


def code_of(answer: Any) -> str:
    assert answer.status_code == 409, answer.text
    return str(answer.json()["error"]["code"])


def closed(front: Any) -> bool:
    return front.ask("GET", "/wsm/v1/status").json()["closed"] is not None


def test_no_half_and_no_weights_that_were_there_open_a_closed_hold(surfaced: Callable[..., Any]) -> None:
    front = surfaced("vllm", "fastdeploy")
    assert front.post("/wsm/v1/hold").status_code == 200
    assert front.post("/collective_rpc").json()["held"], "a hold of any surface is closed"
    assert code_of(front.post("/wsm/v1/release")) == "hold-closed"
    half = {"tags": ["kv_cache"], "after": "serve"}
    assert code_of(front.post("/wsm/v1/update", **half)) == "hold-closed"
    assert code_of(front.post("/wsm/v1/update", version=1, after="serve")) == "hold-closed"
    assert code_of(front.post("/wsm/v1/prepare", version=2, after="serve")) == "hold-closed"
    assert front.post("/wsm/v1/clear", tags=["kv_cache"]).status_code == 200
    assert code_of(front.post("/wsm/v1/update", **half)) == "hold-closed"
    assert front.post("/wsm/v1/update", tags=["kv_cache"]).status_code == 200, "it comes back, and stays held"
    assert front.post("/wsm/v1/clear").status_code == 200
    again = front.post("/wsm/v1/update", version=1, after="serve").json()["receipt"]
    assert (again["loaded"], again["serving"]) == (True, False), "the weights of before are back, and held"
    assert "closed" in again["warning"]
    assert closed(front)
    other = front.post("/wsm/v1/update", version=2, after="serve").json()["receipt"]
    assert (other["version"], other["serving"], other["hold"]) == ("2", True, None)
    assert not closed(front)


def test_a_wake_of_the_weights_that_were_there_leaves_a_closed_hold_closed(
    surfaced: Callable[..., Any],
) -> None:
    front = surfaced("fastdeploy", "vllm")
    assert front.post("/v1/pause").status_code == 200
    assert front.post("/v1/update_weights", version="3").status_code == 200
    assert front.post("/collective_rpc").json()["held"]
    assert front.post("/v1/sleep").status_code == 200
    woken = front.post("/v1/wakeup")
    assert (woken.status_code, woken.json()["error"]["code"]) == (500, "hold-closed"), (
        "3 is the newest, still"
    )
    assert front.post("/v1/completions").status_code == 503
    assert front.post("/wsm/v1/release", force=True).status_code == 200
    assert front.post("/v1/completions").status_code == 404


def test_a_refusal_between_a_release_and_its_end_is_answered_by_what_came_of_it(
    surfaced: Callable[..., Any], living: LivingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release has looked whether the hold is closed, and is not begun yet, when a push is refused."""
    front = surfaced("vllm")
    commands = front.commands
    looked, goes_on = threading.Event(), threading.Event()
    real = commands.closed_holds.now

    def looks() -> Any:
        found = real()
        if threading.current_thread().name == "wsm-http":
            looked.set()
            assert goes_on.wait(10)
        return found

    async def scene() -> tuple[bool, Any]:
        await commands.hold(TRAINER)
        monkeypatch.setattr(commands.closed_holds, "now", looks)
        releasing = asyncio.ensure_future(commands.release(TRAINER))
        await asyncio.to_thread(looked.wait, 10)
        closing = asyncio.ensure_future(commands.fail_closed(TRAINER, verb="/push", reason="push"))
        await asyncio.wait({closing}, timeout=0.2)
        goes_on.set()
        outcomes = await asyncio.gather(closing, releasing, return_exceptions=True)
        monkeypatch.undo()
        return outcomes[0], outcomes[1]

    held, released = asyncio.run(scene())
    assert held is isinstance(released, RefusedError), "either it is held and closed, or open"
    assert held is (living.controller().status().hold is not None)
    front.post("/wsm/v1/release", force=True)
    eventually(lambda: living.controller().status().serving)
