"""Paddle, where it has to be imported, and its dtypes under safetensors' names: the one table of them."""

from __future__ import annotations

from typing import Any

from wsm.errors import RefusedError

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


def imported_paddle(file: str) -> Any:
    """Return paddle, for reading a file that nothing else reads; RefusedError where it is not installed."""
    try:
        import paddle  # noqa: PLC0415 - two thirds of a second, and not installed everywhere
    except ImportError as error:
        text = f"reading the pickle file {file} takes paddle; install wsm[cpu] or wsm[gpu]"
        raise RefusedError(text, code="paddle-missing", file=file) from error
    return paddle
