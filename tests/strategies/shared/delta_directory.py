"""Small states, their changes, and a directory that they are published into and loaded from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wsm.strategies import (
    DeltaReport,
    DeltaSource,
    LoadReport,
    MemoryTarget,
    TensorSpec,
    load,
    publish_delta,
    publish_snapshot,
)
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.tensor import ITEM_BYTES

State = dict[str, tuple[TensorSpec, bytes]]

SHAPES = (
    ("embed.weight", "BF16", (300, 16)),
    ("layer.weight", "F32", (64, 65)),
    ("layer.quantized", "I8", (513,)),
    ("layer.scale", "F8_E4M3", (7,)),
    ("steps", "I64", ()),
    ("nothing", "F32", (0, 4)),
)


def make_state(seed: int) -> State:
    generator = np.random.default_rng(seed)
    specs = [TensorSpec(name, dtype, shape) for name, dtype, shape in SHAPES]
    return {spec.name: (spec, generator.bytes(spec.nbytes)) for spec in specs}


def changed(state: State, part: float, seed: int) -> State:
    """The state with `part` of each tensor's elements changed."""
    generator = np.random.default_rng(seed)
    new = {}
    for name, (spec, data) in state.items():
        rows = np.frombuffer(data, np.uint8).reshape(-1, ITEM_BYTES[spec.dtype]).copy()
        chosen = generator.random(len(rows)) < part
        rows[chosen, 0] ^= generator.integers(1, 256, int(chosen.sum()), dtype=np.uint8)
        new[name] = (spec, rows.tobytes())
    return new


class Directory:
    """A directory that is published into, and ranks that load from it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def whole(self, version: int, *states: State, **options: object) -> None:
        publish_snapshot(self.path, version, dict(enumerate(states)), durable=False, **options)

    def delta(self, version: int, base_version: int, *states: State, **options: object) -> DeltaReport:
        options.setdefault("block_bytes", 4096)
        options.setdefault("durable", False)
        return publish_delta(self.path, version, base_version, dict(enumerate(states)), **options)

    def source(self, **options: object) -> DeltaSource:
        return DeltaSource(self.path, options.pop("rank", 0), device_id=0, **options)

    def load(self, version: int | None, target: MemoryTarget, **options: object) -> LoadReport:
        return load(self.source(**options), target, name="delta", version=version)

    def brings(self, version: int, state: State, *, to: MemoryTarget, **options: object) -> bool:
        """Load a version; whether the target holds that state then."""
        self.load(version, to, **options)
        return holds(to, state)


def holding(state: State) -> MemoryTarget:
    target = MemoryTarget(spec for spec, _ in state.values())
    for name, (spec, data) in state.items():
        if spec.nbytes:
            target.writable(name)[:] = data
    return target


def released(state: State) -> MemoryTarget:
    return MemoryTarget(spec for spec, _ in state.values())


def holds(target: MemoryTarget, state: State) -> bool:
    return all(bytes(target.readable(name)) == data for name, (spec, data) in state.items() if spec.nbytes)


def digest_of_state(state: State) -> str:
    return shard_digest((spec, digest_of(data)) for spec, data in state.values())


A = make_state(1)
B = changed(A, 0.01, 2)
C = changed(B, 0.1, 3)
