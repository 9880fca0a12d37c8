"""A hold that a refused push closed opens by other weights; one that a failed update closed, by the next."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from living_group import LivingGroup, eventually

from tests.raising import raising
from wsm.controller import errors as controller_errors
from wsm.controller.errors import RankLostError
from wsm.controller.group_view import GroupAccess
from wsm.errors import BadInputError, RefusedError
from wsm.http import Origin, closed_holds
from wsm.http.app import admit
from wsm.http.surface import InHold
from wsm.http.surfaces import SURFACES, AdoptedDirectory, SurfaceOptions
from wsm.strategies import write_version

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

    def make(*names: str, **options: Any) -> Any:
        given = SurfaceOptions(adopt=by_name, **options)
        return make_front(surfaces=[SURFACES[name](given) for name in names])

    return make


def code_of(answer: Any) -> str:
    assert answer.status_code == 409, answer.text
    return str(answer.json()["error"]["code"])


def closed(front: Any) -> bool:
    return front.ask("GET", "/wsm/v1/status").json()["closed"] is not None


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
}


@pytest.mark.slow_but("areal")
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


def test_fastdeploys_old_weights_serve_behind_an_update_that_touched_nothing(
    surfaced: Callable[..., Any], living: LivingGroup
) -> None:
    """As FastDeploy's do: its trainers read the answer, and resume all the same."""
    front = surfaced("fastdeploy")
    for failing in ({"version": "9"}, {"version": 3.5}, {"version": "2", "transfer_mode": "bogus"}):
        assert front.post("/v1/pause").status_code == 200
        assert front.post("/v1/update_weights", **failing).status_code >= 400
        assert not closed(front)
        assert front.post("/v1/resume").status_code == 200
        assert front.ask("GET", "/wsm/v1/status").json()["version"] == "1"
    living.assert_steps_are_pure()


@pytest.mark.slow_but("back1")
@pytest.mark.parametrize("back", [["/v1/wakeup"], ["/v1/sleep", "/v1/wakeup"], ["/update_model_weight"]])
def test_fastdeploys_wakeup_opens_what_a_failed_update_closed(
    surfaced: Callable[..., Any], living: LivingGroup, back: list[str]
) -> None:
    front = surfaced("fastdeploy", fastdeploy_generation="2.6")
    part = next(file for file in living.shard_files(3, 0) if file.suffix == ".pdparams")
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert front.post("/v1/sleep?tags=weight").status_code == 200
    assert front.post("/v1/update_weights", version="3").status_code == 500
    part.write_bytes(whole)
    assert closed(front)
    assert front.post("/v1/resume").json()["error"]["code"] == "hold-closed"
    write_version(living.snapshots, 1)
    for verb in back:
        answer = front.ask("GET" if "model" in verb else "POST", verb)
        assert answer.status_code == 200, answer.text
    write_version(living.snapshots, 3)
    status = front.ask("GET", "/wsm/v1/status").json()
    assert (status["closed"], status["hold"], status["version"]) == (None, None, "1")


def test_text_waits_for_an_update_that_is_to_be_asked_for_again_and_another_surface_closes_nothing(
    surfaced: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = surfaced("vllm", "sglang")
    real = front.commands.update

    async def lost(*_: Any, **__: Any) -> Any:
        raise RankLostError("rank 1 is gone", ranks=(1,))

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


def test_a_hold_that_one_server_closed_is_closed_at_the_other_and_to_every_controller(
    surfaced: Callable[..., Any], living: LivingGroup
) -> None:
    first, second = surfaced("sglang"), surfaced("sglang")
    assert first.post("/pause_generation").status_code == 200
    assert first.post("/update_weights_from_tensor").json()["held"]
    assert code_of(second.post("/continue_generation")) == "hold-closed"
    assert closed(second)
    assert second.post("/generate").status_code in (404, 503)
    assert second.post("/update_weights_from_disk", model_path="/w/step_2").status_code == 200
    assert not closed(first)
    assert first.post("/update_weights_from_disk", model_path="/w/step_9").status_code == 422
    with raising(controller_errors.hold_closed):
        living.controller().release(owner="http:sglang")
    assert second.post("/update_weights_from_disk", model_path="/w/step_2").status_code == 200
    assert first.post("/continue_generation").status_code == 200


def test_a_hold_is_closed_also_where_the_file_of_requests_takes_nothing(surfaced: Callable[..., Any]) -> None:
    front = surfaced("sglang")
    file = front.commands.receipts_path
    assert front.post("/pause_generation").status_code == 200
    file.unlink()
    file.symlink_to("/dev/full")
    assert front.post("/update_weights_from_tensor").json()["held"]
    assert code_of(surfaced("sglang").post("/continue_generation")) == "hold-closed", "it was started again"
    file.unlink()


def test_a_refusal_that_cannot_be_written_yet_is_503_keeps_text_away_and_is_written_later(
    surfaced: Callable[..., Any], living: LivingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_holds, "ROLE_S", 0.0)
    front = surfaced("sglang")
    assert front.post("/pause_generation").status_code == 200
    access = GroupAccess(living.name, directory=living.directory)
    with access.group.role.acquire(10):
        answer = front.post("/update_weights_from_tensor")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert front.post("/generate").status_code == 503
        assert code_of(front.post("/continue_generation")) == "hold-closed"
        assert access.group.known_hold(access.group.view()).closed is None
    eventually(lambda: access.group.known_hold(access.group.view()).closed is not None)
    access.close()


def test_a_refusal_between_a_release_and_its_end_is_answered_by_what_came_of_it(
    surfaced: Callable[..., Any], living: LivingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release has looked whether the hold is closed, and is not begun yet, when a push is refused."""
    front = surfaced("vllm")
    commands = front.commands
    looked, goes_on = threading.Event(), threading.Event()
    real = commands.closed_holds.require_none

    def looks() -> None:
        real()
        looked.set()
        assert goes_on.wait(10)

    async def scene() -> tuple[bool, Any]:
        await commands.hold(TRAINER)
        monkeypatch.setattr(commands.closed_holds, "require_none", looks)
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
