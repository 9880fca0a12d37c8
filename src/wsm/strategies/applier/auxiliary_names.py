"""Which names of a checkpoint belong to a multi-token-prediction model.

FastDeploy's rule, with layer numbers compared as numbers. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
