"""A small engine in memory that has every surface: real bytes, real order constraints, no paddle.

Its weights are bytes that are really dropped and filled, its memory is the sum of what is really held, its
graphs break when a captured tensor moves, and its exchange buffer and groups refuse what would hang a real
one. Everything it is asked to do is written into one list, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from wsm.actions.surfaces import GroupKind
from wsm.strategies.applier.memory_target import StagedMemory
from wsm.strategies.tensor import TensorReleasedError, TensorSpec

KIB = 1024
SPECS = {
    "embedding": TensorSpec("embedding", "F32", (64, 256)),
    "head": TensorSpec("head", "BF16", (256, 64)),
    "nothing": TensorSpec("nothing", "F32", (0, 4)),
}


class WouldHangError(Exception):
    """What a real engine would answer by never returning."""


class Calls(list[str]):
    """What an engine was asked to do, in order; a test may look at each of these moments."""

    def __init__(self) -> None:
        super().__init__()
        self.watch: Callable[[str], object] = bool

    def append(self, call: str) -> None:
        super().append(call)
        self.watch(call)


class InMemoryWeights:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.buffers: dict[str, memoryview] = {}

    def specs(self) -> Mapping[str, TensorSpec]:
        return SPECS

    def writable(self, name: str) -> memoryview:
        if not SPECS[name].nbytes:
            return memoryview(bytearray())
        return self.buffers.setdefault(name, memoryview(bytearray(SPECS[name].nbytes)))

    def readable(self, name: str) -> memoryview:
        if not SPECS[name].nbytes:
            return memoryview(b"")
        if name not in self.buffers:
            raise TensorReleasedError(tensor=name)
        return self.buffers[name].toreadonly()

    def release(self) -> int:
        self.calls.append("weights.release")
        freed = sum(map(len, self.buffers.values()))
        self.buffers.clear()
        return freed

    def held(self) -> Iterator[str]:
        return iter(tuple(self.buffers))

    def addresses(self) -> Mapping[str, int]:
        return {name: id(buffer) for name, buffer in self.buffers.items()}

    def stage(self) -> StagedMemory:
        self.calls.append("weights.stage")
        return StagedMemory(SPECS, self.buffers)


@dataclass
class InMemoryCache:
    calls: list[str]
    name: str = "kv"
    size: int = 64 * KIB
    blocks: bytearray | None = None
    prefixes: dict[str, int] = field(default_factory=dict)

    def release(self) -> int:
        self.calls.append(f"{self.name}.release")
        freed = self.allocated_bytes()
        self.blocks = None
        self.prefixes.clear()
        return freed

    def rebuild(self) -> int:
        self.calls.append(f"{self.name}.rebuild")
        if self.blocks is None:
            self.blocks = bytearray(self.size)
        return len(self.blocks)

    def forget(self) -> None:
        self.calls.append(f"{self.name}.forget")
        self.prefixes.clear()

    def allocated_bytes(self) -> int:
        return 0 if self.blocks is None else len(self.blocks)


@dataclass
class InMemoryGraphs:
    calls: list[str]
    weights: InMemoryWeights
    name: str = "graphs"
    cache: InMemoryCache | None = None
    bound: dict[str, int] | None = None

    def drop(self) -> None:
        self.calls.append(f"{self.name}.drop")
        if self.bound is not None and not self.weights.buffers:
            raise WouldHangError("graphs were dropped after the weights that they point at (FastDeploy#7522)")
        self.bound = None

    def capture(self) -> None:
        self.calls.append(f"{self.name}.capture")
        assert self.weights.buffers, "nothing to capture"
        assert self.cache is None or self.cache.blocks is not None, "no cache to capture"
        self.bound = dict(self.weights.addresses())

    def captured(self) -> bool:
        return self.bound is not None


class InMemoryGroups:
    def __init__(self, calls: list[str], up: bool = True) -> None:
        self.calls = calls
        self.up = dict.fromkeys((GroupKind.WORLD, GroupKind.TP, GroupKind.EP), up)
        self.incarnations: set[str] = set()
        self.buffer: InMemoryBuffer | None = None  # that lives on the EP group

    def kinds(self) -> tuple[GroupKind, ...]:
        return tuple(self.up)

    def alive(self, kind: GroupKind) -> bool:
        return self.up[kind]

    def barrier(self, kind: GroupKind) -> None:
        if not self.up[kind]:
            raise WouldHangError(f"a barrier on the {kind.value} group, which is down")

    def shut_down(self, kind: GroupKind) -> None:
        self.calls.append(f"{kind.value}.shut_down")
        if not self.up[kind]:
            raise WouldHangError(f"the {kind.value} group was shut down twice (FastDeploy#5710)")
        if kind is GroupKind.EP and self.buffer is not None and self.buffer.there:
            raise WouldHangError("the EP group goes before the buffer that lives on it")
        self.up[kind] = False

    def restart(self, kind: GroupKind, *, incarnation: str) -> None:
        self.calls.append(f"{kind.value}.restart")
        assert not self.up[kind]
        assert incarnation not in self.incarnations
        self.incarnations.add(incarnation)
        self.up[kind] = True


@dataclass
class InMemoryBuffer:
    calls: list[str]
    groups: InMemoryGroups
    there: bool = True

    def __post_init__(self) -> None:
        self.groups.buffer = self

    def clear_buffer(self) -> None:
        self.calls.append("deepep.clear")
        self.groups.barrier(GroupKind.EP)
        self.there = False

    def recreate_buffer(self) -> None:
        self.calls.append("deepep.recreate")
        self.groups.barrier(GroupKind.EP)
        self.there = True

    def allocated(self) -> bool:
        return self.there


@dataclass
class InMemoryRequests:
    calls: list[str]
    running: list[str] = field(default_factory=lambda: ["a", "b"])
    frozen: list[str] = field(default_factory=list)
    admitting: bool = True
    cached_inputs: bool = True

    def stop_admitting(self) -> None:
        self.admitting = False

    def resume_admitting(self) -> None:
        self.calls.append("requests.resume")
        self.admitting = True

    def is_admitting(self) -> bool:
        return self.admitting

    def in_flight(self) -> int:
        return len(self.running)

    def abort_all(self) -> int:
        self.calls.append("requests.abort")
        ended = len(self.running)
        self.running.clear()
        return ended

    def freeze(self) -> int:
        self.calls.append("requests.freeze")
        count = len(self.running)
        self.frozen += self.running
        self.running.clear()
        return count

    def reset_inputs(self) -> None:
        self.calls.append("requests.reset_inputs")
        self.cached_inputs = False

    def step(self) -> None:
        """Finish one request, as a step of the loop does now and then."""
        self.running.pop()


@dataclass
class KeepingCache(InMemoryCache):
    """Tells the blocks of running requests, one each, from prefixes that nobody holds."""

    held_blocks: int = 2

    def keep_all(self) -> int:
        return self.held_blocks + len(self.prefixes)

    def forget_idle(self) -> int:
        self.prefixes.clear()
        return self.held_blocks


@dataclass
class HoldingRequests(InMemoryRequests):
    """Sets requests aside with their blocks."""

    held: list[str] = field(default_factory=list)

    def hold(self) -> int:
        self.calls.append("requests.hold")
        self.held += self.running
        self.running.clear()
        return len(self.held)


@dataclass
class InMemoryReplay:
    calls: list[str]
    records: dict[str, list[int]] = field(default_factory=lambda: {"a": [1, 2]})
    recording: bool = True

    def clear_all_requests(self) -> None:
        self.calls.append("replay.clear")
        self.records.clear()

    def resume(self) -> None:
        self.calls.append("replay.resume")
        self.recording = True


@dataclass
class InMemoryDraft:
    calls: list[str]
    kv_cache: InMemoryCache
    graphs: InMemoryGraphs | None
    name: str = "mtp"

    def reset_inputs(self) -> None:
        self.calls.append("mtp.reset_inputs")


class InMemoryMemory:
    """Counts the bytes that are really held, and those that a forgotten alias keeps."""

    def __init__(self, runner: StrictEngine) -> None:
        self._runner = runner
        self.aliases: list[memoryview] = []
        self.beside = 1000  # bytes of neither weights nor caches

    def empty_cache(self) -> None:
        self._runner.calls.append("memory.empty_cache")

    def resident_bytes(self) -> int:
        runner = self._runner
        caches = [runner.kv_cache, *(auxiliary.kv_cache for auxiliary in runner.auxiliaries)]
        held = sum(cache.allocated_bytes() for cache in caches if cache is not None)
        alive = {id(buffer): buffer for buffer in (*runner.weights.buffers.values(), *self.aliases)}
        return self.beside + held + sum(map(len, alive.values()))


class StrictEngine:
    """Everything an engine can have; tests set to None what theirs has not."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.weights = InMemoryWeights(self.calls)
        self.requests = InMemoryRequests(self.calls)
        self.groups: InMemoryGroups | None = InMemoryGroups(self.calls)
        self.deepep: InMemoryBuffer | None = InMemoryBuffer(self.calls, self.groups)
        self.kv_cache: InMemoryCache | None = InMemoryCache(self.calls)
        self.graphs: InMemoryGraphs | None = InMemoryGraphs(self.calls, self.weights, cache=self.kv_cache)
        draft_graphs = InMemoryGraphs(self.calls, self.weights, name="mtp.graphs")
        draft_cache = InMemoryCache(self.calls, name="mtp.kv", size=16 * KIB)
        self.auxiliaries: list[InMemoryDraft] = [InMemoryDraft(self.calls, draft_cache, draft_graphs)]
        self.routing_replay: InMemoryReplay | None = InMemoryReplay(self.calls)
        self.memory = InMemoryMemory(self)

    def serve(self, version: int = 1) -> None:
        """Bring everything up by hand, without an action."""
        self.fill(version)
        for cache in (self.kv_cache, *(auxiliary.kv_cache for auxiliary in self.auxiliaries)):
            if cache is not None:
                cache.rebuild()
        for graphs in (self.graphs, *(auxiliary.graphs for auxiliary in self.auxiliaries)):
            if graphs is not None:
                graphs.capture()
        self.calls.clear()

    def keep_blocks_of_requests(self) -> None:
        """Become an engine that can honour every KV policy."""
        self.requests = HoldingRequests(self.calls)
        self.kv_cache = KeepingCache(self.calls)
        for auxiliary in self.auxiliaries:
            auxiliary.kv_cache = KeepingCache(self.calls, name="mtp.kv", size=16 * KIB)
        self.serve()

    def fill(self, version: int) -> None:
        for name, spec in SPECS.items():
            self.weights.writable(name)[:] = bytes([version]) * spec.nbytes
