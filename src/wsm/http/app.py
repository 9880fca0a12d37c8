"""The ASGI app of one group: whose route answers which path, and what stands behind the paths of others.

The native API comes first, then the primary surface, then what the others add; the rest is the engine's, or
an upstream's. The gate of a held group stands before every path that asks for text.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wsm import log, traces
from wsm.errors import RefusedError, WsmError
from wsm.http import errors
from wsm.http.answers import HttpAnswer, failed, response_of, send_failure
from wsm.http.bodies import object_of
from wsm.http.commands import Commands
from wsm.http.hold_table import Text
from wsm.http.native import routes as native
from wsm.http.pinned import pinned
from wsm.http.security import Security, SecurityGuard, path_of
from wsm.http.surface import InHold, Surface, SurfaceRoute
from wsm.metrics.history import ServerCounts
from wsm.typed import typed

#: Where the routes that answer a request stand in its scope; and the methods that are told apart.
_ROUTE: Final = "wsm.route"
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"))


@typed
def create_app(
    commands: Commands | str,
    *,
    surfaces: Sequence[Surface] = (),
    rest: ASGIApp | None = None,
    security: Security | None = None,
    most_texts: int | None = None,
    own: Sequence[SurfaceRoute] = native.ROUTES,
) -> ASGIApp:
    """Return the app that commands a group over HTTP.

    Parameters
    ----------
    commands : Commands or str
        The group, or its name.
    surfaces : sequence of Surface
        The first is the primary one, which owns the paths that several have.
    rest : ASGI app or None
        What answers all other paths: the engine's own app, or an :class:`wsm.http.upstream.Upstream`.
    security : Security or None
        Who is let in, to every path, those of `rest` too; None: the engine's own server says it.
    most_texts : int or None
        Requests for text, and others that go to `rest`, that may be open at once; the next is answered 503.
        None: any number.
    own : sequence of SurfaceRoute
        What it answers besides: the native API, unless what is commanded is more than one group.

    Raises
    ------
    WsmError
        As :class:`Commands`, if a name is given.
    """
    group = Commands(commands) if isinstance(commands, str) else commands
    offered: dict[tuple[str, str], tuple[Surface | None, SurfaceRoute]] = {}
    # An engine has metrics of its own there.
    common = (native.HEALTH, *((native.METRICS,) if rest is None and own is native.ROUTES else ()))
    of_surfaces = [(surface, surface.routes) for surface in surfaces]
    for surface, named in ((None, own), *of_surfaces[:1], (None, common), *of_surfaces[1:]):
        for route in named:
            offered.setdefault((route.method, route.path), (surface, route))
    in_hold = {path: each.in_hold for each in reversed(surfaces) for path in each.data_paths}
    most = sys.maxsize if most_texts is None else most_texts
    free = asyncio.Semaphore(most)
    routes = []
    for surface, route in offered.values():
        ours = rest is None or not route.of_engine
        endpoint: Any = _endpoint(route, surface, group) if ours else _Rest(group, {}, rest)
        limits = [Middleware(_Places, free, most)] if route.path in in_hold else []
        for path in (route.path, f"{route.path}/"):  # some trainers write it so
            made = Route(path, endpoint, methods=[route.method], middleware=limits)
            if not route.reads and made.methods is not None:
                made.methods.discard("HEAD")  # which only looks
            routes.append(made)
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    app.state.rest = rest
    app.state.offered = [route for _, route in offered.values()]
    app.state.adopt = next((each.adopt for each in surfaces if each.adopt is not None), None)
    app.router.default = _Places(_Rest(group, in_hold, rest), free, most)
    guarded: ASGIApp = app
    if security is not None:
        readable = {key for key, (_, route) in offered.items() if route.reads}
        guarded = SecurityGuard(app, replace(security, readable=security.readable | readable))
    return _RequestCounter(guarded, group.counts, rest)


def _endpoint(
    route: SurfaceRoute, surface: Surface | None, commands: Commands
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body: bytes | None = None
        request.scope.get(_ROUTE, []).append(route.path)
        # First: once its caller is gone, a server gives it no more. A body that is not whole the handler
        # meets again, where a verb that brings weights closes its hold.
        with contextlib.suppress(Exception):
            body = await request.body()
        try:
            require_group(commands, request.headers, body)
            if surface is not None:
                await commands.catch_up()
            with traces.continued(request.headers.get("traceparent")):
                answer = await route.handler(request, commands)
        except WsmError as error:
            answer = failed(error, request_id=request.headers.get("idempotency-key"))
            if surface is not None and surface.failed is not None:
                answer = surface.failed(answer)
        except ClientDisconnect:
            why = "the caller went before all of it had come"
            log.logger("http").info("client.gone", operation=route.path, why=why)
            answer = failed(errors.bad_body(field="body", problem=why))
        except Exception as error:  # noqa: BLE001 - a caller never sees a traceback, and the log does
            log.logger("http").error(log.REQUEST_FAILED, operation=route.path, error=traceback.format_exc())
            answer = failed(error)
        return response_of(answer) if isinstance(answer, HttpAnswer) else answer

    return endpoint


def require_group(commands: Commands, headers: Headers, body: bytes | None = None) -> None:
    """Refuse a request that names another group: by ``X-Wsm-Group``, or by the field ``group`` of its body.

    Raises
    ------
    RefusedError
        If it does (code ``wrong-group``).
    """
    asked = headers.get("x-wsm-group")
    if asked is None and body is not None and b'"group"' in body:
        with contextlib.suppress(WsmError):  # its route says what is wrong with it
            asked = object_of(body).get("group")
    if asked not in (None, commands.name):
        raise errors.wrong_group(asked=str(asked), group=commands.name)


async def admit(commands: Commands, in_hold: InHold) -> None:
    """Let a request for text pass once the group is open; what a hold means for it the surface says.

    Raises
    ------
    RefusedError
        If the group's hold is closed, or requests fail in a hold (code ``admission-closed``), or what it
        holds is not what its fleet allows (``fleet-stale``).
    """
    while await commands.is_held():
        now, closed = await commands.hold_now()
        if now.text is Text.FAILS or (in_hold is InHold.FAIL and now.text is Text.WAITS):
            why = str(closed) if now.text is Text.FAILS else "the group is held"
            message = f"no request is admitted now: {why}; ask again later"
            raise RefusedError(message, code="admission-closed", why=why)
        commands.counts.texts_waiting += 1
        try:
            await commands.while_text_waits()
        finally:
            commands.counts.texts_waiting -= 1
    commands.require_allowed()


class _Rest:
    """What answers the paths that wsm does not know; requests for text pass the gate of a held group."""

    def __init__(self, commands: Commands, in_hold: Mapping[str, InHold], rest: ASGIApp | None) -> None:
        self._commands, self._in_hold, self._rest = commands, in_hold, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if self._rest is not None and scope["type"] == "websocket":
                await self._rest(scope, receive, send)
            return
        path = "/" + "/".join(filter(None, path_of(scope).split("/")))  # as any server behind could read it
        in_hold = self._in_hold.get(path)
        if in_hold is not None:
            scope.get(_ROUTE, []).append(path)
        try:
            require_group(self._commands, Headers(scope=scope))
            if in_hold is not None:
                await admit(self._commands, in_hold)
                send = pinned(self._commands, scope, send)
            if self._rest is None:
                raise errors.not_found(method=scope["method"], path=scope["path"])
        except WsmError as error:
            await send_failure(error, send)
            return
        await self._rest(scope, receive, send)


class _RequestCounter:
    """Counts each request by its route, its method and the status of its answer."""

    def __init__(self, app: ASGIApp, counts: ServerCounts, rest: ASGIApp | None) -> None:
        self._app, self._rest = app, rest
        self._requests = counts.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            begins = scope["type"] == "lifespan"  # with which an engine's app begins, and an upstream ends
            await (self._rest if begins and self._rest else self._app)(scope, receive, send)
            return
        routes: list[str] = []  # those that answer add their path
        status, begun = "none", time.monotonic()

        async def counted(message: Message) -> None:
            nonlocal status
            status = str(message.get("status", status))
            await send(message)

        try:
            await self._app({**scope, _ROUTE: routes}, receive, counted)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._requests.took(time.monotonic() - begun, routes[0] if routes else "other", method, status)


class _Places:
    """Lets so many requests for text, or to an engine, be open at once: the other places are for commands."""

    def __init__(self, app: ASGIApp, free: asyncio.Semaphore, most: int) -> None:
        self._app, self._free, self._most = app, free, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._free.locked():
            await send_failure(errors.server_busy(running=self._most), send)
        else:
            async with self._free:
                await self._app(scope, receive, send)
