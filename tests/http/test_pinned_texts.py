"""Text that names its version: refused where another is held, and told where a commit came in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from wsm.http import create_app
from wsm.http.surfaces import SURFACES, SurfaceOptions

pytestmark = pytest.mark.processes


@pytest.fixture
def ask(living: Any, make_front: Callable[..., Any]) -> Callable[..., httpx.Response]:
    """`ask(pin, strict=..., stream=..., brings=...)`: text of an engine; a version comes while it runs."""
    controller = living.controller()
    controller.update("1")

    async def text(request: Request) -> Response:
        brings, streams = request.query_params.get("brings"), "stream" in request.query_params
        if brings is not None:
            await asyncio.to_thread(controller.update, brings)

        async def parts() -> AsyncIterator[bytes]:
            yield b"data: 7\n\n"
            yield b"data: [DONE]\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream") if streams else JSONResponse([7])

    engine = Starlette(routes=[Route("/v1/completions", text, methods=["POST"])])
    app = create_app(make_front().commands, surfaces=[SURFACES["vllm"](SurfaceOptions())], rest=engine)

    def asks(pin: str | None, *, strict: bool = False, **query: str) -> httpx.Response:
        headers = {"X-Wsm-Version": pin, "X-Wsm-Version-Strict": "1" if strict else None}

        async def posted() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://h") as client:
                given = {name: value for name, value in headers.items() if value is not None}
                return await client.post("/v1/completions", params=query, headers=given)

        return asyncio.run(posted())

    return asks


def told(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.headers.get("X-Wsm-Version")


def test_text_of_another_version_is_refused_with_the_one_that_is_held(
    ask: Callable[..., httpx.Response],
) -> None:
    assert told(ask("1")) == (200, "1")
    assert told(ask(None)) == (200, None)
    refused = ask("2")
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert (error["code"], error["context"]) == ("another-version", {"asked": "2", "held": "1"})


def test_a_commit_in_between_is_told_and_refused_where_that_is_strict(
    ask: Callable[..., httpx.Response],
) -> None:
    both = ask("1", brings="2")
    assert (*told(both), both.json()) == (200, "1, 2", [7])
    assert told(ask("2", strict=True)) == (200, "2")
    strict = ask("2", strict=True, brings="3")
    assert strict.status_code == 409
    assert strict.json()["error"]["context"] == {"asked": "2", "held": "3"}


def test_a_stream_says_at_its_end_what_came_in_between(ask: Callable[..., httpx.Response]) -> None:
    assert ask("1", stream="").text == "data: 7\n\ndata: [DONE]\n\n"
    grown = ask("1", stream="", brings="2")
    assert told(grown) == (200, "1"), "as it was admitted"
    assert ": X-Wsm-Version: 1, 2\n\n" in grown.text
    assert ask("2", strict=True, stream="", brings="1").status_code == 409
