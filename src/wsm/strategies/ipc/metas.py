"""The metas file of one rank's shared tensors: its promise, and where each tensor lies.

The handle of host memory is the name of a segment, and its device is -1; that of device memory is CUDA's 64
bytes. FastDeploy's trainers pickle the seven fields that paddle's ``_share_cuda()`` returns and no promise:
handle, offset, size, type, dims, lod, device (:class:`TensorMeta`). Pure: no file is touched here.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from wsm.errors import BadInputError, UnfitError, coded
from wsm.strategies.errors import ManifestError
from wsm.strategies.promise import (
    Count,
    Digest,
    Extents,
    FileName,
    PromisedShard,
    Publication,
    ShardPromise,
    is_text,
)
from wsm.strategies.tensor import TensorSpec
from wsm.typed import resolved

#: The device of a meta whose memory is host memory.
HOST = -1

#: No process reads a metas file that is larger.
MAX_METAS_BYTES = 1 << 28

#: What the names of segments begin with: those of host memory, and those that stand for device memory.
SEGMENT_PREFIX, DEVICE_SEGMENT_PREFIX = "wsm-ipc.", "wsm-device."

_PREFIX = "ipc_metas_"

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


class _Fields(msgspec.Struct, array_like=True):
    """The seven fields; there may be more, as FastDeploy allows."""

    handle: Annotated[str, msgspec.Meta(min_length=1)]
    offset: Count
    nbytes: Count
    kind: int
    dims: Extents
    levels: Any
    device: Annotated[int, msgspec.Meta(ge=HOST)]


class TensorMeta(NamedTuple):
    """Where one tensor lies, as FastDeploy's seven fields say it.

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
        """Read the fields.

        Raises
        ------
        ManifestError
            If they are not those of a dense tensor whose dtype wsm moves.
        """
        if not is_text(name):
            raise ManifestError(file=file, problem=f"the name {name!r} cannot be written out again")
        problem = None
        try:
            found = msgspec.convert(fields, resolved(_Fields))
            if found.levels or found.kind not in _DTYPES:
                levels = ", and levels of detail" if found.levels else ""
                problem = f"has the type {found.kind}{levels}, which is no dense tensor that wsm moves"
            elif (spec := TensorSpec(name, _DTYPES[found.kind], found.dims)).nbytes == found.nbytes:
                return cls(spec, found.handle, found.offset, found.device)
            else:
                problem = f"has {found.nbytes} bytes, which is not what its dims and type take"
        except msgspec.ValidationError as error:
            problem = f"is none: {error}"
        raise ManifestError(file=file, problem=f"its meta of {name!r} {problem}")


class TensorPlace(NamedTuple):
    """Where a tensor lies: the fields of :class:`TensorMeta` beside its spec."""

    handle: Annotated[str, msgspec.Meta(min_length=1)]
    offset: Count
    device: Annotated[int, msgspec.Meta(ge=HOST)] = HOST


class IpcMetas(ShardPromise, frozen=True, kw_only=True):
    """The metas file of one rank; and what a process has put for it before its seal, without a group.

    Parameters
    ----------
    segments : Mapping of str to int
        Segments of host memory and their bytes.
    places : tuple of TensorPlace
        Where the tensors lie, in their order.
    group : tuple of str
        Digest of the tensors of every rank, in rank order; the same in all files of the publication. Empty
        before the seal.
    """

    FORMAT: ClassVar[str] = "wsm.ipc-metas"
    LAYOUT: ClassVar[int] = 2

    segments: dict[FileName, Count]
    places: tuple[TensorPlace, ...]
    group: tuple[Digest, ...] = ()

    @cached_property
    def metas(self) -> tuple[TensorMeta, ...]:
        """The tensors with their places."""
        return tuple(TensorMeta(each.spec, *at) for each, at in zip(self.tensors, self.places, strict=True))

    @cached_property
    def group_digest(self) -> str:
        """Digest of the version as all ranks get it."""
        shards = tuple(PromisedShard(content_digest=digest) for digest in self.group)
        return Publication(version=self.version, publication="", shards=shards).group_digest

    def check(self) -> None:
        """Compare tensors, their places and digests; there may be no tensor."""
        if self.rank >= self.world_size or len(self.group) not in (0, self.world_size):
            raise msgspec.ValidationError(f"rank {self.rank} of {self.world_size} ranks")
        if len(self.places) != len(self.rows):
            raise msgspec.ValidationError("it has not one place for each tensor")
        if not self.rows:
            return
        super().check()
        for spec, handle, offset, device in self.metas:
            if device == HOST and offset + spec.nbytes > self.segments.get(handle, -1):
                raise msgspec.ValidationError(f"{spec.name!r} lies outside of its segment {handle!r}")
        if self.group and self.group[self.rank] != self.content_digest:
            raise msgspec.ValidationError("its group digest is not that of its tensors")


@coded("bad-device-meta")
def bad_device_meta(*, tensor: str, file: str, problem: str) -> BadInputError:
    """A meta describes memory that paddle cannot open here."""
    return UnfitError(f"the memory of {tensor!r} in {file} cannot be opened: {problem}")
