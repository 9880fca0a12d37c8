"""Tensors that a transport hands over, as specs and bytes: paddle's, numpy's, or plain buffers.

On the host nothing is copied: the bytes are looked at where they lie, as long as they are contiguous. Tensors
in device memory come as a copy on the host. paddle is used where its tensors are, never imported.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.paddle_dtypes import PADDLE_DTYPES, paddle_name
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.tensors import tensor_of


class _ForeignBytes:
    """The memory of a paddle tensor, by numpy's array interface: DLPack takes neither every dtype nor build.

    A tensor of size zero shares it, so that it stays when the package lets go of its own.
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


def foreign_bytes(name: str, value: Any) -> tuple[TensorSpec, memoryview]:
    """Return a foreign tensor's spec and bytes (flat, format ``B``); they live as long as the view does.

    Raises
    ------
    wsm.strategies.errors.TrainerTensorError
        If it is no tensor in an accepted form.
    """
    if not is_paddle_tensor(value):
        return tensor_of(name, value)
    dtype = paddle_name(value)
    if dtype not in PADDLE_DTYPES:
        raise TrainerTensorError(tensor=name, problem=f"its dtype is paddle's {dtype}")
    spec = TensorSpec(name, PADDLE_DTYPES[dtype], tuple(int(extent) for extent in value.shape))
    if not spec.nbytes:
        return spec, memoryview(b"")
    if not value._is_initialized():
        raise TrainerTensorError(tensor=name, problem="it holds no memory")
    if not value.is_contiguous():
        value = value.contiguous()
    import numpy as np  # noqa: PLC0415 - paddle has brought it; the command line's quick questions do without

    if not value.place.is_cpu_place():
        return spec, value.numpy().reshape(-1).view(np.uint8).data
    return spec, np.asarray(_ForeignBytes(value, spec.nbytes)).data


def host_nbytes(value: Any) -> int | None:
    """Return the bytes of a foreign tensor in host memory; None for any other, and for what may be none."""
    if isinstance(value, tuple):
        return value[0].nbytes if len(value) == 2 and isinstance(value[0], TensorSpec) else None
    if not is_paddle_tensor(value):
        found: Any = len(value) if isinstance(value, bytes | bytearray) else getattr(value, "nbytes", None)
        return found if isinstance(found, int) else None
    dtype = PADDLE_DTYPES.get(paddle_name(value))
    if dtype is None or not value._is_initialized() or not value.place.is_cpu_place():
        return None
    return math.prod(map(int, value.shape)) * ITEM_BYTES[dtype]


def is_paddle_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of paddle."""
    return type(value).__module__.partition(".")[0] == "paddle" and hasattr(value, "place")
