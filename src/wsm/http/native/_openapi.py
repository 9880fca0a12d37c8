"""The native API as an OpenAPI document, made of the table of its routes and fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wsm import __version__
from wsm.http.surface import SurfaceRoute

_FAILURE: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "request_id": {"type": ["string", "null"]},
        "error": {
            "type": "object",
            "required": ["type", "code", "message", "retryable", "context"],
            "properties": {
                "type": {"type": "string", "description": "the public type, as docs/errors.md lists it"},
                "code": {"type": "string"},
                "message": {"type": "string"},
                "retryable": {"type": "boolean"},
                "context": {"type": "object"},
            },
        },
    },
}

_HEADERS: Final = ("Idempotency-Key", "Prefer", "traceparent", "X-Wsm-Group")

_FAILURES: Final = {
    "400": "the body is not what the route takes",
    "401": "no token, or a wrong one",
    "403": "not allowed",
    "404": "not known",
    "409": "refused as the group is now; nothing was changed",
    "413": "the body is too large",
    "422": "the weights are missing, corrupt or do not fit; the same again answers the same",
    "500": "a rank or an action failed",
    "503": "busy or recovering; ask again after Retry-After seconds",
    "504": "a deadline passed",
}


def document(
    routes: Iterable[SurfaceRoute],
    fields: Mapping[str, Mapping[str, Callable[[object], object]]],
    schemas: Mapping[Callable[[object], object], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the document.

    Parameters
    ----------
    routes : iterable of SurfaceRoute
        What there is.
    fields : mapping
        What the body of each command may hold, by the last part of its path, with what reads it.
    schemas : mapping
        The JSON schema of each reader.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r":path}", "}", route.path)
        name = path.rsplit("/", 1)[-1]
        said: dict[str, Any] = {
            "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}_{path}").strip("_"),
            "summary": (route.handler.__doc__ or f"{name} the group").strip().splitlines()[0],
            "responses": {
                "200": {
                    "description": "done",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
                **{code: _failure(text) for code, text in _FAILURES.items()},
            },
        }
        if "{" in path:
            known = re.findall(r"{(\w+)}", path)
            said["parameters"] = [_parameter(each, "path", required=True) for each in known]
        if route.method == "POST" and name in fields:
            known_fields = {each: dict(schemas[read]) for each, read in fields[name].items()}
            schema = {"type": "object", "additionalProperties": False, "properties": known_fields}
            said["requestBody"] = {"content": {"application/json": {"schema": schema}}}
            said["parameters"] = [_parameter(each, "header") for each in _HEADERS]
            said["responses"]["202"] = {"description": "Prefer: respond-async; Location has the request"}
        paths.setdefault(path, {})[route.method.lower()] = said
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wsm",
            "version": __version__,
            "description": "Commands one group.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Failure": _FAILURE},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _failure(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Failure"}
    return {"description": text, "content": _json(schema)}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _parameter(name: str, place: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": {"type": "string"}}
