"""Bodies and queries that other projects have shaped: read field by field, and refused by field. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, final

from wsm.http import errors
from wsm.states.vocabulary import ALL_TAGS, Tag

#: What trainers call the two halves; what lives and dies with either has no tag of its own here.
_TAGS: Mapping[str, frozenset[Tag]] = {
    "weight": frozenset({Tag.WEIGHTS}),
    "weights": frozenset({Tag.WEIGHTS}),
    "kv_cache": frozenset({Tag.KV_CACHE}),
    "cuda_graph": frozenset(),
}


@final
class Fields:
    """The fields of a request, by name. What is missing, or of another type, is refused by its name.

    Fields that no verb here knows are no fault: trainers of other releases send more.

    Parameters
    ----------
    body : mapping
        A JSON object.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    @classmethod
    def of(cls, body: bytes) -> Fields:
        """Return the fields of a body; of an empty one none.

        Raises
        ------
        BadInputError
            If it is no JSON object (code ``bad-body``).
        """
        if not body.strip():
            return cls({})
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise errors.bad_body(field="body", problem=f"it is no JSON ({error})") from error
        if value is None:
            return cls({})
        if not isinstance(value, dict):
            raise errors.bad_body(
                field="body", problem=f"it is {type(value).__name__}, and must be a JSON object"
            )
        return cls(value)

    def __contains__(self, name: str) -> bool:
        return self._body.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of all fields that have a value."""
        return tuple(sorted(name for name, value in self._body.items() if value is not None))

    def text(self, name: str) -> str | None:
        """Return a text; None where it is missing.

        Raises
        ------
        BadInputError
            If it is something else, empty, or has a zero byte.
        """
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value or "\0" in value:
            raise errors.bad_body(
                field=name, problem=f"it must be a text that is not empty, and is {value!r}"
            )
        return value

    def required_text(self, name: str) -> str:
        """Return a text that must be there.

        Raises
        ------
        BadInputError
            If it is not, or is no text.
        """
        value = self.text(name)
        if value is None:
            raise errors.bad_body(field=name, problem="it is missing")
        return value

    def label(self, name: str) -> str | None:
        """Return the label of a version, which some trainers send as a number; None where it is missing.

        Raises
        ------
        BadInputError
            If it is neither a text nor a whole number.
        """
        value = self._body.get(name)
        return str(value) if type(value) is int else self.text(name)

    def required_label(self, name: str) -> str:
        """Return the label of a version that must be there.

        Raises
        ------
        BadInputError
            If it is not, or is neither a text nor a whole number.
        """
        value = self.label(name)
        return self.required_text(name) if value is None else value

    def number(self, name: str) -> int:
        """Return a whole number, not negative, that must be there.

        Raises
        ------
        BadInputError
            If it is missing or something else.
        """
        value = self._body.get(name)
        if type(value) is not int or value < 0:
            raise errors.bad_body(field=name, problem=f"it must be a whole number, and is {value!r}")
        return value

    def flag(self, name: str, *, otherwise: bool) -> bool:
        """Return a truth value, or `otherwise` where it is missing.

        Raises
        ------
        BadInputError
            If it is something else.
        """
        value = self._body.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise errors.bad_body(field=name, problem=f"it must be true or false, and is {value!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return a list of texts, of which one may stand alone; None where it is missing.

        Raises
        ------
        BadInputError
            If it is something else.
        """
        value = self._body.get(name)
        if value is None:
            return None
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise errors.bad_body(field=name, problem=f"it must be a list of texts, and is {value!r}")
        return tuple(values)

    def fields(self, name: str) -> Fields | None:
        """Return the fields of an object in it; None where it is missing.

        Raises
        ------
        BadInputError
            If it is something else.
        """
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise errors.bad_body(field=name, problem=f"it must be a JSON object, and is {value!r}")
        return Fields(value)

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return an object in it as it is; None where it is missing.

        Raises
        ------
        BadInputError
            If it is something else.
        """
        found = self.fields(name)
        return None if found is None else dict(found._body)


def tags_of(words: Iterable[str] | None) -> frozenset[Tag]:
    """Return the tags that a trainer names, one by one or joined by commas; None, or none at all: both.

    ``cuda_graph`` alone names nothing: captured graphs go and come with weights and KV cache.

    Raises
    ------
    BadInputError
        If a word names no half of a group.
    """
    named = [word.strip() for each in words or () for word in each.split(",") if word.strip()]
    for word in named:
        if word not in _TAGS:
            raise errors.bad_body(
                field="tags", problem=f"{word!r} is no tag; tags are {', '.join(sorted(_TAGS))}"
            )
    return frozenset().union(*(_TAGS[word] for word in named)) if named else ALL_TAGS


def query_flag(value: str | None, name: str, *, otherwise: bool) -> bool:
    """Return what a query says of a truth value, or `otherwise` where it says nothing.

    Raises
    ------
    BadInputError
        If it says neither true nor false.
    """
    if value is None:
        return otherwise
    if value.lower() in ("true", "1", "yes", "on"):
        return True
    if value.lower() in ("false", "0", "no", "off"):
        return False
    raise errors.bad_body(field=name, problem=f"it must be true or false, and is {value!r}")
