"""The metas file of one rank's shared tensors: FastDeploy's seven-field metas in a sealed document.

A meta is what paddle's ``_share_cuda()`` returns and FastDeploy's trainers write: handle, offset, size,
type, dims, lod, device. Here the handle of host memory is the name of a segment, and its device is -1; that
of device memory is CUDA's 64 bytes. Beside the metas stand version, rank, publication and digests, which
FastDeploy's files lack. Pure: no file is touched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

from wsm.strategies import documents
from wsm.strategies.digest import shard_digest
from wsm.strategies.documents import FieldReader, SealedDocument, is_count, is_plain_file_name, is_text
from wsm.strategies.errors import ManifestError
from wsm.strategies.tensor import TensorSpec, is_shape

#: The device of a meta whose memory is host memory.
HOST = -1

#: What the names of segments begin with: those of host memory, and those that stand for device memory.
SEGMENT_PREFIX, DEVICE_SEGMENT_PREFIX = "wsm-ipc.", "wsm-device."

_PREFIX = "ipc_metas_"
_FIELDS = 7

# paddle's own numbers for its dtypes (phi::DataType), as they stand in a meta's fourth field. Those from 200
# on are wsm's: paddle has no such dtype.
_TYPE_NUMBERS = {
    "BOOL": 1,
    "U8": 2,
    "I8": 3,
    "U16": 4,
    "I16": 5,
    "U32": 6,
    "I32": 7,
    "U64": 8,
    "I64": 9,
    "F32": 10,
    "F64": 11,
    "F16": 15,
    "BF16": 16,
    "F8_E4M3": 17,
    "F8_E5M2": 18,
    "F8_E8M0": 200,
}
_DTYPES = {number: dtype for dtype, number in _TYPE_NUMBERS.items()}


def metas_name(device_id: int | str) -> str:
    """Return FastDeploy's name of the metas file of the rank that uses a device; for ``*`` of all."""
    return f"{_PREFIX}{device_id}"


def is_metas_file(name: str) -> bool:
    """Whether `name` is some rank's metas file; for messages that say what is there instead."""
    return name.startswith(_PREFIX)


@dataclass(frozen=True)
class TensorMeta:
    """Where one tensor lies.

    Parameters
    ----------
    spec : TensorSpec
        Name, dtype, shape.
    handle : str
        Name of a segment of host memory, or the 64 bytes of a CUDA IPC handle as latin-1 characters.
    offset : int
        Of its first byte, in bytes.
    device : int
        :data:`HOST`, or the index of its device among those that the writer saw.
    """

    spec: TensorSpec
    handle: str
    offset: int
    device: int = HOST

    def fields(self) -> list[Any]:
        """Return the seven fields."""
        spec = self.spec
        return [
            self.handle,
            self.offset,
            spec.nbytes,
            _TYPE_NUMBERS[spec.dtype],
            list(spec.shape),
            [],
            self.device,
        ]

    @classmethod
    def of_fields(cls, name: str, fields: Any, *, file: str) -> TensorMeta:
        """Read the fields; seven or more, as FastDeploy allows.

        Raises
        ------
        ManifestError
            If they are not those of a dense tensor whose dtype wsm moves.
        """
        if not is_text(name):
            raise ManifestError(file=file, problem=f"the name {name!r} cannot be written out again")
        if not _is_dense(fields):
            raise ManifestError(file=file, problem=f"its meta of {name!r} {_problem(fields)}")
        handle, offset, nbytes, kind, dims, _, device = fields[:_FIELDS]
        spec = TensorSpec(name, _DTYPES[kind], tuple(dims))
        if spec.nbytes != nbytes:
            problem = f"its meta of {name!r} has {nbytes} bytes, which is not what its dims and type take"
            raise ManifestError(file=file, problem=problem)
        return cls(spec, handle, offset, device)


def _is_dense(fields: Any) -> bool:
    """Whether `fields` are those of a dense tensor; asked for every tensor, so the reason is found later."""
    if type(fields) not in (list, tuple) or len(fields) < _FIELDS:
        return False
    handle, offset, nbytes, kind, dims, lod, device = fields[:_FIELDS]
    return (
        isinstance(handle, str)
        and handle != ""
        and type(offset) is type(nbytes) is type(kind) is type(device) is int
        and offset >= 0
        and nbytes >= 0
        and kind in _DTYPES
        and is_shape(dims)
        and not lod
        and device >= HOST
    )


def _problem(fields: Any) -> str:
    """Say why `fields` are not those of a dense tensor."""
    if not isinstance(fields, (list, tuple)) or len(fields) < _FIELDS:
        return f"is not a list of {_FIELDS} fields"
    handle, offset, nbytes, kind, dims, lod, device = fields[:_FIELDS]
    faults = (
        (not isinstance(handle, str) or not handle, "has no handle"),
        (not is_count(offset) or not is_count(nbytes), "has no offset or size"),
        (not is_count(kind) or kind not in _DTYPES, f"has the type {kind!r}, which is none that wsm moves"),
        (not is_shape(dims), f"has the dims {dims!r:.200}"),
        (bool(lod), "has levels of detail, so it is no dense tensor"),
        (True, f"has the device {device!r}"),
    )
    return next(problem for wrong, problem in faults if wrong)


@dataclass(frozen=True)
class IpcMetas(SealedDocument):
    """The metas file of one rank.

    Parameters
    ----------
    version : str
        The version that the tensors are.
    rank, world_size : int
        Whose shard, of how many.
    publication : str
        Drawn anew for every publication.
    group : tuple of str
        Digest of the tensors of every rank, in rank order; the same in all files of the publication.
    segments : Mapping of str to int
        Segments of host memory and their bytes.
    tensors : tuple of TensorMeta
        The tensors, in the order in which they lie in memory.
    digests : Mapping of str to str
        xxh3-128 of every tensor's bytes.
    finite : bool
        Whether the trainer promises that there is neither NaN nor infinity in them; loads refuse both then.
    """

    FORMAT: ClassVar[str] = "wsm.ipc-metas"
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"version", "rank", "world_size", "publication", "group", "segments", "metas", "digests", "finite"}
    )

    version: str
    rank: int
    world_size: int
    publication: str
    group: tuple[str, ...]
    segments: Mapping[str, int]
    tensors: tuple[TensorMeta, ...]
    digests: Mapping[str, str]
    finite: bool = False

    @cached_property
    def content_digest(self) -> str:
        """Digest of this rank's tensors."""
        return shard_digest((meta.spec, self.digests[meta.spec.name]) for meta in self.tensors)

    @cached_property
    def group_digest(self) -> str:
        """Digest of the publication: equal on all of its ranks."""
        return documents.content_digest(
            {"version": self.version, "publication": self.publication, "group": list(self.group)}
        )

    def _content(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "rank": self.rank,
            "world_size": self.world_size,
            "publication": self.publication,
            "group": list(self.group),
            "segments": dict(self.segments),
            "metas": {meta.spec.name: meta.fields() for meta in self.tensors},
            "digests": dict(self.digests),
            **({"finite": True} if self.finite else {}),
        }

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> IpcMetas:
        """Parse the bytes of a file.

        Raises
        ------
        ManifestError
            If it is damaged, of an unknown layout, or contradicts itself. Any bytes give this or metas.
        """
        reader = cls._unsealed(data, file=file)
        rows = reader.mapping("metas")
        found = cls(
            version=reader.version(),
            rank=reader.count("rank"),
            world_size=reader.count("world_size"),
            publication=reader.text("publication"),
            group=tuple(_group(reader)),
            segments=_segments(reader, file),
            tensors=tuple(
                sorted(
                    (TensorMeta.of_fields(name, rows[name], file=file) for name in rows),
                    key=attrgetter("handle", "offset"),
                )
            ),
            digests=reader.digests("digests"),
            finite=reader.promise("finite"),
        )
        found._check(file)
        return found

    def _check(self, file: str) -> None:
        if self.rank >= self.world_size or len(self.group) != self.world_size:
            raise ManifestError(file=file, problem=f"rank {self.rank} of {self.world_size} ranks")
        if self.digests.keys() != {meta.spec.name for meta in self.tensors}:
            raise ManifestError(file=file, problem="it has not one digest for each tensor")
        if self.tensors and self.group[self.rank] != self.content_digest:
            raise ManifestError(file=file, problem="its group digest is not that of its tensors")
        sizes = self.segments
        for meta in self.tensors:
            if meta.device == HOST and meta.offset + meta.spec.nbytes > sizes.get(meta.handle, -1):
                raise ManifestError(
                    file=file, problem=f"{meta.spec.name!r} lies outside of its segment {meta.handle!r}"
                )


def _group(reader: FieldReader) -> list[str]:
    rows = reader.rows("group")
    if not all(isinstance(row, str) for row in rows):
        raise reader.refuse("group", "a list of digests")
    return rows


def _segments(reader: FieldReader, file: str) -> dict[str, int]:
    sizes = reader.within("segments")
    names = list(reader.mapping("segments"))
    for name in names:
        if not is_plain_file_name(name):
            raise ManifestError(file=file, problem=f"its segment {name!r} is no plain file name")
    return {name: sizes.count(name) for name in names}
