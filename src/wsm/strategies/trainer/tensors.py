"""What a trainer may hand over, turned into specs and bytes one tensor at a time, and what it is told then.

Accepted per tensor: one of paddle or torch, on any device; a numpy array; a ``(TensorSpec, buffer)`` pair,
whose bytes are taken as they are; any C-contiguous object with the buffer protocol. numpy is only looked at,
never imported. A numpy ``uint16`` array is U16 here: what paddle's ``numpy()`` makes of bfloat16 takes the
pair to say BF16, the tensor itself does not.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar

from wsm.errors import BadInputError
from wsm.labels import checked_version
from wsm.strategies import errors
from wsm.strategies.digest import digest_of
from wsm.strategies.dtype_names import DTYPES_BY_NAME, PADDLE_DTYPES, paddle_name
from wsm.strategies.errors import trainer_tensor
from wsm.strategies.files.safetensors import METADATA_KEY
from wsm.strategies.finite import check_finite
from wsm.strategies.promise import RankShard, is_text
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec


def is_torch_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "is_meta")


def torch_spec(name: str, value: Any) -> TensorSpec:
    """Return the spec of a tensor of torch.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If its dtype or layout is none of safetensors', it holds no memory, or it is a part of a sharded one.
    """
    said = str(value.dtype).removeprefix("torch.")
    if said not in DTYPES_BY_NAME:
        raise trainer_tensor(tensor=name, problem=f"its dtype is torch's {said}")
    if str(value.layout) != "torch.strided":
        raise trainer_tensor(tensor=name, problem=f"its layout is {value.layout}")
    if value.is_meta:
        raise trainer_tensor(tensor=name, problem="it holds no memory")
    if hasattr(value, "full_tensor"):
        raise trainer_tensor(tensor=name, problem="it is a part of the tensor that its full_tensor() is")
    return TensorSpec(name, DTYPES_BY_NAME[said], tuple(int(extent) for extent in value.shape))


def torch_bytes(value: Any, spec: TensorSpec) -> memoryview:
    """Return the bytes, flat, format ``B``, of a tensor that has this spec; they live with it."""
    if not spec.nbytes:
        return memoryview(b"")
    flat = value.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(sys.modules["torch"].uint8).numpy())


class _PaddleMemory:
    """The memory of a tensor, by numpy's array interface: DLPack takes neither every dtype nor build.

    A tensor of size zero shares it, so that it stays when its owner lets go of its own.
    """

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, tensor: Any, nbytes: int) -> None:
        self._owner = sys.modules["paddle"].empty([0], dtype=tensor.dtype)
        tensor._share_buffer_to(self._owner)
        self.__array_interface__ = {
            "data": (int(tensor.data_ptr()), False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def is_paddle_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of paddle."""
    return type(value).__module__.partition(".")[0] == "paddle" and hasattr(type(value), "place")


def paddle_spec(name: str, value: Any) -> TensorSpec:
    """Return the spec of a tensor of paddle.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If its dtype is none of safetensors', or it holds no memory.
    """
    said = paddle_name(value)
    if said not in PADDLE_DTYPES:
        raise trainer_tensor(tensor=name, problem=f"its dtype is paddle's {said}")
    spec = TensorSpec(name, PADDLE_DTYPES[said], tuple(int(extent) for extent in value.shape))
    if spec.nbytes and not value._is_initialized():
        raise trainer_tensor(tensor=name, problem="it holds no memory")
    return spec


def paddle_bytes(value: Any, spec: TensorSpec) -> memoryview:
    """Return the bytes, flat, format ``B``, of a tensor that has this spec; they live with it."""
    if not spec.nbytes:
        return memoryview(b"")
    import numpy as np  # noqa: PLC0415 - paddle has brought it; the command line's quick questions do without

    if not value.is_contiguous():
        value = value.contiguous()
    if not value.place.is_cpu_place():
        return value.numpy().reshape(-1).view(np.uint8).data  # type: ignore[no-any-return]  # paddle is untyped
    return np.asarray(_PaddleMemory(value, spec.nbytes)).data


@dataclass(frozen=True, kw_only=True)
class TrainerReport:
    """A version that was handed over.

    Parameters
    ----------
    version : str
        The version.
    manifest_digest : str
        Digest of the publication; what every rank's load reports.
    digests : mapping of int to str
        Digest of the tensors of each rank.
    bytes : int
        Bytes of all tensors.
    seconds : float
        What it took.
    """

    version: str
    manifest_digest: str
    digests: Mapping[int, str]
    bytes: int
    seconds: float


#: A state dict: names to tensors in any of the accepted forms.
TrainerTensors: TypeAlias = Mapping[str, Any]

_BY_BUFFER_FORMAT = {"?": "BOOL", "e": "F16", "f": "F32", "d": "F64"}
_SIGNED_FORMATS = "bhilq"
_UNSIGNED_FORMATS = "cBHILQ"


def check_ranks(version: str, shards: Mapping[int, object]) -> None:
    """Refuse what was handed over for other ranks than 0 to the world size - 1.

    Raises
    ------
    BadInputError
        If a rank is missing, or there is none.
    """
    if not shards or sorted(shards) != list(range(len(shards))):
        raise errors.incomplete_publication(
            version=version, problem=f"shards were given for ranks {sorted(shards)}"
        )


ReportT = TypeVar("ReportT", bound=TrainerReport)
PutT = TypeVar("PutT", bound="PutVersion[Any]")


class PutVersion(Generic[ReportT]):
    """A version that the processes of a job put shards into, and one of them seals.

    Parameters
    ----------
    version : str or int
        Its label.
    world_size : int
        Number of ranks that it is for.
    job : str or None
        What its processes share; None: this process puts all shards.

    Attributes
    ----------
    publication : str
        What marks every file of this publication, the same in all processes of the job.
    """

    def __init__(self, version: str | int, world_size: int, job: str | None) -> None:
        self.version = checked_version(version)
        named = None if job is None else digest_of(f"{job}\0{self.version}".encode())
        self.publication = named or secrets.token_hex(16)
        self._world_size, self._job = world_size, job
        self._begun_s = time.monotonic()
        self._sealed: tuple[Mapping[int, str], ReportT] | None = None

    def __enter__(self: PutT) -> PutT:  # noqa: PYI019 - typing has Self from Python 3.11 on
        return self

    def _sealed_before(self, digests: Mapping[int, str]) -> ReportT | None:
        """Return what this process has sealed already; None: it has not, and every rank was heard of."""
        if self._sealed is not None:
            self._require_same(self._sealed[0], digests)
            return self._sealed[1]
        if sorted(digests) != list(range(self._world_size)):
            ranks = f"ranks {sorted(digests)}, and it is for {self._world_size} ranks"
            raise self._incomplete(f"digests were heard of {ranks}")
        return None

    def _require_same(self, sealed: Mapping[int, str], digests: Mapping[int, str]) -> None:
        other = [rank for rank in sealed.keys() | digests.keys() if sealed.get(rank) != digests.get(rank)]
        if other:
            problem = f"its seal holds another digest of ranks {errors.listed(sorted(other))}"
            raise errors.already_sealed(version=self.version, problem=problem)

    def _require_rank(self, rank: int) -> None:
        if rank >= self._world_size:
            raise self._incomplete(f"there is no rank {rank} among the {self._world_size} that it is for")

    def _require_heard(self, rank: int, shard: RankShard, digest: str) -> None:
        """Refuse a shard that was put for another number of ranks, or is not the one that was heard of."""
        if shard.world_size != self._world_size:
            ranks = f"{shard.world_size} ranks, not for {self._world_size}"
            raise self._incomplete(f"rank {rank} was put for {ranks}")
        if shard.seal != digest:
            raise self._incomplete(f"rank {rank} was put as {shard.seal}, and {digest} was heard of it")

    def _incomplete(self, problem: str) -> BadInputError:
        return errors.incomplete_publication(version=self.version, problem=problem)

    def _seconds(self) -> float:
        return time.monotonic() - self._begun_s


def specs_of(tensors: TrainerTensors) -> list[TensorSpec]:
    """Return the specs of a state dict, in its order, without copying anything.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If one of them is no tensor in an accepted form.
    """
    return [_spec(name, tensors[name]) for name in tensors]


def specs_of_rank(rank: int, tensors: TrainerTensors) -> list[TensorSpec]:
    """Return the specs of a rank's state dict, which must have a tensor.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If it has none, or one of them is no tensor in an accepted form.
    """
    specs = specs_of(tensors)
    if not specs:
        raise trainer_tensor(tensor="", problem=f"rank {rank} has none")
    return specs


def bytes_of(
    tensors: TrainerTensors, spec: TensorSpec, *, finite: bool = False, rank: int | None = None
) -> memoryview:
    """Return the bytes of one tensor, flat, format ``B``; a copy only if it is not contiguous.

    `rank`: whose it is, for the error.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If it no longer is what `spec` says, its buffer is not contiguous, or it is to be `finite` and is not.
    """
    value = tensors[spec.name]
    if not _is_still(value, spec):
        raise trainer_tensor(tensor=spec.name, problem="it changed while it was being published")
    data = _bytes(spec, value)
    if finite:
        check_finite(spec, data, rank=rank)
    return data


def tensor_of(name: str, value: Any) -> tuple[TensorSpec, memoryview]:
    """Return the spec and the bytes of a tensor that is there for now only, looked at once.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If it is no tensor in an accepted form, or its buffer is not contiguous.
    """
    spec = _spec(name, value)
    return spec, _bytes(spec, value)


def _bytes(spec: TensorSpec, value: Any) -> memoryview:
    if is_paddle_tensor(value):
        return paddle_bytes(value, spec)
    if is_torch_tensor(value):
        return torch_bytes(value, spec)
    buffer = value[1] if isinstance(value, tuple) else value
    if _is_array(buffer):
        # numpy's own view: custom dtypes (bfloat16, float8) have no buffer protocol of their own.
        buffer = buffer.ravel("C").view("u1") if buffer.size else b""
    view = _view(spec.name, buffer)
    if not view.c_contiguous:
        raise trainer_tensor(tensor=spec.name, problem="its buffer is not C-contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _spec(name: object, value: Any) -> TensorSpec:
    if not isinstance(name, str):
        raise trainer_tensor(tensor=str(name), problem=f"its name is a {type(name).__name__}, not a string")
    if name == METADATA_KEY or not is_text(name):
        raise trainer_tensor(tensor=ascii(name), problem="no safetensors file can hold this name")
    if isinstance(value, tuple):
        return _declared(name, value)
    if is_paddle_tensor(value):
        return paddle_spec(name, value)
    if is_torch_tensor(value):
        return torch_spec(name, value)
    if _is_array(value):
        dtype = _of_numpy(value.dtype)
        if dtype is None:
            raise trainer_tensor(
                tensor=name, problem=f"its dtype is {value.dtype.name}, byte order {value.dtype.byteorder}"
            )
        return TensorSpec(name, dtype, tuple(value.shape))
    view = _view(name, value)
    return TensorSpec(name, _dtype_of_format(name, view), tuple(view.shape or ()))


def _is_still(value: Any, spec: TensorSpec) -> bool:
    """Whether a tensor is what `spec`, made of it before, says; nothing that cannot change is looked at."""
    if not isinstance(value, tuple) and _is_array(value):
        return tuple(value.shape) == spec.shape and _of_numpy(value.dtype) == spec.dtype
    return _spec(spec.name, value) == spec


@lru_cache(maxsize=64)
def _of_numpy(dtype: Any) -> str | None:
    """Return our name of a numpy dtype; None if there is none. numpy makes a dtype's name up at each look."""
    return DTYPES_BY_NAME.get(dtype.name) if dtype.isnative else None


def _is_array(value: Any) -> bool:
    """Whether `value` is a numpy array or scalar; only their dtypes know a byte order."""
    return hasattr(getattr(value, "dtype", None), "byteorder")


def _declared(name: str, pair: tuple[Any, ...]) -> TensorSpec:
    if len(pair) != 2 or not isinstance(pair[0], TensorSpec):
        raise trainer_tensor(tensor=name, problem="the tuple is no (TensorSpec, buffer) pair")
    spec: TensorSpec = pair[0]
    buffer = pair[1]
    if spec.name != name or spec.dtype not in ITEM_BYTES:
        raise trainer_tensor(tensor=name, problem=f"it is described as {spec}")
    nbytes = buffer.nbytes if _is_array(buffer) else _view(name, buffer).nbytes
    if nbytes != spec.nbytes:
        raise trainer_tensor(tensor=name, problem=f"it has {nbytes} bytes, its spec says {spec.nbytes}")
    return spec


def _dtype_of_format(name: str, view: memoryview) -> str:
    code = view.format.removeprefix("@").removeprefix("=")
    if code in _BY_BUFFER_FORMAT:
        return _BY_BUFFER_FORMAT[code]
    bits = 8 * view.itemsize
    if code and code in _SIGNED_FORMATS:
        return f"I{bits}"
    if code and code in _UNSIGNED_FORMATS:
        return f"U{bits}"
    raise trainer_tensor(tensor=name, problem=f"its buffer has the format {view.format!r}")


def _view(name: str, value: Any) -> memoryview:
    try:
        return memoryview(value)
    except TypeError as error:
        raise trainer_tensor(tensor=name, problem=f"it is a {type(value).__name__}") from error
