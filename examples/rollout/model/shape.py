"""What the reference model looks like: sizes, activation, experts, auxiliary blocks.

Knows no paddle, no ranks' processes and no files; everything else in this package derives names,
shapes and buffer sizes from it, the trainer included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from examples.rollout import errors

ACTIVATIONS = ("gelu", "swiglu")

#: The largest extent that a tensor may have: paddle counts in 32 bits.
MOST = 2**31 - 1


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer, pre-RMSNorm, learned positions, float32, without any bias.

    Parameters
    ----------
    vocabulary : int
        Number of token ids; valid ids are ``0..vocabulary-1``.
    width : int
        Size of a hidden state.
    layers, heads : int
        Number of blocks, and of attention heads in each; `heads` divides `width`.
    hidden : int
        Inner size of a feed-forward network (of each expert, where there are experts).
    context : int
        Longest sequence, prompt included.
    activation : {'gelu', 'swiglu'}
        Of every feed-forward network; 'swiglu' has a gate matrix more.
    experts : int
        Experts per block; 0 for a dense model.
    experts_per_token : int
        How many experts each token is sent to.
    draft_layers : int
        Blocks of the auxiliary multi-token-prediction model; 0 for none.

    Raises
    ------
    BadInputError
        If the numbers do not fit each other.
    """

    vocabulary: int = 16
    width: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int = 256
    context: int = 32
    activation: str = "gelu"
    experts: int = 0
    experts_per_token: int = 2
    draft_layers: int = 0

    def __post_init__(self) -> None:
        self._require(
            field="heads", holds=self.width % self.heads == 0, reason=f"must divide width {self.width}"
        )
        self._require(
            field="activation", holds=self.activation in ACTIVATIONS, reason=f"must be one of {ACTIVATIONS}"
        )
        if self.experts:
            self._require(
                field="experts_per_token",
                holds=self.experts_per_token <= self.experts,
                reason=f"must not exceed experts {self.experts}",
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def gated(self) -> bool:
        """Whether feed-forward networks have a gate matrix."""
        return self.activation == "swiglu"

    def check_ranks(self, ranks: int) -> None:
        """Check that the model can be split over `ranks` ranks.

        Raises
        ------
        BadInputError
            If heads, feed-forward size or experts do not divide evenly.
        """
        self._require(field="ranks", holds=ranks >= 1, reason="must be at least 1", value=ranks)
        for name in ("heads", "hidden") if not self.experts or self.draft_layers else ("heads",):
            self._require(
                field=name, holds=getattr(self, name) % ranks == 0, reason=f"must divide by {ranks} ranks"
            )
        self._require(
            field="experts", holds=self.experts % ranks == 0, reason=f"must divide by {ranks} ranks"
        )

    def _require(self, *, field: str, holds: bool, reason: str, value: Any = None) -> None:
        if not holds:
            raise errors.bad_model_shape(field=field, value=getattr(self, field, value), reason=reason)
