"""What the tensors of these tests hold: known to the trainer's process and to the test that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

#: Name, dtype and shape of what a trainer's process publishes.
TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "weight": ("float32", (512, 1024)),
    "scale": ("bfloat16", (1024,)),
    "step": ("int64", (3,)),
}
_CARRIERS = {"bfloat16": "int16"}


def published(version: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return what each tensor of a version holds, bfloat16 as the integers that carry it."""
    numbers = np.random.default_rng(version)
    return {
        name: numbers.integers(-8, 8, shape).astype(_CARRIERS.get(dtype, dtype))
        for name, (dtype, shape) in TENSORS.items()
    }


def tensors_of(version: int) -> dict[str, Any]:
    """Return a version as paddle tensors on the device in use."""
    return {
        name: paddle.to_tensor(array).view(TENSORS[name][0])
        if TENSORS[name][0] in _CARRIERS
        else paddle.to_tensor(array)
        for name, array in published(version).items()
    }


def empty_layer() -> Any:
    """Return a layer with such tensors, all zero, on the device in use."""
    layer = paddle.nn.Layer()
    for name, (dtype, shape) in TENSORS.items():
        layer.register_buffer(name, paddle.zeros(list(shape), dtype=dtype))
    return layer
