"""What one rank's delta consists of, as written beside its blocks.

It is the promise that a load is checked against, on both sides: the digest that every tensor of the base must
have before, and the one that it must have afterwards. Knows nothing about directories or targets.
:mod:`wsm.strategies.delta.manifest` ties the deltas of all ranks together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from wsm.strategies.delta.blocks import MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, Block, BlockKind, table_problem
from wsm.strategies.digest import shard_digest
from wsm.strategies.documents import FieldReader, SealedDocument, is_count
from wsm.strategies.errors import ManifestError
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

_KINDS = {int(kind): kind for kind in BlockKind}


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
