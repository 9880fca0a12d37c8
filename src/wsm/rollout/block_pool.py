"""Which KV block belongs to whom: free blocks, reference counts, and the prefix tree.

Bookkeeping only, held by rank 0; the memory is in :mod:`wsm.rollout.paged_cache`. A prefix is found by
the whole chain of tokens that leads to a block *and* by the version of the weights that computed it,
so no block is ever reused across versions.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wsm.rollout.errors import BlockAccountingError

#: Block that padding is written to and read from; never handed out.
SCRATCH_BLOCK = 0

#: The chain that every prompt begins with.
ROOT_CHAIN = 0


class PrefixKey(NamedTuple):
    """Identity of a full block: its version, the chain before it, its own tokens. Exact, not a hash."""

    version: int
    parent: int
    tokens: tuple[int, ...]


class PrefixMatch(NamedTuple):
    """The longest known prefix of a prompt; its blocks are held for the caller."""

    blocks: list[int]
    chain: int


class BlockPool:
    """The blocks of one paged KV cache.

    Parameters
    ----------
    blocks : int
        How many there are, the scratch block included.
    block_size : int
        Tokens per block.

    Attributes
    ----------
    generation : int
        Grows when every block's content is forgotten; blocks taken in an earlier generation are worthless.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.generation = 0
        self._next_chain = ROOT_CHAIN + 1
        self._reset()

    def available(self) -> int:
        """Count blocks that can be taken now, idle prefix blocks included."""
        return len(self._free) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """Hold `count` blocks, or None if there are not as many; forgets the longest idle prefixes first."""
        if count > self.available():
            return None
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.popleft()
            else:
                block, _ = self._idle.popitem(last=False)
                self._known.pop(self._keys.pop(block))
            self._holders[block] = 1
            taken.append(block)
        return taken

    def match(self, tokens: Sequence[int], version: int) -> PrefixMatch:
        """Find and hold the longest prefix that `version` has computed; the last token is never part of it.

        The last token's forward pass yields the first prediction, so it has to run in any case.
        """
        held: list[int] = []
        chain = ROOT_CHAIN
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            known = self._known.get(PrefixKey(version, chain, tuple(tokens[start : start + self.block_size])))
            if known is None:
                break
            block, chain = known
            self._idle.pop(block, None)
            self._holders[block] += 1
            held.append(block)
        return PrefixMatch(held, chain)

    def publish(self, version: int, parent: int, tokens: Sequence[int], block: int) -> int:
        """Make a full, wholly computed block findable; return the chain that ends with it.

        Where the same chain is known already, that block stays the known one.
        """
        key = PrefixKey(version, parent, tuple(tokens))
        known = self._known.get(key)
        if known is not None:
            return known[1]
        chain = self._next_chain
        self._next_chain += 1
        self._known[key] = (block, chain)
        self._keys[block] = key
        return chain

    def release(self, blocks: Iterable[int], generation: int) -> None:
        """Let go of blocks that were taken or matched in `generation`; those of an earlier one are gone.

        Raises
        ------
        BlockAccountingError
            If nobody holds one of them.
        """
        if generation != self.generation:
            return
        for block in blocks:
            if self._holders[block] < 1:
                raise BlockAccountingError(block=block)
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._keys:
                self._idle[block] = None
            else:
                self._free.append(block)

    def forget(self) -> None:
        """Drop every prefix and every hold. Idempotent."""
        self.generation += 1
        self._reset()

    def _reset(self) -> None:
        self._free = deque(range(SCRATCH_BLOCK + 1, self.blocks))
        self._holders = [0] * self.blocks
        self._known: dict[PrefixKey, tuple[int, int]] = {}
        self._keys: dict[int, PrefixKey] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
