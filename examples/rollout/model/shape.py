"""What the reference model looks like: sizes, activation, experts, auxiliary blocks.

Knows no paddle, no ranks' processes and no files; everything else in this package derives names,
shapes and buffer sizes from it, the trainer included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from examples.rollout import errors

ACTIVATIONS = ("gelu", "swiglu")

#: The largest extent that a tensor may have: paddle counts in 32 bits.
MOST = 2**31 - 1

#: More tensors than this no model has; each rank makes an object of each.
MOST_TENSORS = 1_000_000


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
        for name in ("vocabulary", "width", "layers", "heads", "hidden", "context", "experts_per_token"):
            self._require(field=name, holds=getattr(self, name) >= 1, reason="must be at least 1")
        for name in ("experts", "draft_layers"):
            self._require(field=name, holds=getattr(self, name) >= 0, reason="must not be negative")
        for each in fields(self):
            value = getattr(self, each.name)
            self._require(
                field=each.name,
                holds=isinstance(value, str) or value <= MOST,
                reason=f"must be {MOST} at most",
            )
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
        tensors = self.tensors
        self._require(
            field=max(("layers", "experts", "draft_layers"), key=lambda name: int(getattr(self, name))),
            holds=tensors <= MOST_TENSORS,
            reason=f"makes a model of {tensors} tensors, and it may have {MOST_TENSORS}",
        )

    @property
    def tensors(self) -> int:
        """How many tensors the full model has, counted without naming them."""
        feed_forward = 3 if self.gated else 2
        each = 6 + (1 + self.experts * feed_forward if self.experts else feed_forward)
        draft = self.draft_layers * (6 + feed_forward) + bool(self.draft_layers)
        return 4 + self.layers * each + draft

    @property
    def parameters(self) -> int:
        """How many numbers the full model holds, counted without naming its tensors."""
        width, feed_forward = self.width, (3 if self.gated else 2) * self.width * self.hidden
        block = 2 * width + 4 * width**2
        each = block + (self.experts * (width + feed_forward) if self.experts else feed_forward)
        draft = self.draft_layers * (block + feed_forward) + (width if self.draft_layers else 0)
        return width * (2 * self.vocabulary + self.context + 1) + self.layers * each + draft

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def gated(self) -> bool:
        """Whether feed-forward networks have a gate matrix."""
        return self.activation == "swiglu"

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ModelShape:
        """Build a shape from parsed YAML or JSON.

        Raises
        ------
        BadInputError
            For an unknown key, a value of the wrong type, or sizes that do not fit each other.
        """
        known = {field.name for field in fields(cls)}
        for key, value in mapping.items():
            if key not in known:
                raise errors.bad_model_shape(
                    field=key, value=value, reason=f"is unknown; known are {sorted(known)}"
                )
            expected = str if key == "activation" else int
            if not isinstance(value, expected) or isinstance(value, bool):
                raise errors.bad_model_shape(
                    field=key, value=value, reason=f"must be of type {expected.__name__}"
                )
        return cls(**mapping)

    def as_mapping(self) -> dict[str, Any]:
        """Return what :meth:`from_mapping` accepts."""
        return asdict(self)

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
