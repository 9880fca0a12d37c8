"""What a KV-cache process is to the actions: an engine with a cache and nothing else.

Every other surface is there because plans may ask for it, and empty because the process has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.actions.surfaces import (
    AuxiliarySurface,
    DeepEPSurface,
    GraphSurface,
    KVCacheSurface,
    MemorySurface,
    ProcessGroupSurface,
    RoutingReplaySurface,
    WeightSurface,
)
from wsm.strategies.applier.memory_target import MemoryTarget


class NoRequests:
    """The scheduler of a process that schedules nothing."""

    def stop_admitting(self) -> None:
        """Nothing is admitted."""

    def resume_admitting(self) -> None:
        """Nothing is admitted."""

    def in_flight(self) -> int:
        """Nothing runs."""
        return 0

    def abort_all(self) -> int:
        """Nothing runs."""
        return 0

    def freeze(self) -> int:
        """Nothing runs."""
        return 0

    def reset_inputs(self) -> None:
        """There are none."""


class MemoryOfCache:
    """Memory as the cache itself counts it, where the process cannot measure it otherwise.

    Parameters
    ----------
    kv_cache : KVCacheSurface
        The cache.
    """

    def __init__(self, kv_cache: KVCacheSurface) -> None:
        self._kv_cache = kv_cache

    def empty_cache(self) -> None:
        """There is no allocator to ask."""

    def resident_bytes(self) -> int:
        """Return what the cache holds."""
        return self._kv_cache.allocated_bytes()


class CacheSurfaces:
    """A runner with a KV cache alone.

    Parameters
    ----------
    kv_cache : KVCacheSurface
        The cache.
    memory : MemorySurface or None
        Measures this process; None: what the cache says of itself.
    """

    def __init__(self, kv_cache: KVCacheSurface, memory: MemorySurface | None = None) -> None:
        self.kv_cache: KVCacheSurface | None = kv_cache
        self.memory: MemorySurface = memory or MemoryOfCache(kv_cache)
        self.weights: WeightSurface = MemoryTarget(())
        self.requests = NoRequests()
        self.graphs: GraphSurface | None = None
        self.deepep: DeepEPSurface | None = None
        self.groups: ProcessGroupSurface | None = None
        self.auxiliaries: Sequence[AuxiliarySurface] = ()
        self.routing_replay: RoutingReplaySurface | None = None
