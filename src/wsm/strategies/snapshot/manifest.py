"""The manifests of a version's files: each rank's promise with the files that keep it, and that of all ranks.

They know nothing about directories or targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar

import msgspec

from wsm.labels import is_label
from wsm.strategies import errors
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.promise import (
    Count,
    Digest,
    FileName,
    PromisedShard,
    PromisedTensor,
    Publication,
    ShardIdentity,
    ShardPromise,
)
from wsm.strategies.snapshot.placement import PlacementError, whole_shape
from wsm.strategies.trainer.publications import MANIFEST_FORMATS


class PartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a shard: its name, without a directory, its size with its header, and how many tensors."""

    file: FileName
    nbytes: Count = msgspec.field(name="bytes")
    tensors: Count


class ShardManifest(ShardPromise, frozen=True, kw_only=True):
    """The manifest of one rank's shard; its other parameters are those of a promise.

    Parameters
    ----------
    device_id : int
        The device id in its file names.
    parts : tuple of PartEntry
        The files, in the order in which they are loaded. The tensors lie in them in their own order.
    """

    FORMAT: ClassVar[str] = "wsm.shard-manifest"
    LAYOUT: ClassVar[int] = 2
    DERIVED: ClassVar[Sequence[str]] = ("content_digest",)

    device_id: Count
    parts: tuple[PartEntry, ...]

    def by_part(self) -> Iterator[tuple[PartEntry, list[PromisedTensor]]]:
        """Iterate over the files, each with its tensors."""
        tensors = iter(self.tensors)
        return ((part, list(islice(tensors, part.tensors))) for part in self.parts)

    def check(self) -> None:
        """Compare rows, parts and placements with each other."""
        super().check()
        if len({part.file for part in self.parts}) != len(self.parts):
            raise msgspec.ValidationError("it lists a part twice")
        held = sum(part.tensors for part in self.parts)
        if held != len(self.rows):
            raise msgspec.ValidationError(f"its parts hold {held} tensors, and it lists {len(self.rows)}")
        checked = set()
        try:
            for name, index, _ in self.rows:
                kind = self.kinds[index]
                if kind.placement is not None and index not in checked:
                    whole_shape(name, kind.placement, kind.shape, self.rank, self.world_size)
                    checked.add(index)
        except PlacementError as error:
            raise msgspec.ValidationError(str(error)) from error


class ShardEntry(PromisedShard, frozen=True, kw_only=True):
    """One rank's shard: the name of its manifest, and that manifest's seal."""

    manifest: FileName
    seal: Digest = msgspec.field(name="digest")


class VersionManifest(Publication, frozen=True, kw_only=True):
    """The manifest of a version that is published whole; its parameters are those of a publication."""

    FORMAT: ClassVar[str] = MANIFEST_FORMATS[VERSION_MANIFEST]

    shards: tuple[ShardEntry, ...]

    def listed(self, rank: int, promise: ShardManifest | None, *, directory: str) -> ShardManifest:
        """Return the manifest of a rank's shard in a directory, if it is the one that is listed here.

        Raises
        ------
        BadInputError
            If it is missing, or another one.
        """
        entry, file = self.shards[rank], f"{directory}/{VERSION_MANIFEST}"
        if promise is None:
            raise errors.differs_from_manifest(file=file, problem=f"{entry.manifest} is missing")
        listed = (entry.seal, self.version, self.publication, rank, self.world_size)
        if listed != (promise.seal, promise.version, promise.publication, promise.rank, promise.world_size):
            raise errors.differs_from_manifest(
                file=file, problem=f"{entry.manifest} is of another publication"
            )
        return promise


_FIELDS = ("version", "rank", "world_size", "publication")
_PREFIX = "wsm."
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


def part_metadata(identity: ShardIdentity) -> dict[str, str]:
    """Return the entries of a part's header, in its ``__metadata__``, that say whose it is."""
    return {_PREFIX + field: str(getattr(identity, field)) for field in _FIELDS}


def identity_of_part(metadata: Mapping[str, str], *, file: str) -> ShardIdentity | None:
    """Read the entries; None if the file was not written by wsm.

    Raises
    ------
    BadInputError
        If some are there and some are not, or one is not what it must be.
    """
    found = {field: metadata[_PREFIX + field] for field in _FIELDS if _PREFIX + field in metadata}
    if not found:
        return None
    numbers = (found.get(field, "") for field in ("rank", "world_size"))
    whole = len(found) == len(_FIELDS) and all(map(_NUMBER.fullmatch, numbers))
    if not whole or not is_label(found["version"]):
        raise errors.bad_safetensors(file=file, problem="its wsm metadata is damaged")
    return ShardIdentity(
        version=found["version"],
        rank=int(found["rank"]),
        world_size=int(found["world_size"]),
        publication=found["publication"],
    )
