"""A second set of plain tensors beside the one that serves: what :class:`.memory_target.MemoryTarget` stages.

The smallest real one of its kind, for tools and tests: memory comes with the first write, the flip swaps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from wsm.strategies.applier.host_memory import host_memory
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.tensor import TensorReleasedError, TensorSpec
from wsm.strategies.transposing import in_source_order


class StagedMemory:
    """Tensors that are to take the place of others.

    Parameters
    ----------
    specs : mapping of str to TensorSpec
        The tensors.
    served : dict of str to memoryview
        The memory that serves, by name; changed by :meth:`flip` alone.
    transposed : collection of str
        Names of tensors whose last two axes are exchanged in memory, as in what serves.
    tied : mapping of str to str, optional
        Further names of tensors, and the name of the spec that each stands for.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        served: dict[str, memoryview],
        transposed: Collection[str] = (),
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self._specs = specs
        self.transposed = transposed
        self.tied = tied or {}
        self._served = served
        self._beside: dict[str, memoryview] = {}
        self._captured: frozenset[str] = frozenset()
        self._ready: dict[str, memoryview] | None = None

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return every tensor by name."""
        return self._specs

    def writable(self, name: str) -> memoryview:
        """Return the staged bytes, zeros at first."""
        if name not in self._beside:
            self._beside[name] = host_memory(self._specs[name].nbytes)
        return self._beside[name]

    def readable(self, name: str) -> memoryview:
        """Return the staged bytes, read-only.

        Raises
        ------
        TensorReleasedError
            If none were staged.
        """
        try:
            return self._as_declared(name, self._beside[name])
        except KeyError as error:
            raise TensorReleasedError(tensor=name) from error

    def served(self, name: str) -> memoryview:
        """Return the bytes that serve, read-only.

        Raises
        ------
        TensorReleasedError
            If they were released.
        """
        try:
            return self._as_declared(name, self._served[name])
        except KeyError as error:
            raise TensorReleasedError(tensor=name) from error

    def make_ready(self, captured: frozenset[str]) -> None:
        """See that every tensor is staged and served, and remember which are copied.

        Raises
        ------
        TensorReleasedError
            If one is not.
        """
        for name, spec in self._specs.items():
            self.readable(name)
            if spec.nbytes and name not in self._served:
                raise TensorReleasedError(tensor=name)
        self._captured = captured
        self._ready = dict(self._beside)

    def is_ready(self) -> bool:
        """Whether :meth:`make_ready` was done."""
        return self._ready is not None

    def flip(self) -> None:
        """Swap the memory of every tensor; copy the bytes of captured ones. Goes on where it raised."""
        ready = self._ready or {}
        for name, spec in self._specs.items():
            if not spec.nbytes or self._served[name] is ready.get(name):
                continue
            if name in self._captured:
                copy_bytes(self._beside[name], self._served[name])
            else:
                self._beside[name], self._served[name] = self._served[name], self._beside[name]

    def unflipped(self) -> str | None:
        """Return the first tensor that does not serve what was staged for it; None if all do."""
        ready = self._ready or {}
        for name, spec in self._specs.items():
            served, staged = self._served.get(name), ready.get(name)
            if spec.nbytes and not (served == staged if name in self._captured else served is staged):
                return name
        return None

    def give_back(self) -> int:
        """Let go of what does not serve; return its bytes."""
        self._ready = None
        freed = sum(len(memory) for memory in self._beside.values())
        self._beside.clear()
        return freed

    def _as_declared(self, name: str, memory: memoryview) -> memoryview:
        if name in self.transposed:
            return in_source_order(memory, self._specs[name])
        return memory.toreadonly()
