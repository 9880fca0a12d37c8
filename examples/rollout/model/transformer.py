"""The forward pass of the reference model: embedding, blocks, head.

Pure functions of (weights, inputs). The same code runs a rank's shard with paged attention in a
worker and the full model with causal attention under autograd in a trainer; what differs is handed
in. It cannot tell whether weights may be used: that is decided by the caller that hands them in
(:mod:`examples.rollout.model.parameters`). No operand is optional, because paddle computes silently without a
cleared optional operand such as a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import paddle
import paddle.nn.functional as F  # noqa: N812 - paddle's own convention

from examples.rollout.model.parallel import Communicator, alone
from examples.rollout.model.shape import ModelShape

NORM_EPSILON = 1e-6


class Weights(Protocol):
    """Parameters by name: a dict in a trainer, in a worker :class:`.parameters.OpenWeights`."""

    def __getitem__(self, name: str, /) -> Any:
        """Return the parameter's tensor."""
        ...


class Attend(Protocol):
    """Attention over whatever context the caller keeps."""

    def __call__(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        """Map three tensors (rows, length, local width) to one of the same extents."""
        ...


class Mix(Protocol):
    """A mixture of experts."""

    def __call__(self, weights: Weights, prefix: str, layer: int, hidden: Any) -> Any:
        """Map normalized hidden states (rows, length, width) to the experts' full output."""
        ...


class Decoder:
    """The blocks of a model on one rank.

    Parameters
    ----------
    shape : ModelShape
        The full model.
    tensor_parallel : Communicator
        The ranks that hold the other parts of each matrix.
    mix : Mix or None
        Needed exactly where `shape` has experts.
    """

    def __init__(
        self, shape: ModelShape, tensor_parallel: Communicator | None = None, mix: Mix | None = None
    ) -> None:
        self.shape = shape
        self._ranks = tensor_parallel or alone()
        self._mix = mix

    def hidden(self, weights: Weights, tokens: Any, positions: Any, attend: Attend) -> Any:
        """Run embedding and all blocks: (rows, length) int64 ids to (rows, length, width). Collective."""
        hidden = F.embedding(tokens, weights["embedding.token.weight"]) + F.embedding(
            positions, weights["embedding.position.weight"]
        )
        for layer in range(self.shape.layers):
            hidden = self.block(weights, f"layers.{layer}", layer, hidden, attend)
        return hidden

    def block(self, weights: Weights, prefix: str, layer: int, hidden: Any, attend: Attend) -> Any:
        """Run one block; two all_reduce, or one and the experts' exchange. Collective."""
        normal = rms_norm(hidden, weights[f"{prefix}.attention_norm.weight"])
        query, key, value = (
            paddle.matmul(normal, weights[f"{prefix}.attention.{matrix}.weight"])
            for matrix in ("query", "key", "value")
        )
        context = attend(layer, query, key, value)
        output = paddle.matmul(context, weights[f"{prefix}.attention.output.weight"])
        hidden = hidden + self._ranks.all_reduce(output)
        normal = rms_norm(hidden, weights[f"{prefix}.feed_forward_norm.weight"])
        if self._mix is not None:
            return hidden + self._mix(weights, prefix, layer, normal)
        partial = feed_forward(weights, f"{prefix}.feed_forward", normal, gated=self.shape.gated)
        return hidden + self._ranks.all_reduce(partial)


def logits(weights: Weights, hidden: Any, norm: str = "final_norm.weight") -> Any:
    """Map hidden states (..., width) to unnormalized log probabilities (..., vocabulary)."""
    return paddle.matmul(rms_norm(hidden, weights[norm]), weights["head.weight"])


def rms_norm(hidden: Any, weight: Any) -> Any:
    """Divide each hidden state by its root mean square and scale it."""
    mean_square = paddle.mean(hidden * hidden, axis=-1, keepdim=True)
    return hidden * paddle.rsqrt(mean_square + NORM_EPSILON) * weight


def feed_forward(weights: Weights, prefix: str, hidden: Any, *, gated: bool) -> Any:
    """Run one feed-forward network or expert; on a split one the result is this rank's summand."""
    inner = paddle.matmul(hidden, weights[f"{prefix}.up.weight"])
    if gated:
        inner = F.silu(paddle.matmul(hidden, weights[f"{prefix}.gate.weight"])) * inner
    else:
        inner = F.gelu(inner)
    return paddle.matmul(inner, weights[f"{prefix}.down.weight"])


def causal_attention(head_size: int) -> Attend:
    """Return attention of each position over itself and all earlier ones; needs no cache, differentiable."""

    def attend(layer: int, query: Any, key: Any, value: Any) -> Any:  # noqa: ARG001 - part of Attend
        rows, length, width = query.shape
        split = [rows, length, width // head_size, head_size]
        query, key, value = (tensor.reshape(split).transpose([0, 2, 1, 3]) for tensor in (query, key, value))
        future = paddle.triu(paddle.full([length, length], float("-inf")), diagonal=1)
        scores = paddle.matmul(query, key, transpose_y=True) * head_size**-0.5 + future
        context = paddle.matmul(F.softmax(scores, axis=-1), value)
        return context.transpose([0, 2, 1, 3]).reshape([rows, length, width])

    return attend


def full_logits(shape: ModelShape, weights: Mapping[str, Any], tokens: Any, mix: Mix | None = None) -> Any:
    """Run the whole model in one process, without cache, differentiable.

    Parameters
    ----------
    shape : ModelShape
        The model.
    weights : mapping of str to paddle.Tensor
        All parameters of :func:`examples.rollout.model.sharding.full_specs`.
    tokens : paddle.Tensor
        int64, (rows, length).
    mix : Mix or None
        :func:`examples.rollout.model.moe.local_mixture` where the model has experts.

    Returns
    -------
    paddle.Tensor
        float32, (rows, length, vocabulary): position t holds the prediction of token t + 1.
    """
    positions = paddle.arange(tokens.shape[1]).expand_as(tokens)
    hidden = Decoder(shape, mix=mix).hidden(weights, tokens, positions, causal_attention(shape.head_size))
    return logits(weights, hidden)
