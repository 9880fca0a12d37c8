"""The native API, ``/wsm/v1``: its routes, each with what it takes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from msgspec import structs
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from wsm.http.answers import HttpAnswer, succeeded, untold
from wsm.http.bodies import as_struct, label_of, object_of
from wsm.http.commands import Commands, Origin
from wsm.http.native._events import events
from wsm.http.native._openapi import document
from wsm.http.native.schema import (
    BODIES,
    BegunAnswer,
    ClosedAnswer,
    ExplanationAnswer,
    FleetAnswer,
    HealthAnswer,
    ReadyAnswer,
    ReceiptAnswer,
    RequestAnswer,
    StatusAnswer,
)
from wsm.http.surface import SurfaceRoute
from wsm.metrics import Exporter
from wsm.receipt import Receipt
from wsm.states.fleet import drains
from wsm.status import GroupStatus

#: The surface that the native API's own holds belong to.
NATIVE: Final = "native"

#: Seconds in which a command that ends is answered with its receipt, even to a caller that would not wait.
_AT_ONCE_S: Final = 0.1


def _command(operation: str) -> Callable[[Request, Commands], Any]:
    async def command(request: Request, commands: Commands) -> HttpAnswer:
        asked = as_struct(object_of(await request.body()), BODIES[operation]).keywords()
        name, trace = map(request.headers.get, ("idempotency-key", "traceparent"))
        origin = Origin(asked.pop("surface", NATIVE), name, trace)
        if operation in ("commit", "abort"):
            asked["prepared"] = asked.pop("request_id", None)
        warning: str | None = None
        directory = asked.pop("directory", None)
        if directory is not None:
            label = label_of(asked.pop("version", None))
            adopted = await commands.take_in(request.app.state.adopt, directory, label)
            asked["version"], asked["source"], warning = adopted
        if "respond-async" in request.headers.get("prefer", ""):
            return await _begun(commands, operation, origin, asked)
        receipt: Receipt = await getattr(commands, operation)(origin, **asked)
        said = [each for each in (receipt.warning, warning) if each is not None]
        return succeeded(structs.replace(receipt, warning="; ".join(said) or None))

    command.__doc__ = f"""Ask the group to {operation}; the answer is the receipt."""
    return command


async def _begun(commands: Commands, operation: str, origin: Origin, asked: Mapping[str, Any]) -> HttpAnswer:
    """Answer 202 with the place of a command that goes on; what is over at once is answered as ever."""
    named = replace(origin, request_id=origin.request_id or uuid.uuid4().hex)
    asking = getattr(commands, operation)(named, **asked)
    try:
        return succeeded(await asyncio.wait_for(asking, _AT_ONCE_S))  # which ends the wait, and no command
    except asyncio.TimeoutError:
        where = f"/wsm/v1/commands/{quote(str(named.request_id), safe='')}"
        headers = {"Location": where, "Preference-Applied": "respond-async"}
        return HttpAnswer(202, BegunAnswer(str(named.request_id), where), headers)


async def status(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer what ``wsm status --json`` prints, and whether a hold is closed."""
    _, closed = await commands.hold_now()
    now = await commands.status()
    said = closed and ClosedAnswer(closed.surface, closed.verb, closed.reason, closed.by.value)
    return HttpAnswer(200, {**now.to_mapping(), "closed": said, "fleet": await _standing(commands, now)})


async def _standing(commands: Commands, now: GroupStatus) -> FleetAnswer | None:
    """Return what the group counts as in its fleet, by the target as it is now; None: it is of none."""
    fleet, digest = commands.fleet, now.manifest_digest
    step = None if now.decision_left_s is None else now.request_id
    if fleet is None:
        return None
    return await commands.read(lambda: fleet.standing(digest, serving=now.serving, step=step))


async def explanation(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer what ``wsm explain --json`` prints, without the tracebacks, which stay on the host."""
    return HttpAnswer(200, untold((await commands.explain()).to_mapping()))


async def ready(_request: Request, commands: Commands) -> HttpAnswer:
    """Answer 200 if the group serves and lets new requests in, else 503."""
    now = await commands.status()
    fleet = await _standing(commands, now)
    serving, headline = now.serving and not drains(now.operation, over=now.over), now.headline
    if fleet is not None and not fleet.admits:
        serving, headline = False, f"{headline}; its fleet's target {fleet.generation} does not allow that"
    return HttpAnswer(200 if serving else 503, ReadyAnswer(serving, headline))


async def metrics(request: Request, commands: Commands) -> Response:
    """Answer a scrape of Prometheus."""
    kept = request.app.state
    if getattr(kept, "exporter", None) is None:  # one for the app: it goes on where it was
        kept.exporter = Exporter(commands.name, directory=commands.directory, server=commands.counts)
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
    return HttpAnswer(200 if fit else 503, HealthAnswer("ok" if fit else "unfit", now.headline))


async def described(request: Request, _commands: Commands) -> HttpAnswer:
    """Answer all that this server has, trainers' verbs too, as an OpenAPI document."""
    kept = request.app.state
    if getattr(kept, "document", None) is None:  # which takes longer than any other answer
        kept.document = await run_in_threadpool(document, kept.offered)
    return HttpAnswer(200, kept.document)


_STREAM: Final = {200: "text/event-stream"}
_SCRAPE: Final = {200: "text/plain"}
_DONE: Final = {200: ReceiptAnswer, 202: BegunAnswer}

ROUTES: Final[tuple[SurfaceRoute, ...]] = (
    SurfaceRoute("GET", "/wsm/v1/events", events, True, _STREAM),
    SurfaceRoute("GET", "/wsm/v1/openapi.json", described, True, {200: dict[str, Any]}),
    SurfaceRoute("GET", "/wsm/v1/status", status, True, {200: StatusAnswer}),
    SurfaceRoute("GET", "/wsm/v1/explain", explanation, True, {200: ExplanationAnswer}),
    SurfaceRoute("GET", "/wsm/v1/ready", ready, True, dict.fromkeys((200, 503), ReadyAnswer)),
    SurfaceRoute("GET", "/wsm/v1/metrics", metrics, True, _SCRAPE),
    SurfaceRoute("GET", "/wsm/v1/commands/{request_id:path}", kept_request, True, {200: RequestAnswer}),
    *(
        SurfaceRoute("POST", f"/wsm/v1/{name}", _command(name), False, _DONE, body)
        for name, body in BODIES.items()
    ),
)

#: What a server answers where neither its primary surface nor an engine does.
HEALTH: Final = SurfaceRoute("GET", "/health", health, True, dict.fromkeys((200, 503), HealthAnswer))
METRICS: Final = SurfaceRoute("GET", "/metrics", metrics, True, _SCRAPE)
