"""An engine behind a server does what is its scheduler's by its own handlers: mounted, and over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.http.described import require_described
from wsm.http import create_app
from wsm.http._serving import Listening, served_beside
from wsm.http.surfaces import SURFACES, SurfaceOptions
from wsm.http.upstream import Upstream

pytestmark = pytest.mark.processes


class Engine:
    """An engine's app that remembers what it was asked, and whether the group was held then."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.held: Callable[[], bool] = lambda: False
        self.fails = False
        self.goes_on, self.left = threading.Event(), threading.Event()
        verbs = ("/pause_generation", "/continue_generation", "/v1/pause", "/v1/resume", "/abort_request")
        verbs += ("/v1/abort_requests", "/pause", "/resume", "/generate", "/controller/reset_scheduler")
        verbs += ("/v1/chat/completions", "/update_weights_from_disk", "/v1/loads")
        self.app = Starlette(
            routes=[Route(verb, self.does, methods=["GET", "POST"]) for verb in verbs]
            + [Route("/streams", self.streams, methods=["POST"]), Route("/empty", self.empty)]
        )

    async def does(self, request: Request) -> Response:
        self.asked.append((request.url.path, request.url.query, (await request.body()).decode()))
        self.asked[-1] += (self.held(),)
        return JSONResponse({"engine": request.url.path}, 500 if self.fails else 200)

    async def streams(self, request: Request) -> Response:
        sizes = [len(part) async for part in request.stream()]

        async def parts() -> AsyncIterator[bytes]:
            try:
                yield f"data: {sum(sizes)}\n\n".encode()
                while not self.goes_on.is_set():  # noqa: ASYNC110 - a test's thread sets it
                    await asyncio.sleep(0.01)
                yield b"data: [DONE]\n\n"
            finally:
                self.left.set()

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def empty(self, _request: Request) -> Response:
        return Response(status_code=304)

    def paths(self) -> list[tuple[str, bool]]:
        told = [(path, held) for path, _, _, held in self.asked]
        self.asked.clear()
        return told


@pytest.fixture
def engine(living: Any) -> Engine:
    made = Engine()
    controller = living.controller()
    made.held = lambda: controller.status().hold is not None
    return made


class Served:
    """A server over a real socket."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._document: dict[str, Any] = self._asked("GET", "/wsm/v1/openapi.json").json()

    def _asked(self, method: str, path: str, **options: Any) -> httpx.Response:
        with httpx.Client(base_url=self._where, timeout=30, verify=False) as client:  # noqa: S501 - plain HTTP
            return client.request(method, path, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self._asked(method, path, **options)
        if "engine" not in answer.text:  # whose answer it is else
            require_described(self._document, answer)
        return answer

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self.ask("POST", path, json=body)


@pytest.fixture(params=["mounted", "upstream"])
def front(request: Any, engine: Engine, make_front: Callable[..., Any]) -> Iterator[Callable[..., Served]]:
    """`front("sglang")`: a server before the engine, in its process or over another socket."""
    with contextlib.ExitStack() as stack:

        def serve(*names: str) -> Served:
            rest: Any = engine.app
            if request.param == "upstream":
                rest = Upstream(stack.enter_context(served_beside(engine.app, Listening())))
            surfaces = [SURFACES[name](SurfaceOptions(deadline_s=20)) for name in names]
            app = create_app(make_front().commands, surfaces=surfaces, rest=rest)
            return Served(stack.enter_context(served_beside(app, Listening())))

        yield serve


@pytest.mark.slow
def test_the_scheduler_is_paused_before_the_ranks_and_goes_on_behind_them(
    front: Callable[..., Any], engine: Engine
) -> None:
    for surface, pause, resume in (
        ("sglang", "/pause_generation", "/continue_generation"),
        ("vllm", "/pause", "/resume"),
        ("fastdeploy", "/v1/pause", "/v1/resume"),
    ):
        made = front(surface)
        assert made.ask("POST", f"{pause}?mode=abort", json={"mode": "abort"}).status_code == 200
        assert engine.asked == [(pause, "mode=abort", '{"mode":"abort"}', False)]
        engine.asked.clear()
        assert made.ask("GET", "/wsm/v1/status").json()["hold"]["owner"] == f"http:{surface}"
        assert made.post(resume).status_code == 200
        assert engine.paths() == [(resume, False)]


@pytest.mark.slow_but
def test_sleep_and_wakeup_pause_and_resume_the_scheduler_and_an_engine_never_loads_by_itself(
    front: Callable[..., Any], engine: Engine
) -> None:
    made = front("fastdeploy", "sglang")
    assert made.post("/v1/sleep").status_code == 200
    assert engine.paths() == [("/v1/pause", False)]
    assert made.post("/v1/wakeup").status_code == 200
    assert engine.paths() == [("/v1/resume", False)]
    assert made.post("/update_weights_from_disk", model_path="/w/step_2").status_code == 409
    assert engine.paths() == []


@pytest.mark.slow_but
def test_an_engine_that_fails_to_pause_leaves_the_group_open_and_one_that_lacks_verbs_is_none(
    front: Callable[..., Any], engine: Engine
) -> None:
    engine.fails = True
    refused = front("sglang").post("/pause_generation")
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "engine-refused")
    assert not engine.held()
    engine.fails = False
    areal = front("areal")
    assert areal.post("/areal_pause_generation").status_code == 200, "the engine has none of that name"
    assert areal.post("/areal_continue_generation").status_code == 200
    assert engine.paths() == [("/pause_generation", False)]


@pytest.mark.slow_but
def test_what_is_the_schedulers_is_answered_by_the_engine(front: Callable[..., Any], engine: Engine) -> None:
    made = front("sglang", "fastdeploy")
    for method, path in (
        ("POST", "/abort_request"),
        ("POST", "/v1/abort_requests"),
        ("POST", "/generate"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/controller/reset_scheduler"),
        ("GET", "/v1/loads"),
    ):
        answer = made.ask(method, path, json={"abort_all": True})
        assert (answer.status_code, answer.json()) == (200, {"engine": path})
    assert len(engine.paths()) == 6


def test_a_server_without_an_engine_says_so_of_chats_and_of_its_scheduler(
    make_front: Callable[..., Any],
) -> None:
    made = make_front(surfaces=[SURFACES["fastdeploy"](SurfaceOptions())])
    assert made.post("/v1/chat/completions").status_code == 404
    assert made.post("/controller/scheduler", reset=True).status_code == 501
    scraped = made.ask("GET", "/metrics").text
    assert 'wsm_http_unsupported_total{surface="fastdeploy",verb="/controller/scheduler"} 1.0' in scraped


def test_streams_pass_as_they_come_in_both_directions_and_end_with_their_client(
    engine: Engine, make_front: Callable[..., Any]
) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(1 << 16)

    async def scene(base: str) -> None:
        async with httpx.AsyncClient(base_url=base, timeout=20) as client:
            async with client.stream("POST", "/streams", content=body()) as answer:
                parts = answer.aiter_lines()
                assert await anext(parts) == f"data: {40 << 16}", "the first part, while the second waits"
                engine.goes_on.set()
                assert [line async for line in parts if line] == ["data: [DONE]"]
            engine.goes_on.clear()
            engine.left.clear()
            async with client.stream("POST", "/streams", content=b"x") as answer:
                assert await anext(answer.aiter_lines()) == "data: 1"
            assert await asyncio.to_thread(engine.left.wait, 20), "the engine is told that its client left"
            for method in ("GET", "HEAD"):
                empty = await client.request(method, "/empty")
                assert (empty.status_code, empty.content) == (304, b"")

    with served_beside(engine.app, Listening()) as upstream:
        app = create_app(make_front().commands, rest=Upstream(upstream), security=Listening().security())
        with served_beside(app, Listening()) as where:
            asyncio.run(scene(where))
