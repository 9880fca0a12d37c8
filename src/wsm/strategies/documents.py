"""Small JSON documents that prove themselves: manifests, metas, lists of a transport.

First JSON from files that are not trusted: one meaning or an error. Python's parser takes the last of
duplicated keys, ``NaN``, and lone surrogates that no log can carry; :func:`parse` refuses them. Then a text
that carries the digest of its own content, in canonical form:
keys sorted, no blanks, ASCII, so that equal content has equal bytes and one digest. Then typed readers of
fields, whose errors name file and field. What a document describes is not known here.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from wsm.errors import BadInputError
from wsm.labels import recorded_version
from wsm.strategies.digest import DIGEST_LENGTH, digest_of, running_digest
from wsm.strategies.errors import ManifestError
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec, is_shape


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
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")


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


_ENVELOPE = frozenset({"format", "layout", "digest"})


class SealedDocument(abc.ABC):
    """A manifest, as the fields of its file. A class that derives from it says what they are.

    Attributes
    ----------
    FORMAT, LAYOUT : str, int
        What kind of document it is, and the number that grows when its fields change their meaning.
    FIELDS : set of str
        Every field that it may have, apart from format, layout and seal.
    """

    FORMAT: ClassVar[str]
    LAYOUT: ClassVar[int] = 1
    FIELDS: ClassVar[frozenset[str]]

    @abc.abstractmethod
    def _content(self) -> dict[str, Any]:
        """Return what stands in the file, apart from format, layout and seal."""

    @cached_property
    def digest(self) -> str:
        """Digest of the whole manifest."""
        return content_digest(self._fields())

    def encode(self) -> bytes:
        """Return the bytes of the manifest's file."""
        return seal(self._fields())

    @classmethod
    def _unsealed(cls, data: bytes, *, file: str) -> FieldReader:
        """Return a reader of a file's fields.

        Raises
        ------
        ManifestError
            If the file is no such document, its seal is broken, or it says something that is not known here:
            what is not understood is not half believed.
        """
        fields = unseal(data, file=file, form=cls.FORMAT, layout=cls.LAYOUT)
        unknown = fields.keys() - cls.FIELDS - _ENVELOPE
        if unknown:
            names = ", ".join(sorted(ascii(name) for name in unknown)[:6])
            raise ManifestError(file=file, problem=f"these fields are unknown: {names}")
        return FieldReader(fields, file)

    def _as_read(self, reader: FieldReader) -> None:
        """Keep the digest of the very bytes that the document was read from.

        Their seal was checked, and computing it again takes longer than all the rest; of a document that
        says its version as a number, as older ones do, it would be another one.
        """
        self.__dict__["digest"] = reader.fields["digest"]

    def _fields(self) -> dict[str, Any]:
        return {"format": self.FORMAT, "layout": self.LAYOUT, **self._content()}
