"""What ties the shards of one version together: which manifest each rank's shard must have.

What it shares with the manifest of a version's deltas is :class:`PublicationManifest`. The manifests are read
from the directory of the version here, and held against each other. Knows nothing about tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from wsm.strategies import errors
from wsm.strategies.documents import FieldReader, SealedDocument
from wsm.strategies.errors import ManifestError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.trainer.publications import MANIFEST_FORMATS, ordinal_of

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


_MAX_BYTES = 1 << 28


def read_shard_manifest(directory: SnapshotDirectory, name: str) -> ShardManifest | None:
    """Return the manifest of one rank's shard; None if there is none. Blocks.

    Raises
    ------
    ManifestError
        If it is damaged.
    wsm.strategies.errors.BadInputError
        If it cannot be opened or read.
    """
    data = _read(directory, name)
    return None if data is None else ShardManifest.decode(data, file=directory.locate(name))


def read_version_manifest(directory: SnapshotDirectory) -> VersionManifest | None:
    """Return the manifest of all ranks' shards; None if there is none. Blocks.

    Raises
    ------
    ManifestError
        If it is damaged.
    wsm.strategies.errors.BadInputError
        If it cannot be opened or read.
    """
    data = _read(directory, snapshot_names.VERSION_MANIFEST)
    file = directory.locate(snapshot_names.VERSION_MANIFEST)
    return None if data is None else VersionManifest.decode(data, file=file)


def require_listed(
    whole: VersionManifest, rank: int, manifest: ShardManifest | None, *, file: str
) -> ShardManifest:
    """Return the manifest of a rank's shard, if it is the one that the version's manifest lists.

    Raises
    ------
    BadInputError
        If it is missing, or another one. `file` is the version's manifest.
    """
    entry = whole.shards[rank]
    if manifest is None:
        raise errors.differs_from_manifest(file=file, problem=f"{entry.manifest} is missing")
    if (manifest.digest, manifest.version, manifest.publication, manifest.world_size) != (
        entry.digest,
        whole.version,
        whole.publication,
        whole.world_size,
    ):
        raise errors.differs_from_manifest(file=file, problem=f"{entry.manifest} is of another publication")
    return manifest


def _read(directory: SnapshotDirectory, name: str) -> bytes | None:
    try:
        data = directory.read(name, _MAX_BYTES)
    except FileNotFoundError:
        return None
    if data is None:
        raise ManifestError(file=directory.locate(name), problem=f"it is larger than {_MAX_BYTES} bytes")
    return data
