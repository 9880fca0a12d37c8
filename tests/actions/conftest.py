"""A small engine in memory: real bytes, real order constraints, no paddle and no processes.

Its weights are bytes that are really dropped and filled, its memory is the sum of what is really
held, its graphs break when a captured tensor moves, and its exchange buffer and groups refuse what
would hang a real one. Everything it is asked to do is written into one list, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from wsm.actions.base import ActionContext, Plan
from wsm.actions.measuring import resident_digest
from wsm.actions.options import PlanOptions
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
    bound: dict[str, int] | None = None

    def drop(self) -> None:
        self.calls.append(f"{self.name}.drop")
        if self.bound is not None and not self.weights.buffers:
            raise WouldHangError("graphs were dropped after the weights that they point at (FastDeploy#7522)")
        self.bound = None

    def capture(self) -> None:
        self.calls.append(f"{self.name}.capture")
        assert self.weights.buffers, "nothing to capture"
        self.bound = dict(self.weights.addresses())

    def captured(self) -> bool:
        return self.bound is not None


class InMemoryGroups:
    def __init__(self, calls: list[str], up: bool = True) -> None:
        self.calls = calls
        self.up = dict.fromkeys((GroupKind.WORLD, GroupKind.TP, GroupKind.EP), up)
        self.incarnations: set[str] = set()

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

    def __init__(self, runner: InMemoryRunner) -> None:
        self._runner = runner
        self.aliases: list[memoryview] = []

    def empty_cache(self) -> None:
        self._runner.calls.append("memory.empty_cache")

    def resident_bytes(self) -> int:
        runner = self._runner
        caches = [runner.kv_cache, *(auxiliary.kv_cache for auxiliary in runner.auxiliaries)]
        held = sum(cache.allocated_bytes() for cache in caches if cache is not None)
        alive = {id(buffer): buffer for buffer in (*runner.weights.buffers.values(), *self.aliases)}
        return 1000 + held + sum(map(len, alive.values()))


class InMemoryRunner:
    """Everything an engine can have; tests set to None what theirs has not."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights = InMemoryWeights(self.calls)
        self.requests = InMemoryRequests(self.calls)
        self.groups: InMemoryGroups | None = InMemoryGroups(self.calls)
        self.deepep: InMemoryBuffer | None = InMemoryBuffer(self.calls, self.groups)
        self.kv_cache: InMemoryCache | None = InMemoryCache(self.calls)
        self.graphs: InMemoryGraphs | None = InMemoryGraphs(self.calls, self.weights)
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


def _load(context: ActionContext, target: Any) -> dict[str, Any]:
    for name, spec in target.specs().items():
        target.writable(name)[:] = bytes([int(context.version)]) * spec.nbytes
    return {
        "version": context.version,
        "manifest_digest": "of the manifest",
        "digest": resident_digest(target, lambda: None),
        "bytes": sum(spec.nbytes for spec in SPECS.values()),
        "tensors": len(SPECS),
    }


@pytest.fixture
def runner() -> InMemoryRunner:
    """Serving version 1 with everything an engine can have."""
    runner = InMemoryRunner()
    runner.serve()
    return runner


@pytest.fixture
def make_context(runner: InMemoryRunner) -> Callable[..., ActionContext]:
    """``make_context(**fields)``: a command for `runner`, loading version 2."""
    sequences = iter(range(1, 1000))

    def make(**fields: Any) -> ActionContext:
        defaults = {
            "runner": runner,
            "rank": 0,
            "world_size": 2,
            "epoch": 1,
            "sequence": next(sequences),
            "version": "2",
            "load": _load,
        }
        said = defaults | fields
        return ActionContext(**{**said, "version": None if said["version"] is None else str(said["version"])})

    return make


@pytest.fixture
def load() -> Callable[[ActionContext, Any], dict[str, Any]]:
    """Fill a target with bytes of the value of the command's version."""
    return _load


@pytest.fixture
def options(runner: InMemoryRunner) -> Callable[..., PlanOptions]:
    """``options(**fields)``: the plan options of `runner`."""
    return lambda **fields: PlanOptions.from_runner(runner, **fields)


@pytest.fixture
def walk() -> Callable[[Plan, ActionContext], None]:
    """``walk(plan, context)``: what a worker does with a plan that every rank votes for."""

    def walk(plan: Plan, context: ActionContext) -> None:
        plan.admit(context)
        for action in plan.before_parking:
            action.run(context)
        assert all(action.settled(context) for action in plan.before_parking)
        for action in plan.actions:
            action.precondition(context)
            action.run(context)
            action.probe(context)

    return walk


@pytest.fixture
def tiny_drop() -> Any:
    """A measure fine enough for an engine of a few hundred KiB."""
    from wsm.actions.measuring import MemoryDrop  # noqa: PLC0415 - beside its only use

    return MemoryDrop(share=1.0, noise_bytes=0)
