"""A target whose memory says whether it lives on, where nobody collects cycles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wsm.strategies import MemoryTarget, TensorSpec


@contextmanager
def no_collector() -> Iterator[None]:
    """Nothing may wait for the cycle collector, which nobody calls."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class WatchedTarget(MemoryTarget):
    """Knows every tensor's memory that it gave out, also once it has released it."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        super().__init__(specs)
        self.given: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def writable(self, name: str) -> memoryview:
        if name not in self._memory:
            owner = np.zeros(self._specs[name].nbytes, np.uint8)
            self.given.append(weakref.ref(owner))
            self._memory[name] = memoryview(owner)
        return self._memory[name]

    def kept_by_others(self) -> int:
        """Release all memory; return of how many tensors it lives on, whoever holds it."""
        self.release()
        return sum(owner() is not None for owner in self.given)
