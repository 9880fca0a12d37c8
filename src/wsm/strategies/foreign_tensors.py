"""Tensors that a transport hands over, as specs and bytes: paddle's, numpy's, or plain buffers.

On the host nothing is copied: the bytes are looked at where they lie, as long as they are contiguous. Tensors
in device memory come as a copy on the host. paddle is used where its tensors are, never imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.paddle_state import PADDLE_DTYPES
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer_tensors import bytes_of, specs_of

# paddle's DLPack refuses these; their bytes travel as integers of the same width.
_CARRIERS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


def foreign_bytes(name: str, value: Any) -> tuple[TensorSpec, memoryview]:
    """Return a foreign tensor's spec and bytes (flat, format ``B``); they live as long as the view does.

    Raises
    ------
    wsm.strategies.errors.TrainerTensorError
        If it is no tensor in an accepted form.
    """
    if not is_paddle_tensor(value):
        (spec,) = specs_of({name: value})
        return spec, bytes_of({name: value}, spec)
    dtype = str(value.dtype).rpartition(".")[2]
    if dtype not in PADDLE_DTYPES:
        raise TrainerTensorError(tensor=name, problem=f"its dtype is paddle's {dtype}")
    spec = TensorSpec(name, PADDLE_DTYPES[dtype], tuple(int(extent) for extent in value.shape))
    if not spec.nbytes:
        return spec, memoryview(b"")
    if not value._is_initialized():
        raise TrainerTensorError(tensor=name, problem="it holds no memory")
    value = value.detach()
    if not value.is_contiguous():
        value = value.contiguous()
    if dtype in _CARRIERS:
        value = value.view(_CARRIERS[dtype])
    if not value.place.is_cpu_place():
        array = value.numpy()
    elif dtype == "bool":
        array = np.from_dlpack(value.view("uint8"))  # numpy takes no booleans from DLPack in every build
    else:
        array = np.from_dlpack(value)
    return spec, array.reshape(-1).view(np.uint8).data


def is_paddle_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of paddle."""
    return type(value).__module__.partition(".")[0] == "paddle" and hasattr(value, "place")
