"""What every manifest is, whatever it describes: a document that is sealed by the digest of its content."""

from __future__ import annotations

import abc
from functools import cached_property
from typing import Any, ClassVar

from wsm.strategies.documents import sealed_json
from wsm.strategies.documents.manifest_fields import FieldReader


class SealedDocument(abc.ABC):
    """A manifest, as the fields of its file. Whoever derives from it says what they are.

    Attributes
    ----------
    FORMAT, LAYOUT : str, int
        What kind of document it is, and the number that grows when its fields change their meaning.
    """

    FORMAT: ClassVar[str]
    LAYOUT: ClassVar[int] = 1

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
            If the file is no such document, or its seal is broken.
        """
        return FieldReader(sealed_json.unseal(data, file=file, form=cls.FORMAT, layout=cls.LAYOUT), file)

    def _fields(self) -> dict[str, Any]:
        return {"format": self.FORMAT, "layout": self.LAYOUT, **self._content()}
