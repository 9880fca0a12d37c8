"""The memory of a paged KV cache on one rank.

Blocks are addressed by numbers that rank 0's :class:`~wsm.rollout.block_pool.BlockPool` hands out; every rank
holds its heads' part of each block. Losing the memory's content in any way tells the pool, so nothing
can be read that was not computed since.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import paddle

from wsm.rollout import errors
from wsm.rollout.block_pool import BlockPool
from wsm.rollout.engine import ITEM_BYTES


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
            raise errors.cache_released(cache=self.name)
        return self._memory[index]
