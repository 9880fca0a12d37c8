"""The parameters of one rank, out of reach without the permit of a running step.

They are created without memory, so a worker starts CLEARED, and they keep their identity for life: loading
gives them memory, clearing takes it. Code that loads, clears or captures gets the bare tensors; a forward
pass gets them through :meth:`Parameters.open` alone, inside a step. Knows no model code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import paddle

from wsm.rollout import errors
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
            raise errors.step_over(step=self._step)
        tensor = self._tensors[name]
        if not tensor._is_initialized():
            raise errors.parameter_released(name=name)
        return tensor


class Parameters:
    """All parameters of one rank's shard.

    Parameters
    ----------
    specs : mapping of str to TensorSpec
        :func:`wsm.rollout.model.sharding.shard_specs` of the rank.
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
