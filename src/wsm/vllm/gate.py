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

import hmac
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from wsm.errors import RefusedError, WsmError
from wsm.http import errors
from wsm.http.answers import failed
from wsm.http.native._events import event_stream
from wsm.metrics.exporter import answered
from wsm.vllm import verbs
from wsm.vllm.named_hold import HoldRequest
from wsm.vllm.update_journal import GROUP

if TYPE_CHECKING:  # it puts the gate before vLLM's app
    from wsm.vllm.endpoint import EndpointPlugin

#: Verbs that must wait for the end of an update, or of a closed gate.
_RESUMES = frozenset({"/resume", "/wake_up", "/areal_continue_generation"})
_PAUSES = frozenset({"/pause", "/sleep", "/areal_pause_generation"})
#: What is answered while the gate is closed, besides everything that only reads.
_HARMLESS = frozenset({"/pause", "/abort_requests", "/tokenize", "/detokenize"})


class Gate:
    """The ASGI app before vLLM's."""

    def __init__(self, app: ASGIApp, plugin: EndpointPlugin) -> None:
        self._app, self._plugin, self._verbs = app, plugin, verbs.TrainerVerbs(plugin).by_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what must not pass, and what is asked of wsm; else let vLLM's app answer."""
        if scope["type"] == "websocket" and not self._plugin.lets_in():
            await send({"type": "websocket.close", "code": 1013})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, request.url.path, request.method)
        except WsmError as error:
            told = failed(error)
            answer = Response(told.content(), told.status, told.headers, "application/json")
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, request: Request, path: str, method: str) -> ASGIApp | None:
        plugin = self._plugin
        # Behind other verbs of weights, and a sleep that drops them, wsm could not say what serves.
        level = request.query_params.get("level")
        verb = self._verbs.get(f"{method} {path}")
        held = "weight" in path or path == "/collective_rpc" or level == "2"
        ours, waits = path.startswith("/wsm/v1/"), path in _RESUMES | _PAUSES
        guarded = ours or (method == "POST" and (verb or held or waits))
        if guarded and method != "OPTIONS" and not self._may(request):
            raise errors.unauthorized()
        if plugin.first is not None:
            asks = method == "POST" and not (path in _HARMLESS or plugin.lets_in())
            return plugin.first if guarded or verb or asks else None
        if ours:
            return await self._own(request, method, path.removeprefix("/wsm/v1/"))
        if method != "POST":
            return await verb(request) if verb else None
        if held and not verb:
            message = f"wsm keeps {path} from changing weights behind it; POST /wsm/v1/update"
            raise RefusedError(message, code="held-by-wsm")
        if waits:
            plugin.require_not_loading()
            plugin.named_hold.require_none()
        if path in _RESUMES and not plugin.lets_in():
            raise RefusedError(plugin.explain()["text"], code="held-by-wsm")
        if verb:
            return await verb(request)
        if path not in _HARMLESS:
            plugin.require_open()
        return None

    def _may(self, request: Request) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.encode() if scheme.lower() == "bearer" else b""
        keys = self._plugin.keys
        return not keys or any(hmac.compare_digest(given, each.encode()) for each in keys)

    async def _own(self, request: Request, method: str, what: str) -> Response:
        named = request.headers.get("x-wsm-group", GROUP)
        if named != GROUP:
            raise errors.wrong_group(asked=named, group=GROUP)
        if method == "POST" and what in ("update", "prepare", "commit", "abort", "hold", "release"):
            return await self._command(request, what)
        what, _, request_id = what.partition("/")
        if method == "GET" and what in ("status", "ready", "explain", "receipts", "commands"):
            return await self._told(what, request_id)
        if method == "GET" and what == "events":
            return event_stream(request, self._plugin.journal.look)
        if method == "GET" and what == "metrics":
            status, headers, scraped = answered(self._plugin, request.headers.get("accept", ""))
            return Response(scraped, status, dict(headers))
        raise errors.not_found(method=method, path=request.url.path)

    async def _command(self, request: Request, what: str) -> Response:
        plugin, request_id = self._plugin, verbs.request_id_of(request)
        if what == "update":
            receipt = await plugin.update(await verbs.body_of(request, verbs.UpdateRequest), request_id)
        elif what == "prepare":
            receipt = await plugin.prepare(await verbs.body_of(request, verbs.PrepareRequest), request_id)
        elif what == "hold":
            hold = await verbs.body_of(request, HoldRequest)
            return JSONResponse(await plugin.named_hold.take(hold, request_id))
        elif what == "release":
            release = await verbs.body_of(request, HoldRequest)
            return JSONResponse(await plugin.named_hold.release(release, request_id))
        else:
            asked = await verbs.body_of(request, verbs.DecisionRequest)
            receipt = await plugin.decide(asked.request_id, commit=what == "commit")
        return JSONResponse(receipt, verbs.STATUSES[receipt["outcome"]])

    async def _told(self, what: str, request_id: str) -> Response:
        plugin = self._plugin
        if what == "status":
            return JSONResponse(await plugin.status())
        if what == "receipts":
            return JSONResponse({"receipts": [*plugin.journal.receipts]})
        if what == "commands":
            known = plugin.journal.known(request_id)
            if known is None:
                raise errors.request_unknown(request_id=request_id)
            return JSONResponse({**known, "state": "succeeded" if "receipt" in known else "failed"})
        said = plugin.explain()
        ready = {"serving": said["open"], "headline": said["text"]}
        return JSONResponse(said | ready, 200 if said["open"] or what == "explain" else 503)
