"""A small model of every kind of tensor, and what a target holds of it."""

from __future__ import annotations

import numpy as np

from wsm.strategies import MemoryTarget, TensorSpec

State = dict[str, tuple[TensorSpec, bytes]]

SHAPES = (
    ("embed.weight", "F32", (16, 8)),
    ("layer.0.weight", "BF16", (8, 24)),
    ("layer.0.bias", "F16", (24,)),
    ("layer.1.scale", "F8_E4M3", (5,)),
    ("steps", "I64", ()),
    ("nothing", "F32", (0, 4)),
    ("head.weight", "F32", (8, 16)),
)


def make_state(rank: int = 0, seed: int = 0) -> State:
    """A state dict of every kind of tensor; other bytes for every rank and seed."""
    generator = np.random.default_rng([seed, rank])
    specs = [TensorSpec(name, dtype, shape) for name, dtype, shape in SHAPES]
    return {spec.name: (spec, generator.bytes(spec.nbytes)) for spec in specs}


def contents(target: MemoryTarget) -> dict[str, bytes]:
    """What a target holds."""
    return {name: bytes(target.readable(name)) for name in target.specs()}
