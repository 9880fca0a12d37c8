"""What a delta costs beside the whole version: bytes, the trainer's time, the rank's time, in one run.

A model in bfloat16 of which 1, 3 or 10 percent of all elements change, spread over all tensors, as a step of
training does it. Everything is warm; both loads go into memory that holds the base, and verify every byte.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Distribution
from wsm.strategies import (
    DeltaReport,
    DeltaSource,
    MemoryTarget,
    SnapshotSource,
    TensorSpec,
    load,
    publish_delta,
    publish_snapshot,
)

#: Parts of the elements that change.
PARTS = (0.01, 0.03, 0.1)

_State = dict[str, tuple[TensorSpec, np.ndarray[Any, np.dtype[np.uint16]]]]


@dataclass(frozen=True)
class DeltaCost:
    """What a change of one size took.

    Parameters
    ----------
    changed : float
        Part of the elements that have changed.
    stored : float
        Bytes of the delta as a part of the whole version's.
    publish_ms : float
        Milliseconds in which the trainer compared, compressed and wrote it.
    load_ms : Distribution
        Milliseconds of a load over the base: that read and verified, the change put into place, and the
        result verified.
    whole_ms : Distribution
        Milliseconds of a load of the same version from its whole files, in turns with the other.
    """

    changed: float
    stored: float
    publish_ms: float
    load_ms: Distribution
    whole_ms: Distribution


def measure_deltas(
    nbytes: int, repeats: int, *, tensors: int = 16, parts: Sequence[float] = PARTS
) -> list[DeltaCost]:
    """Measure one change after the other, each against the same base.

    Parameters
    ----------
    nbytes : int
        Bytes of the model.
    repeats : int
        Loads of each kind.
    tensors : int
        How many tensors it has.
    parts : sequence of float
        Parts of the elements that change.
    """
    specs = [
        TensorSpec(f"layer.{index}.weight", "BF16", (nbytes // tensors // 2,)) for index in range(tensors)
    ]
    base = {spec.name: (spec, _weights(spec, seed)) for seed, spec in enumerate(specs)}
    return [_measured(base, part, repeats) for part in parts]


def _measured(base: _State, part: float, repeats: int) -> DeltaCost:
    state = {name: (spec, _changed(values, part)) for name, (spec, values) in base.items()}
    with tempfile.TemporaryDirectory(prefix="wsm-bench-") as directory:
        publish_snapshot(directory, 1, {0: base}, durable=False)
        begun = time.perf_counter()
        report: DeltaReport = publish_delta(
            directory, 2, 1, {0: state}, base={0: base}, crossover=2.0, durable=False
        )
        publish_ms = (time.perf_counter() - begun) * 1e3
        publish_snapshot(directory, 2, {0: state}, durable=False)
        target = MemoryTarget(spec for spec, _ in base.values())
        loads, wholes = _in_turns(Path(directory), target, base, repeats)
    return DeltaCost(part, report.ratio, publish_ms, Distribution.of(loads), Distribution.of(wholes))


def _in_turns(
    directory: Path, target: MemoryTarget, base: _State, repeats: int
) -> tuple[list[float], list[float]]:
    delta = DeltaSource(directory, 0, device_id=0, fallback="refuse")
    whole = SnapshotSource(directory, 0, device_id=0, shared_directory=None)

    def over_the_base(once: Callable[[], float]) -> float:
        for name, (_, values) in base.items():
            target.writable(name)[:] = values.view(np.uint8).data
        return once() * 1e3

    def one() -> float:
        return load(delta, target, name="delta", version=2).seconds

    def other() -> float:
        return load(whole, target, version=2).seconds

    over_the_base(one)  # touches every page
    over_the_base(other)
    pairs = [(over_the_base(one), over_the_base(other)) for _ in range(repeats)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _weights(spec: TensorSpec, seed: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Normally distributed values, as weights are, cut to bfloat16."""
    values = np.random.default_rng(seed).standard_normal(spec.shape, np.float32)
    halves: np.ndarray[Any, np.dtype[np.uint16]] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return halves


def _changed(
    values: np.ndarray[Any, np.dtype[np.uint16]], part: float
) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """A small step up or down in `part` of the elements: their last bits change."""
    generator = np.random.default_rng(len(values))
    new = values.copy()
    chosen = np.flatnonzero(generator.random(len(values), np.float32) < part)
    new[chosen] += generator.choice(np.array([1, 2, 65534, 65535], np.uint16), len(chosen))
    return np.asarray(new, np.uint16)
