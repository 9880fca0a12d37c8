"""A policy-gradient trainer for the reference model: whole weights in, better weights out.

It shares the forward pass with the rollout group (:func:`examples.rollout.model.transformer.full_logits`),
so that what it improves is exactly what the group serves; it knows neither the group nor the words, files
and processes between them. Reading this file takes paddle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
import paddle.nn.functional as F  # noqa: N812 - paddle's own convention

from examples.rollout.model.moe import local_mixture
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state
from examples.rollout.model.transformer import full_logits

Array = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]


#: How to learn; these raise the copy task's reward from chance to 0.99 within 30 steps. Adam's rate; passes
#: over each batch, of which more than one needs the clip: how far a token's probability may move per batch,
#: relative (PPO); and the bound on the global norm of a gradient.
_RATE, _EPOCHS, _CLIP, _MOST_NORM = 3e-3, 4, 0.2, 1.0


@dataclass(frozen=True)
class Improvement:
    """What one batch did.

    Parameters
    ----------
    loss : float
        Of the last pass.
    entropy : float
        Mean entropy of the policy over the judged positions, in nats, before the batch.
    log_probability : ndarray of float32, shape (rows, length)
        Of each given token before the batch; what a group with the same weights must have seen.
    """

    loss: float
    entropy: float
    log_probability: Array


class Trainer:
    """Policy gradient with per-token reward and the whole batch as its baseline.

    Parameters
    ----------
    shape : ModelShape
        The model.
    seed : int
        Of the initial weights.
    """

    def __init__(self, shape: ModelShape, *, seed: int = 0) -> None:
        self.shape = shape
        self._mixture = local_mixture(shape)
        self._parameters = {
            name: paddle.to_tensor(array, stop_gradient=False)
            for name, array in initial_state(shape, seed).items()
        }
        self._optimizer = paddle.optimizer.Adam(
            learning_rate=_RATE,
            beta1=0.9,
            beta2=0.95,
            parameters=list(self._parameters.values()),
            grad_clip=paddle.nn.ClipGradByGlobalNorm(_MOST_NORM),
        )

    def state(self) -> dict[str, Array]:
        """Copy out the full weights, under the names of :func:`.full_specs`."""
        return {name: tensor.numpy().copy() for name, tensor in self._parameters.items()}

    def improve(self, prompts: Tokens, answers: Tokens, rewards: Array) -> Improvement:
        """Learn from one batch of answers that the present weights gave.

        Parameters
        ----------
        prompts : ndarray of int64, shape (rows, prompt length)
            What was asked.
        answers : ndarray of int64, shape (rows, length)
            What was answered.
        rewards : ndarray of float32, shape (rows, length)
            Points per token.

        Returns
        -------
        Improvement
            What the batch did.
        """
        sequence = paddle.to_tensor(np.concatenate([prompts, answers], axis=1))
        advantage = paddle.to_tensor((rewards - rewards.mean()) / (rewards.std() + 1e-4))
        with paddle.no_grad():
            before, entropy = self._judge(sequence, prompts.shape[1])
        loss = paddle.zeros([])
        for _ in range(_EPOCHS):
            now, _ = self._judge(sequence, prompts.shape[1])
            ratio = paddle.exp(now - before)
            clipped = paddle.clip(ratio, 1.0 - _CLIP, 1.0 + _CLIP)
            loss = -paddle.minimum(ratio * advantage, clipped * advantage).mean()
            loss.backward()
            self._optimizer.step()
            self._optimizer.clear_grad()
        return Improvement(loss=loss.item(), entropy=entropy.item(), log_probability=before.numpy())

    def _judge(self, sequence: Any, prompt_length: int) -> tuple[Any, Any]:
        """Return the log probability of each answered token (rows, length), and the mean entropy."""
        # Position t predicts token t + 1: the last prompt token predicts the first answer.
        predicted = full_logits(self.shape, self._parameters, sequence[:, :-1], self._mixture)
        log_odds = F.log_softmax(predicted[:, prompt_length - 1 :], axis=-1)
        answered = sequence[:, prompt_length:].unsqueeze(-1)
        entropy = -(log_odds.exp() * log_odds).sum(axis=-1).mean()
        return paddle.take_along_axis(log_odds, answered, axis=-1).squeeze(-1), entropy
