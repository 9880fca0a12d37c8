"""How versions arrive that were written for four ranks, at a group of two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from snapshot_arrival import MANIFEST, SnapshotArrival
from wrongs import Expected, State, make_state

from wsm.strategies import TensorSpec, errors, publish_snapshot
from wsm.strategies.snapshot.placement import Placement, Replicated, split
from wsm.strategies.tensor import ITEM_BYTES


class ReslicedArrival(SnapshotArrival):
    def publish(self, version: int, state: State, *, finite: bool = False) -> Path:
        other = make_state(seed=version + 1000, finite=finite)
        shards: dict[int, State] = {}
        placements: dict[str, Placement] = {}
        for rank in range(4):
            shards[rank] = {}
            for name, (spec, data) in state.items():
                axis = axis_of(spec)
                if axis is None:
                    shards[rank][name], placements[name] = (spec, data), Replicated()
                    continue
                whole = [extent * (2 if index == axis else 1) for index, extent in enumerate(spec.shape)]
                placements[name] = split(tuple(whole), axis)
                _, content = (spec, data) if rank < 2 else other.get(name, (spec, data))
                shards[rank][name] = half(
                    spec, content if len(content) == len(data) else data, axis, rank % 2
                )
        report = publish_snapshot(
            self._root,
            version,
            shards,
            placements=placements,
            part_bytes=1 << 20,
            durable=False,
            replace=True,
            finite=finite,
        )
        return Path(report.path)

    def _other_rank(self, path: Path, version: int) -> Expected:
        super()._other_rank(path, version)
        return Expected(errors.differs_from_manifest, (MANIFEST, "another publication"))


def axis_of(spec: TensorSpec) -> int | None:
    """Columns of layers, rows of the rest; what cannot be halved is replicated."""
    axis = len(spec.shape) - 1 if spec.name.startswith("la") else 0
    return None if not spec.shape or spec.shape[axis] % 2 else axis


def half(spec: TensorSpec, data: bytes, axis: int, index: int) -> tuple[TensorSpec, bytes]:
    array = np.frombuffer(data, np.uint8).reshape(*spec.shape, ITEM_BYTES[spec.dtype])
    array = np.split(array, 2, axis=axis)[index]
    return TensorSpec(spec.name, spec.dtype, array.shape[:-1]), array.tobytes()
