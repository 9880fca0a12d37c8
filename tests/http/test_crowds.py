"""Over real sockets: neither waiting requests nor idle connections keep a command from its group."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from living_group import eventually
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from wsm.http import Origin, _serving, create_app
from wsm.http._serving import Listening, served_beside
from wsm.http.security import Security
from wsm.http.surfaces import SURFACES, SurfaceOptions

pytestmark = pytest.mark.processes


async def text(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("text")


@pytest.fixture
def served(make_front: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with eight places, two of them for commands alone, before an engine."""
    monkeypatch.setattr(_serving, "MOST_CONNECTIONS", 12)
    engine = Starlette(routes=[Route("/generate", text, methods=["POST"])])
    app = create_app(
        make_front().commands, surfaces=[SURFACES["sglang"](SurfaceOptions())], rest=engine, most_texts=6
    )
    with served_beside(app, Listening()) as where:
        yield where


@pytest.mark.slow
def test_a_group_is_paused_and_continued_while_more_requests_wait_than_there_are_places(served: str) -> None:
    async def scene() -> tuple[list[int], int, list[int]]:
        async with httpx.AsyncClient(base_url=served, timeout=20) as client:
            assert (await client.post("/pause_generation", json={})).status_code == 200
            waiting = [asyncio.ensure_future(client.post("/generate", json={})) for _ in range(9)]
            done: set[Any] = set()
            while len(done) < 3:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                waiting = [each for each in waiting if each not in done] + list(done)
                await asyncio.sleep(0.01)
            refused = [(await each).status_code for each in done]
            again = await client.post("/continue_generation", json={})
            rest = [(await each).status_code for each in waiting if each not in done]
            return refused, again.status_code, rest

    refused, continued, rest = asyncio.run(scene())
    assert refused == [503] * 3, "each is asked to come again"
    assert continued == 200
    assert rest == [200] * 6


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"{}"])
def test_a_command_that_arrived_whole_is_carried_out_for_a_caller_that_is_gone(
    make_front: Callable[..., Any], body: bytes
) -> None:
    front, engine = make_front(), Starlette(routes=[Route("/pause", text, methods=["POST"])])
    vllm = SURFACES["vllm"](SurfaceOptions())
    app = create_app(front.commands, surfaces=[vllm], rest=engine, security=Security())
    head = f"POST /pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    controller = front.group.controller()
    with served_beside(app, Listening()) as where:
        host, port = where.removeprefix("http://").split(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as caller:
                caller.sendall(head.encode() + body)
            eventually(lambda: controller.status().hold is not None, "the pause")
            eventually(lambda: controller.status().over, "its end")
            controller.release(force=True)


@pytest.mark.slow
def test_a_command_whose_body_is_refused_is_answered_so_and_not_carried_out(
    make_front: Callable[..., Any],
) -> None:
    front = make_front()
    bounded = Security(max_body=25, body_s=0.2)
    app = create_app(front.commands, surfaces=[SURFACES["sglang"](SurfaceOptions())], security=bounded)

    async def asked(pause_s: float) -> httpx.Response:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b'{"mode":', b' "retract"}', b" " * 20):
                yield part
                await asyncio.sleep(pause_s)

        async with httpx.AsyncClient(base_url=where, timeout=20) as client:
            return await client.post("/pause_generation", content=parts())

    with served_beside(app, Listening()) as where:
        answers = [asyncio.run(asked(pause_s)) for pause_s in (0.0, 0.3)]
    assert [(each.status_code, each.json()["error"]["code"]) for each in answers] == [
        (413, "body-too-large"),
        (408, "body-too-slow"),
    ]
    assert front.group.controller().status().hold is None


@pytest.mark.slow
def test_connections_that_say_nothing_make_place_for_one_that_does(served: str) -> None:
    host, port = served.removeprefix("http://").split(":")
    with contextlib.ExitStack() as idle:
        for number in range(30):
            made = idle.enter_context(socket.create_connection((host, int(port))))
            made.sendall(b"" if number % 2 else b"POST /pause_generation HTTP/1.1\r\nHos")
        with httpx.Client(base_url=served, timeout=20) as client:
            assert client.get("/wsm/v1/ready").status_code == 200
            assert client.post("/pause_generation", json={}).status_code == 200
            assert client.post("/continue_generation", json={}).status_code == 200


def test_a_file_that_cannot_be_written_now_keeps_no_request_for_text_and_no_status_waiting(
    make_front: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = make_front()
    goes_on = threading.Event()
    real = front.commands.kept.claim

    def stalls(*request: Any) -> Any:
        goes_on.wait(20)
        return real(*request)

    monkeypatch.setattr(front.commands.kept, "claim", stalls)

    async def looks() -> tuple[bool, bool]:
        return await front.commands.is_held(), (await front.commands.status()).serving

    async def scene() -> tuple[bool, bool]:
        holding = [asyncio.ensure_future(front.commands.hold(Origin("native"))) for _ in range(8)]
        await asyncio.sleep(0.05)
        try:
            return await asyncio.wait_for(looks(), 10)
        finally:
            goes_on.set()
            await asyncio.gather(*holding)

    assert asyncio.run(scene()) == (False, True)


def test_a_client_that_never_reads_its_answer_is_let_go(
    make_front: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_serving, "STALLED_S", 0.2)
    ended = threading.Event()

    async def endless(_request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield bytes(1 << 16)
                    await asyncio.sleep(0)
            finally:
                ended.set()

        return StreamingResponse(parts())

    engine = Starlette(routes=[Route("/endless", endless)])
    with served_beside(create_app(make_front().commands, rest=engine), Listening()) as where:
        host, port = where.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert ended.wait(20)
