"""The native API, ``/wsm/v1``: its routes, each with what it takes, and how a body becomes a command."""

from __future__ import annotations

import asyncio
import enum
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from wsm.command import checked_tags
from wsm.http import errors, openapi
from wsm.http.answers import HttpAnswer, succeeded
from wsm.http.commands import Commands, Origin
from wsm.http.events import events
from wsm.http.surface import SurfaceRoute
from wsm.metrics import Exporter
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, Tag

#: The surface that the native API's own holds belong to.
NATIVE: Final = "native"

#: Who may ask for what is written here, and how it is read from JSON.
_Field = Callable[[object], object]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it must be text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("it must be true or false")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise TypeError("it must be a number of seconds, 0 or more")
    return float(value)


def _version(value: object) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError("it must be a label: text, or a whole number")
    return value


def _tags(value: object) -> frozenset[Tag]:
    if not isinstance(value, list):
        raise TypeError("it must be a list of names")
    return checked_tags([Tag(each) for each in value])


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("it must be an object")
    return value


def _choice(kind: type[enum.Enum]) -> _Field:
    def read(value: object) -> enum.Enum:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"it must be one of {', '.join(str(each.value) for each in kind)}") from None

    return read


_in_flight: Final = _choice(InFlightPolicy)
_kv_policy: Final = _choice(KVPolicy)

_TIMES: Final[Mapping[str, _Field]] = {"deadline_s": _seconds, "settle_s": _seconds, "wait_s": _seconds}
_CLEAR: Final[Mapping[str, _Field]] = {
    **_TIMES,
    "tags": _tags,
    "in_flight": _in_flight,
    "kv_policy": _kv_policy,
    "hold": _text,
}
_UPDATE: Final[Mapping[str, _Field]] = {
    **_CLEAR,
    "version": _version,
    "hot": _flag,
    "hot_fallback": _text,
    "force": _flag,
    "partial": _flag,
    "transfer_mode": _text,
    "unknown_tensors": _text,
    "verify_checksum": _flag,
    "rsync_config": _object,
    "after": _text,
}
#: What the body of each command may hold.
FIELDS: Final[Mapping[str, Mapping[str, _Field]]] = {
    "clear": _CLEAR,
    "update": _UPDATE,
    "hold": {
        **_TIMES,
        "in_flight": _in_flight,
        "kv_policy": _kv_policy,
        "lease_s": _seconds,
        "on_lease": _text,
    },
    "release": {**_TIMES, "hold": _text, "force": _flag},
    "prepare": {**_UPDATE, "lease_s": _seconds},
    "commit": {"request_id": _text, "settle_s": _seconds, "wait_s": _seconds},
    "abort": {"request_id": _text, "settle_s": _seconds, "wait_s": _seconds},
}


def fields_of(operation: str, content: object) -> dict[str, Any]:
    """Return the keywords that the body of a command gives.

    Raises
    ------
    BadInputError
        If it is no object, has a field that the command does not take, or a value that the field does not
        (code ``bad-body``).
    """
    known = FIELDS[operation]
    if not isinstance(content, dict):
        raise errors.bad_body(field="body", problem="it must be a JSON object")
    read: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise errors.bad_body(field=str(name), problem=f"{operation} takes {', '.join(sorted(known))}")
        if value is not None:
            try:
                read[name] = known[name](value)
            except (TypeError, ValueError) as error:
                raise errors.bad_body(field=str(name), problem=str(error)) from None
    return read


def origin_of(request: Request, surface: str) -> Origin:
    """Return where the command of a request comes from: its ``Idempotency-Key`` is the request id."""
    return Origin(surface, request.headers.get("idempotency-key"), request.headers.get("traceparent"))


async def body_of(request: Request) -> object:
    """Return the JSON of a request's body; of an empty one, an empty object.

    Raises
    ------
    BadInputError
        If it is no JSON (code ``bad-body``).
    """
    body = await request.body()
    if not body.strip():
        return {}
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise errors.bad_body(field="body", problem=f"it is no JSON: {error}") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def _command(operation: str) -> Callable[[Request, Commands], Any]:
    async def command(request: Request, commands: Commands) -> HttpAnswer:
        asked = fields_of(operation, await body_of(request))
        origin = origin_of(request, NATIVE)
        if operation == "release":
            asked["explicit"] = asked.get("force", False)
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

#: Seconds in which a command that ends is answered with its receipt, even to who would not wait.
_AT_ONCE_S: Final = 0.1


async def status(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer what ``wsm status --json`` prints, and whether a hold is closed."""
    closed = await commands.closed()
    now = await commands.status()
    said = (
        None if closed is None else {"surface": closed.surface, "verb": closed.verb, "reason": closed.reason}
    )
    return HttpAnswer(200, {**now.to_mapping(), "closed": said})


async def explanation(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer what ``wsm explain --json`` prints."""
    return HttpAnswer(200, (await commands.explain()).to_mapping())


async def ready(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer 200 if the group serves, else 503."""
    now = await commands.status()
    return HttpAnswer(200 if now.serving else 503, {"serving": now.serving, "headline": now.headline})


async def metrics(request: Request, commands: Commands) -> Response:
    """Answer a scrape of Prometheus."""
    kept = request.app.state
    if getattr(kept, "exporter", None) is None:  # one for the app: it goes on where it was
        kept.exporter = Exporter(commands.name, directory=commands.directory)
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
    dead = [rank.rank for rank in now.ranks if rank.life == "dead"]
    fit = not dead and now.state not in ("MIXED", "FAULTED")
    return HttpAnswer(200 if fit else 503, {"status": "ok" if fit else "unfit", "headline": now.headline})


async def described(_request: Request, _commands: Commands) -> HttpAnswer:
    """Answer this API as an OpenAPI document."""
    return HttpAnswer(200, openapi.document(ROUTES, FIELDS, SCHEMAS))


_SECONDS_SCHEMA: Final = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e9}

#: The JSON schema of what each reader of a field takes.
SCHEMAS: Final[Mapping[_Field, Mapping[str, Any]]] = {
    _text: {"type": "string"},
    _flag: {"type": "boolean"},
    _seconds: _SECONDS_SCHEMA,
    _version: {"type": ["string", "integer"]},
    _tags: {"type": "array", "items": {"enum": [each.value for each in Tag]}},
    _object: {"type": "object"},
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
