"""The task that the demo learns: repeat a prompt of a few symbols, one point per correct token.

It is small enough for a minute on two cores and has a reward that a reader can check. The prompt must be
read (chance is one in `symbols`, at every position), so a policy that stands still cannot look as if it
learned. Knows no model, no group and no paddle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Rewards = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CopyTask:
    """Repeat the prompt.

    Parameters
    ----------
    symbols : int
        Size of the alphabet; tokens are ``0..symbols-1``.
    length : int
        Tokens per prompt, and per answer.
    """

    symbols: int = 8
    length: int = 4

    @property
    def chance(self) -> float:
        """Mean reward of a policy that guesses uniformly among the symbols."""
        return 1.0 / self.symbols

    def prompts(self, count: int, *, seed: int) -> Tokens:
        """Draw `count` prompts; the same for the same seed.

        Returns
        -------
        ndarray of int64, shape (count, length)
        """
        return np.random.default_rng(seed).integers(0, self.symbols, (count, self.length), dtype=np.int64)

    def rewards(self, prompts: Tokens, answers: Sequence[Sequence[int]] | Tokens) -> Rewards:
        """Judge answers token by token.

        Parameters
        ----------
        prompts : ndarray of int64, shape (count, length)
            What was asked.
        answers : sequence of sequences of int
            What was generated, one per prompt; one that ended early has no points for what it lacks,
            and tokens after `length` are not judged.

        Returns
        -------
        ndarray of float32, shape (count, length)
            1 where the token is the prompt's, else 0.

        Raises
        ------
        ValueError
            If there is not one answer per prompt.
        """
        if len(answers) != len(prompts):
            raise ValueError(f"{len(answers)} answers to {len(prompts)} prompts: judge each prompt once")
        given = np.full((len(prompts), self.length), -1, np.int64)
        for row, answer in zip(given, answers, strict=True):
            judged = np.asarray(answer[: self.length], np.int64)
            row[: len(judged)] = judged
        points: Rewards = (given == prompts).astype(np.float32)
        return points
