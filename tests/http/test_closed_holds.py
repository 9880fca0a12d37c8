"""A hold that a refused push closed opens by other weights; one that a failed update closed, by the next."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from living_group import LivingGroup, eventually

from wsm.controller.errors import RankLostError
from wsm.errors import BadInputError, RefusedError
from wsm.http import Origin
from wsm.http.app import admit
from wsm.http.surface import InHold
from wsm.http.surfaces import SURFACES, AdoptedDirectory, SurfaceOptions

pytestmark = pytest.mark.processes

TRAINER = Origin("vllm")


@pytest.fixture
def surfaced(make_front: Callable[..., Any]) -> Callable[..., Any]:
    """`surfaced("vllm", ...)`: an app with these surfaces; a directory is the version that its name is."""

    def by_name(directory: str, label: str | None) -> AdoptedDirectory:
        number = directory.rpartition("_")[2]
        if number == "9":
            raise BadInputError(f"there is no {directory}", code="checkpoint-missing", unfit=True)
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


#: What a trainer of each surface sends at a step; `{}` is the number of the version.
STEPS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "sglang": (
        "/pause_generation",
        "/update_weights_from_disk",
        {"model_path": "/w/step_{}"},
        "/continue_generation",
    ),
    "areal": (
        "/areal_pause_generation",
        "/areal_update_weights",
        {"model_path": "/w/step_{}"},
        "/areal_continue_generation",
    ),
    "prime-rl": ("/pause", "/update_weights", {"weight_dir": "/w/step_{}"}, "/resume"),
    "vllm": ("/pause", "/update_weights", {"update_info": {"path": "/w/step_{}"}}, "/resume"),
    "fastdeploy": ("/v1/pause", "/v1/update_weights", {"version": "{}"}, "/v1/resume"),
}


@pytest.mark.parametrize("surface", STEPS)
def test_a_blind_resume_behind_a_failed_update_is_refused_until_an_update_succeeds(
    surfaced: Callable[..., Any], surface: str
) -> None:
    front = surfaced(surface)
    pause, update, body, resume = STEPS[surface]

    def updated(version: object) -> int:
        return int(front.post(update, **json.loads(json.dumps(body).replace("{}", str(version)))).status_code)

    assert front.post(pause).status_code == 200
    for failing in ("9", "not\\u0000a label"):
        assert updated(failing) >= 400
        blind = front.post(resume)
        assert (blind.status_code >= 400, blind.json()["error"]["code"]) == (True, "hold-closed")
        assert f"{update} failed" in front.post("/v1/completions").text
        assert front.post(pause).status_code == 200, "its next step, or another trainer"
        assert updated(1) == 200, "the weights that are there: it has said that it means them"
        assert front.post(resume).status_code == 200
        assert front.post(pause).status_code == 200
    assert front.post(update, **dict.fromkeys(body, 3.5)).status_code == 400, "it may be blind to that, too"
    assert front.post(resume).status_code >= 400
    assert surfaced(surface).post(resume).status_code >= 400, "the server was started again"
    assert updated(2) == 200
    assert front.post(resume).status_code == 200
    assert front.post(update).status_code >= 400
    assert front.post(resume).status_code == 200, "of an open group"


def test_text_waits_for_an_update_that_is_to_be_asked_for_again_and_another_surface_closes_nothing(
    surfaced: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = surfaced("vllm", "sglang")
    real = front.commands.update

    async def lost(*_: Any, **__: Any) -> Any:
        raise RankLostError(operation="update", ranks=[1], group="g")

    assert front.post("/pause").status_code == 200
    monkeypatch.setattr(front.commands, "update", lost)
    body = {"update_info": {"path": "/w/step_2"}}
    assert front.post("/update_weights_from_disk", model_path="/w/step_2").status_code == 503
    assert not closed(front), "the hold is the other's, whose trainer has seen no failure"
    assert front.post("/update_weights", **body).status_code == 503
    assert front.ask("GET", "/wsm/v1/status").json()["closed"]["by"] == "delayed"
    assert code_of(front.post("/resume")) == "hold-closed"

    async def scene() -> None:
        text = asyncio.ensure_future(admit(front.commands, InHold.WAIT))
        await asyncio.wait({text}, timeout=0.1)
        assert not text.done(), "a rank is replaced, and the trainer asks again: no text is lost by that"
        monkeypatch.setattr(front.commands, "update", real)
        assert (await asyncio.to_thread(front.post, "/update_weights", **body)).status_code == 200
        assert (await asyncio.to_thread(front.post, "/resume")).status_code == 200
        await asyncio.wait_for(text, 10)

    asyncio.run(scene())


def test_old_weights_that_come_back_behind_a_failed_update_stay_closed(surfaced: Callable[..., Any]) -> None:
    front = surfaced("vllm")
    assert front.post("/pause").status_code == 200
    assert front.post("/update_weights", update_info={"path": "/w/step_9"}).status_code == 422
    assert front.ask("POST", "/sleep?level=2").status_code == 200
    assert front.ask("POST", "/wake_up").status_code == 200
    assert code_of(front.post("/resume")) == "hold-closed"
    assert front.post("/collective_rpc").json()["held"]
    assert front.post("/update_weights", update_info={"path": "/w/step_9"}).status_code == 422
    assert front.post("/update_weights", update_info={"version": 1}).status_code == 200
    assert code_of(front.post("/resume")) == "hold-closed", "a failure makes no refusal open more easily"


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
