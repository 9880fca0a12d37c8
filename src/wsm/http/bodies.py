"""Bodies of requests: one JSON object each, read into a struct of its verb, and refused by field. Pure.

Every front reads its bodies here. What another reader of the same bytes could take for something else (a name
that stands there twice, a number that is none) is refused, too.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, structs
from starlette.datastructures import QueryParams

from wsm.http import errors
from wsm.payload import PayloadError, json_value
from wsm.typed import resolved

_Body = TypeVar("_Body", bound=msgspec.Struct)

Text: TypeAlias = Annotated[str, Meta(min_length=1, pattern=r"^[^\x00\ud800-\udfff]+$")]

#: Texts, of which one may stand alone.
Texts: TypeAlias = list[str] | str

#: The label of a version, which some trainers write as a number.
Label: TypeAlias = Text | int

#: Bytes of the longest body of a verb, and of a request for text, which may be a batch.
MOST_BYTES: Final = 1 << 20
MOST_TEXT_BYTES: Final = 16 << 20

#: Objects and lists within each other, and the integers that every store and operating system has room for.
_DEEPEST: Final = 64
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 64) - 1

_PLACE: Final = re.compile(r"^(.*?)(?: - at `\$\.?([^`\[]*)[^`]*`)?$", re.DOTALL)
_FIELD: Final = re.compile(r"field `([^`]*)`")


def object_of(body: bytes, *, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the JSON object of a body; of an empty one, or null, an empty one.

    Raises
    ------
    BadInputError
        If it is no JSON object (code ``bad-body``).
    RefusedError
        If it is longer than `most` (code ``body-too-large``): to read it would keep others waiting.
    """
    if len(body) > most:
        raise errors.body_too_large(limit=most)
    if not body.strip():
        return {}
    try:
        value = json_value(body)
        _require_bounded(value)
    except PayloadError as error:
        raise errors.bad_body(field="body", problem=f"it is no JSON ({error})") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.bad_body(field="body", problem=f"it is {type(value).__name__}, and must be an object")
    return value


def _require_bounded(value: object) -> None:
    level = [value]
    for _ in range(_DEEPEST + 1):
        if any(type(each) is int and not _LEAST_INTEGER <= each <= _MOST_INTEGER for each in level):
            raise PayloadError("a whole number is too large")
        level = [
            within
            for each in level
            if isinstance(each, dict | list)
            for within in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise PayloadError(f"objects and lists stand within each other deeper than {_DEEPEST}")


def as_struct(said: Mapping[str, Any], kind: type[_Body], *, strict: bool = True) -> _Body:
    """Return a JSON object as a struct; not `strict`, a text may stand for what it says, as in a query.

    Raises
    ------
    BadInputError
        If a field is missing, is something else, or is not known to a struct that forbids others, by its
        name (code ``bad-body``).
    """
    try:
        return msgspec.convert(said, resolved(kind), strict=strict)
    except (msgspec.ValidationError, UnicodeError) as error:  # a lone surrogate is no text
        problem, place = _PLACE.fullmatch(str(error)).groups()  # type: ignore[union-attr] # it matches any text
        named = _FIELD.search(problem)
        field = ".".join(filter(None, (place, named and named[1]))) or "body"
        if named and kind.__struct_config__.forbid_unknown_fields:
            problem = f"{problem}; it takes {', '.join(sorted(kind.__struct_fields__))}"
        elif choices := _choices(kind, field):
            problem = f"{problem}; it must be one of {', '.join(choices)}"
        raise errors.bad_body(field=field, problem=problem) from None


def _choices(kind: type[msgspec.Struct], field: str) -> list[str]:
    """Return what a field of an enumeration may say; of any other field nothing."""
    said = get_type_hints(kind).get(field)
    kinds: list[Any] = [said, *get_args(said)]
    members: list[Any] = []
    for each in kinds:
        if isinstance(each, enum.EnumMeta):
            members += (str(one.value) for one in list[enum.Enum](each))
        elif get_origin(each) is Literal:
            members += get_args(each)
    return [str(each) for each in members]


def query_of(said: QueryParams, kind: type[_Body]) -> _Body:
    """Return a query as a struct, in which a field that is no list has what is said last; raises as above."""
    lists = {each.name for each in structs.fields(kind) if get_origin(each.type) is list}
    given = {name: said.getlist(name) if name in lists else said[name] for name in said}
    return as_struct(given, kind, strict=False)


def without_nulls(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without the fields that are null, in the objects within it too."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in said.items()
        if value is not None
    }


def label_of(said: str | int | None) -> str | None:
    """Return a label as text; None: none is said."""
    return None if said is None else str(said)


def texts_of(said: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return a list of texts, of which one may stand alone; None: none is said."""
    return (said,) if isinstance(said, str) else None if said is None else tuple(said)
