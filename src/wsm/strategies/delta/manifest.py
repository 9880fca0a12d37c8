"""What ties the deltas of one version together: which manifest each rank's delta must have.

Its digest is what the ranks of a group compare before they switch, also where one of them had to load the
whole version. Knows nothing about directories or tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from wsm.strategies.delta.names import DELTA_MANIFEST
from wsm.strategies.delta.shard import DeltaShard
from wsm.strategies.documents import FieldReader
from wsm.strategies.snapshot.publication_manifest import PublicationManifest
from wsm.strategies.trainer.publications import MANIFEST_FORMATS, ordinal_of


@dataclass(frozen=True)
class DeltaEntry:
    """One rank's delta: its manifest's digest, and the digests of its tensors before and afterwards."""

    digest: str
    base_digest: str
    content_digest: str


@dataclass(frozen=True)
class DeltaManifest(PublicationManifest[DeltaEntry]):
    """The manifest of a delta.

    Parameters
    ----------
    version, publication, shards, ordinal : str, str, tuple of DeltaEntry, int
        As for every publication; the version is the one that it leads to.
    base_version : str
        The version that it leads from.
    """

    FORMAT: ClassVar[str] = MANIFEST_FORMATS[DELTA_MANIFEST]
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"version", "publication", "shards", "base_version", "ordinal"}
    )

    base_version: str

    def same_content(self, other: DeltaManifest) -> bool:
        """Whether both lead from the same bytes to the same bytes, rank by rank."""
        return (self.version, self.base_version) == (other.version, other.base_version) and [
            (shard.base_digest, shard.content_digest) for shard in self.shards
        ] == [(shard.base_digest, shard.content_digest) for shard in other.shards]

    @classmethod
    def of(cls, shards: Iterable[DeltaShard], *, ordinal: int = 0) -> DeltaManifest:
        """Return the manifest of the shards of one publication, given in rank order."""
        shards = tuple(shards)
        entries = tuple(DeltaEntry(shard.digest, shard.base_digest, shard.content_digest) for shard in shards)
        first = shards[0]
        return cls(first.version, first.publication, entries, first.base_version, ordinal=ordinal)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> DeltaManifest:
        """Parse a manifest's file.

        Raises
        ------
        ManifestError
            If it is damaged or of an unknown layout. Any bytes give this or a manifest.
        """
        reader = cls._unsealed(data, file=file)
        base_version = reader.version("base_version")
        manifest = cls(*cls._common(reader, _entry, file=file), base_version, ordinal=ordinal_of(reader))
        manifest._as_read(reader)
        return manifest

    def _content(self) -> dict[str, Any]:
        return {**super()._content(), "base_version": self.base_version}


def _entry(reader: FieldReader) -> DeltaEntry:
    return DeltaEntry(reader.digest("digest"), reader.digest("base_digest"), reader.digest("content_digest"))
