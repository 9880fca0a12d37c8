"""Which KV block belongs to whom: free blocks, reference counts, versions, and the prefix tree.

Bookkeeping only, held by rank 0; the memory is in :mod:`.attention`. Every block carries the
versions of the weights that computed it. A prefix is found by the whole chain of tokens that leads to a
block *and* by the version that computed it, so no block is reused across versions unless
:meth:`~BlockPool.keep_all` has said that it may be.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wsm.errors import InternalError

#: Block that padding is written to and read from; never handed out.
SCRATCH_BLOCK = 0

#: The chain that every prompt begins with.
ROOT_CHAIN = 0


class PrefixKey(NamedTuple):
    """Identity of a full block: its version, the chain before it, its own tokens. Exact, not a hash."""

    version: str
    parent: int
    tokens: tuple[int, ...]


class PrefixMatch(NamedTuple):
    """The longest known prefix of a prompt; its blocks are held for the caller.

    Parameters
    ----------
    blocks : list of int
        In order.
    chain : int
        The chain that ends with the last of them.
    versions : frozenset of str
        Whose weights computed them.
    crossed : int
        How many of them another version computed than the one that asked.
    """

    blocks: list[int]
    chain: int
    versions: frozenset[str]
    crossed: int


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
        self._readable: list[str] = []  # other versions whose prefixes any version may read
        self._reset()

    # -- holding --------------------------------------------------------------------------------

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
                self._unpublish(block)
            self._holders[block] = 1
            self._versions[block] = frozenset()
            taken.append(block)
        return taken

    def release(self, blocks: Iterable[int], generation: int) -> None:
        """Let go of blocks that were taken or matched in `generation`; those of an earlier one are gone.

        Raises
        ------
        InternalError
            If no request holds one of them.
        """
        if generation != self.generation:
            return
        for block in blocks:
            if self._holders[block] < 1:
                raise InternalError(
                    f"KV block {block} was released while no request held it; "
                    "this is a bug in wsm, please report it",
                    code="block-accounting",
                )
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._keys:
                self._idle[block] = None
            else:
                self._free.append(block)

    # -- prefixes -------------------------------------------------------------------------------

    def match(self, tokens: Sequence[int], version: str) -> PrefixMatch:
        """Find and hold the longest prefix that `version` may read; the last token is never part of it.

        That is what `version` has computed, and what other versions had when it was kept. The last token's
        forward pass yields the first prediction, so it has to run in any case.
        """
        held: list[int] = []
        versions: set[str] = set()
        chain, crossed = ROOT_CHAIN, 0
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            found = self._find(version, chain, tuple(tokens[start : start + self.block_size]))
            if found is None:
                break
            maker, block, chain = found
            self._idle.pop(block, None)
            self._holders[block] += 1
            held.append(block)
            versions.add(maker)
            crossed += maker != version
        return PrefixMatch(held, chain, frozenset(versions), crossed)

    def written(self, blocks: Iterable[int], version: str) -> None:
        """Take in that `version` has computed keys and values in these blocks."""
        for block in blocks:
            if version not in self._versions[block]:
                self._versions[block] |= {version}

    def publish(self, parent: int, tokens: Sequence[int], block: int) -> int | None:
        """Make a full, wholly computed block findable; return the chain that ends with it.

        Where the same chain is known already, that block stays the known one. None, and no request will find
        it, if several versions have written into the block, or if the chain before it can no longer be found.
        """
        if len(self._versions[block]) != 1 or (parent != ROOT_CHAIN and parent not in self._chains):
            return None
        (version,) = self._versions[block]
        key = PrefixKey(version, parent, tuple(tokens))
        known = self._known.get(key)
        if known is not None:
            return known[1]
        chain = self._next_chain
        self._next_chain += 1
        self._known[key] = (block, chain)
        self._keys[block] = key
        self._chains.add(chain)
        return chain

    # -- what becomes of all this when the weights change ----------------------------------------

    def forget(self) -> None:
        """Drop every prefix and every hold. Idempotent."""
        self.generation += 1
        self._reset()

    def forget_idle(self) -> int:
        """Drop every prefix, and what no request holds; return how many blocks are still held. Idempotent."""
        self._free.extend(self._idle)
        self._idle.clear()
        self._known.clear()
        self._keys.clear()
        self._chains.clear()
        self._readable = []
        return self._held()

    def keep_all(self) -> int:
        """Let any version read the prefixes that are known now; return how many blocks hold something."""
        # Labels have no order; whose prefix was found last is asked first.
        self._readable = list(dict.fromkeys(key.version for key in reversed(self._known)))
        return self._held() + len(self._idle)

    def findable(self) -> int:
        """Count the blocks, held or idle, that a request could be given as part of its prefix."""
        return len(self._known)

    def by_version(self) -> dict[str, int]:
        """Count the blocks, held or idle, that each version has written into."""
        return dict(Counter(version for versions in self._contents() for version in versions))

    # -- inside ---------------------------------------------------------------------------------

    def _find(self, version: str, chain: int, tokens: tuple[int, ...]) -> tuple[str, int, int] | None:
        for maker in (version, *self._readable):
            known = self._known.get(PrefixKey(maker, chain, tokens))
            if known is not None:
                return (maker, *known)
        return None

    def _unpublish(self, block: int) -> None:
        _, chain = self._known.pop(self._keys.pop(block))
        self._chains.discard(chain)

    def _held(self) -> int:
        return sum(map(bool, self._holders))

    def _contents(self) -> Iterable[frozenset[str]]:
        return (
            self._versions[block]
            for block in range(self.blocks)
            if self._holders[block] or block in self._idle
        )

    def _reset(self) -> None:
        self._free = deque(range(SCRATCH_BLOCK + 1, self.blocks))
        self._holders = [0] * self.blocks
        self._versions: list[frozenset[str]] = [frozenset()] * self.blocks
        self._known: dict[PrefixKey, tuple[int, int]] = {}
        self._keys: dict[int, PrefixKey] = {}
        self._chains: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._readable = []
