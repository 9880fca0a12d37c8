"""The models whose loading is measured: tensors of one size, each with memory of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wsm.strategies import TensorSpec

_MIB = 1 << 20
_PATTERN_BYTES = 1 << 20


@dataclass(frozen=True)
class Model:
    """A model of `count` tensors of `nbytes` each."""

    count: int
    nbytes: int

    @classmethod
    def large(cls, mib: int) -> Model:
        """Return a model of 16 large tensors, `mib` MiB together."""
        return cls(16, mib * _MIB // 16)

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return self.count * self.nbytes

    def specs(self) -> list[TensorSpec]:
        """Return the tensors."""
        return [TensorSpec(f"layer.{index}.weight", "U8", (self.nbytes,)) for index in range(self.count)]

    def state(self) -> dict[str, tuple[TensorSpec, memoryview]]:
        """Return the tensors with bytes, all in different memory: what is shared would stay in a cache."""
        pattern = np.frombuffer(np.random.default_rng(0).bytes(min(_PATTERN_BYTES, self.total)), np.uint8)
        content = np.resize(pattern, self.total)
        return {
            spec.name: (spec, content[index * self.nbytes : (index + 1) * self.nbytes].data)
            for index, spec in enumerate(self.specs())
        }
