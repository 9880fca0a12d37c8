"""The parameters of one rank, out of reach without the permit of a running step.

They are created without memory, so a worker starts CLEARED, and they keep their identity for life: loading
gives them memory, clearing takes it. Code that loads, clears or captures gets the bare tensors; a forward
pass gets them through :meth:`Parameters.open` alone, inside a step. Knows no model code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import paddle

from examples.rollout import errors
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import full_specs, parameter_table
from wsm.errors import RefusedError
from wsm.strategies.applier.feeding import ParameterMemory
from wsm.strategies.checkpoint_models import AuxiliaryNames
from wsm.strategies.tensor import TensorSpec


class Permit(Protocol):
    """What :meth:`wsm.Worker.step` yields: the right to run one step with the weights of one version."""

    @property
    def version(self) -> str:
        """Version of the weights that the group serves in this step."""
        ...

    @property
    def step(self) -> int:
        """Number of the step, the same on all ranks."""
        ...

    def check(self) -> None:
        """Raise if the step is over."""
        ...


class OpenWeights:
    """The parameters for the duration of one step; every look-up asks the permit again.

    A worker's permit is one object for all of its steps, so the number of the step counts too.
    """

    def __init__(self, tensors: Mapping[str, Any], permit: Permit) -> None:
        self._tensors = tensors
        self._permit = permit
        self._step = permit.step

    def __getitem__(self, name: str, /) -> Any:
        """Return the parameter.

        Raises
        ------
        wsm.errors.WsmError
            Whatever the permit raises once its step is over.
        RefusedError
            If another step runs by now.
        RefusedError
            If the parameter holds no memory.
        """
        self._permit.check()
        if self._permit.step != self._step:
            raise RefusedError(
                f"the parameters were opened for step {self._step}, which is over: "
                "open them again in every step",
                code="step-over",
            )
        tensor = self._tensors[name]
        if not tensor._is_initialized():
            raise RefusedError(
                f"parameter {name} holds no memory: the weights are cleared; "
                "update the group to a version first",
                code="parameter-released",
                name=name,
            )
        return tensor


class Parameters:
    """All parameters of one rank's shard.

    Parameters
    ----------
    specs : mapping of str to TensorSpec
        :func:`examples.rollout.model.sharding.shard_specs` of the rank.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        tensors = {}
        with paddle.LazyGuard():
            for name, spec in specs.items():
                tensor = paddle.create_parameter(list(spec.shape), "float32", name=None)
                tensor.stop_gradient = True
                tensors[name] = tensor
        self._tensors: Mapping[str, Any] = MappingProxyType(tensors)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the tensors for loading, clearing and capturing; what weight backends ask a layer for."""
        return self._tensors

    def open(self, permit: Permit | None) -> OpenWeights:
        """Give a forward pass access for as long as `permit` is valid.

        Raises
        ------
        RefusedError
            Without a permit.
        wsm.errors.WsmError
            Whatever the permit raises once its step is over.
        """
        if permit is None:
            raise errors.step_permit_missing()
        permit.check()
        return OpenWeights(self._tensors, permit)


class ShardLoader:
    """One rank's :class:`wsm.strategies.applier.feeding.ModelLoader`.

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
            local[...] = whole[layout.part(self._rank, extents)]
            parameters.complete(spec.name)


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
