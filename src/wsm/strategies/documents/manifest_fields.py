"""Typed reading of the JSON objects of manifests: what does not fit is an error that names file and field.

Knows no manifest: :mod:`wsm.strategies.snapshot.manifest` and its neighbours say which fields there are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from wsm.errors import BadInputError
from wsm.labels import recorded_version
from wsm.strategies.digest import DIGEST_LENGTH
from wsm.strategies.documents.strict_json import is_count, is_text
from wsm.strategies.errors import ManifestError
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec, is_shape

_HEXADECIMAL = re.compile("[0-9a-f]*")
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")
#: More than any tensor has.


def is_plain_file_name(value: str) -> bool:
    """Whether `value` names a file of a directory and leads nowhere else."""
    return value not in ("", ".", "..") and "/" not in value and "\0" not in value


def are_digests(values: Collection[Any]) -> bool:
    """Whether all of many values are digests; all at once, because there are as many as tensors."""
    return (
        not set(map(type, values)) - {str}
        and not set(map(len, values)) - {DIGEST_LENGTH}
        and _HEXADECIMAL.fullmatch("".join(values)) is not None
    )


class FieldReader:
    """One JSON object of a manifest; whatever does not fit is a ManifestError.

    Parameters
    ----------
    fields : Any
        The object, as parsed.
    file : str
        The manifest's name, for messages.
    """

    def __init__(self, fields: Any, file: str) -> None:
        if not isinstance(fields, dict):
            raise ManifestError(file=file, problem="it holds something else where an object should be")
        self._fields: dict[str, Any] = fields
        self._file = file

    @property
    def fields(self) -> Mapping[str, Any]:
        """All fields, as they stand there."""
        return self._fields

    def refuse(self, name: str, expected: str) -> ManifestError:
        """Return the error that says what `name` should be."""
        return ManifestError(file=self._file, problem=f"its field {name!r} is not {expected}")

    def count(self, name: str, limit: int = (1 << 63) - 1) -> int:
        """Return a non-negative integer up to `limit`."""
        value: Any = self._fields.get(name)
        if not is_count(value) or value > limit:
            raise self.refuse(name, f"an integer from 0 to {limit}")
        return int(value)

    def version(self, name: str = "version") -> str:
        """Return the label of a version; before versions were labels, a number stood there."""
        try:
            return recorded_version(self._fields.get(name))
        except BadInputError as error:
            raise self.refuse(name, "the label of a version") from error

    def text(self, name: str) -> str:
        """Return a string that can be written out again."""
        value = self._fields.get(name)
        if not is_text(value):
            raise self.refuse(name, "a string")
        return str(value)

    def digest(self, name: str) -> str:
        """Return a digest."""
        value = self.text(name)
        if not _DIGEST.fullmatch(value):
            raise self.refuse(name, "a digest")
        return value

    def digests(self, name: str) -> dict[str, str]:
        """Return an object of digests."""
        found = self.mapping(name)
        if not are_digests(found.values()):
            raise self.refuse(name, "an object of digests")
        return found

    def file_name(self, name: str) -> str:
        """Return a plain file name, which leads into no other directory."""
        value = self.text(name)
        if not is_plain_file_name(value):
            raise self.refuse(name, "a plain file name")
        return value

    def dtype(self, name: str) -> str:
        """Return a dtype that wsm moves."""
        value = self.text(name)
        if value not in ITEM_BYTES:
            raise self.refuse(name, "a dtype that wsm moves")
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the extents of a tensor."""
        extents = self.rows(name)
        if not is_shape(extents):
            raise self.refuse(name, "the shape of a tensor")
        return tuple(extents)

    def tensor(self) -> TensorSpec:
        """Return the tensor that the fields ``name``, ``dtype`` and ``shape`` describe."""
        dtype, shape = self.dtype("dtype"), self.shape("shape")
        return TensorSpec(self.text("name"), dtype, shape)

    def absent(self, name: str) -> bool:
        """Whether the field is not there, or null."""
        return self._fields.get(name) is None

    def promise(self, name: str) -> bool:
        """Return whether something is promised; a promise that is not made is not written."""
        if name in self._fields and self._fields[name] is not True:
            raise self.refuse(name, "true, or left out")
        return name in self._fields

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return value

    def within(self, name: str) -> FieldReader:
        """Return a reader of the object `name`."""
        return FieldReader(self.mapping(name), self._file)

    def objects(self, name: str) -> list[FieldReader]:
        """Return readers of a list of objects."""
        return [FieldReader(row, self._file) for row in self.rows(name)]

    def rows(self, name: str) -> list[Any]:
        """Return a list."""
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.refuse(name, "a list")
        return value
