"""What every manifest is, whatever it describes: a document that is sealed by the digest of its content."""

from __future__ import annotations

import abc
from functools import cached_property
from typing import Any, ClassVar

from wsm.strategies.documents import sealed_json
from wsm.strategies.documents.manifest_fields import FieldReader
from wsm.strategies.errors import ManifestError

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
        return sealed_json.content_digest(self._fields())

    def encode(self) -> bytes:
        """Return the bytes of the manifest's file."""
        return sealed_json.seal(self._fields())

    @classmethod
    def _unsealed(cls, data: bytes, *, file: str) -> FieldReader:
        """Return a reader of a file's fields.

        Raises
        ------
        ManifestError
            If the file is no such document, its seal is broken, or it says something that is not known here:
            what is not understood is not half believed.
        """
        fields = sealed_json.unseal(data, file=file, form=cls.FORMAT, layout=cls.LAYOUT)
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
