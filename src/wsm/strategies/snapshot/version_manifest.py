"""What the manifests of all ranks of a publication have in common, as the documents of deltas say it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wsm.strategies.documents import FieldReader, SealedDocument
from wsm.strategies.errors import ManifestError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EntryT = TypeVar("EntryT", bound="DataclassInstance")


@dataclass(frozen=True)
class PublicationManifest(SealedDocument, Generic[EntryT]):
    """The manifest of one publication.

    Parameters
    ----------
    version : str
        The version.
    publication : str
        The publication that wrote all entries.
    shards : tuple of dataclass
        One per rank, in rank order; their number is the world size.
    ordinal : int
        The number of the publication among all into its directory; 0 where an older wsm gave none.
    """

    version: str
    publication: str
    shards: tuple[EntryT, ...]
    ordinal: int = field(default=0, kw_only=True)

    @property
    def world_size(self) -> int:
        """Number of ranks that the version was written for."""
        return len(self.shards)

    def _content(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "publication": self.publication,
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
            **({"ordinal": self.ordinal} if self.ordinal else {}),
        }

    @classmethod
    def _common(
        cls, reader: FieldReader, entry: Callable[[FieldReader], EntryT], *, file: str
    ) -> tuple[str, str, tuple[EntryT, ...]]:
        """Return the version, the publication and the entries, each read by `entry`.

        Raises
        ------
        ManifestError
            If they are not what they must be, or there is no entry.
        """
        shards = tuple(entry(row) for row in reader.objects("shards"))
        if not shards:
            raise ManifestError(file=file, problem="it lists no shard")
        return reader.version(), reader.text("publication"), shards
