"""What ties the shards of one version together: which manifest each rank's shard must have.

Every rank reads the same file, so its digest is what the ranks of a group compare before they switch:
equal digests mean shards of one publication. Knows nothing about directories or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wsm.strategies.documents import sealed_json
from wsm.strategies.documents.manifest_fields import FieldReader
from wsm.strategies.documents.sealed_document import SealedDocument
from wsm.strategies.errors import ManifestError
from wsm.strategies.files.version_file import MAX_VERSION

_FORMAT = "wsm.version-manifest"
_LAYOUT = 1


@dataclass(frozen=True)
class ShardEntry:
    """One rank's shard: the name of its manifest, that manifest's digest, the digest of its tensors."""

    manifest: str
    digest: str
    content_digest: str


@dataclass(frozen=True)
class VersionManifest(SealedDocument):
    """The manifest of a version.

    Parameters
    ----------
    version : int
        The version.
    publication : str
        The publication that wrote all shards.
    shards : tuple of ShardEntry
        One per rank, in rank order; their number is the world size.
    """

    version: int
    publication: str
    shards: tuple[ShardEntry, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks that the version was written for."""
        return len(self.shards)

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
        fields = sealed_json.unseal(data, file=file, form=_FORMAT, layout=_LAYOUT)
        reader = FieldReader(fields, file)
        shards = tuple(_shard(row) for row in reader.objects("shards"))
        if not shards:
            raise ManifestError(file=file, problem="it lists no shard")
        return cls(reader.count("version", MAX_VERSION), reader.text("publication"), shards)

    def _fields(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "layout": _LAYOUT,
            "version": self.version,
            "publication": self.publication,
            "shards": [
                {
                    "manifest": shard.manifest,
                    "digest": shard.digest,
                    "content_digest": shard.content_digest,
                }
                for shard in self.shards
            ],
        }


def _shard(reader: FieldReader) -> ShardEntry:
    return ShardEntry(reader.file_name("manifest"), reader.digest("digest"), reader.digest("content_digest"))
