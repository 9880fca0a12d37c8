"""What one rank's shard of a version consists of, as written beside its files.

The manifest is the promise that a load is checked against: every tensor with its digest, every part
with its size, whose shard it is, and which publication wrote it. It knows nothing about directories
or targets. :mod:`wsm.strategies.snapshot.version_manifest` ties the shards of all ranks together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from wsm.strategies.digest import shard_digest
from wsm.strategies.documents import FieldReader, SealedDocument
from wsm.strategies.errors import ManifestError
from wsm.strategies.snapshot.errors import PlacementError
from wsm.strategies.snapshot.placement import whole_shape
from wsm.strategies.snapshot.tensor_table import TensorEntry, decode_rows, encode_rows


@dataclass(frozen=True)
class PartEntry:
    """One file of a shard: its name, without a directory, and its size in bytes, header included."""

    file: str
    nbytes: int


@dataclass(frozen=True)
class ShardManifest(SealedDocument):
    """The manifest of one rank's shard.

    Parameters
    ----------
    version : str
        The version that it belongs to.
    rank, world_size, device_id : int
        Whose shard it is, of how many, and the device id in its file names.
    publication : str
        Drawn anew for every publication, and written into each part as well; parts of two
        publications of one version are told apart by it before a byte is read.
    parts : tuple of PartEntry
        The files, in the order in which they are loaded.
    tensors : tuple of TensorEntry
        The tensors, in the order in which they lie in the files.
    finite : bool
        Whether the publisher promises that there is neither NaN nor infinity in them; loads refuse both then.
    """

    FORMAT: ClassVar[str] = "wsm.shard-manifest"
    LAYOUT: ClassVar[int] = 2
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"version", "rank", "world_size", "device_id", "publication", "content_digest", "kinds", "parts"}
        | {"tensors", "finite"}
    )

    version: str
    rank: int
    world_size: int
    device_id: int
    publication: str
    parts: tuple[PartEntry, ...]
    tensors: tuple[TensorEntry, ...]
    finite: bool = False

    @cached_property
    def content_digest(self) -> str:
        """Digest of the tensors alone: equal weights have an equal one, however they were cut into parts."""
        return shard_digest((entry.spec, entry.digest) for entry in self.tensors)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> ShardManifest:
        """Parse a manifest's file.

        Raises
        ------
        ManifestError
            If it is damaged, of an unknown layout, or contradicts itself. Any bytes give this or a manifest.
        """
        reader = cls._unsealed(data, file=file)
        parts = [(_part(row), row.count("tensors")) for row in reader.objects("parts")]
        manifest = cls(
            version=reader.version(),
            rank=reader.count("rank"),
            world_size=reader.count("world_size"),
            device_id=reader.count("device_id"),
            publication=reader.text("publication"),
            parts=tuple(part for part, _ in parts),
            tensors=decode_rows(reader, [count for _, count in parts]),
            finite=reader.promise("finite"),
        )
        manifest._check(file)
        if reader.fields.get("content_digest") != manifest.content_digest:
            raise ManifestError(file=file, problem="its content_digest is not that of its tensors")
        manifest._as_read(reader)
        return manifest

    def _content(self) -> dict[str, Any]:
        held = Counter(entry.part for entry in self.tensors)
        return {
            "version": self.version,
            "rank": self.rank,
            "world_size": self.world_size,
            "device_id": self.device_id,
            "publication": self.publication,
            "content_digest": self.content_digest,
            "parts": [
                {"file": part.file, "bytes": part.nbytes, "tensors": held[index]}
                for index, part in enumerate(self.parts)
            ],
            **({"finite": True} if self.finite else {}),
            **encode_rows(self.tensors),
        }

    def _check(self, file: str) -> None:
        if self.rank >= self.world_size:
            raise ManifestError(file=file, problem=f"rank {self.rank} of {self.world_size} ranks")
        names = {entry.spec.name for entry in self.tensors}
        if len(names) != len(self.tensors):
            raise ManifestError(file=file, problem="it lists a tensor twice")
        files = {part.file for part in self.parts}
        if len(files) != len(self.parts):
            raise ManifestError(file=file, problem="it lists a part twice")
        try:
            self._check_placements()
        except PlacementError as error:
            raise ManifestError(file=file, problem=str(error)) from error

    def _check_placements(self) -> None:
        checked = set()
        for spec, _, _, placement in self.tensors:
            if placement is not None and (spec.shape, id(placement)) not in checked:
                whole_shape(spec.name, placement, spec.shape, self.rank, self.world_size)
                checked.add((spec.shape, id(placement)))


def _part(reader: FieldReader) -> PartEntry:
    return PartEntry(reader.file_name("file"), reader.count("bytes"))
