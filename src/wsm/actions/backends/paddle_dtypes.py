"""Paddle's dtypes under safetensors' names, and the integer types that carry them through DLPack.

Numpy knows neither bfloat16 nor float8, and paddle's DLPack refuses both, so their bytes travel as
integers of the same width (measured on paddle 3.3). It knows nothing of models.
"""

from __future__ import annotations

from typing import Any

from wsm.actions.backends.errors import UnsupportedTensorError

_NAMES = {
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

#: Paddle dtypes that DLPack refuses, and the one that carries their bytes.
_CARRIERS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


def paddle_name(tensor: Any) -> str:
    """Return a paddle tensor's dtype as paddle spells it, without the module: ``"bfloat16"``."""
    return str(tensor.dtype).rpartition(".")[2]


def safetensors_name(tensor: Any, *, name: str) -> str:
    """Return a paddle tensor's dtype under safetensors' name.

    Raises
    ------
    UnsupportedTensorError
        If it has none; `name` says which tensor it was.
    """
    found = paddle_name(tensor)
    if found not in _NAMES:
        raise UnsupportedTensorError(tensor=name, found=f"of dtype {found}", supported=", ".join(_NAMES))
    return _NAMES[found]


def carrier_name(paddle_dtype: str) -> str:
    """Return the dtype, known to numpy and paddle alike, that carries the bytes of `paddle_dtype`."""
    return _CARRIERS.get(paddle_dtype, paddle_dtype)
