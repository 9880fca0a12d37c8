"""What one rank's delta consists of, what ties those of all ranks together, and which a directory holds.

They are what every publication promises, with the base that each tensor is changed from, and where its blocks
lie. Knows nothing about tensors' bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import msgspec

from wsm.labels import Label
from wsm.strategies.delta._blocks import Block, BlockBytes, table_problem
from wsm.strategies.digest import shard_digest
from wsm.strategies.errors import ManifestError
from wsm.strategies.files.snapshot_names import (
    DELTA_MANIFEST,
    DELTAS_DIRECTORY,
    VERSION_MANIFEST,
    VERSIONS_DIRECTORY,
)
from wsm.strategies.promise import (
    Count,
    Digest,
    Dtype,
    Extents,
    Publication,
    RankShard,
    SealedT,
    Strict,
)
from wsm.strategies.snapshot.manifest import ManifestOfAll, SealedShard, VersionManifest
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.publications import MANIFEST_FORMATS, listed_versions


def blocks_name(rank: int) -> str:
    """Return the name of the file with the changed blocks of one rank."""
    return f"delta.tp{rank}.blocks"


def rank_manifest_name(rank: int) -> str:
    """Return the name of the manifest of one rank's delta."""
    return f"delta.tp{rank}.manifest.json"


class DeltaTensor(Strict, frozen=True, dict=True):
    """One tensor of a delta.

    Parameters
    ----------
    name, dtype, shape : str, str, tuple of int
        The same in the base.
    base_digest, digest : str
        xxh3-128 of its bytes in the base and afterwards.
    stored_digest : str
        xxh3-128 of its blocks as they lie in the file.
    blocks : tuple of Block
        In order; empty if it has not changed.
    """

    name: str
    dtype: Dtype
    shape: Extents
    base_digest: Digest
    digest: Digest
    stored_digest: Digest
    blocks: tuple[Block, ...]

    @cached_property
    def spec(self) -> TensorSpec:
        """The tensor without its bytes."""
        return TensorSpec(self.name, self.dtype, self.shape)

    @cached_property
    def stored(self) -> int:
        """Bytes of its blocks in the file."""
        return sum(block.stored for block in self.blocks)


class DeltaShard(RankShard, frozen=True, kw_only=True):
    """The manifest of one rank's delta.

    Parameters
    ----------
    version, base_version : str
        From which version to which it leads: ``base_version`` to ``version``.
    block_bytes : int
        Bytes of a tensor that one block stands for.
    nbytes : int
        Bytes of the file with the blocks, which lie there in the order of the tensors without gaps.
    tensors : tuple of DeltaTensor
        All tensors, those that have not changed as well. They are finite afterwards, where that is promised.
    """

    FORMAT: ClassVar[str] = "wsm.delta-shard-manifest"
    DERIVED: ClassVar[Sequence[str]] = ("base_digest", "content_digest")

    base_version: Label
    block_bytes: BlockBytes
    nbytes: Count = msgspec.field(name="bytes")
    tensors: tuple[DeltaTensor, ...]

    def files(self) -> Sequence[tuple[str, int]]:
        """Return name and size of the file with the blocks."""
        return [(blocks_name(self.rank), self.nbytes)]

    @cached_property
    def base_digest(self) -> str:
        """Digest of the base's tensors."""
        return shard_digest((row.spec, row.base_digest) for row in self.tensors)

    @cached_property
    def content_digest(self) -> str:
        """Digest of the tensors afterwards: what a full load of the version would report."""
        return shard_digest((row.spec, row.digest) for row in self.tensors)

    def check(self) -> None:
        """Compare its tables with each other."""
        problem = None
        if self.rank >= self.world_size:
            problem = f"rank {self.rank} of {self.world_size} ranks"
        elif self.version == self.base_version:
            problem = f"version {self.version} is its own base"
        elif len({row.name for row in self.tensors}) != len(self.tensors):
            problem = "it lists a tensor twice"
        elif sum(row.stored for row in self.tensors) != self.nbytes:
            problem = "its blocks do not add up to the file"
        for row in self.tensors:
            wrong = table_problem(
                row.blocks,
                nbytes=row.spec.nbytes,
                block_bytes=self.block_bytes,
                item=ITEM_BYTES[row.dtype],
            )
            if wrong is None and not row.blocks and row.base_digest != row.digest:
                wrong = "it changes without a block"
            if wrong is not None:
                problem = problem or f"tensor {row.name!r}: {wrong}"
        if problem is not None:
            raise msgspec.ValidationError(problem)


class DeltaEntry(SealedShard, frozen=True, kw_only=True):
    """One rank's delta: its manifest's seal, and the digest of the tensors that it begins with."""

    base_digest: Digest


class DeltaManifest(ManifestOfAll, frozen=True, kw_only=True):
    """The manifest of a delta; its parameters are those of a publication, and the version it leads from."""

    FILE: ClassVar[str] = DELTA_MANIFEST
    FORMAT: ClassVar[str] = MANIFEST_FORMATS[DELTA_MANIFEST]
    SHARD: ClassVar[type[RankShard]] = DeltaShard

    shards: tuple[DeltaEntry, ...]
    base_version: Label

    def shard_file(self, rank: int) -> str:
        """Return the name of the manifest of a rank."""
        return rank_manifest_name(rank)

    def same_content(self, other: Publication) -> bool:
        """Whether both lead from the same bytes to the same bytes, rank by rank."""
        return (
            isinstance(other, DeltaManifest)
            and super().same_content(other)
            and self.base_version == other.base_version
            and [shard.base_digest for shard in self.shards] == [shard.base_digest for shard in other.shards]
        )

    @classmethod
    def of(
        cls, shards: Iterable[DeltaShard], *, ordinal: int = 0, whole: Publication | None = None
    ) -> DeltaManifest:
        """Return the manifest of the shards of one publication, given in rank order.

        If the version is published `whole` as well, where its tensors lie is promised as there.
        """
        shards = tuple(shards)
        placed = [None] * len(shards) if whole is None else [each.placed_digest for each in whole.shards]
        return cls(
            version=shards[0].version,
            publication=shards[0].publication,
            shards=tuple(
                DeltaEntry(
                    seal=shard.seal,
                    base_digest=shard.base_digest,
                    content_digest=shard.content_digest,
                    placed_digest=digest,
                )
                for shard, digest in zip(shards, placed, strict=True)
            ),
            base_version=shards[0].base_version,
            ordinal=ordinal,
        )


def whole_manifest(root: Path, version: str) -> VersionManifest | None:
    """Return the manifest of a whole version; None if there is none that can be read."""
    return _decoded(VersionManifest, root / VERSIONS_DIRECTORY / version / VERSION_MANIFEST)


def delta_manifest(root: Path, version: str) -> DeltaManifest | None:
    """Return the manifest of the delta that leads to a version; None if there is none that can be read."""
    return _decoded(DeltaManifest, root / DELTAS_DIRECTORY / version / DELTA_MANIFEST)


def _decoded(kind: type[SealedT], file: Path) -> SealedT | None:
    with suppress(OSError, ManifestError):
        return kind.decode(file.read_bytes(), file=str(file))
    return None


def content_digests(publication: Publication) -> list[str]:
    """Return the digest of each rank's tensors."""
    return [shard.content_digest for shard in publication.shards]


def version_with_digest(root: Path, rank: int, digest: str) -> str | None:
    """Return a label under which these tensors of a rank are published; None if there is none."""
    for place in (VERSIONS_DIRECTORY, DELTAS_DIRECTORY):
        for listed in listed_versions(root / place):
            found = whole_manifest(root, listed.label) or delta_manifest(root, listed.label)
            if found is not None and digest in content_digests(found)[rank : rank + 1]:
                return listed.label
    return None


def chain_to(root: Path, version: str, limit: int) -> list[str]:
    """Return the versions of the deltas that lead to `version` from the nearest whole one, newest first.

    At most `limit` of them; all that follow from each other where no whole version is there.
    """
    chain: list[str] = []
    while len(chain) < limit and version not in chain and whole_manifest(root, version) is None:
        delta = delta_manifest(root, version)
        if delta is None:
            break
        chain.append(version)
        version = delta.base_version
    return chain
