"""What wsm writes into the header of every part, so that a part tells where it belongs even alone.

It lets a reader refuse parts of two versions, ranks or publications before it reads a byte of data, with
a manifest or without one. Files of other writers do not have it. Knows no files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from wsm.labels import is_label
from wsm.strategies import errors

_FIELDS = ("version", "rank", "world_size", "publication")
_PREFIX = "wsm."
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class PartMetadata:
    """Version, rank, number of ranks and publication that a part was written for."""

    version: str
    rank: int
    world_size: int
    publication: str

    def encode(self) -> dict[str, str]:
        """Return the entries of the header's ``__metadata__``."""
        return {_PREFIX + field: str(getattr(self, field)) for field in _FIELDS}

    @classmethod
    def decode(cls, metadata: Mapping[str, str], *, file: str) -> PartMetadata | None:
        """Read the entries; None if the file was not written by wsm.

        Raises
        ------
        BadInputError
            If some are there and some are not, or one is not what it must be.
        """
        found = {field: metadata[_PREFIX + field] for field in _FIELDS if _PREFIX + field in metadata}
        if not found:
            return None
        numbers = (found.get(field, "") for field in ("rank", "world_size"))
        whole = len(found) == len(_FIELDS) and all(map(_NUMBER.fullmatch, numbers))
        if not whole or not is_label(found["version"]):
            raise errors.bad_safetensors(file=file, problem="its wsm metadata is damaged")
        return cls(
            version=found["version"],
            rank=int(found["rank"]),
            world_size=int(found["world_size"]),
            publication=found["publication"],
        )
