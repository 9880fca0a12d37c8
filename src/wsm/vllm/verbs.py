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
from typing import Any, Literal, TypeAlias, TypeVar

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
from wsm.vllm.updates import ServerUpdates, UpdateRequest

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
Verb: TypeAlias = Callable[[ServerUpdates, Request], Awaitable[Response]]


class _PauseTerms(msgspec.Struct):
    """The query of vLLM's pause, with its defaults."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


async def _pause(updates: ServerUpdates, request: Request) -> Response:
    asked = as_struct(dict(request.query_params), _PauseTerms, strict=False)
    await updates.pause.give(asked.mode, clear_cache=asked.clear_cache)
    return JSONResponse({"status": "paused"})


async def _resume(updates: ServerUpdates, _: Request) -> Response:
    await updates.pause.end()
    return JSONResponse({"status": "resumed"})


async def _is_paused(updates: ServerUpdates, _: Request) -> Response:
    return JSONResponse({"is_paused": await updates.pause.is_there()})


async def _set_up(updates: ServerUpdates, request: Request) -> Response:
    asked = _object(await request.body())
    if updates.takes_pushes and request.url.path != "/init_broadcaster":
        await updates.connect("init_weight_transfer_engine", [asked.get("init_info", {})])
    elif not is_by_files(without_nulls(asked)):
        return _refused(request)
    return JSONResponse({"message": "Weight transfer initialized", "status": "ok"})


async def _shut_down(updates: ServerUpdates, _: Request) -> Response:
    if updates.takes_pushes:
        await updates.connect("shutdown_weight_transfer_engine", [])
    return JSONResponse({"message": "Weight transfer shut down"})


async def _start(updates: ServerUpdates, _: Request) -> Response:
    receipt = await updates.push(START, []) if updates.takes_pushes else None
    return _told({"message": "Weight update started"}, receipt)


async def _update(updates: ServerUpdates, request: Request) -> Response:
    said, given = {"message": "Weights updated", "status": "ok"}, _object(await request.body())
    if not updates.is_pushing:
        named = as_struct(without_nulls(given), UpdateWeightsBody)
        info = named.update_info or UpdateInfo(named.weight_dir)
        if info.path is not None or info.version is not None:
            asked = UpdateRequest(path=info.path, version=label_of(info.version))
            return _told(said, await _bring(updates, asked, request))
        if not updates.takes_pushes:
            return _refused(request)
    return _told(said, await updates.push("update_weights", [given.get("update_info", {})]))


async def _finish(updates: ServerUpdates, request: Request) -> Response:
    label, receipt = label_of((await body_of(request, FinishBody)).weight_version), None
    if updates.takes_pushes:
        receipt = await updates.push(FINISH, [], None if label is None else checked_version(label))
    elif label is not None:
        _require_label(updates, label)
    return _told({"message": "Weight update finished"}, receipt)


async def _relabel(updates: ServerUpdates, request: Request) -> Response:
    label = str((await body_of(request, RelabelBody)).new_version)
    _require_label(updates, label)
    return JSONResponse({"success": True, "new_version": label})


async def _weight_info(updates: ServerUpdates, _: Request) -> Response:
    return JSONResponse({"weight_version": updates.ranks.version})


async def _liveness(updates: ServerUpdates, _: Request) -> Response:
    if updates.ranks.fault is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "engine_unresponsive"}, 503, {"Retry-After": "1"})


async def _areal_pause(updates: ServerUpdates, _: Request) -> Response:
    await updates.pause.give("abort", clear_cache=True)
    return JSONResponse({"success": True, "message": "Generation paused and all requests aborted"})


async def _areal_continue(updates: ServerUpdates, request: Request) -> Response:
    await _resume(updates, request)
    return JSONResponse({"success": True, "message": "Generation continued"})


async def _areal_update(updates: ServerUpdates, request: Request) -> Response:
    asked = UpdateRequest(path=(await body_of(request, LoadBody)).model_path, in_flight="abort")
    receipt = await _bring(updates, asked, request)
    return _told({"success": True, "message": f"it is {receipt['outcome']}"}, receipt)


async def _bring(updates: ServerUpdates, asked: UpdateRequest, request: Request) -> dict[str, Any]:
    """Update to a version; a directory has a label of its own where other content had its name before."""
    request_id = request_id_of(request)
    receipt = await updates.update(asked, request_id)
    error = receipt.get("error", {})
    if asked.version is None and error.get("code") == "digest-mismatch" and "version" in error:
        own = marked_label(error["version"], error["actual"])
        again = msgspec.structs.replace(asked, version=own)
        receipt = await updates.update(again, f"{request_id}.{own}")
    return receipt


def _require_label(updates: ServerUpdates, label: str) -> None:
    held = updates.ranks.version
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
    # prime-rl's broadcaster is no engine of vLLM's, so that wsm can stand before none.
    reason = Reason.PUSH if request.url.path == "/init_broadcaster" else Reason.NO_ENGINE
    answer = Refusal(reason).answer(request.url.path, held=False)
    return JSONResponse(msgspec.to_builtins(answer), 400)


def _told(said: Mapping[str, Any], receipt: Mapping[str, Any] | None) -> Response:
    """Answer a verb; `receipt`: of the update that has ended with it."""
    if receipt is None:
        return JSONResponse(said)
    if receipt["outcome"] == "committed":
        return JSONResponse({**said, "wsm": receipt})
    failed = {"success": False, "message": receipt["error"]["message"]}
    return JSONResponse({**receipt, **failed}, STATUSES[receipt["outcome"]])


#: The verbs by method and path.
VERBS: Mapping[str, Verb] = {
    "POST /pause": _pause,
    "POST /resume": _resume,
    "GET /is_paused": _is_paused,
    "POST /init_weight_transfer_engine": _set_up,
    "POST /shutdown_weight_transfer_engine": _shut_down,
    "POST /start_weight_update": _start,
    "POST /update_weights": _update,
    "POST /finish_weight_update": _finish,
    "POST /update_weight_version": _relabel,
    "GET /weight_info": _weight_info,
    "POST /init_broadcaster": _set_up,
    "GET /liveness": _liveness,
    "POST /areal_pause_generation": _areal_pause,
    "POST /areal_update_weights": _areal_update,
    "POST /areal_continue_generation": _areal_continue,
}
