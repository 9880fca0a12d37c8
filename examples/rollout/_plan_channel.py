"""How rank 0 tells the other ranks what the next step does: one broadcast of one preallocated buffer.

Only rank 0 schedules. The plan carries the version that rank 0 computes with, so two ranks can never
run one step with different weights without noticing before anything is computed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import paddle

from examples.rollout.model.parallel import Communicator
from examples.rollout.model.parameters import Permit
from wsm.actions.backends.paddle_bytes import array_of
from wsm.errors import GroupError, InternalError
from wsm.labels import MAX_LENGTH

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


_LABEL = MAX_LENGTH // 4  # words of a version's label, filled up with zeros
_HEADER = 3 + _LABEL


class PlanChannel:
    """The way of a plan from rank 0 to all ranks of a tensor-parallel group.

    Parameters
    ----------
    ranks : Communicator
        The TP group.
    max_rows, max_tokens, max_blocks : int
        Bounds of a plan: rows, rows times length, blocks per row.
    """

    def __init__(self, ranks: Communicator, *, max_rows: int, max_tokens: int, max_blocks: int) -> None:
        self._ranks = ranks
        capacity = _HEADER + max_rows * (2 + max_blocks) + max_tokens
        self._tensor = paddle.zeros([capacity], dtype="int32")
        self._words: Int32 = np.asarray(array_of(self._tensor), np.int32)

    def share(self, plan: StepPlan | None, permit: Permit) -> StepPlan:
        """Send rank 0's plan, return it on every rank. Collective over TP.

        Parameters
        ----------
        plan : StepPlan or None
            Rank 0's; ignored elsewhere.
        permit : Permit
            Of the running step.

        Raises
        ------
        GroupError
            If this rank holds other weights than rank 0: nothing has run yet.
        InternalError
            If the plan exceeds the bounds.
        """
        if self._ranks.rank == 0:
            plan = plan or StepPlan.empty()
            self._write(plan, permit.version)
        self._ranks.broadcast(self._tensor)
        if self._ranks.rank == 0 and plan is not None:
            return plan
        return self._read(permit)

    def reset(self) -> None:
        """Forget the last plan. Idempotent."""
        self._words[:] = 0

    def _write(self, plan: StepPlan, version: str) -> None:
        rows, length, blocks = plan.rows, plan.length, plan.tables.shape[1]
        parts = (plan.starts, plan.counts, plan.tables.ravel(), plan.tokens.ravel())
        needed = _HEADER + sum(part.size for part in parts)
        if needed > self._words.size:
            raise InternalError(
                f"a step plan needs {needed} of {self._words.size} words; "
                "this is a bug in wsm, please report it",
                code="plan-overflow",
            )
        self._words[:3] = (rows, length, blocks)
        self._words[3:_HEADER] = _words_of(version)
        np.concatenate(parts, out=self._words[_HEADER:needed])

    def _read(self, permit: Permit) -> StepPlan:
        rows, length, blocks = (int(word) for word in self._words[:3])
        leader_version = self._words[3:_HEADER].tobytes().rstrip(b"\0").decode("ascii", "replace")
        if leader_version != permit.version:
            raise GroupError(
                f"rank {self._ranks.rank} holds version {permit.version} in step {permit.step}, rank 0 holds "
                f"{leader_version}; the step was not run: clear the group and update it",
                code="mixed-versions",
            )
        # A copy: the buffer is overwritten by the next step, while captured inputs may be read later.
        words = self._words[_HEADER : _HEADER + rows * (2 + blocks + length)].copy()
        starts, counts, tables, tokens = np.split(words, np.cumsum([rows, rows, rows * blocks]))
        return StepPlan(tokens.reshape(rows, length), starts, counts, tables.reshape(rows, blocks))


@functools.lru_cache(maxsize=8)
def _words_of(label: str) -> Int32:
    """Return the words of a label; the same one is asked for at each step."""
    return np.frombuffer(label.encode("ascii").ljust(MAX_LENGTH, b"\0"), np.int32)
