"""What one rank's shard of a version consists of, as written beside its files.

The manifest is the promise that a load is checked against: every tensor with its digest, every part
with its size, whose shard it is, and which publication wrote it. It knows nothing about directories
or targets. :mod:`wsm.strategies.snapshot.version_manifest` ties the shards of all ranks together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Any, ClassVar, NamedTuple

from wsm.labels import is_label
from wsm.strategies import errors
from wsm.strategies.digest import shard_digest
from wsm.strategies.documents import FieldReader, SealedDocument, are_digests, are_texts
from wsm.strategies.errors import ManifestError
from wsm.strategies.snapshot.errors import PlacementError
from wsm.strategies.snapshot.placement import AxisSegment, Member, Placement, Replicated, Split, whole_shape
from wsm.strategies.tensor import TensorSpec

_Kind = tuple[str, tuple[int, ...], Placement | None]


class TensorEntry(NamedTuple):
    """One tensor of a shard.

    Parameters
    ----------
    spec : TensorSpec
        Name, dtype, shape.
    digest : str
        xxh3-128 of its bytes in C order.
    part : int
        Position of its file in the manifest's list of parts.
    placement : Placement or None
        Where it lies in the whole tensor; None if the publisher did not say.
    """

    spec: TensorSpec
    digest: str
    part: int
    placement: Placement | None = None


def encode_rows(entries: Iterable[TensorEntry]) -> dict[str, Any]:
    """Return the fields ``kinds`` and ``tensors`` of a manifest."""
    kinds: dict[_Kind, int] = {}
    rows = [
        [
            spec.name,
            kinds.setdefault((spec.dtype, spec.shape, placement), len(kinds)),
            digest,
        ]
        for spec, digest, _, placement in entries
    ]
    return {"kinds": [_encode_kind(*kind) for kind in kinds], "tensors": rows}


def decode_rows(reader: FieldReader, tensors_per_part: Sequence[int]) -> tuple[TensorEntry, ...]:
    """Read what :func:`encode_rows` returned.

    Parameters
    ----------
    reader : FieldReader
        The manifest's fields.
    tensors_per_part : sequence of int
        How many tensors each part holds, in the manifest's order of both.

    Raises
    ------
    ManifestError
        If a field is not what it must be, or the parts do not hold just the tensors.
    """
    kinds = [_decode_kind(kind) for kind in reader.objects("kinds")]
    rows = reader.rows("tensors")
    if not rows:
        raise reader.refuse("tensors", "a list of tensors, there is no tensor in it")
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {3}:
        raise reader.refuse("tensors", "a list of rows of name, kind and digest")
    names, indexes, digests = zip(*rows, strict=True)
    if not are_texts(names):
        raise reader.refuse("tensors", "a list of rows that begin with a name")
    if set(map(type, indexes)) != {int} or min(indexes) < 0 or max(indexes) >= len(kinds):
        raise reader.refuse("tensors", "a list of rows with a kind that is listed")
    if not are_digests(digests):
        raise reader.refuse("tensors", "a list of rows that end with a digest")
    if sum(tensors_per_part) != len(rows):
        problem = f"a list of {sum(tensors_per_part)} tensors, as many as the parts hold"
        raise reader.refuse("tensors", problem)
    parts = chain.from_iterable(repeat(part, count) for part, count in enumerate(tensors_per_part))
    entries = []
    for name, index, digest, part in zip(names, indexes, digests, parts, strict=True):
        dtype, shape, placement = kinds[index]
        entries.append(TensorEntry(TensorSpec(name, dtype, shape), digest, part, placement))
    return tuple(entries)


def _encode_kind(dtype: str, shape: tuple[int, ...], placement: Placement | None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "placement": _encode_placement(placement)}


def _decode_kind(reader: FieldReader) -> _Kind:
    return reader.dtype("dtype"), reader.shape("shape"), _decode_placement(reader)


def _encode_placement(placement: Placement | None) -> dict[str, Any] | None:
    if placement is None:
        return None
    if isinstance(placement, Replicated):
        return {"how": "replicated"}
    if isinstance(placement, Member):
        return {"how": "member", "index": placement.index, "of": placement.of}
    segments = [
        {"extent": segment.extent}
        if segment.heads is None
        else {"extent": segment.extent, "heads": segment.heads}
        for segment in placement.segments
    ]
    return {"how": "split", "axis": placement.axis, "segments": segments}


def _decode_placement(reader: FieldReader) -> Placement | None:
    if reader.absent("placement"):
        return None
    fields = reader.within("placement")
    how = fields.text("how")
    if how == "replicated":
        return Replicated()
    if how == "member":
        return Member(fields.count("index"), fields.count("of"))
    if how != "split":
        raise fields.refuse("how", "replicated, split or member")
    segments = tuple(
        AxisSegment(segment.count("extent"), None if segment.absent("heads") else segment.count("heads"))
        for segment in fields.objects("segments")
    )
    return Split(fields.count("axis"), segments)


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


_FIELDS = ("version", "rank", "world_size", "publication")
_PREFIX = "wsm."
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class PartMetadata:
    """Version, rank, number of ranks and publication that a part was written for."""

    version: str
    rank: int
    world_size: int
    publication: str

    def encode(self) -> dict[str, str]:
        """Return the entries of the header's ``__metadata__``."""
        return {_PREFIX + field: str(getattr(self, field)) for field in _FIELDS}

    @classmethod
    def decode(cls, metadata: Mapping[str, str], *, file: str) -> PartMetadata | None:
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
        return cls(
            version=found["version"],
            rank=int(found["rank"]),
            world_size=int(found["world_size"]),
            publication=found["publication"],
        )
