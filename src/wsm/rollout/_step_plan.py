"""What one step does, in numbers that every rank can follow.

A step is one rectangle of (rows, length) tokens: either chunks of prompts or one token per running
request. Knows no requests, no model and no paddle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StepPlan:
    """One step.

    Parameters
    ----------
    tokens : ndarray of int32, (rows, length)
        Ids, zero behind a row's `counts`.
    starts, counts : ndarray of int32, (rows,)
        Position of each row's first token, and how many tokens of the row are real.
    tables : ndarray of int32, (rows, blocks)
        KV blocks that hold each row's positions ``0..starts + counts - 1``, scratch behind them.
    """

    tokens: Int32
    starts: Int32
    counts: Int32
    tables: Int32

    @property
    def rows(self) -> int:
        """Number of requests in the step."""
        return int(self.tokens.shape[0])

    @property
    def length(self) -> int:
        """Most tokens of one request in the step."""
        return int(self.tokens.shape[1])

    @property
    def is_decode(self) -> bool:
        """Whether every row has one token."""
        return self.length == 1

    @classmethod
    def empty(cls) -> StepPlan:
        """Return a step in which no model runs: it only keeps the ranks together."""
        no_request, nothing = np.zeros(0, np.int32), np.zeros((0, 0), np.int32)
        return cls(nothing, no_request, no_request, nothing)
