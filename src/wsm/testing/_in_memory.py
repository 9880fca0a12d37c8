"""A small engine in plain memory, for tests of loops that embed wsm and for measuring wsm itself.

An engine's loop around a :class:`wsm.Worker` is tested with it, without paddle and without a model. Every
surface is real for what it is (bytes that are really dropped and filled, requests that really run), and an
engine of nothing else: no graphs, no communicators, no auxiliary models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wsm.actions.surfaces import (
    AuxiliarySurface,
    DeepEPSurface,
    GraphSurface,
    MemorySurface,
    ProcessGroupSurface,
    RoutingReplaySurface,
)
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.strategies.tensor import TensorSpec


class InMemoryRequests:
    """A scheduler whose requests need a number of steps each."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.frozen: list[int] = []
        self.admitting = True
        self.finished = 0
        self.aborted = 0

    def submit(self, steps: int) -> None:
        """Queue a request that needs `steps` steps."""
        self.waiting.append(steps)

    def advance(self) -> None:
        """Run one step of every request that is running."""
        if self.admitting:
            self.running += self.frozen + self.waiting
            self.frozen, self.waiting = [], []
        self.running = [left - 1 for left in self.running]
        self.finished += sum(left <= 0 for left in self.running)
        self.running = [left for left in self.running if left > 0]

    def has_work(self) -> bool:
        """Whether a step would advance any request."""
        return bool(self.running) or (self.admitting and bool(self.waiting or self.frozen))

    def stop_admitting(self) -> None:
        """Leave queued requests where they are."""
        self.admitting = False

    def resume_admitting(self) -> None:
        """Admit again."""
        self.admitting = True

    def is_admitting(self) -> bool:
        """Whether queued requests are taken."""
        return self.admitting

    def in_flight(self) -> int:
        """Count the requests that run."""
        return len(self.running)

    def abort_all(self) -> int:
        """End the requests that run."""
        ended = len(self.running)
        self.aborted += ended
        self.running = []
        return ended

    def freeze(self) -> int:
        """Set the requests that run aside."""
        frozen = len(self.running)
        self.frozen += self.running
        self.running = []
        return frozen

    def hold(self) -> int:
        """Set the requests that run aside; to this engine that is all there is to it."""
        return self.freeze()

    def set_aside(self) -> int:
        """Count the requests that were set aside."""
        return len(self.frozen)

    def abort_set_aside(self) -> int:
        """End them."""
        ended, self.frozen = len(self.frozen), []
        self.aborted += ended
        return ended

    def reset_inputs(self) -> None:
        """Forget nothing: there are no cached inputs."""


class InMemoryKVCache:
    """A cache that is one block of memory."""

    def __init__(self, size: int = 64 * 1024) -> None:
        self._size = size
        self._memory: bytearray | None = None
        self.forgotten = 0
        self.kept = 0
        self.forgotten_idle = 0

    def release(self) -> int:
        """Let the memory go."""
        freed, self._memory = self.allocated_bytes(), None
        return freed

    def rebuild(self) -> int:
        """Allocate, if it was released."""
        if self._memory is None:
            self._memory = bytearray(self._size)
        return self._size

    def forget(self) -> None:
        """Drop the content."""
        self.forgotten += 1

    def keep_all(self) -> int:
        """Keep the content, which is one block."""
        self.kept += 1
        return int(self._memory is not None)

    def forget_idle(self) -> int:
        """Drop what no request holds; the one block belongs to them all."""
        self.forgotten_idle += 1
        return int(self._memory is not None)

    def allocated_bytes(self) -> int:
        """Bytes held."""
        return 0 if self._memory is None else self._size


class InMemoryMemory:
    """Counts what the engine holds."""

    def __init__(self, runner: InMemoryRunner) -> None:
        self._runner = runner

    def empty_cache(self) -> None:
        """There is nothing cached."""

    def resident_bytes(self) -> int:
        """Bytes that weights and cache hold."""
        weights = self._runner.weights
        held = sum(weights.specs()[name].nbytes for name in weights.held())
        return held + self._runner.kv_cache.allocated_bytes()


class InMemoryRunner:
    """Weights, a cache, a scheduler, and nothing else.

    Parameters
    ----------
    specs : iterable of TensorSpec
        The model's tensors.
    """

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self.weights = MemoryTarget(specs)
        self.requests = InMemoryRequests()
        self.kv_cache = InMemoryKVCache()
        self.memory: MemorySurface = InMemoryMemory(self)
        self.graphs: GraphSurface | None = None
        self.deepep: DeepEPSurface | None = None
        self.groups: ProcessGroupSurface | None = None
        self.auxiliaries: Sequence[AuxiliarySurface] = ()
        self.routing_replay: RoutingReplaySurface | None = None
