"""Mixture of experts: choose experts per token, run the ones that live here, sum the results.

Every rank routes its own share of the step's tokens, so that routing is not computed twice, and
exchanges tokens with the other ranks through an exchange. Knows no requests: recorded choices go,
per layer and token, to a listener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import paddle
import paddle.nn.functional as F  # noqa: N812 - paddle's own convention

from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import local_experts
from examples.rollout.model.transformer import Mix, Weights, feed_forward

#: Called per layer with the chosen experts, int64 (tokens, experts per token), padding at the end included.
RoutingListener = Callable[[int, npt.NDArray[np.int64]], None]


class Exchange(Protocol):
    """How tokens reach experts and come back; see :class:`examples.rollout.model.parallel.ExchangeBuffer`."""

    def dispatch(self, tokens: Any) -> Any:
        """Return all ranks' tokens in rank order. Collective."""
        ...

    def combine(self, partial: Any) -> Any:
        """Return the sum of all ranks' outputs. Collective."""
        ...


class WholeExchange:
    """The exchange of a process that owns every expert: nothing has to travel."""

    def dispatch(self, tokens: Any) -> Any:
        """Return the tokens as they are."""
        return tokens

    def combine(self, partial: Any) -> Any:
        """Return the outputs as they are."""
        return partial


class Mixture:
    """One rank's part of the experts; a :class:`examples.rollout.model.transformer.Mix`.

    Parameters
    ----------
    shape : ModelShape
        The full model.
    exchange : Exchange
        The way to the other ranks' experts.
    rank, ranks : int
        Position in the EP group.
    listener : callable or None
        Told which experts were chosen.
    """

    def __init__(
        self,
        shape: ModelShape,
        exchange: Exchange,
        rank: int,
        ranks: int,
        listener: RoutingListener | None = None,
    ) -> None:
        self._shape = shape
        self._exchange = exchange
        self._rank = rank
        self._ranks = ranks
        self._listener = listener
        self._experts = local_experts(shape, rank, ranks)

    def __call__(self, weights: Weights, prefix: str, layer: int, hidden: Any) -> Any:
        """Map normalized hidden states (rows, length, width) to the experts' output. Collective over EP."""
        width, chosen = self._shape.width, self._shape.experts_per_token
        flat = hidden.reshape([-1, width])
        received = self._exchange.dispatch(self._routed(weights, prefix, self._share(flat)))
        tokens = received[:, :width]
        experts = received[:, width : width + chosen]
        gates = received[:, width + chosen :]
        if self._listener is not None:
            self._listener(layer, experts.numpy().astype(np.int64))
        partial = self._run_local(weights, prefix, tokens, experts, gates)
        return self._exchange.combine(partial)[: flat.shape[0]].reshape(hidden.shape)

    def _share(self, flat: Any) -> Any:
        """Return this rank's tokens, padded so that every rank has the same number."""
        rows = -(-flat.shape[0] // self._ranks)
        missing = rows * self._ranks - flat.shape[0]
        if missing:
            flat = paddle.concat([flat, paddle.zeros([missing, flat.shape[1]])])
        return flat[self._rank * rows : (self._rank + 1) * rows]

    def _routed(self, weights: Weights, prefix: str, tokens: Any) -> Any:
        """Append each token's expert ids and gates, as floats: ids are exact up to 2**24."""
        odds = F.softmax(paddle.matmul(tokens, weights[f"{prefix}.router.weight"]), axis=-1)
        gates, experts = paddle.topk(odds, self._shape.experts_per_token, axis=-1)
        gates = gates / gates.sum(axis=-1, keepdim=True)
        return paddle.concat([tokens, experts.astype("float32"), gates], axis=-1)

    def _run_local(self, weights: Weights, prefix: str, tokens: Any, experts: Any, gates: Any) -> Any:
        output = paddle.zeros_like(tokens)
        for expert in self._experts:
            gate = (gates * (experts == float(expert)).astype("float32")).sum(axis=-1, keepdim=True)
            mine = paddle.nonzero(gate.detach()[:, 0]).flatten()
            if mine.shape[0]:
                result = feed_forward(
                    weights,
                    f"{prefix}.experts.{expert}",
                    paddle.gather(tokens, mine),
                    gated=self._shape.gated,
                )
                output = paddle.index_add(output, mine, 0, result * paddle.gather(gate, mine))
        return output


def local_mixture(shape: ModelShape) -> Mix | None:
    """Return the mixture of a process that holds the whole model; None for a dense model."""
    return Mixture(shape, WholeExchange(), rank=0, ranks=1) if shape.experts else None
