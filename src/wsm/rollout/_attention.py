"""Attention over a paged KV cache, and the tensors that one step needs for it.

:class:`StepInputs` are made from a plan, either fresh or inside tensors whose addresses stay the same
(captured execution). Padding, of rows and of lengths, reads and writes the scratch block only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 - paddle's own convention

from wsm.actions.backends.paddle_bytes import array_of
from wsm.rollout._paged_cache import PagedKVCache
from wsm.rollout._step_plan import StepPlan
from wsm.rollout.block_pool import SCRATCH_BLOCK
from wsm.rollout.model import Attend

FORBIDDEN = np.float32(-1e30)  # finite: a row of -inf would turn into NaN


class StepInputs:
    """The input tensors of a step of at most (rows, length) tokens and `blocks` blocks per row.

    Attributes
    ----------
    tokens, positions : paddle.Tensor
        int64, (rows, length).
    slots : paddle.Tensor
        int64, (rows * length,): where each token's key and value are written.
    tables : paddle.Tensor
        int32, (rows * blocks,): which blocks each row reads.
    mask : paddle.Tensor
        float32, (rows, 1, length, blocks * block size): what a token must not attend to.
    last : paddle.Tensor
        int64, (rows,): flat index of each row's last real token.
    """

    def __init__(self, rows: int, length: int, blocks: int, block_size: int) -> None:
        self.rows = rows
        self.length = length
        self.blocks = blocks
        self.block_size = block_size
        self.tokens = paddle.zeros([rows, length], dtype="int64")
        self.positions = paddle.zeros([rows, length], dtype="int64")
        self.slots = paddle.zeros([rows * length], dtype="int64")
        self.tables = paddle.zeros([rows * blocks], dtype="int32")
        self.mask = paddle.zeros([rows, 1, length, blocks * block_size])
        self.last = paddle.zeros([rows], dtype="int64")
        self._views = tuple(
            array_of(tensor)
            for tensor in (self.tokens, self.positions, self.slots, self.tables, self.mask, self.last)
        )

    @classmethod
    def of(cls, plan: StepPlan, block_size: int) -> StepInputs:
        """Make fresh inputs that fit `plan` exactly."""
        inputs = cls(plan.rows, plan.length, plan.tables.shape[1], block_size)
        inputs.fill(plan)
        return inputs

    def fill(self, plan: StepPlan) -> None:
        """Write `plan` into the tensors; rows beyond its own become padding."""
        tokens, positions, slots, tables, mask, last = self._views
        rows, real = plan.rows, np.arange(plan.length) < plan.counts[:, None]
        where = np.where(real, plan.starts[:, None] + np.arange(plan.length), 0)
        blocks = np.take_along_axis(plan.tables, where // self.block_size, axis=1)
        written = np.where(real, blocks * self.block_size + where % self.block_size, SCRATCH_BLOCK)
        self.reset()
        tokens[:rows, : plan.length] = plan.tokens
        positions[:rows, : plan.length] = where
        slots.reshape(self.rows, self.length)[:rows, : plan.length] = written
        tables.reshape(self.rows, self.blocks)[:rows, : plan.tables.shape[1]] = plan.tables
        mask[:, 0] = np.where(np.arange(mask.shape[-1]) <= positions[:, :, None], 0, FORBIDDEN)
        last[:rows] = np.arange(rows) * self.length + plan.counts - 1

    def reset(self) -> None:
        """Turn everything into padding. Idempotent."""
        for view in self._views:
            view[...] = SCRATCH_BLOCK


def paged_attention(cache: PagedKVCache, inputs: StepInputs, head_size: int) -> Attend:
    """Return attention that appends the step's keys and values to `cache` and reads each row's blocks."""

    def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
        memory = cache.layer(layer)
        width = cache.width
        paddle.scatter_(memory.keys, inputs.slots, key.reshape([-1, width]))
        paddle.scatter_(memory.values, inputs.slots, value.reshape([-1, width]))
        by_head = [inputs.rows, -1, width // head_size, head_size]
        keys = paddle.gather(memory.keys_by_block, inputs.tables).reshape(by_head)
        values = paddle.gather(memory.values_by_block, inputs.tables).reshape(by_head)
        queries = query.reshape(by_head).transpose([0, 2, 1, 3])
        scores = paddle.matmul(queries, keys.transpose([0, 2, 3, 1])) * head_size**-0.5 + inputs.mask
        context = paddle.matmul(F.softmax(scores, axis=-1), values.transpose([0, 2, 1, 3]))
        return context.transpose([0, 2, 1, 3]).reshape([inputs.rows, inputs.length, width])

    return attend
