"""Tensors of paddle and torch as specs and bytes; neither is ever imported, but used where its tensors are.

On the host nothing is copied: the bytes are looked at where they lie, as long as they are contiguous. Tensors
in device memory come as a copy on the host.
"""

from __future__ import annotations

import sys
from typing import Any

from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.paddle_dtypes import PADDLE_DTYPES, paddle_name
from wsm.strategies.tensor import TensorSpec

#: Safetensors' name of each of torch's dtypes that wsm moves.
TORCH_DTYPES = {**PADDLE_DTYPES, "uint16": "U16", "uint32": "U32", "uint64": "U64"}


class _PaddleMemory:
    """The memory of a paddle tensor, by numpy's array interface: DLPack takes neither every dtype nor build.

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
    return _package(value) == "paddle" and hasattr(type(value), "place")


def is_torch_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of torch."""
    return _package(value) == "torch" and hasattr(value, "is_meta")


def spec_of(name: str, value: Any) -> TensorSpec | None:
    """Return the spec of a tensor of paddle or torch; None if it is neither.

    Raises
    ------
    TrainerTensorError
        If its dtype is none of safetensors', it holds no memory, or this process holds a part of it alone.
    """
    if is_paddle_tensor(value):
        framework, known, said = "paddle", PADDLE_DTYPES, paddle_name(value)
        there = value._is_initialized() or 0 in value.shape
    elif is_torch_tensor(value):
        framework, known, said = "torch", TORCH_DTYPES, str(value.dtype).removeprefix("torch.")
        there = not value.is_meta
        if str(value.layout) != "torch.strided":
            raise TrainerTensorError(tensor=name, problem=f"its layout is {value.layout}")
    else:
        return None
    if said not in known:
        raise TrainerTensorError(tensor=name, problem=f"its dtype is {framework}'s {said}")
    if not there:
        raise TrainerTensorError(tensor=name, problem="it holds no memory")
    if hasattr(value, "full_tensor"):
        raise TrainerTensorError(tensor=name, problem="it is a part of the tensor that its full_tensor() is")
    return TensorSpec(name, known[said], tuple(int(extent) for extent in value.shape))


def bytes_of(value: Any, spec: TensorSpec) -> memoryview:
    """Return the bytes, flat, format ``B``, of a tensor that :func:`spec_of` knows; they live with it."""
    if not spec.nbytes:
        return memoryview(b"")
    import numpy as np  # noqa: PLC0415 - the framework has brought it; quick questions do without

    if is_torch_tensor(value):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return memoryview(flat.view(sys.modules["torch"].uint8).numpy())
    if not value.is_contiguous():
        value = value.contiguous()
    if not value.place.is_cpu_place():
        return value.numpy().reshape(-1).view(np.uint8).data  # type: ignore[no-any-return]  # paddle is untyped
    return np.asarray(_PaddleMemory(value, spec.nbytes)).data


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]
