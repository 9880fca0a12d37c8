"""What numpy, torch and paddle call the dtypes that safetensors has."""

from __future__ import annotations

from typing import Any

#: Safetensors' names of the dtypes that numpy, torch and paddle call alike.
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

#: Those that paddle has.
PADDLE_DTYPES = {
    name: dtype
    for name, dtype in DTYPES_BY_NAME.items()
    if name not in ("uint16", "uint32", "uint64", "float8_e8m0fnu")
}


def paddle_name(tensor: Any) -> str:
    """Return a paddle tensor's dtype as paddle spells it, without the module: ``"bfloat16"``."""
    return str(tensor.dtype).rpartition(".")[2]
