"""What ties the deltas of one version together: which manifest each rank's delta must have.

Every rank reads the same file, so its digest is what the ranks of a group compare before they switch, also
where one of them had to load the whole version. Knows nothing about directories or tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wsm.strategies.delta.shard import DeltaShard
from wsm.strategies.documents import sealed_json
from wsm.strategies.documents.manifest_fields import FieldReader
from wsm.strategies.documents.sealed_document import SealedDocument
from wsm.strategies.errors import ManifestError
from wsm.strategies.files.version_file import MAX_VERSION

_FORMAT = "wsm.delta-manifest"
_LAYOUT = 1


@dataclass(frozen=True)
class DeltaEntry:
    """One rank's delta: its manifest's digest, and the digests of its tensors before and afterwards."""

    digest: str
    base_digest: str
    content_digest: str


@dataclass(frozen=True)
class DeltaManifest(SealedDocument):
    """What ties the deltas of all ranks together; equal digests mean one publication.

    Parameters
    ----------
    version, base_version : int
        From which version to which it leads.
    publication : str
        The publication that wrote all of them.
    shards : tuple of DeltaEntry
        One per rank, in rank order.
    """

    version: int
    base_version: int
    publication: str
    shards: tuple[DeltaEntry, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks that it was written for."""
        return len(self.shards)

    def same_content(self, other: DeltaManifest) -> bool:
        """Whether both lead from the same bytes to the same bytes, rank by rank."""
        return (self.version, self.base_version) == (other.version, other.base_version) and [
            (shard.base_digest, shard.content_digest) for shard in self.shards
        ] == [(shard.base_digest, shard.content_digest) for shard in other.shards]

    @classmethod
    def of(cls, shards: Iterable[DeltaShard]) -> DeltaManifest:
        """Return the manifest of the shards of one publication, given in rank order."""
        shards = tuple(shards)
        entries = tuple(DeltaEntry(shard.digest, shard.base_digest, shard.content_digest) for shard in shards)
        return cls(shards[0].version, shards[0].base_version, shards[0].publication, entries)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> DeltaManifest:
        """Parse a manifest's file.

        Raises
        ------
        ManifestError
            If it is damaged or of an unknown layout. Any bytes give this or a manifest.
        """
        fields = sealed_json.unseal(data, file=file, form=_FORMAT, layout=_LAYOUT)
        reader = FieldReader(fields, file)
        shards = tuple(_entry(FieldReader(row, file)) for row in reader.rows("shards"))
        if not shards:
            raise ManifestError(file=file, problem="it lists no rank")
        return cls(
            reader.count("version", MAX_VERSION),
            reader.count("base_version", MAX_VERSION),
            reader.text("publication"),
            shards,
        )

    def _fields(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "layout": _LAYOUT,
            "version": self.version,
            "base_version": self.base_version,
            "publication": self.publication,
            "shards": [
                {
                    "digest": shard.digest,
                    "base_digest": shard.base_digest,
                    "content_digest": shard.content_digest,
                }
                for shard in self.shards
            ],
        }


def _entry(reader: FieldReader) -> DeltaEntry:
    return DeltaEntry(reader.digest("digest"), reader.digest("base_digest"), reader.digest("content_digest"))
