"""What a model implements that takes a checkpoint's tensors in its own way: fused, split, transposed.

FastDeploy's models have ``load_weights(iterator)``; this is that protocol with its promises spoken: what the
loader takes is known beforehand, it writes into the parameters' own memory, and it says when each is whole.
A model that makes none of these promises is in :mod:`wsm.strategies.checkpoint_models`. Knows no strategies
and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from wsm.errors import InternalError
from wsm.strategies import errors
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.observer import Taint
from wsm.strategies.tensor import StagedTarget, TensorSpec, WeightTarget


class ParameterMemory:
    """The memory of a model's parameters, while loaders write into it.

    Parameters
    ----------
    target : WeightTarget
        The parameters.
    taint : Taint
        Told before the first of them is handed out.
    """

    def __init__(self, target: WeightTarget, taint: Taint) -> None:
        self._target = target
        self._taint = taint
        self._staged = target if isinstance(target, StagedTarget) else None
        self._specs = target.specs()
        self._open: dict[str, memoryview] = {}
        self._whole: set[str] = set()
        self._loader = "the model"

    def memory(self, name: str) -> memoryview:
        """Return the bytes of a parameter (C order, writable, format ``B``), the same until it is complete.

        Host memory of a target in device memory is moved when the parameter is complete.

        Raises
        ------
        InternalError
            If there is no such parameter, or it is complete already.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        if name not in self._specs:
            raise self._broken(f"there is no parameter {name!r}")
        if name in self._whole:
            raise self._broken(f"it wrote {name!r} twice")
        self._taint()
        if self._staged is None:
            self._open[name] = self._target.writable(name)
        else:  # it holds the bytes of one parameter at a time, and loaders have several open
            self._open[name] = memoryview(bytearray(self._specs[name].nbytes))
        return self._open[name]

    def complete(self, name: str) -> None:
        """Say that every byte of a parameter was written.

        Raises
        ------
        InternalError
            If it was never open.
        """
        if name not in self._open:
            raise self._broken(f"it completed {name!r} without writing it")
        memory = self._open.pop(name)
        if self._staged is not None:
            copy_bytes(memoryview(memory), self._target.writable(name))
            self._staged.written(name)
        self._whole.add(name)

    def used_by(self, loader: str) -> None:
        """Say who writes now, for messages."""
        self._loader = loader

    def check(self) -> None:
        """See that every parameter is complete.

        Raises
        ------
        InternalError
            If one is not.
        """
        left = [name for name in self._specs if name not in self._whole]
        if left:
            shown = ", ".join(map(repr, left[:5]))
            raise errors.loader_contract(
                loader="the model",
                problem=f"{len(left)} parameters were not completed: {shown}",
            )

    def _broken(self, problem: str) -> InternalError:
        return errors.loader_contract(loader=self._loader, problem=problem)


class ModelLoader(Protocol):
    """One model's way to take tensors of a stream. The first of a runner is the main model's."""

    @property
    def name(self) -> str:
        """What messages call the model."""
        ...

    def takes(self) -> Mapping[str, TensorSpec]:
        """Every tensor that it needs, under the stream's name; known without any memory held."""
        ...

    def load_weights(
        self, tensors: Iterable[tuple[TensorSpec, memoryview]], parameters: ParameterMemory
    ) -> None:
        """Write tensors where they belong, until the iterable ends. Blocks.

        The main model gets the whole stream in one call; an auxiliary one gets it in several, some tensors
        each. The bytes (read-only, flat) are valid until the next tensor is asked for. They are verified.
        """
        ...
