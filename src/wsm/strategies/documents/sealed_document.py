"""What every manifest is, whatever it describes: a document that is sealed by the digest of its content."""

from __future__ import annotations

import abc
from functools import cached_property
from typing import Any

from wsm.strategies.documents import sealed_json


class SealedDocument(abc.ABC):
    """A manifest, as the fields of its file. Whoever derives from it says what they are."""

    @abc.abstractmethod
    def _fields(self) -> dict[str, Any]:
        """Return what stands in the file, the seal left out."""

    @cached_property
    def digest(self) -> str:
        """Digest of the whole manifest."""
        return sealed_json.content_digest(self._fields())

    def encode(self) -> bytes:
        """Return the bytes of the manifest's file."""
        return sealed_json.seal(self._fields())
