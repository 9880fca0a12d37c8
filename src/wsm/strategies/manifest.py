"""What one rank's shard of a version consists of, as written beside its files.

The manifest is the promise that a load is checked against: every tensor with its digest, every part
with its size, whose shard it is, and which publication wrote it. It knows nothing about directories
or targets. :mod:`wsm.strategies.version_manifest` ties the shards of all ranks together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wsm.strategies import sealed_json
from wsm.strategies.digest import DIGEST_LENGTH, shard_digest
from wsm.strategies.errors import ManifestError
from wsm.strategies.strict_json import is_count, is_text
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.version_file import MAX_VERSION

_FORMAT = "wsm.shard-manifest"
_LAYOUT = 1
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a shard.

    Parameters
    ----------
    spec : TensorSpec
        Name, dtype, shape.
    digest : str
        xxh3-128 of its bytes in C order.
    part : int
        Position of its file in the manifest's list of parts.
    """

    spec: TensorSpec
    digest: str
    part: int


@dataclass(frozen=True)
class PartEntry:
    """One file of a shard: its name, without a directory, and its size in bytes, header included."""

    file: str
    nbytes: int


@dataclass(frozen=True)
class ShardManifest:
    """The manifest of one rank's shard.

    Parameters
    ----------
    version : int
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
    """

    version: int
    rank: int
    world_size: int
    device_id: int
    publication: str
    parts: tuple[PartEntry, ...]
    tensors: tuple[TensorEntry, ...]

    @cached_property
    def content_digest(self) -> str:
        """Digest of the tensors alone: equal weights have an equal one, however they were cut into parts."""
        return shard_digest((entry.spec, entry.digest) for entry in self.tensors)

    @cached_property
    def digest(self) -> str:
        """Digest of the whole manifest."""
        return sealed_json.content_digest(self._fields())

    def encode(self) -> bytes:
        """Return the bytes of the manifest's file."""
        return sealed_json.seal(self._fields())

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> ShardManifest:
        """Parse a manifest's file.

        Raises
        ------
        ManifestError
            If it is damaged, of an unknown layout, or contradicts itself. Any bytes give this or a manifest.
        """
        fields = sealed_json.unseal(data, file=file, form=_FORMAT, layout=_LAYOUT)
        reader = FieldReader(fields, file)
        parts = tuple(_part(FieldReader(row, file)) for row in reader.rows("parts"))
        tensors = tuple(_tensor(FieldReader(row, file)) for row in reader.rows("tensors"))
        manifest = cls(
            version=reader.count("version", MAX_VERSION),
            rank=reader.count("rank"),
            world_size=reader.count("world_size"),
            device_id=reader.count("device_id"),
            publication=reader.text("publication"),
            parts=parts,
            tensors=tensors,
        )
        manifest._check(file)
        if fields.get("content_digest") != manifest.content_digest:
            raise ManifestError(file=file, problem="its content_digest is not that of its tensors")
        return manifest

    def _fields(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "layout": _LAYOUT,
            "version": self.version,
            "rank": self.rank,
            "world_size": self.world_size,
            "device_id": self.device_id,
            "publication": self.publication,
            "content_digest": self.content_digest,
            "parts": [{"file": part.file, "bytes": part.nbytes} for part in self.parts],
            "tensors": [
                {
                    "name": entry.spec.name,
                    "dtype": entry.spec.dtype,
                    "shape": list(entry.spec.shape),
                    "digest": entry.digest,
                    "part": entry.part,
                }
                for entry in self.tensors
            ],
        }

    def _check(self, file: str) -> None:
        if self.rank >= self.world_size:
            raise ManifestError(file=file, problem=f"rank {self.rank} of {self.world_size} ranks")
        names = [entry.spec.name for entry in self.tensors]
        if not names:
            raise ManifestError(file=file, problem="it lists no tensor")
        if len(set(names)) != len(names):
            raise ManifestError(file=file, problem="it lists a tensor twice")
        files = [part.file for part in self.parts]
        if len(set(files)) != len(files):
            raise ManifestError(file=file, problem="it lists a part twice")
        if any(entry.part >= len(files) for entry in self.tensors):
            raise ManifestError(file=file, problem="it puts a tensor into a part that it does not list")


def is_plain_file_name(value: str) -> bool:
    """Whether `value` names a file of a directory and leads nowhere else."""
    return value not in ("", ".", "..") and "/" not in value and "\0" not in value


class FieldReader:
    """Typed reading of one JSON object of a manifest; whatever does not fit is a ManifestError.

    Parameters
    ----------
    fields : Any
        The object, as parsed.
    file : str
        The manifest's name, for messages.
    """

    def __init__(self, fields: Any, file: str) -> None:
        if not isinstance(fields, dict):
            raise ManifestError(file=file, problem="it holds something else where an object should be")
        self._fields: dict[str, Any] = fields
        self._file = file

    def refuse(self, name: str, expected: str) -> ManifestError:
        """Return the error that says what `name` should be."""
        return ManifestError(file=self._file, problem=f"its field {name!r} is not {expected}")

    def count(self, name: str, limit: int = (1 << 63) - 1) -> int:
        """Return a non-negative integer up to `limit`."""
        value: Any = self._fields.get(name)
        if not is_count(value) or value > limit:
            raise self.refuse(name, f"an integer from 0 to {limit}")
        return int(value)

    def text(self, name: str) -> str:
        """Return a string that can be written out again."""
        value = self._fields.get(name)
        if not is_text(value):
            raise self.refuse(name, "a string")
        return str(value)

    def digest(self, name: str) -> str:
        """Return a digest."""
        value = self.text(name)
        if not _DIGEST.fullmatch(value):
            raise self.refuse(name, "a digest")
        return value

    def file_name(self, name: str) -> str:
        """Return a plain file name, which leads into no other directory."""
        value = self.text(name)
        if not is_plain_file_name(value):
            raise self.refuse(name, "a plain file name")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return value

    def within(self, name: str) -> FieldReader:
        """Return a reader of the object `name`."""
        return FieldReader(self.mapping(name), self._file)

    def rows(self, name: str) -> list[Any]:
        """Return a list."""
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.refuse(name, "a list")
        return value


def _part(reader: FieldReader) -> PartEntry:
    return PartEntry(reader.file_name("file"), reader.count("bytes"))


def _tensor(reader: FieldReader) -> TensorEntry:
    dtype = reader.text("dtype")
    if dtype not in ITEM_BYTES:
        raise reader.refuse("dtype", "a dtype that wsm moves")
    extents = reader.rows("shape")
    if not all(is_count(extent) for extent in extents):
        raise reader.refuse("shape", "a list of non-negative integers")
    spec = TensorSpec(reader.text("name"), dtype, tuple(extents))
    return TensorEntry(spec, reader.digest("digest"), reader.count("part"))
