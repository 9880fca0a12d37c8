"""What wsm does not know goes to the server behind it, streaming both ways, and its answers come back so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from wsm.errors import WsmError
from wsm.http import errors
from wsm.http.answers import send_failure
from wsm.http.client import parsed_url

#: Headers of one connection, which end with it; and those of the server that was asked.
_OF_THE_CONNECTION: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings", b"host", b"expect"),
    }
)


class Upstream:
    """An ASGI app that forwards every request.

    Parameters
    ----------
    url : str
        Scheme, host and port of the server; requests keep their paths.
    transport : httpx transport or None
        How it is reached; None: as the URL says. No proxy of the environment is used.

    Raises
    ------
    BadInputError
        If the URL has no such form (code ``bad-http-address``).
    """

    def __init__(self, url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        needs = "an upstream is http://HOST:PORT, without a path"
        base = parsed_url(url, needs)
        if base.path not in ("", "/") or base.userinfo:
            raise errors.bad_address(address=url, problem=needs)
        self._base = base
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
            follow_redirects=False,
            verify=base.scheme == "https",  # else reading the certificates of all authorities is for nothing
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, and its answer as it comes; a client that leaves ends it upstream, too."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._client.aclose()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = asyncio.Event()

        async def parts() -> AsyncIterator[bytes]:
            async for part in Request(scope, receive).stream():
                if part:
                    yield part
            whole.set()

        async def gone() -> None:
            await whole.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        named = {name for name, _ in scope["headers"]}
        content = parts() if {b"content-length", b"transfer-encoding"} & named else None
        if content is None:
            whole.set()
        forwarding = asyncio.ensure_future(self._forward(scope, content, send))
        leaving = asyncio.ensure_future(gone())
        try:
            await asyncio.wait({forwarding, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (forwarding, leaving):
                task.cancel()
            await asyncio.wait({forwarding, leaving})
        if not forwarding.cancelled():
            forwarding.result()

    async def _forward(self, scope: Scope, content: AsyncIterator[bytes] | None, send: Send) -> None:
        try:
            answer = await self._client.send(self._request(scope, content), stream=True)
        except (httpx.HTTPError, ClientDisconnect) as error:
            reason = f"{type(error).__name__}: {error}"
            await send_failure(errors.upstream_unreachable(url=str(self._base), reason=reason), send)
            return
        except WsmError as error:
            await send_failure(error, send)
            return
        try:
            headers = passed_on([(name.lower(), value) for name, value in answer.headers.raw])
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()

    def _request(self, scope: Scope, content: AsyncIterator[bytes] | None) -> httpx.Request:
        path = scope.get("raw_path") or scope["path"].encode()
        parts = [part.partition(";")[0] for part in scope["path"].split("/")[1:]]
        dotted = not scope["path"].startswith("/") or "" in parts[:-1] or {".", ".."} & set(parts)
        if dotted or "\\" in scope["path"] or not scope["path"].isprintable():
            raise errors.bad_body(field="path", problem="it has empty or dotted parts, or what no path has")
        query = scope.get("query_string", b"")
        try:
            url = self._base.copy_with(raw_path=path + (b"?" + query if query else b""))
        except httpx.InvalidURL as error:
            raise errors.bad_body(field="path", problem=str(error)) from None
        headers = passed_on(scope["headers"])
        # Not by the client: it would say of itself what a caller did not, as that it takes zstd.
        return httpx.Request(scope["method"], url, headers=headers, content=content)


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that pass from one connection to the next."""
    said = list(headers)
    named = [value.lower().split(b",") for name, value in said if name == b"connection"]
    listed = {name.strip() for each in named for name in each} - {b"content-length"}
    return [each for each in said if each[0] not in _OF_THE_CONNECTION | listed]
