"""A paddle tensor's memory as bytes, and memory of numpy's as a tensor: the same on every paddle build.

Paddle 2.6 has no ``__dlpack__`` and copies what comes as a DLPack capsule, and views by DLPack are read-only
before numpy 2; so views go by address here and adopted memory by the constructor behind ``paddle.to_tensor``,
both measured alike on paddlepaddle-gpu 2.6.2 and paddlepaddle 3.3.1. Numpy knows neither bfloat16 nor float8,
and paddle's DLPack refuses both, so their bytes travel as integers of the same width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wsm.actions.backends import unsupported_tensor
from wsm.errors import GroupError
from wsm.strategies.dtype_names import PADDLE_DTYPES, paddle_name


class _TensorMemory:
    """Bytes at an address, and whatever keeps them there; numpy's array interface, version 3."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": typestr,
            "version": 3,
        }


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a writable view of a contiguous tensor in host memory, in the dtype that carries its bytes.

    The tensor has one element or more. The view keeps the memory, whatever becomes of the tensor.
    """
    carrier = np.dtype(carrier_name(paddle_name(tensor)))
    shape = tuple(int(extent) for extent in tensor.shape)
    return np.asarray(_TensorMemory(second_owner(tensor), int(tensor.data_ptr()), shape, carrier.str))


def bytes_of(tensor: Any) -> memoryview:
    """Return the bytes of a contiguous tensor in host memory: flat, writable, format ``B``.

    They stay valid as long as the view, whatever becomes of the tensor, which holds memory now.
    """
    length = math.prod(tensor.shape) * int(tensor.element_size())
    return np.asarray(_TensorMemory(second_owner(tensor), int(tensor.data_ptr()), (length,), "|u1")).data


def second_owner(tensor: Any) -> Any:
    """Return a tensor of size zero that keeps the memory of `tensor`; an alias by ``detach()`` does not."""
    import paddle  # noqa: PLC0415 - a second of import time that only a loading worker pays

    owner = paddle.empty([0], dtype=tensor.dtype)
    tensor._share_buffer_to(owner)
    return owner


def tensor_over(memory: np.ndarray[Any, Any], dtype: str) -> Any:
    """Return a tensor on the CPU that lives in `memory`, an array of the carrier of `dtype`, and keeps it.

    A source that is read-only is taken for writable by paddle; an empty one gets no memory at all. Where
    paddle has copied, the tensor's ``data_ptr()`` is another address than the array's.
    """
    from paddle import CPUPlace  # noqa: PLC0415 - as above
    from paddle.base import core  # noqa: PLC0415 - as above

    tensor = core.eager.Tensor(
        value=memory, place=CPUPlace(), persistable=False, zero_copy=True, name="", stop_gradient=True
    )
    return tensor if paddle_name(tensor) == dtype else tensor.view(dtype)


def memory_is_enough(tensor: Any) -> bool:
    """Whether the memory under a tensor is as large as its shape and dtype say.

    Paddle does not look when memory is shared, and reads past the end of what is too short.
    """
    needed: int = math.prod(tensor.shape) * int(tensor.element_size())
    if hasattr(tensor, "_holder_size"):
        found: int = int(tensor._holder_size()) - int(tensor._offset())
        return found >= needed
    # Paddle 2.6 does not tell the size, but compares it when a slice is taken.
    whole = tensor if tensor.shape else _as_vector(tensor)
    try:
        whole._slice(0, whole.shape[0])
    except RuntimeError:
        return False
    return True


def _as_vector(scalar: Any) -> Any:
    """Return the memory of a tensor without extents as one of a single element, which can be sliced."""
    import paddle  # noqa: PLC0415 - as above

    vector = paddle.empty([1], dtype=scalar.dtype)
    scalar._share_buffer_to(vector)
    return vector


#: Paddle dtypes that DLPack refuses, and the one that carries their bytes.
_CARRIERS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


def safetensors_name(tensor: Any, *, name: str) -> str:
    """Return the safetensors name of a tensor's dtype, else raise BadInputError (``unsupported-tensor``)."""
    found = paddle_name(tensor)
    if found not in PADDLE_DTYPES:
        raise unsupported_tensor(tensor=name, found=f"of dtype {found}", supported=", ".join(PADDLE_DTYPES))
    return PADDLE_DTYPES[found]


def carrier_name(paddle_dtype: str) -> str:
    """Return the dtype, known to numpy and paddle alike, that carries the bytes of `paddle_dtype`."""
    return _CARRIERS.get(paddle_dtype, paddle_dtype)


def adoption(*, tensor: str, found: str) -> GroupError:
    """Return the error of a tensor that is not what it should be, although paddle accepted its buffer."""
    return GroupError(
        f"tensor {tensor!r} did not adopt its new memory: {found}; this build of paddle shares buffers "
        "differently from 2.6.2 and 3.3.1, report it with its version",
        code="adoption",
        tensor=tensor,
        found=found,
    )
