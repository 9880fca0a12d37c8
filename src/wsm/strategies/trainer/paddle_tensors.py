"""Tensors of paddle as specs and bytes; paddle is used where its tensors are, never imported.

Bytes in host memory are looked at where they lie, as long as they are contiguous; others are copied.
"""

from __future__ import annotations

import sys
from typing import Any

from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.paddle_dtypes import PADDLE_DTYPES, paddle_name
from wsm.strategies.tensor import TensorSpec


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
    TrainerTensorError
        If its dtype is none of safetensors', or it holds no memory.
    """
    said = paddle_name(value)
    if said not in PADDLE_DTYPES:
        raise TrainerTensorError(tensor=name, problem=f"its dtype is paddle's {said}")
    spec = TensorSpec(name, PADDLE_DTYPES[said], tuple(int(extent) for extent in value.shape))
    if spec.nbytes and not value._is_initialized():
        raise TrainerTensorError(tensor=name, problem="it holds no memory")
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
