"""Models that take a checkpoint by themselves and promise nothing, and which of its tensors are whose.

Which names belong to a multi-token-prediction model is FastDeploy's rule, with layer numbers compared as
numbers. Knows no strategies and no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wsm.strategies.tensor import TensorSpec

_MARKS = ("mtp_", "mtp_block")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class AuxiliaryNames:
    """Names that say MTP, or lie in layers behind the main model's last.

    Parameters
    ----------
    first_layer : int
        The first of its layers; the main model's number of layers.
    layers : int
        How many layers it has.
    """

    first_layer: int = 0
    layers: int = 0

    def match(self, name: str) -> bool:
        """Whether the tensor called `name` is the auxiliary model's; layer 2 is not layer 20."""
        if any(mark in name for mark in _MARKS):
            return True
        own = range(self.first_layer, self.first_layer + self.layers)
        return any(int(found) in own for found in _LAYER.findall(name))


@runtime_checkable
class CheckpointModel(Protocol):
    """A model that takes named tensors and says nothing beforehand, as FastDeploy's do.

    It writes into its own parameters, and may replace them. The first of a runner is the main model's, which
    gets every tensor of a version; the others get those whose names are theirs, in chunks.
    """

    @property
    def name(self) -> str:
        """What messages call the model."""
        ...

    def match(self, name: str) -> bool:
        """Whether a tensor of this name is for the model, where it is an auxiliary one."""
        ...

    def load_checkpoint(self, tensors: Iterable[tuple[TensorSpec, memoryview]]) -> None:
        """Write tensors where they belong, until the iterable ends. Blocks.

        The bytes (read-only, flat) are valid until the next tensor is asked for.
        """
        ...
