"""The gate before vLLM's app, and what wsm answers over HTTP.

Theory of operation
-------------------
The gate stands before vLLM's own routes. While no whole version is proved, what asks for tokens is answered
503, and nothing resumes the engine. Of vLLM's own verbs that write weights wsm answers those of trainers
(:mod:`.verbs`). It refuses the others always, and those that call methods of workers: it could not say any
more what serves.

The routes are asked for vLLM's API key, where it has one: vLLM itself guards ``/v1`` and its like alone.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from wsm.errors import RefusedError, WsmError
from wsm.http import errors
from wsm.http.answers import failed, response_of
from wsm.http.native._events import event_stream
from wsm.http.native._openapi import document
from wsm.http.surface import SurfaceRoute
from wsm.metrics.exporter import answered
from wsm.vllm import verbs
from wsm.vllm.pauses import HoldRequest, ReleaseRequest
from wsm.vllm.update_journal import GROUP
from wsm.vllm.updates import PrepareRequest, ServerUpdates, UpdateRequest

#: Verbs that must wait for the end of an update, or of a closed gate.
_RESUMES = frozenset({"/resume", "/wake_up", "/areal_continue_generation"})
_PAUSES = frozenset({"/pause", "/sleep", "/areal_pause_generation"})
#: What is answered while the gate is closed, besides everything that only reads.
_HARMLESS = frozenset({"/pause", "/abort_requests", "/tokenize", "/detokenize"})


class DecisionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a commit or an abort: which request has prepared it; of an abort, else whichever has."""

    request_id: str | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=0)] = 0.0


#: What wsm answers below /wsm/v1, and the body of what is posted; what has none is read.
_ROUTES: Mapping[str, type[msgspec.Struct] | None] = {
    "update": UpdateRequest,
    "prepare": PrepareRequest,
    **dict.fromkeys(("commit", "abort"), DecisionRequest),
    "hold": HoldRequest,
    "release": ReleaseRequest,
    **dict.fromkeys(("status", "ready", "explain", "receipts", "commands")),
    **dict.fromkeys(("events", "metrics", "openapi.json")),
}


class Gate:
    """What each request to vLLM's app comes through.

    `keys`: one of them is asked for, if there are any. `lets_in`: whether requests may reach what serves.
    `updates`: in the first API server, or the only one. `first`: in each other one, what asks that.
    """

    def __init__(
        self,
        keys: Sequence[str],
        lets_in: Callable[[], bool],
        updates: ServerUpdates | None = None,
        first: ASGIApp | None = None,
    ) -> None:
        self._keys, self._lets_in, self._updates, self._first = keys, lets_in, updates, first

    async def __call__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what must not pass, and what is asked of wsm; else let vLLM's app answer."""
        if scope["type"] == "websocket" and not self._lets_in():
            await send({"type": "websocket.close", "code": 1013})
            return
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, request.url.path, request.method)
        except WsmError as error:
            answer = response_of(failed(error))
        await (answer or app)(scope, receive, send)

    async def _answer(self, request: Request, path: str, method: str) -> ASGIApp | None:
        updates = self._updates
        # Behind other verbs of weights, and a sleep that drops them, wsm could not say what serves.
        level = request.query_params.get("level")
        verb = verbs.VERBS.get(f"{method} {path}")
        held = "weight" in path or path == "/collective_rpc" or level == "2"
        ours, waits = path.startswith("/wsm/v1/"), path in _RESUMES | _PAUSES
        guarded = ours or (method == "POST" and (verb or held or waits))
        if guarded and method != "OPTIONS" and not self._may(request):
            raise errors.unauthorized()
        if updates is None:
            asks = method == "POST" and not (path in _HARMLESS or self._lets_in())
            return self._first if guarded or verb or asks else None
        if ours:
            return await _own(updates, request, method, path.removeprefix("/wsm/v1/"))
        if method != "POST":
            return await verb(updates, request) if verb else None
        if held and not verb:
            message = f"wsm keeps {path} from changing weights behind it; POST /wsm/v1/update"
            raise RefusedError(message, code="held-by-wsm")
        if waits:
            updates.require_not_loading()
            updates.named_hold.require_none()
        if path in _RESUMES and not updates.lets_in():
            raise RefusedError(updates.standing().text, code="held-by-wsm")
        if verb:
            return await verb(updates, request)
        if path not in _HARMLESS:
            updates.require_open()
        return None

    def _may(self, request: Request) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.encode() if scheme.lower() == "bearer" else b""
        return not self._keys or any(hmac.compare_digest(given, each.encode()) for each in self._keys)


async def _own(updates: ServerUpdates, request: Request, method: str, path: str) -> Response:
    named = request.headers.get("x-wsm-group", GROUP)
    if named != GROUP:
        raise errors.wrong_group(asked=named, group=GROUP)
    what, _, request_id = path.partition("/")
    if what not in _ROUTES or (request_id and what != "commands"):
        raise errors.not_found(method=method, path=request.url.path)
    body = _ROUTES[what]
    allowed = "GET" if body is None else "POST"
    if method != allowed:
        raise errors.method_not_allowed(method=method, path=request.url.path, allow=allowed)
    if body is not None:
        return await _command(updates, what, await verbs.body_of(request, body), verbs.request_id_of(request))
    if what == "events":
        return event_stream(request, updates.journal.look)
    if what == "metrics":
        await updates.look()
        status, headers, scraped = answered(updates, request.headers.get("accept", ""))
        return Response(scraped, status, dict(headers))
    return await _told(updates, what, request_id)


async def _command(updates: ServerUpdates, what: str, asked: Any, request_id: str) -> Response:
    if what == "hold":
        return JSONResponse(await updates.named_hold.take(asked, request_id))
    if what == "release":
        return JSONResponse(await updates.named_hold.release(asked, request_id))
    if what == "update":
        receipt = await updates.update(asked, request_id)
    elif what == "prepare":
        receipt = await updates.prepare(asked, request_id)
    else:
        if what == "commit" and asked.request_id is None:
            problem = "a commit names the request id, the Idempotency-Key, of what was prepared"
            raise errors.bad_body(field="request_id", problem=problem)
        receipt = await updates.decide(asked.request_id, commit=what == "commit")
    return JSONResponse(receipt, verbs.STATUSES[receipt["outcome"]])


async def _told(updates: ServerUpdates, what: str, request_id: str) -> Response:
    if what == "openapi.json":
        return JSONResponse(_document())
    if what == "status":
        return JSONResponse(await updates.status())
    if what == "receipts":
        return JSONResponse({"receipts": [*updates.journal.receipts]})
    if what == "commands":
        known = updates.journal.known(request_id)
        if known is None:
            raise errors.request_unknown(request_id=request_id)
        return JSONResponse({**known, "state": "succeeded" if "receipt" in known else "failed"})
    await updates.look()
    said, text = updates.standing(), ""
    last: dict[str, Any] = next(reversed(updates.journal.receipts), {})
    if said.open and "error" in last:  # else it says why nothing is served
        text = f" The last update, to {last['version']}, was {last['outcome']}: {last['error']['message']}"
    told = {"open": said.open, "serving": said.serving, "text": said.text + text, "errors": said.errors}
    status = 200 if said.serving or what == "explain" else 503
    return JSONResponse({**told, "headline": said.text}, status)


@functools.cache
def _document() -> dict[str, Any]:
    """Return what there is, trainers' verbs too, as an OpenAPI document."""
    handler: Any = _own  # which answers all of them that are not trainers
    own = [
        (f"{'GET' if body is None else 'POST'} /wsm/v1/{what}{'/{request_id}' * (what == 'commands')}", body)
        for what, body in _ROUTES.items()
    ]
    routes = []
    for route, body in [*own, *((verb, None) for verb in verbs.VERBS)]:
        method, path = route.split(" ")
        routes.append(SurfaceRoute(method, path, handler, method == "GET", {200: dict[str, Any]}, body))
    return document(routes)
