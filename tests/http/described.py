"""Holds what a server answers against the OpenAPI document that it gives of itself."""

from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema


def require_described(document: dict[str, Any], answer: httpx.Response) -> None:
    """Hold an answer against the document of its server; one of a path that is not there passes."""
    path, method = answer.request.url.path.rstrip("/"), answer.request.method.lower()
    found = [
        operations[method]
        for template, operations in document["paths"].items()
        if method in operations and re.fullmatch(re.sub(r"{\w+}", ".+", template), path)
    ]
    if not found:
        return
    told = found[0]["responses"]
    described = told.get(str(answer.status_code)) or told["default" if answer.is_error else "200"]
    if answer.content:
        kind = answer.headers["Content-Type"].partition(";")[0]
        assert kind in described["content"], f"{method} {path} answers {kind}, which its document lacks"
        if kind == "application/json":
            schema = {**described["content"][kind]["schema"], "components": document["components"]}
            jsonschema.Draft202012Validator(_closed(schema)).validate(answer.json())


def _closed(said: Any) -> Any:
    """Return a schema by which an object has the fields that are described, and no other."""
    if isinstance(said, list):
        return [_closed(each) for each in said]
    if not isinstance(said, dict):
        return said
    made = {name: _closed(each) for name, each in said.items()}
    return {"additionalProperties": False, **made} if isinstance(said.get("properties"), dict) else made
