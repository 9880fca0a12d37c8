"""Trainers' verbs at vLLM's server: vLLM's own, prime-rl's and AReaL's, as their published clients send them.

Theory of operation
-------------------
What the words mean is said by :mod:`wsm.http.surfaces`. Here a verb is a pause or a resume of vLLM's; an
update, where it names a path or a version; or a step of a push, once its trainer has begun one. So a trainer
needs no ``VLLM_SERVER_DEV_MODE``, and gets the same end as by ``/wsm/v1/update``.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wsm.errors import RefusedError
from wsm.http.bodies import MOST_TEXT_BYTES, as_struct, label_of, object_of, without_nulls
from wsm.http.surfaces._verbs import FinishBody, Reason, Refusal, RelabelBody
from wsm.http.surfaces.vllm import LoadBody, UpdateInfo, UpdateWeightsBody, is_by_files
from wsm.labels import checked_version
from wsm.strategies.adopt.record import asked_label, marked_label
from wsm.vllm.engine import FINISH, START

if TYPE_CHECKING:  # it answers by them
    from wsm.vllm.endpoint import EndpointPlugin

#: What the ends of an update are over HTTP.
STATUSES = {
    "committed": 200,
    "prepared": 200,
    "aborted": 200,
    "refused": 409,
    "rolled-back": 409,
    "closed": 500,
    "unknown": 504,
}

_Body = TypeVar("_Body", bound=msgspec.Struct)
Verb: TypeAlias = Callable[[Request], Awaitable[Response]]


class UpdateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an update. `path`: a directory below the roots; else `version` is one of the store.

    `in_flight`, `hot`, `force`: what the native API says of a load in place; ``drain`` is vLLM's ``wait``.
    """

    path: str | None = None
    version: str | None = None
    digest: str | None = None
    mode: Literal["keep", "wait", "abort"] = "keep"
    in_flight: Literal["drain", "abort"] | None = None
    hot: Literal[False] = False
    force: bool = True
    deadline_s: float = 600.0


class PrepareRequest(UpdateRequest, forbid_unknown_fields=True):
    """The body of a prepare: as of an update that stages beside what serves. `lease_s`: as `deadline_s`."""

    hot: Literal[True] = True  # type: ignore[assignment] # the other of both
    hot_fallback: Literal["refuse"] = "refuse"
    lease_s: float | None = None


class DecisionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a commit or an abort: what was prepared under this request id; missing: whatever was."""

    request_id: str | None = None


class _EnginePause(msgspec.Struct):
    """The query of vLLM's pause, with its defaults."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


class TrainerVerbs:
    """The verbs of one server, by method and path."""

    def __init__(self, plugin: EndpointPlugin) -> None:
        self._plugin = plugin
        self.by_name: Mapping[str, Verb] = {
            "POST /pause": self._pause,
            "POST /resume": self._resume,
            "GET /is_paused": self._is_paused,
            "POST /init_weight_transfer_engine": self._set_up,
            "POST /shutdown_weight_transfer_engine": self._shut_down,
            "POST /start_weight_update": self._start,
            "POST /update_weights": self._update,
            "POST /finish_weight_update": self._finish,
            "POST /update_weight_version": self._relabel,
            "GET /weight_info": self._weight_info,
            "POST /init_broadcaster": self._set_up,
            "GET /liveness": self._liveness,
            "POST /areal_pause_generation": self._areal_pause,
            "POST /areal_update_weights": self._areal_update,
            "POST /areal_continue_generation": self._areal_continue,
        }

    async def _pause(self, request: Request) -> Response:
        asked = as_struct(dict(request.query_params), _EnginePause, strict=False)
        await self._plugin.client.pause_generation(mode=asked.mode, clear_cache=asked.clear_cache)
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> Response:
        del request
        await self._plugin.client.resume_generation()
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request) -> Response:
        del request
        return JSONResponse({"is_paused": await self._plugin.client.is_paused()})

    async def _set_up(self, request: Request) -> Response:
        asked = _object(await request.body())
        if self._plugin.takes_pushes and request.url.path != "/init_broadcaster":
            await self._plugin.connect("init_weight_transfer_engine", [asked.get("init_info", {})])
        elif not is_by_files(without_nulls(asked)):
            return _refused(request)
        return JSONResponse({"message": "Weight transfer initialized", "status": "ok"})

    async def _shut_down(self, request: Request) -> Response:
        del request
        if self._plugin.takes_pushes:
            await self._plugin.connect("shutdown_weight_transfer_engine", [])
        return JSONResponse({"message": "Weight transfer shut down"})

    async def _start(self, request: Request) -> Response:
        del request
        receipt = await self._plugin.push(START, []) if self._plugin.takes_pushes else None
        return _told({"message": "Weight update started"}, receipt)

    async def _update(self, request: Request) -> Response:
        said, plugin = {"message": "Weights updated", "status": "ok"}, self._plugin
        given = _object(await request.body())
        if not plugin.is_pushing:
            named = as_struct(without_nulls(given), UpdateWeightsBody)
            info = named.update_info or UpdateInfo(named.weight_dir)
            if info.path is not None or info.version is not None:
                asked = UpdateRequest(path=info.path, version=label_of(info.version))
                return _told(said, await self._bring(asked, request))
            if not plugin.takes_pushes:
                return _refused(request)
        return _told(said, await plugin.push("update_weights", [given.get("update_info", {})]))

    async def _finish(self, request: Request) -> Response:
        label, receipt = label_of((await body_of(request, FinishBody)).weight_version), None
        if self._plugin.takes_pushes:
            receipt = await self._plugin.push(FINISH, [], None if label is None else checked_version(label))
        elif label is not None:
            self._require_label(label)
        return _told({"message": "Weight update finished"}, receipt)

    async def _relabel(self, request: Request) -> Response:
        label = str((await body_of(request, RelabelBody)).new_version)
        self._require_label(label)
        return JSONResponse({"success": True, "new_version": label})

    async def _weight_info(self, request: Request) -> Response:
        del request
        return JSONResponse({"weight_version": self._plugin.ranks.version})

    async def _liveness(self, request: Request) -> Response:
        del request
        if self._plugin.ranks.fault is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "engine_unresponsive"}, 503, {"Retry-After": "1"})

    async def _areal_pause(self, request: Request) -> Response:
        del request
        await self._plugin.client.pause_generation(mode="abort", clear_cache=True)
        return JSONResponse({"success": True, "message": "Generation paused and all requests aborted"})

    async def _areal_continue(self, request: Request) -> Response:
        await self._resume(request)
        return JSONResponse({"success": True, "message": "Generation continued"})

    async def _areal_update(self, request: Request) -> Response:
        asked = UpdateRequest(path=(await body_of(request, LoadBody)).model_path, in_flight="abort")
        receipt = await self._bring(asked, request)
        return _told({"success": True, "message": f"it is {receipt['outcome']}"}, receipt)

    async def _bring(self, asked: UpdateRequest, request: Request) -> dict[str, Any]:
        """Update to a version; a directory has a label of its own where other content had its name before."""
        request_id = request_id_of(request)
        receipt = await self._plugin.update(asked, request_id)
        error = receipt.get("error", {})
        if asked.version is None and error.get("code") == "digest-mismatch" and "version" in error:
            own = marked_label(error["version"], error["actual"])
            again = msgspec.structs.replace(asked, version=own)
            receipt = await self._plugin.update(again, f"{request_id}.{own}")
        return receipt

    def _require_label(self, label: str) -> None:
        held = self._plugin.ranks.version
        if label not in (held, asked_label(held or "")):
            problem = f"version {held} is there, not {label}, and a label is not changed without its content"
            raise RefusedError(f"{problem}; update to {label}", code="label-differs", asked=label, held=held)


def _object(body: bytes) -> dict[str, Any]:
    """Return a body that may be long: a trainer's handles are in it."""
    return object_of(body, most=MOST_TEXT_BYTES)


async def body_of(request: Request, kind: type[_Body]) -> _Body:
    """Read a body, without what is null in it; raises BadInputError (``bad-body``)."""
    return as_struct(without_nulls(object_of(await request.body())), kind)


def request_id_of(request: Request) -> str:
    """Return its caller's name for a request, or a new one."""
    return request.headers.get("idempotency-key", uuid.uuid4().hex)


def _refused(request: Request) -> Response:
    answer = Refusal(Reason.PUSH).answer(request.url.path, held=False)
    return JSONResponse(msgspec.to_builtins(answer), 400)


def _told(said: Mapping[str, Any], receipt: Mapping[str, Any] | None) -> Response:
    """Answer a verb; `receipt`: of the update that has ended with it."""
    if receipt is None:
        return JSONResponse(said)
    if receipt["outcome"] == "committed":
        return JSONResponse({**said, "wsm": receipt})
    failed = {"success": False, "message": receipt["error"]["message"]}
    return JSONResponse({**receipt, **failed}, STATUSES[receipt["outcome"]])
