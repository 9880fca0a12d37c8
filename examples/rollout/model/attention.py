"""Attention over a paged KV cache, and the memory of that cache on one rank.

Blocks are addressed by numbers that rank 0's :class:`.BlockPool` hands out; every rank
holds its heads' part of each block. Losing the memory's content in any way tells the pool, so nothing
can be read that was not computed since.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 - paddle's own convention

from examples.rollout._plan_channel import StepPlan
from examples.rollout.block_pool import SCRATCH_BLOCK, BlockPool
from examples.rollout.config import ITEM_BYTES
from examples.rollout.model.transformer import Attend
from wsm.actions.backends.paddle_bytes import array_of
from wsm.errors import RefusedError


class LayerCache(NamedTuple):
    """Keys and values of one layer, (blocks * block size, local width), and the same memory by block."""

    keys: Any
    values: Any
    keys_by_block: Any
    values_by_block: Any


class PagedKVCache:
    """Preallocated key and value blocks; a :class:`wsm.actions.surfaces.KeepingKVCacheSurface` that counts.

    It starts without memory.

    Parameters
    ----------
    name : str
        What errors call it.
    pool : BlockPool
        The numbering of the blocks; two caches (main and draft model) may share it.
    layers : int
        Number of layers.
    width : int
        Local heads times head size.
    """

    def __init__(self, name: str, pool: BlockPool, layers: int, width: int) -> None:
        self.name = name
        self.pool = pool
        self.width = width
        self._layers = layers
        self._memory: list[LayerCache] = []

    def rebuild(self) -> int:
        """Allocate an empty cache; return its bytes. Idempotent."""
        if not self._memory:
            rows = self.pool.blocks * self.pool.block_size
            by_block = [self.pool.blocks, self.pool.block_size * self.width]
            for _ in range(self._layers):
                keys, values = paddle.zeros([rows, self.width]), paddle.zeros([rows, self.width])
                self._memory.append(LayerCache(keys, values, keys.view(by_block), values.view(by_block)))
        return self.allocated_bytes()

    def release(self) -> int:
        """Free the cache and forget the prefix tree; return the bytes let go. Idempotent."""
        freed = self.allocated_bytes()
        self._memory = []
        self.pool.forget()
        return freed

    def forget(self) -> None:
        """Make every block's content unreachable, keep the memory. Idempotent."""
        self.pool.forget()

    def forget_idle(self) -> int:
        """Make every prefix unreachable; return how many blocks running requests keep. Idempotent."""
        return self.pool.forget_idle()

    def keep_all(self) -> int:
        """Let later versions read every block's content; return how many blocks have any. Idempotent."""
        return self.pool.keep_all()

    def findable_blocks(self) -> int:
        """Count the blocks of prefixes that a new request could find."""
        return self.pool.findable()

    def allocated_bytes(self) -> int:
        """Bytes held now."""
        rows = self.pool.blocks * self.pool.block_size
        return len(self._memory) * 2 * rows * self.width * ITEM_BYTES

    def layer(self, index: int) -> LayerCache:
        """Return one layer's memory.

        Raises
        ------
        RefusedError
            While the cache is released.
        """
        if not self._memory:
            raise RefusedError(
                f"KV cache {self.name!r} holds no memory; it is rebuilt by the next update",
                code="cache-released",
            )
        return self._memory[index]


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
