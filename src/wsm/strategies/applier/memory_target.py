"""A model shard that is nothing but bytes: the smallest real weight target, for tools and tests.

It obeys the same rules as a model: memory comes with the first write and goes with :meth:`release`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from wsm.strategies.applier.host_memory import host_memory
from wsm.strategies.applier.staged_memory import StagedMemory
from wsm.strategies.tensor import TensorReleasedError, TensorSpec
from wsm.strategies.transposing import in_source_order


class MemoryTarget:
    """Tensors in plain memory.

    Parameters
    ----------
    specs : iterable of TensorSpec
        The tensors; all are released at first.
    adopting : bool
        Whether a source's memory is kept for a released tensor, where the source allows it.
    transposed : collection of str
        Names of tensors whose last two axes are exchanged in memory; `specs` are as the source has them.
    tied : mapping of str to str, optional
        Further names of tensors, and the name of the spec that each stands for.
    """

    def __init__(
        self,
        specs: Iterable[TensorSpec],
        *,
        adopting: bool = False,
        transposed: Collection[str] = (),
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._memory: dict[str, memoryview] = {}
        self._adopting = adopting
        self.transposed = frozenset(transposed)
        self.tied = dict(tied or {})

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return every tensor by name; known without any memory held."""
        return self._specs

    def writable(self, name: str) -> memoryview:
        """Return the tensor's bytes, zeros at first, allocating them if they were released."""
        if name not in self._memory:
            self._memory[name] = host_memory(self._specs[name].nbytes)
        return self._memory[name]

    def readable(self, name: str) -> memoryview:
        """Return the tensor's bytes, read-only, as the source has them.

        Raises
        ------
        TensorReleasedError
            If it holds no memory.
        """
        try:
            memory = self._memory[name].toreadonly()
        except KeyError as error:
            raise TensorReleasedError(tensor=name) from error
        return in_source_order(memory, self._specs[name]) if name in self.transposed else memory

    def adopts(self, name: str) -> bool:
        """Whether a source's memory would be kept for this tensor."""
        return self._adopting and name not in self._memory and name not in self.transposed

    def adopt(self, name: str, memory: memoryview) -> None:
        """Keep `memory` as the tensor's bytes until :meth:`release`."""
        self._memory[name] = memory

    def stage(self) -> StagedMemory:
        """Begin a second version beside this one; takes no memory yet."""
        return StagedMemory(self._specs, self._memory, self.transposed, self.tied)

    def release(self) -> int:
        """Let every tensor's memory go and return the bytes let go. Idempotent."""
        freed = sum(len(memory) for memory in self._memory.values())
        self._memory.clear()
        return freed

    def held(self) -> Iterator[str]:
        """Iterate over the names of tensors that hold memory; tensors of size zero never do."""
        return (name for name, memory in self._memory.items() if memory)
