"""A JSON document that carries the digest of its own content.

Canonical form: keys sorted, no blanks, ASCII, so that equal content has equal bytes and one digest.
Knows nothing about what the document describes; :mod:`wsm.strategies.snapshot.manifest` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wsm.strategies.digest import digest_of, running_digest
from wsm.strategies.documents import strict_json
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
    if type(fields.get("layout")) is not int or fields["layout"] != layout:  # JSON's true equals 1
        raise ManifestError(file=file, problem=f"its layout is not {layout}, the one this wsm reads")
    if not _is_sealed(data, fields.get("digest")):
        raise ManifestError(
            file=file, problem="its digest does not match its content, it was damaged or edited"
        )
    return fields


def _is_sealed(data: bytes, digest: object) -> bool:
    """Whether the bytes without their ``digest`` have that digest: as good as canonicalising them anew.

    A document that is not in canonical form has another digest than its canonical form, and so is refused.
    """
    if not isinstance(digest, str):
        return False
    mark = b'"digest":' + json.dumps(digest).encode("ascii")
    before, found, after = data.partition(mark)
    if not found or not data.endswith(b"\n"):
        return False
    # The comma behind the field goes with it, or else the one before it.
    if after.startswith(b","):
        after = after[1:]
    elif before.endswith(b","):
        before = before[:-1]
    running = running_digest()
    running.update(before)
    running.update(memoryview(after)[:-1])
    return running.hexdigest() == digest


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
