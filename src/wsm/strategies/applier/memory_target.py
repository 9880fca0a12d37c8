"""A model shard that is nothing but bytes: the smallest real weight target, for tools and tests.

It obeys the same rules as a model: memory comes with the first write and goes with :meth:`release`, and a
second version is staged beside the one that serves, until a flip swaps them.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.tensor import TensorReleasedError, TensorSpec
from wsm.strategies.transposing import in_source_order
from wsm.typed import typed

# From here on numpy asks for large pages, too. In small ones the processor looks up a translation every
# 4 KiB, in a virtual machine through two tables.
_LARGE_BYTES = 4 << 20


def host_memory(nbytes: int) -> memoryview:
    """Return so many zeros, writable, flat, format ``B``; in large pages if they are many.

    Large pages are a request, which the system may not follow. No memory is held before the first write.
    """
    if nbytes < _LARGE_BYTES:
        return memoryview(bytearray(nbytes))
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)


class _HostTensors:
    """Tensors in host memory, each zeros from the first time that it is asked for to be written."""

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        transposed: Collection[str],
        tied: Mapping[str, str] | None,
    ) -> None:
        self._specs = specs
        self._memory: dict[str, memoryview] = {}
        self.transposed = transposed
        self.tied = tied or {}

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
        return self._read(self._memory, name)

    def _read(self, memory: Mapping[str, memoryview], name: str) -> memoryview:
        held = memory.get(name)
        if held is None:
            raise TensorReleasedError(tensor=name)
        return in_source_order(held, self._specs[name]) if name in self.transposed else held.toreadonly()


class StagedMemory(_HostTensors):
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
        super().__init__(specs, transposed, tied)
        self._served = served
        self._captured: frozenset[str] = frozenset()
        self._ready: dict[str, memoryview] | None = None

    def served(self, name: str) -> memoryview:
        """Return the bytes that serve, read-only.

        Raises
        ------
        TensorReleasedError
            If they were released.
        """
        return self._read(self._served, name)

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
        self._ready = dict(self._memory)

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
                copy_bytes(self._memory[name], self._served[name])
            else:
                self._memory[name], self._served[name] = self._served[name], self._memory[name]

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
        freed = sum(len(memory) for memory in self._memory.values())
        self._memory.clear()
        return freed


@typed
class MemoryTarget(_HostTensors):
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
        super().__init__({spec.name: spec for spec in specs}, frozenset(transposed), dict(tied or {}))
        self._adopting = adopting

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
