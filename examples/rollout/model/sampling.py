"""Choosing the next token, the same one for the same request whatever else is in its batch.

The randomness of one choice is a function of (request seed, number of the token) alone, so a request
gives the same tokens on one rank or many, alone or under load, and after it was frozen and prefilled
anew. numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Choices(NamedTuple):
    """Chosen ids, int64 (rows,), and their log probabilities as they were sampled, float64 (rows,)."""

    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]


def choose(
    logits: npt.NDArray[np.float32],
    temperatures: npt.NDArray[np.float64],
    seeds: npt.NDArray[np.uint64],
    indices: npt.NDArray[np.uint64],
) -> Choices:
    """Sample one token per row.

    Parameters
    ----------
    logits : ndarray of float32, (rows, vocabulary)
        Unnormalized log probabilities.
    temperatures : ndarray of float64, (rows,)
        0 takes the most likely token; its log probability is then the one at temperature 1.
    seeds, indices : ndarray of uint64, (rows,)
        Seed of the request, and how many tokens it has generated before.
    """
    greedy = temperatures == 0
    scaled = logits.astype(np.float64) / np.where(greedy, 1.0, temperatures)[:, None]
    scaled -= scaled.max(axis=1, keepdims=True)
    logprobs = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    cumulative = np.exp(logprobs).cumsum(axis=1)
    # Scaling by the last sum instead of dividing by it keeps rounding from choosing beyond the vocabulary.
    threshold = _uniform(seeds, indices) * cumulative[:, -1]
    sampled = (cumulative <= threshold[:, None]).sum(axis=1)
    tokens = np.where(greedy, scaled.argmax(axis=1), np.minimum(sampled, logits.shape[1] - 1))
    return Choices(tokens, logprobs[np.arange(len(tokens)), tokens])


def _uniform(seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Hash (seed, index) to [0, 1)."""
    bits = _mix(_mix(seeds) ^ indices) >> np.uint64(11)
    uniform: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return uniform


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64 bits (the finalizer of splitmix64, public domain); arithmetic is modulo 2**64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scrambled: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return scrambled
