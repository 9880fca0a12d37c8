"""What one rank's delta consists of, and what ties the deltas of all ranks of a version together.

The digest of the version's manifest is what the ranks of a group compare before they switch, also where one
of them had to load the whole version. Knows nothing about tensors' bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from wsm.strategies.delta._blocks import MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, Block, BlockKind, table_problem
from wsm.strategies.digest import shard_digest
from wsm.strategies.documents import FieldReader, SealedDocument, is_count
from wsm.strategies.errors import ManifestError
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST
from wsm.strategies.snapshot.version_manifest import PublicationManifest
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.publications import MANIFEST_FORMATS, ordinal_of

_KINDS = {int(kind): kind for kind in BlockKind}


def blocks_name(rank: int) -> str:
    """Return the name of the file with the changed blocks of one rank."""
    return f"delta.tp{rank}.blocks"


def rank_manifest_name(rank: int) -> str:
    """Return the name of the manifest of one rank's delta."""
    return f"delta.tp{rank}.manifest.json"


@dataclass(frozen=True)
class DeltaTensor:
    """One tensor of a delta.

    Parameters
    ----------
    spec : TensorSpec
        Name, dtype, shape; the same in the base.
    base_digest, digest : str
        xxh3-128 of its bytes in the base and afterwards.
    stored_digest : str
        xxh3-128 of its blocks as they lie in the file.
    blocks : tuple of Block
        In order; empty if it has not changed.
    """

    spec: TensorSpec
    base_digest: str
    digest: str
    stored_digest: str
    blocks: tuple[Block, ...] = ()

    @cached_property
    def stored(self) -> int:
        """Bytes of its blocks in the file."""
        return sum(block.stored for block in self.blocks)

    @property
    def is_full(self) -> bool:
        """Whether it is carried whole, every byte of it."""
        return bool(self.blocks) and all(block.kind is BlockKind.FULL for block in self.blocks)


@dataclass(frozen=True)
class DeltaShard(SealedDocument):
    """The manifest of one rank's delta.

    Parameters
    ----------
    version, base_version : str
        From which version to which it leads: ``base_version`` to ``version``.
    rank, world_size : int
        Whose it is, of how many.
    publication : str
        Drawn anew for every publication.
    block_bytes : int
        Bytes of a tensor that one block stands for.
    nbytes : int
        Bytes of the file with the blocks, which lie there in the order of the tensors without gaps.
    tensors : tuple of DeltaTensor
        All tensors, those that have not changed as well.
    finite : bool
        Whether the publisher promises that there is neither NaN nor infinity in them afterwards; loads refuse
        both then.
    """

    FORMAT: ClassVar[str] = "wsm.delta-shard-manifest"
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"version", "base_version", "rank", "world_size", "publication", "block_bytes", "bytes"}
        | {"base_digest", "content_digest", "tensors", "finite"}
    )

    version: str
    base_version: str
    rank: int
    world_size: int
    publication: str
    block_bytes: int
    nbytes: int
    tensors: tuple[DeltaTensor, ...]
    finite: bool = False

    @cached_property
    def base_digest(self) -> str:
        """Digest of the base's tensors."""
        return shard_digest((row.spec, row.base_digest) for row in self.tensors)

    @cached_property
    def content_digest(self) -> str:
        """Digest of the tensors afterwards: what a full load of the version would report."""
        return shard_digest((row.spec, row.digest) for row in self.tensors)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> DeltaShard:
        """Parse a manifest's file.

        Raises
        ------
        ManifestError
            If it is damaged, of an unknown layout, or contradicts itself. Any bytes give this or a manifest.
        """
        reader = cls._unsealed(data, file=file)
        block_bytes = reader.count("block_bytes", MAX_BLOCK_BYTES)
        if block_bytes < MIN_BLOCK_BYTES or block_bytes % max(ITEM_BYTES.values()):
            raise reader.refuse("block_bytes", f"a multiple of 8 from {MIN_BLOCK_BYTES} on")
        shard = cls(
            version=reader.version(),
            base_version=reader.version("base_version"),
            rank=reader.count("rank"),
            world_size=reader.count("world_size"),
            publication=reader.text("publication"),
            block_bytes=block_bytes,
            nbytes=reader.count("bytes"),
            tensors=tuple(_tensor(row, file, block_bytes) for row in reader.objects("tensors")),
            finite=reader.promise("finite"),
        )
        shard._check(reader.fields, file)
        shard._as_read(reader)
        return shard

    def _content(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "base_version": self.base_version,
            "rank": self.rank,
            "world_size": self.world_size,
            "publication": self.publication,
            "block_bytes": self.block_bytes,
            "bytes": self.nbytes,
            "base_digest": self.base_digest,
            "content_digest": self.content_digest,
            **({"finite": True} if self.finite else {}),
            "tensors": [
                {
                    "name": row.spec.name,
                    "dtype": row.spec.dtype,
                    "shape": list(row.spec.shape),
                    "base_digest": row.base_digest,
                    "digest": row.digest,
                    "stored_digest": row.stored_digest,
                    "blocks": [[int(block.kind), block.stored, block.decoded] for block in row.blocks],
                }
                for row in self.tensors
            ],
        }

    def _check(self, fields: Mapping[str, Any], file: str) -> None:
        names = [row.spec.name for row in self.tensors]
        problem = None
        if self.rank >= self.world_size:
            problem = f"rank {self.rank} of {self.world_size} ranks"
        elif self.version == self.base_version:
            problem = f"version {self.version} is its own base"
        elif len(set(names)) != len(names):
            problem = "it lists a tensor twice"
        elif sum(row.stored for row in self.tensors) != self.nbytes:
            problem = "its blocks do not add up to the file"
        elif (fields.get("base_digest"), fields.get("content_digest")) != (
            self.base_digest,
            self.content_digest,
        ):
            problem = "its digests are not those of its tensors"
        if problem:
            raise ManifestError(file=file, problem=problem)


def _tensor(reader: FieldReader, file: str, block_bytes: int) -> DeltaTensor:
    spec = reader.tensor()
    row = DeltaTensor(
        spec,
        reader.digest("base_digest"),
        reader.digest("digest"),
        reader.digest("stored_digest"),
        tuple(_block(block, reader) for block in reader.rows("blocks")),
    )
    problem = table_problem(
        row.blocks, nbytes=spec.nbytes, block_bytes=block_bytes, item=ITEM_BYTES[spec.dtype]
    )
    if problem is None and not row.blocks and row.base_digest != row.digest:
        problem = "it changes without a block"
    if problem:
        raise ManifestError(file=file, problem=f"tensor {spec.name!r}: {problem}")
    return row


def _block(row: Any, reader: FieldReader) -> Block:
    if not isinstance(row, list) or len(row) != 3 or not all(map(is_count, row)) or row[0] not in _KINDS:
        raise reader.refuse("blocks", "a list of kind, stored and decoded bytes")
    return Block(_KINDS[row[0]], row[1], row[2])


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
