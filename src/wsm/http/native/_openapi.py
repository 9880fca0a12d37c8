"""What a server answers as an OpenAPI document, made of its routes and of their structs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from wsm import __version__
from wsm.http.answers import FailureAnswer
from wsm.http.surface import SurfaceRoute

_HEADERS: Final = ("Idempotency-Key", "Prefer", "traceparent", "X-Wsm-Group")

_STATUSES: Final = {
    200: "done",
    202: "Prefer: respond-async; Location has the request",
    400: "the body, query or header is not what the route takes",
    401: "no token, or a wrong one",
    403: "not allowed",
    404: "not known",
    408: "the body did not arrive",
    409: "refused as the group is now; nothing was changed",
    413: "the body is too large",
    421: "a Host that is not declared, or another group",
    422: "the weights are missing, corrupt or do not fit; the same again answers the same",
    431: "too many headers",
    500: "a rank or an action failed",
    501: "cannot be promised; the body says what to use",
    502: "the upstream does not answer",
    503: "busy, recovering, or not now; ask again after Retry-After seconds",
    504: "a deadline passed",
}
#: What is refused before a surface is asked, in no shape of its own.
_BEFORE: Final = frozenset((400, 401, 403, 408, 413, 421, 431, 503))
#: What no GET of the native API answers.
_OF_COMMANDS: Final = frozenset((400, 404, 408, 409, 413, 422, 501, 502, 504))


def document(routes: Iterable[SurfaceRoute]) -> dict[str, Any]:
    """Return the document of what there is."""
    offered = list(routes)
    kinds = {
        repr(kind): kind
        for route in offered
        for kind in (FailureAnswer, route.body, route.query, route.failure, *route.answers.values())
        if not (kind is None or isinstance(kind, str))
    }
    place = "#/components/schemas/{name}"
    found, components = msgspec.json.schema_components(kinds.values(), ref_template=place)
    schemas = dict(zip(kinds, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in offered:
        path = route.path.replace(":path}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
    made = {
        "openapi": "3.1.0",
        "info": {"title": "wsm", "version": __version__, "description": "Commands one group."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }
    _say_what_is_free(made)
    return made


def _operation(route: SurfaceRoute, path: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    reads_alone = route.reads and path.startswith("/wsm/") and "{" not in path
    answers: dict[int, list[Any]] = {status: [kind] for status, kind in route.answers.items()}
    for status in _STATUSES.keys() - {200, 202} - (_OF_COMMANDS if reads_alone else frozenset()):
        refused = [FailureAnswer] if status in _BEFORE and route.failure is not FailureAnswer else []
        answers.setdefault(status, []).extend([route.failure, *refused])
    told = f"{route.method.lower()}_{path}"
    said: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", told).strip("_"),
        "summary": (route.handler.__doc__ or path).strip().splitlines()[0],
        "parameters": [_parameter(each, "path") for each in re.findall(r"{(\w+)}", path)],
        "responses": {
            str(status): {
                "description": _STATUSES.get(status, "not now"),
                "content": _content(answers[status], schemas),
            }
            for status in sorted(answers)
        },
    }
    if route.body is not None:
        said["requestBody"] = {"content": _content([route.body], schemas)}
    if not route.reads:
        said["parameters"] += [_parameter(each, "header") for each in _HEADERS]
    if route.query is not None:
        for each in structs.fields(route.query):
            said["parameters"].append(_parameter(each.name, "query", msgspec.json.schema(each.type)))
    return said


def _content(kinds: list[Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return what bodies of these kinds are; of several, any."""
    texts = {kind: {"schema": {"type": "string"}} for kind in kinds if isinstance(kind, str)}
    known = [schemas[repr(kind)] for kind in kinds if not (kind is None or isinstance(kind, str))]
    schema = {"anyOf": known} if len(known) > 1 else next(iter(known), None)
    return texts if schema is None else {**texts, "application/json": {"schema": schema}}


def _parameter(name: str, place: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    said = {"type": "string"} if schema is None else schema
    return {"name": name, "in": place, "required": place == "path", "schema": said}


def _say_what_is_free(said: Any) -> None:
    """Let an object of any fields say so: what actions declare, and what errors carry."""
    for each in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        _say_what_is_free(each)
    if isinstance(said, dict) and said.get("type") == "object" and "properties" not in said:
        said.setdefault("additionalProperties", True)
