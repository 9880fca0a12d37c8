"""What ties the shards of one version together: which manifest each rank's shard must have.

What it shares with a delta's is in :mod:`wsm.strategies.snapshot.publication_manifest`. Knows nothing about
directories or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wsm.strategies.documents import FieldReader
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.snapshot.publication_manifest import PublicationManifest
from wsm.strategies.trainer.publications import MANIFEST_FORMATS, ordinal_of


@dataclass(frozen=True)
class ShardEntry:
    """One rank's shard: the name of its manifest, that manifest's digest, the digest of its tensors."""

    manifest: str
    digest: str
    content_digest: str


@dataclass(frozen=True)
class VersionManifest(PublicationManifest[ShardEntry]):
    """The manifest of a version that is published whole; its parameters are those of the base class."""

    FORMAT: ClassVar[str] = MANIFEST_FORMATS[VERSION_MANIFEST]
    FIELDS: ClassVar[frozenset[str]] = frozenset({"version", "publication", "shards", "ordinal"})

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
        reader = cls._unsealed(data, file=file)
        manifest = cls(*cls._common(reader, _shard, file=file), ordinal=ordinal_of(reader))
        manifest._as_read(reader)
        return manifest


def _shard(reader: FieldReader) -> ShardEntry:
    return ShardEntry(reader.file_name("manifest"), reader.digest("digest"), reader.digest("content_digest"))
