"""Small JSON documents that prove themselves: manifests, metas, lists of a transport.

First JSON from files that are not trusted: one meaning or an error. Python's parser takes the last of
duplicated keys, ``NaN``, and lone surrogates that no log can carry; :func:`parse` refuses them. Then a text
that carries the digest of its own content, in canonical form: keys sorted, no blanks, ASCII, so that equal
content has equal bytes and one digest. What a document describes is not known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from wsm.strategies.digest import DIGEST_LENGTH, digest_of, running_digest
from wsm.strategies.errors import ManifestError


class StrictJsonError(ValueError):
    """The bytes are no JSON document with a single meaning; the text says why."""


def parse(data: bytes) -> Any:
    """Parse a UTF-8 JSON document.

    Raises
    ------
    StrictJsonError
        If it is no JSON, repeats a key, holds NaN, an infinity or a lone surrogate, or is nested too deeply.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"it is not UTF-8 at byte {error.start}") from error
    try:
        if _SURROGATE.search(text):  # of which Python's parser takes halves
            msgspec.json.decode(data)
        return _DECODER.decode(text)
    except StrictJsonError:
        raise
    except RecursionError as error:
        raise StrictJsonError("it is nested too deeply") from error
    except ValueError as error:  # of either parser, and integers beyond Python's digit limit
        raise StrictJsonError(f"it is not JSON ({error})") from error


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def is_count(value: object) -> bool:
    """Whether `value` is a non-negative integer; JSON's true and false are none."""
    return type(value) is int and value >= 0


def is_text(value: object) -> bool:
    """Whether `value` is a string that can be written out again (no lone surrogates)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # set.add returns None by design
        raise StrictJsonError(f"the key {twice!r} occurs twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise StrictJsonError(f"it holds {name}, which is not JSON")


# Made once: with hooks, json.loads makes one per call, which takes longer than to parse a short message.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


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
        fields = parse(data)
    except StrictJsonError as error:
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


_HEXADECIMAL = re.compile("[0-9a-f]*")


def are_digests(values: Collection[Any]) -> bool:
    """Whether all of many values are digests; all at once, because there are as many as tensors."""
    return (
        not set(map(type, values)) - {str}
        and not set(map(len, values)) - {DIGEST_LENGTH}
        and _HEXADECIMAL.fullmatch("".join(values)) is not None
    )
