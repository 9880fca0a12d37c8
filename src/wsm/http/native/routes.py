"""The native API, ``/wsm/v1``: its routes, each with what it takes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from wsm.http import bodies, errors
from wsm.http.answers import HttpAnswer, succeeded, untold
from wsm.http.bodies import Fields, Reader
from wsm.http.commands import Commands, Origin
from wsm.http.native._events import events
from wsm.http.native._openapi import document
from wsm.http.surface import SurfaceRoute
from wsm.metrics import Exporter
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, Tag

#: The surface that the native API's own holds belong to.
NATIVE: Final = "native"

_in_flight: Final = bodies.choice_among(InFlightPolicy)
_kv_policy: Final = bodies.choice_among(KVPolicy)

_TIMES: Final[Mapping[str, Reader[Any]]] = {
    "deadline_s": bodies.seconds_value,
    "settle_s": bodies.seconds_value,
    "wait_s": bodies.seconds_value,
}
_DECISION: Final[Mapping[str, Reader[Any]]] = {
    "request_id": bodies.text_value,
    "settle_s": bodies.seconds_value,
    "wait_s": bodies.seconds_value,
}
_CLEAR: Final[Mapping[str, Reader[Any]]] = {
    **_TIMES,
    "tags": bodies.tag_set,
    "in_flight": _in_flight,
    "kv_policy": _kv_policy,
    "hold": bodies.text_value,
}
_UPDATE: Final[Mapping[str, Reader[Any]]] = {
    **_CLEAR,
    "version": bodies.label_value,
    "hot": bodies.flag_value,
    "hot_fallback": bodies.text_value,
    "force": bodies.flag_value,
    "partial": bodies.flag_value,
    "transfer_mode": bodies.text_value,
    "unknown_tensors": bodies.text_value,
    "verify_checksum": bodies.flag_value,
    "rsync_config": bodies.mapping_value,
    "after": bodies.text_value,
    "on_failure": bodies.text_value,
    "restore_s": bodies.seconds_value,
}
_FIELDS: Final[Mapping[str, Mapping[str, Reader[Any]]]] = {
    "clear": _CLEAR,
    "update": _UPDATE,
    "hold": {
        **_TIMES,
        "in_flight": _in_flight,
        "kv_policy": _kv_policy,
        "lease_s": bodies.seconds_value,
        "on_lease": bodies.text_value,
    },
    "release": {**_TIMES, "hold": bodies.text_value, "force": bodies.flag_value},
    "prepare": {**_UPDATE, "lease_s": bodies.seconds_value},
    "commit": _DECISION,
    "abort": _DECISION,
}
#: What the body of each command may hold.
FIELDS: Final = {name: {**taken, "group": bodies.text_value} for name, taken in _FIELDS.items()}


def origin_of(request: Request, surface: str) -> Origin:
    """Return where the command of a request comes from: its ``Idempotency-Key`` is the request id."""
    return Origin(surface, request.headers.get("idempotency-key"), request.headers.get("traceparent"))


def _command(operation: str) -> Callable[[Request, Commands], Any]:
    async def command(request: Request, commands: Commands) -> HttpAnswer:
        asked = Fields.of(await request.body()).all_of(FIELDS[operation], of=operation)
        asked.pop("group", None)  # this one, as was seen
        origin = origin_of(request, NATIVE)
        if operation == "commit" and "request_id" not in asked:
            raise errors.bad_body(field="request_id", problem="it says what is committed")
        if operation in ("commit", "abort"):
            asked["prepared"] = asked.pop("request_id", None)
        if "respond-async" in request.headers.get("prefer", ""):
            return await _begun(commands, operation, origin, asked)
        return succeeded(await getattr(commands, operation)(origin, **asked))

    command.__doc__ = f"""Ask the group to {operation}; the answer is the receipt."""
    return command


async def _begun(commands: Commands, operation: str, origin: Origin, asked: Mapping[str, Any]) -> HttpAnswer:
    """Answer 202 with the place of a command that goes on; what is over at once is answered as ever."""
    named = replace(origin, request_id=origin.request_id or uuid.uuid4().hex)
    task = asyncio.ensure_future(getattr(commands, operation)(named, **asked))
    _detached.add(task)
    task.add_done_callback(_forgotten)
    await asyncio.wait({task}, timeout=_AT_ONCE_S)
    if task.done():
        return succeeded(task.result())
    where = f"/wsm/v1/commands/{quote(str(named.request_id), safe='')}"
    headers = {"Location": where, "Preference-Applied": "respond-async"}
    return HttpAnswer(202, {"request_id": named.request_id, "location": where}, headers)


def _forgotten(task: asyncio.Future[Any]) -> None:
    _detached.discard(task)
    if not task.cancelled():
        task.exception()  # it is kept under its request id


#: Commands whose callers did not wait for their ends.
_detached: set[asyncio.Future[Any]] = set()

#: Seconds in which a command that ends is answered with its receipt, even to a caller that would not wait.
_AT_ONCE_S: Final = 0.1


async def status(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer what ``wsm status --json`` prints, and whether a hold is closed."""
    _, closed = await commands.hold_now()
    now = await commands.status()
    said = (
        None
        if closed is None
        else {
            "surface": closed.surface,
            "verb": closed.verb,
            "reason": closed.reason,
            "by": closed.by.value,
        }
    )
    return HttpAnswer(200, {**now.to_mapping(), "closed": said})


async def explanation(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer what ``wsm explain --json`` prints, without the tracebacks, which stay on the host."""
    return HttpAnswer(200, untold((await commands.explain()).to_mapping()))


async def ready(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer 200 if the group serves, else 503."""
    now = await commands.status()
    return HttpAnswer(200 if now.serving else 503, {"serving": now.serving, "headline": now.headline})


async def metrics(request: Request, commands: Commands) -> Response:
    """Answer a scrape of Prometheus."""
    kept = request.app.state
    if getattr(kept, "exporter", None) is None:  # one for the app: it goes on where it was
        kept.exporter = Exporter(
            commands.name, directory=commands.directory, unsupported=commands.unsupported
        )
    accept = request.headers.get("accept", "")
    status, headers, body = await run_in_threadpool(kept.exporter.answer, accept)
    return Response(body, status, dict(headers))


async def kept_request(request: Request, commands: Commands) -> HttpAnswer:
    """Answer what became of a request."""
    name = request.path_params["request_id"]
    return HttpAnswer(200, await commands.read(lambda: commands.request(name)))


async def health(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer 200 while the group can be commanded, held and cleared ones too; else 503."""
    now = await commands.status()
    lost = [rank.rank for rank in now.ranks if rank.life in ("dead", "stopped")]
    fit = not lost and now.state not in ("MIXED", "FAULTED")
    return HttpAnswer(200 if fit else 503, {"status": "ok" if fit else "unfit", "headline": now.headline})


async def described(_request: Request, _commands: Commands) -> HttpAnswer:
    """Answer this API as an OpenAPI document."""
    return HttpAnswer(200, document(ROUTES, FIELDS, SCHEMAS))


_SECONDS_SCHEMA: Final = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e9}

#: The JSON schema of what each reader of a field takes.
SCHEMAS: Final[Mapping[Reader[Any], Mapping[str, Any]]] = {
    bodies.text_value: {"type": "string"},
    bodies.flag_value: {"type": "boolean"},
    bodies.seconds_value: _SECONDS_SCHEMA,
    bodies.label_value: {"type": ["string", "integer"]},
    bodies.tag_set: {"type": "array", "items": {"enum": [each.value for each in Tag]}},
    bodies.mapping_value: {"type": "object"},
    _in_flight: {"enum": [each.value for each in InFlightPolicy]},
    _kv_policy: {"enum": [each.value for each in KVPolicy]},
}

ROUTES: Final[tuple[SurfaceRoute, ...]] = (
    SurfaceRoute("GET", "/wsm/v1/events", events, reads=True),
    SurfaceRoute("GET", "/wsm/v1/openapi.json", described, reads=True),
    SurfaceRoute("GET", "/wsm/v1/status", status, reads=True),
    SurfaceRoute("GET", "/wsm/v1/explain", explanation, reads=True),
    SurfaceRoute("GET", "/wsm/v1/ready", ready, reads=True),
    SurfaceRoute("GET", "/wsm/v1/metrics", metrics, reads=True),
    SurfaceRoute("GET", "/wsm/v1/commands/{request_id:path}", kept_request, reads=True),
    *(SurfaceRoute("POST", f"/wsm/v1/{operation}", _command(operation)) for operation in FIELDS),
)
