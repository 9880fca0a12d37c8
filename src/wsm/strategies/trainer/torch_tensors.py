"""Tensors of torch as specs and bytes; torch is used where its tensors are, never imported.

Bytes in host memory are looked at where they lie, as long as they are contiguous; others are copied.
"""

from __future__ import annotations

import sys
from typing import Any

from wsm.strategies.errors import trainer_tensor
from wsm.strategies.tensor import TensorSpec

#: Safetensors' names of the dtypes that numpy and torch call alike.
DTYPES_BY_NAME = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}


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
