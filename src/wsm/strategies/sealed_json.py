"""A JSON document that carries the digest of its own content.

Canonical form: keys sorted, no blanks, ASCII, so that equal content has equal bytes and one digest.
Knows nothing about what the document describes; :mod:`wsm.strategies.manifest` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wsm.strategies import strict_json
from wsm.strategies.digest import digest_of
from wsm.strategies.errors import ManifestError


def content_digest(fields: Mapping[str, Any]) -> str:
    """Return the digest of the canonical form of `fields`, a ``digest`` among them left out."""
    return digest_of(_canonical({key: value for key, value in fields.items() if key != "digest"}))


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return the canonical document of `fields` with its ``digest`` added."""
    return _canonical({**fields, "digest": content_digest(fields)}) + b"\n"


def unseal(data: bytes, *, file: str, form: str, layout: int) -> dict[str, Any]:
    """Parse a sealed document and check its seal.

    Parameters
    ----------
    data : bytes
        The whole file.
    file : str
        Its name, for messages.
    form, layout : str, int
        What its fields ``format`` and ``layout`` must hold.

    Raises
    ------
    ManifestError
        If it is no such document, or its digest does not match its content.
    """
    try:
        fields = strict_json.parse(data)
    except strict_json.StrictJsonError as error:
        raise ManifestError(file=file, problem=str(error)) from error
    if not isinstance(fields, dict):
        raise ManifestError(file=file, problem="it is not a JSON object")
    if fields.get("format") != form:
        raise ManifestError(file=file, problem=f"its format is not {form!r}")
    if fields.get("layout") != layout:
        raise ManifestError(file=file, problem=f"its layout is not {layout}, the one this wsm reads")
    try:
        digest = content_digest(fields)
    except RecursionError as error:  # the writer's limit is lower than the parser's on some builds
        raise ManifestError(file=file, problem="it is nested too deeply") from error
    if fields.get("digest") != digest:
        raise ManifestError(
            file=file, problem="its digest does not match its content, it was damaged or edited"
        )
    return fields


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
