"""Reading a pickled state dict with paddle, for those who have asked for it by name.

The only module of the strategies that imports paddle, and only when it is called. The process that calls it
has decided to trust the file: reading a pickle runs what its writer put into it.
"""

from __future__ import annotations

from typing import Any

from wsm.strategies import errors
from wsm.strategies.errors import PaddleMissingError
from wsm.strategies.paddle_dtypes import PADDLE_DTYPES, paddle_name
from wsm.strategies.tensor import TensorSpec


def read_state(descriptor: int, *, file: str) -> dict[str, tuple[TensorSpec, memoryview]]:
    """Return the tensors of a pickled state dict, each with its spec and its bytes. Blocks; runs pickle.

    Parameters
    ----------
    descriptor : int
        The open file; it is read by its descriptor, so that what was checked is what is read.
    file : str
        Its name, for messages.

    Raises
    ------
    PaddleMissingError
        If paddle is not installed.
    BadInputError
        If the file cannot be read, or holds something else than a flat map of names to tensors.
    """
    try:
        import paddle  # noqa: PLC0415 - two thirds of a second, and not installed everywhere
    except ImportError as error:
        raise PaddleMissingError(file=file) from error
    try:
        state = paddle.load(f"/proc/self/fd/{descriptor}")
    except Exception as error:  # unpickling may raise anything
        raise errors.bad_pickle(file=file, problem=f"paddle cannot read it: {error}") from error
    if not isinstance(state, dict) or not state:
        raise errors.bad_pickle(file=file, problem=f"it holds a {type(state).__name__}, or nothing")
    return {name: _tensor(name, value, file) for name, value in state.items()}


def _tensor(name: object, value: Any, file: str) -> tuple[TensorSpec, memoryview]:
    if not isinstance(name, str) or not hasattr(value, "numpy") or not hasattr(value, "dtype"):
        raise errors.bad_pickle(file=file, problem=f"{name!r} is a {type(value).__name__}, not a tensor")
    dtype = paddle_name(value)
    if dtype not in PADDLE_DTYPES:
        raise errors.bad_pickle(file=file, problem=f"{name!r} has the unsupported dtype {dtype}")
    spec = TensorSpec(name, PADDLE_DTYPES[dtype], tuple(value.shape))
    array = value.numpy()
    data = memoryview(array.reshape(-1).view("u1")) if array.size else memoryview(b"")
    return spec, data
