"""The native API, ``/wsm/v1``: its routes, each with what it takes, and how a body becomes a command."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request

from wsm.command import checked_tags
from wsm.http import errors
from wsm.http.answers import HttpAnswer, succeeded
from wsm.http.commands import Commands, Origin
from wsm.http.surface import SurfaceRoute
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


_TIMES: Final[Mapping[str, _Field]] = {"deadline_s": _seconds, "settle_s": _seconds, "wait_s": _seconds}
_CLEAR: Final[Mapping[str, _Field]] = {
    **_TIMES,
    "tags": _tags,
    "in_flight": _choice(InFlightPolicy),
    "kv_policy": _choice(KVPolicy),
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
        "in_flight": _choice(InFlightPolicy),
        "kv_policy": _choice(KVPolicy),
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
        return succeeded(await getattr(commands, operation)(origin, **asked))

    return command


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


ROUTES: Final = (
    SurfaceRoute("GET", "/wsm/v1/status", status, reads=True),
    SurfaceRoute("GET", "/wsm/v1/explain", explanation, reads=True),
    SurfaceRoute("GET", "/wsm/v1/ready", ready, reads=True),
    SurfaceRoute("GET", "/wsm/v1/commands/{request_id:path}", kept_request, reads=True),
    *(SurfaceRoute("POST", f"/wsm/v1/{operation}", _command(operation)) for operation in FIELDS),
)
