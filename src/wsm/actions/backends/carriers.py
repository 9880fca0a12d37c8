"""The integer types that carry paddle's tensors through DLPack.

Numpy knows neither bfloat16 nor float8, and paddle's DLPack refuses both, so their bytes travel as
integers of the same width (measured on paddle 3.3). It knows nothing of models.
"""

from __future__ import annotations

from typing import Any

from wsm.actions.backends.errors import UnsupportedTensorError
from wsm.strategies.paddle_dtypes import PADDLE_DTYPES, paddle_name

#: Paddle dtypes that DLPack refuses, and the one that carries their bytes.
_CARRIERS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


def safetensors_name(tensor: Any, *, name: str) -> str:
    """Return a paddle tensor's dtype under safetensors' name.

    Raises
    ------
    UnsupportedTensorError
        If it has none; `name` says which tensor it was.
    """
    found = paddle_name(tensor)
    if found not in PADDLE_DTYPES:
        raise UnsupportedTensorError(
            tensor=name, found=f"of dtype {found}", supported=", ".join(PADDLE_DTYPES)
        )
    return PADDLE_DTYPES[found]


def carrier_name(paddle_dtype: str) -> str:
    """Return the dtype, known to numpy and paddle alike, that carries the bytes of `paddle_dtype`."""
    return _CARRIERS.get(paddle_dtype, paddle_dtype)
