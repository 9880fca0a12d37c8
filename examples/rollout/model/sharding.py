"""How the full weights are split over ranks: one table, read by the workers and by the trainer.

A rank's shard keeps the full model's names. Attention and dense feed-forward matrices are split the
Megatron way (columns of the first matrix, rows of the second), experts live whole on the one rank
that owns them, everything else is replicated. numpy only, so that a trainer without paddle, a test or
a conversion script can use it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.rollout import errors
from examples.rollout.model.shape import ModelShape
from wsm.strategies.snapshot import placement
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.tensor import TensorSpec

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_COLUMNS = re.compile(r"\.(query|key|value|up|gate)\.weight$")
_ROWS = re.compile(r"\.(output|down)\.weight$")

Array = npt.NDArray[np.float32]


class ShardSplit(enum.Enum):
    """Where one parameter of the full model goes."""

    REPLICATED = "replicated"
    COLUMNS = "columns"
    ROWS = "rows"
    EXPERT = "expert"


@dataclass(frozen=True)
class ParameterLayout:
    """One parameter of the full model: extents, how it is split, and which expert it belongs to."""

    extents: tuple[int, ...]
    split: ShardSplit
    expert: int = -1

    def local_extents(self, rank: int, ranks: int, experts: int) -> tuple[int, ...] | None:
        """Return the extents on `rank`, or None where the rank does not hold the parameter."""
        if self.split is ShardSplit.EXPERT:
            return self.extents if self.expert // (experts // ranks) == rank else None
        if self.split is ShardSplit.COLUMNS:
            return (*self.extents[:-1], self.extents[-1] // ranks)
        if self.split is ShardSplit.ROWS:
            return (self.extents[0] // ranks, *self.extents[1:])
        return self.extents

    def part(self, rank: int, local: tuple[int, ...]) -> tuple[Any, ...]:
        """Return where the part of `rank` lies in the whole, whose extents there are `local`."""
        if self.split is ShardSplit.COLUMNS:
            return (..., slice(rank * local[-1], (rank + 1) * local[-1]))
        return (slice(rank * local[0], (rank + 1) * local[0]),) if self.split is ShardSplit.ROWS else (...,)


def parameter_table(shape: ModelShape) -> dict[str, ParameterLayout]:
    """Name every parameter of the full model, in the order of the forward pass."""
    width = shape.width
    table = {
        "embedding.token.weight": ParameterLayout((shape.vocabulary, width), ShardSplit.REPLICATED),
        "embedding.position.weight": ParameterLayout((shape.context, width), ShardSplit.REPLICATED),
    }
    for layer in range(shape.layers):
        table.update(_block(shape, f"layers.{layer}", experts=shape.experts))
    table["final_norm.weight"] = ParameterLayout((width,), ShardSplit.REPLICATED)
    table["head.weight"] = ParameterLayout((width, shape.vocabulary), ShardSplit.REPLICATED)
    for layer in range(shape.draft_layers):
        table.update(_block(shape, f"mtp_block.{layer}", experts=0))
    if shape.draft_layers:
        table["mtp_norm.weight"] = ParameterLayout((width,), ShardSplit.REPLICATED)
    return table


def full_specs(shape: ModelShape) -> dict[str, TensorSpec]:
    """Describe the full model's tensors, without memory."""
    return {name: TensorSpec(name, "F32", layout.extents) for name, layout in parameter_table(shape).items()}


def shard_specs(shape: ModelShape, rank: int, ranks: int) -> dict[str, TensorSpec]:
    """Describe the tensors of one rank's shard, without memory.

    Raises
    ------
    BadInputError
        If the model cannot be split over `ranks`.
    """
    shape.check_ranks(ranks)
    specs = {}
    for name, layout in parameter_table(shape).items():
        extents = layout.local_extents(rank, ranks, shape.experts)
        if extents is not None:
            specs[name] = TensorSpec(name, "F32", extents)
    return specs


def placements(shape: ModelShape) -> dict[str, Placement]:
    """Say of every parameter how it lies on the ranks, so that a group of another number can load it."""
    return dict(placed(full_specs(shape)))


def placed(specs: Mapping[str, TensorSpec]) -> Mapping[str, Placement]:
    """Say how a checkpoint of any such model lies on the ranks, by its names; a load refuses other models."""
    experts = {int(found[1]) for name in specs if (found := _EXPERT.search(name))}
    return {name: _placement_by_name(spec, max(experts, default=0) + 1) for name, spec in specs.items()}


def _placement_by_name(spec: TensorSpec, experts: int) -> Placement:
    if found := _EXPERT.search(spec.name):
        return placement.Member(int(found[1]), experts)
    if _COLUMNS.search(spec.name):
        return placement.split(spec.shape, -1)
    return placement.split(spec.shape, 0) if _ROWS.search(spec.name) else placement.Replicated()


def shard(full_state: Mapping[str, Array], shape: ModelShape, rank: int, ranks: int) -> dict[str, Array]:
    """Cut one rank's shard out of the full weights.

    Parameters
    ----------
    full_state : mapping of str to ndarray
        Exactly the parameters of :func:`full_specs`, float32.
    shape : ModelShape
        The model.
    rank, ranks : int
        Which of how many shards.

    Returns
    -------
    dict of str to ndarray
        C-contiguous arrays; replicated ones are not copied.

    Raises
    ------
    BadInputError
        If a parameter is missing, unknown, or of other extents.
    BadInputError
        If the model cannot be split over `ranks`.
    """
    specs = shard_specs(shape, rank, ranks)
    table = parameter_table(shape)
    missing, unknown = sorted(table.keys() - full_state.keys()), sorted(full_state.keys() - table.keys())
    if missing or unknown:
        raise errors.bad_shard(where="full weights", missing=missing, unknown=unknown)
    local = {}
    for name, spec in specs.items():
        layout, whole = table[name], full_state[name]
        if tuple(whole.shape) != layout.extents:
            found = tuple(whole.shape)
            raise errors.bad_shard(where="full weights", name=name, found=found, expected=layout.extents)
        local[name] = np.ascontiguousarray(whole[layout.part(rank, spec.shape)])
    return local


def initial_state(shape: ModelShape, seed: int) -> dict[str, Array]:
    """Draw the full weights of an untrained model; the same for the same `shape` and `seed`.

    Matrices are normal with variance 1 / inputs, embeddings with variance 1 / width, norms are 1. Tokens and
    positions have one scale, because attention that cannot hear positions beside tokens learns no order.
    The output head is halved: a head of full scale starts the policy with confident guesses, which are
    slow to unlearn.
    """
    random = np.random.default_rng(seed)
    state = {}
    for name, layout in parameter_table(shape).items():
        if len(layout.extents) == 1:
            state[name] = np.ones(layout.extents, np.float32)
            continue
        scale = (shape.width if name.startswith("embedding.") else layout.extents[0]) ** -0.5
        if name == "head.weight":
            scale *= 0.5
        state[name] = (random.standard_normal(layout.extents) * scale).astype(np.float32)
    return state


def local_experts(shape: ModelShape, rank: int, ranks: int) -> range:
    """Return the experts that `rank` owns, by their ids in the full model."""
    count = shape.experts // ranks
    return range(rank * count, (rank + 1) * count)


def _block(shape: ModelShape, prefix: str, *, experts: int) -> Iterator[tuple[str, ParameterLayout]]:
    width = shape.width
    yield f"{prefix}.attention_norm.weight", ParameterLayout((width,), ShardSplit.REPLICATED)
    for matrix in ("query", "key", "value"):
        yield f"{prefix}.attention.{matrix}.weight", ParameterLayout((width, width), ShardSplit.COLUMNS)
    yield f"{prefix}.attention.output.weight", ParameterLayout((width, width), ShardSplit.ROWS)
    yield f"{prefix}.feed_forward_norm.weight", ParameterLayout((width,), ShardSplit.REPLICATED)
    if not experts:
        yield from _feed_forward(shape, f"{prefix}.feed_forward", expert=-1)
        return
    yield f"{prefix}.router.weight", ParameterLayout((width, experts), ShardSplit.REPLICATED)
    for expert in range(experts):
        yield from _feed_forward(shape, f"{prefix}.experts.{expert}", expert=expert)


def _feed_forward(shape: ModelShape, prefix: str, *, expert: int) -> Iterator[tuple[str, ParameterLayout]]:
    first, second = (
        (ShardSplit.EXPERT, ShardSplit.EXPERT) if expert >= 0 else (ShardSplit.COLUMNS, ShardSplit.ROWS)
    )
    for matrix in ("up", "gate") if shape.gated else ("up",):
        yield f"{prefix}.{matrix}.weight", ParameterLayout((shape.width, shape.hidden), first, expert)
    yield f"{prefix}.down.weight", ParameterLayout((shape.hidden, shape.width), second, expert)
