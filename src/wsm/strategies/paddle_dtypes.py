"""Paddle's dtypes under safetensors' names: the one table of them. Knows tensors by their dtype alone."""

from __future__ import annotations

from typing import Any

#: Safetensors' name of each of paddle's dtypes that wsm moves.
PADDLE_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


def paddle_name(tensor: Any) -> str:
    """Return a paddle tensor's dtype as paddle spells it, without the module: ``"bfloat16"``."""
    return str(tensor.dtype).rpartition(".")[2]
