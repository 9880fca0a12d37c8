"""The manifests of a version's files: each rank's promise with the files that keep it, and that of all ranks.

They know nothing about directories or targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar

import msgspec

from wsm.errors import BadInputError
from wsm.labels import is_label
from wsm.strategies import errors
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST, shard_base, shard_manifest_name
from wsm.strategies.promise import (
    Count,
    Digest,
    FileName,
    PromisedShard,
    PromisedTensor,
    Publication,
    RankShard,
    ShardIdentity,
    ShardPromise,
)
from wsm.strategies.snapshot.placement import whole_shape
from wsm.strategies.trainer.publications import MANIFEST_FORMATS

RankT = TypeVar("RankT", bound=RankShard)


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

    @property
    def name(self) -> str:
        """The name of its own file."""
        return shard_manifest_name(shard_base(self.rank, self.device_id))

    def files(self) -> Sequence[tuple[str, int]]:
        """Return name and size of each part."""
        return [(part.file, part.nbytes) for part in self.parts]

    def lacks(self, wanted: Any) -> Iterator[str]:
        """Iterate over what another shard of the same tensors promises and this one does not."""
        yield from super().lacks(wanted)
        if wanted.device_id != self.device_id:
            yield f"the name for device {wanted.device_id}"
        placed = {entry.spec.name: entry.placement for entry in self.tensors}
        if any(each.placement not in (None, placed[each.spec.name]) for each in wanted.tensors):
            yield "where each tensor lies"

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
        except BadInputError as error:
            raise msgspec.ValidationError(str(error)) from error


class SealedShard(PromisedShard, frozen=True, kw_only=True):
    """One rank's shard in files: the seal of its manifest."""

    seal: Digest = msgspec.field(name="digest")


class ManifestOfAll(Publication, frozen=True, kw_only=True):
    """A publication in files, which ties the manifests of all ranks together.

    Attributes
    ----------
    FILE : str
        The name of its file.
    SHARD : type
        What the manifests of the ranks are.
    """

    FILE: ClassVar[str]
    SHARD: ClassVar[type[RankShard]]

    shards: tuple[SealedShard, ...]

    def shard_file(self, rank: int) -> str:
        """Return the name of the manifest of a rank."""
        raise NotImplementedError

    def listed(self, rank: int, promise: RankT | None, *, directory: str) -> RankT:
        """Return the manifest of a rank's shard in a directory, if it is the one that is listed here.

        Raises
        ------
        BadInputError
            If there is no such rank; or it is missing, or another one.
        """
        file = f"{directory}/{self.FILE}"
        if rank >= self.world_size:
            raise errors.shard_identity(
                file=file, field="world size", expected=rank + 1, found=self.world_size
            )
        name = self.shard_file(rank)
        if promise is None:
            raise errors.differs_from_manifest(file=file, problem=f"{name} is missing")
        listed = (self.shards[rank].seal, self.version, self.publication, rank, self.world_size)
        if listed != (promise.seal, promise.version, promise.publication, promise.rank, promise.world_size):
            raise errors.differs_from_manifest(file=file, problem=f"{name} is of another publication")
        return promise


class ShardEntry(SealedShard, frozen=True, kw_only=True):
    """One rank's shard: the name of its manifest, and that manifest's seal."""

    manifest: FileName


class VersionManifest(ManifestOfAll, frozen=True, kw_only=True):
    """The manifest of a version that is published whole; its parameters are those of a publication."""

    FILE: ClassVar[str] = VERSION_MANIFEST
    FORMAT: ClassVar[str] = MANIFEST_FORMATS[VERSION_MANIFEST]
    SHARD: ClassVar[type[RankShard]] = ShardManifest

    shards: tuple[ShardEntry, ...]

    def shard_file(self, rank: int) -> str:
        """Return the name of the manifest of a rank, which may be that of any device."""
        return self.shards[rank].manifest


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
