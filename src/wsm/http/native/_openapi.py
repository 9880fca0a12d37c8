"""The native API as an OpenAPI document, made of its routes and of the structs that they take. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from wsm import __version__
from wsm.http.native.schema import ANSWERS, BODIES, FailureAnswer
from wsm.http.surface import SurfaceRoute

_HEADERS: Final = ("Idempotency-Key", "Prefer", "traceparent", "X-Wsm-Group")

_FAILURES: Final = {
    401: "no token, or a wrong one",
    403: "not allowed",
    421: "a Host that is not declared, or another group",
    431: "too many headers",
    500: "a rank or an action failed",
    503: "busy or recovering; ask again after Retry-After seconds",
}
_FAILURES_OF_COMMANDS: Final = {
    400: "the body is not what the route takes",
    408: "the body did not arrive",
    409: "refused as the group is now; nothing was changed",
    413: "the body is too large",
    422: "the weights are missing, corrupt or do not fit; the same again answers the same",
    504: "a deadline passed",
}


def document(routes: Iterable[SurfaceRoute]) -> dict[str, Any]:
    """Return the document of what there is."""
    kinds = [*BODIES.values(), FailureAnswer]
    kinds += [kind for answers in ANSWERS.values() for kind in answers.values() if not isinstance(kind, str)]
    place = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(kinds, ref_template=place)
    schema_of = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path, name = re.sub(r":path}", "}", route.path), route.path.split("/")[3]
        answers = ANSWERS[name]
        said: dict[str, Any] = {
            "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}_{path}").strip("_"),
            "summary": (route.handler.__doc__ or f"{name} the group").strip().splitlines()[0],
            "parameters": [_parameter(each, "path", required=True) for each in re.findall(r"{(\w+)}", path)],
            "responses": {
                str(status): _answer("done" if status < 300 else "not now", kind, schema_of)
                for status, kind in answers.items()
            },
        }
        failures = dict(_FAILURES)
        if "{" in path:
            failures[404] = "not known"
        if name in BODIES:
            failures.update(_FAILURES_OF_COMMANDS)
            said["requestBody"] = {"content": _json(schema_of[repr(BODIES[name])])}
            said["parameters"] = [_parameter(each, "header") for each in _HEADERS]
            said["responses"]["202"]["description"] = "Prefer: respond-async; Location has the request"
        for status, text in failures.items():
            said["responses"].setdefault(str(status), _answer(text, FailureAnswer, schema_of))
        paths.setdefault(path, {})[route.method.lower()] = said
    found = {
        "openapi": "3.1.0",
        "info": {"title": "wsm", "version": __version__, "description": "Commands one group."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }
    _say_what_is_free(found)
    return found


def _answer(text: str, kind: Any, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    content = (
        {kind: {"schema": {"type": "string"}}} if isinstance(kind, str) else _json(schema_of[repr(kind)])
    )
    return {"description": text, "content": content}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _parameter(name: str, place: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": {"type": "string"}}


def _say_what_is_free(said: Any) -> None:
    """Let an object of any fields say so: what actions declare, and what errors carry."""
    for each in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        _say_what_is_free(each)
    if isinstance(said, dict) and said.get("type") == "object" and "properties" not in said:
        said.setdefault("additionalProperties", True)
