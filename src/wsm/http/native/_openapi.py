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
    named = re.findall(r"{(\w+)}", path)
    parameters = [_parameter(each, "path", {"type": "string"}) for each in named]
    if not route.reads:
        parameters += [_parameter(each, "header", {"type": "string"}) for each in _HEADERS]
    if route.query is not None:
        fields = structs.fields(route.query)
        parameters += [_parameter(each.name, "query", msgspec.json.schema(each.type)) for each in fields]
    # What is refused before a surface is asked has no shape of its own.
    failures = list(dict.fromkeys((route.failure, FailureAnswer)))
    kinds = {
        str(status): [kind, *(failures if status >= 400 else ())] for status, kind in route.answers.items()
    }
    says = {"default": "refused, or failed: docs/http.md has the statuses", "202": "Location has the request"}
    responses = {
        status: {
            "description": says.get(status, "done" if status < "3" else "not now"),
            "content": _content(several, schemas),
        }
        for status, several in {**kinds, "default": failures}.items()
    }
    said: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}_{path}").strip("_"),
        "summary": (route.handler.__doc__ or path).strip().splitlines()[0],
        "parameters": parameters,
        "responses": responses,
    }
    if route.body is not None:
        said["requestBody"] = {"content": _content([route.body], schemas)}
    return said


def _content(kinds: list[Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a body of one of these kinds is."""
    found: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in kinds if isinstance(kind, str)}
    known = [schemas[repr(kind)] for kind in kinds if not (kind is None or isinstance(kind, str))]
    if known:
        found["application/json"] = {"schema": known[0] if len(known) == 1 else {"anyOf": known}}
    return found


def _parameter(name: str, place: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _say_what_is_free(said: Any) -> None:
    """Let an object of any fields say so: what actions declare, and what errors carry."""
    for each in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        _say_what_is_free(each)
    if isinstance(said, dict) and said.get("type") == "object" and "properties" not in said:
        said.setdefault("additionalProperties", True)
