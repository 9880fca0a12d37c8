"""How the reference model takes the tensors of a whole checkpoint: each rank cuts its own shard out of them.

The loaders that the strategy ``gdr`` feeds, the main model's and the draft model's. What a rank does not hold
(another rank's expert) it lets pass. Slices are written straight into the parameters; nothing is collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wsm.rollout.model.shape import ModelShape
from wsm.rollout.model.sharding import ParameterLayout, ShardSplit, full_specs, parameter_table
from wsm.strategies.applier.loaders import ParameterMemory
from wsm.strategies.checkpoint_models import AuxiliaryNames
from wsm.strategies.tensor import TensorSpec


class ShardLoader:
    """One rank's :class:`wsm.strategies.applier.loaders.ModelLoader`.

    Parameters
    ----------
    name : str
        What messages call the model.
    shape : ModelShape
        The full model.
    rank, ranks : int
        Which of how many shards.
    takes : mapping of str to TensorSpec
        The full tensors that are this model's.
    """

    def __init__(
        self, name: str, shape: ModelShape, rank: int, ranks: int, takes: Mapping[str, TensorSpec]
    ) -> None:
        self.name = name
        self._table = parameter_table(shape)
        self._experts = shape.experts
        self._rank = rank
        self._ranks = ranks
        self._takes = takes

    def takes(self) -> Mapping[str, TensorSpec]:
        """Every tensor of the model, whole; those too that this rank lets pass."""
        return self._takes

    def load_weights(
        self, tensors: Iterable[tuple[TensorSpec, memoryview]], parameters: ParameterMemory
    ) -> None:
        """Write this rank's part of each tensor. Blocks."""
        for spec, data in tensors:
            layout = self._table[spec.name]
            extents = layout.local_extents(self._rank, self._ranks, self._experts)
            if extents is None:
                continue
            whole = np.frombuffer(data, np.float32).reshape(spec.shape)
            local = np.frombuffer(parameters.memory(spec.name), np.float32).reshape(extents)
            local[...] = whole[self._part(layout, extents)]
            parameters.complete(spec.name)

    def _part(self, layout: ParameterLayout, extents: tuple[int, ...]) -> tuple[Any, ...]:
        """Return where this rank's part lies in the whole tensor."""
        if layout.split is ShardSplit.COLUMNS:
            begin = self._rank * extents[-1]
            return (..., slice(begin, begin + extents[-1]))
        if layout.split is ShardSplit.ROWS:
            begin = self._rank * extents[0]
            return (slice(begin, begin + extents[0]),)
        return (...,)


def loaders_for(shape: ModelShape, rank: int, ranks: int) -> list[ShardLoader]:
    """Return the loaders of one rank: the main model's, and the draft model's if there is one."""
    names = AuxiliaryNames(first_layer=shape.layers, layers=shape.draft_layers)
    full = full_specs(shape)
    draft = {name: spec for name, spec in full.items() if names.match(name)}
    main = {name: spec for name, spec in full.items() if name not in draft}
    loaders = [ShardLoader("main", shape, rank, ranks, main)]
    if shape.draft_layers:
        loaders.append(ShardLoader("mtp", shape, rank, ranks, draft))
    return loaders
