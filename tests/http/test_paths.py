"""Which requests pass the gate of a held group and the eyes of the guard, however their paths are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from wsm.http import Origin, Security
from wsm.http.surfaces import SURFACES, SurfaceOptions

pytestmark = pytest.mark.processes

ADMIN, READ = {"Authorization": f"Bearer {'a' * 20}"}, {"Authorization": f"Bearer {'r' * 20}"}


async def answers(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"the engine: {request.url.path}")


def engine() -> Starlette:
    """An engine's app that answers every path."""
    return Starlette(routes=[Route("/{any:path}", answers, methods=["GET", "POST"])])


def fastdeploy() -> list[Any]:
    return [SURFACES["fastdeploy"](SurfaceOptions())]


@pytest.mark.slow_but
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/completions/", "//v1/completions", "/v1//completions//"]
)
def test_no_way_to_write_a_path_leads_around_the_gate_of_a_held_group(
    make_front: Callable[..., Any], path: str
) -> None:
    front = make_front(surfaces=fastdeploy(), rest=engine())
    asked = "http://127.0.0.1:8000" + path
    assert front.ask("POST", asked).text.startswith("the engine")
    assert front.post("/v1/pause").status_code == 200
    assert front.ask("POST", asked).status_code == 503
    assert front.ask("POST", "/v1/other").text == "the engine: /v1/other"
    assert front.post("/v1/resume/").status_code == 200


def test_an_app_that_is_mounted_below_a_prefix_knows_its_own_paths(make_front: Callable[..., Any]) -> None:
    front = make_front(surfaces=fastdeploy(), rest=engine(), security=Security("a" * 20, "r" * 20))
    front.app = Starlette(routes=[Mount("/below", app=front.app)])
    for token, status in ((ADMIN, 200), (READ, 200), ({}, 401)):
        assert front.ask("GET", "/below/wsm/v1/status/", headers=token).status_code == status
    assert front.ask("GET", "/below/health").status_code == 200
    for verb, status in (("pause/", 503), ("resume", 200)):
        assert front.ask("POST", f"/below/v1/{verb}", headers=ADMIN).status_code == 200
        assert front.ask("POST", "/below/v1/completions", headers=ADMIN).status_code == status


def test_the_read_token_reads_what_became_of_a_request_and_what_surfaces_tell(
    make_front: Callable[..., Any],
) -> None:
    surfaces = [made(SurfaceOptions()) for made in SURFACES.values()]
    front = make_front(surfaces=surfaces, security=Security("a" * 20, "r" * 20))
    front.ask("POST", "/wsm/v1/hold", headers={**ADMIN, "Idempotency-Key": "step/7"}, json={})
    read = front.ask("GET", "/wsm/v1/commands/step/7", headers=READ)
    assert (read.status_code, read.json()["state"]) == (200, "succeeded")
    for path in ("/v1/is_paused", "/is_paused", "/server_info", "/v1/models", "/weight_info", "/metrics"):
        assert front.ask("GET", path, headers=READ).status_code == 200, path
    for path in ("/flush_cache", "/clear_load_weight", "/release_memory_occupation", "/update_model_weight"):
        assert front.ask("GET", path, headers=READ).status_code == 403, path
        assert front.ask("HEAD", path, headers=ADMIN).status_code == 405, "to look is no command"
    assert front.ask("POST", "/wsm/v1/commands/step/7", headers=READ).status_code == 403
    front.ask("POST", "/wsm/v1/release", headers=ADMIN, json={})


def test_no_answer_carries_what_only_a_log_should_have(make_front: Callable[..., Any], living: Any) -> None:
    front = make_front()
    part = living.shard_files(2, 1)[0]
    whole = part.read_bytes()
    part.write_bytes(bytes(len(whole)))
    asked = {"json": {"version": 2}, "headers": {"Idempotency-Key": "torn"}}
    told = front.ask("POST", "/wsm/v1/update", **asked)
    part.write_bytes(whole)
    kept = front.ask("GET", "/wsm/v1/commands/torn")
    assert told.status_code == 422
    assert kept.json()["state"] == "failed"
    for answer in (told, kept):
        assert "Traceback" not in answer.text
        assert ".py" not in answer.text


def test_a_surface_s_hold_is_its_own_also_against_an_update_that_serves(
    make_front: Callable[..., Any],
) -> None:
    front = make_front(surfaces=fastdeploy())  # whose own verbs answer every refusal with 500
    assert front.post("/v1/pause").status_code == 200
    refused = front.post("/wsm/v1/update", version=2, after="serve")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "held-by-another")
    assert Origin("fastdeploy").owner in refused.text
    assert front.post("/v1/resume").status_code == 200
