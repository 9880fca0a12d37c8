"""What ties the shards of one version together: which manifest each rank's shard must have.

What it shares with a delta's is in :mod:`wsm.strategies.snapshot.publication_manifest`. Knows nothing about
directories or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wsm.strategies.documents.manifest_fields import FieldReader
from wsm.strategies.snapshot.publication_manifest import PublicationManifest


@dataclass(frozen=True)
class ShardEntry:
    """One rank's shard: the name of its manifest, that manifest's digest, the digest of its tensors."""

    manifest: str
    digest: str
    content_digest: str


@dataclass(frozen=True)
class VersionManifest(PublicationManifest[ShardEntry]):
    """The manifest of a version that is published whole; its parameters are those of the base class."""

    FORMAT: ClassVar[str] = "wsm.version-manifest"
    FIELDS: ClassVar[frozenset[str]] = frozenset({"version", "publication", "shards"})

    def same_content(self, other: VersionManifest) -> bool:
        """Whether both describe the same tensors with the same bytes, rank by rank."""
        return self.version == other.version and [shard.content_digest for shard in self.shards] == [
            shard.content_digest for shard in other.shards
        ]

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> VersionManifest:
        """Parse a version manifest's file.

        Raises
        ------
        ManifestError
            If it is damaged or of an unknown layout. Any bytes give this or a manifest.
        """
        return cls(*cls._common(cls._unsealed(data, file=file), _shard, file=file))


def _shard(reader: FieldReader) -> ShardEntry:
    return ShardEntry(reader.file_name("manifest"), reader.digest("digest"), reader.digest("content_digest"))
