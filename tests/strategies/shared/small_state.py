"""A small model of every kind of tensor, and what a target holds of it."""

from __future__ import annotations

import numpy as np
from installed_paddle import has_float8

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


def make_paddle_state(rank: int = 0, seed: int = 0) -> State:
    """The same of every kind of tensor that the installed paddle can hold, for what it is carried in."""
    state = make_state(rank, seed)
    return state if has_float8() else {name: row for name, row in state.items() if row[0].dtype[:2] != "F8"}


def contents(target: MemoryTarget) -> dict[str, bytes]:
    """What a target holds."""
    return {name: bytes(target.readable(name)) for name in target.specs()}
