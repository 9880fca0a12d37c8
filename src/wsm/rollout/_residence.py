"""A request's place in the KV cache: how it enters, what it leaves there for others, and whose work it reads.

Between :mod:`.request` (what is asked) and :mod:`.block_pool` (which block is whose). Knows no steps and no
queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wsm.rollout.block_pool import BlockPool
from wsm.rollout.request import GenerationRequest


class Residence:
    """The requests of one pool.

    Parameters
    ----------
    pool : BlockPool
        Where they hold blocks.

    Attributes
    ----------
    reused_tokens, crossed_tokens : int
        Tokens whose keys and values were found instead of computed, since the start; of those, found by
        another version than the one that had computed them.
    mixed_tokens : int
        Tokens generated from keys and values of more than their own version.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.reused_tokens = 0
        self.crossed_tokens = 0
        self.mixed_tokens = 0

    def enter(self, request: GenerationRequest, version: str) -> bool:
        """Hold blocks for a request's longest possible sequence; False, and nothing is held, if they lack."""
        match = self._pool.match(request.known, version)
        total = self.blocks_for(len(request.prompt) + request.max_tokens)
        more = self._pool.take(total - len(match.blocks))
        if more is None:
            self._pool.release(match.blocks, self._pool.generation)
            return False
        size = self._pool.block_size
        request.blocks = match.blocks + more
        request.generation = self._pool.generation
        request.chain = match.chain
        request.kv_versions = set(match.versions)
        request.computed = request.cached_tokens = len(match.blocks) * size
        request.crossed_tokens = match.crossed * size
        self.reused_tokens += request.cached_tokens
        self.crossed_tokens += request.crossed_tokens
        return True

    def lost(self, request: GenerationRequest) -> bool:
        """Whether the content of the request's blocks was forgotten since it entered."""
        return request.generation != self._pool.generation

    def computed(self, request: GenerationRequest, count: int, version: str) -> None:
        """Take in that `version` has computed the next `count` tokens, and offer what is full to others."""
        size, before = self._pool.block_size, request.computed
        request.computed += count
        self._pool.written(request.blocks[before // size : self.blocks_for(request.computed)], version)
        request.kv_versions.add(version)
        full = range(before // size, request.computed // size)
        known = request.known if full else []
        for index in full:
            if request.chain is None:
                return
            tokens = known[index * size : (index + 1) * size]
            request.chain = self._pool.publish(request.chain, tokens, request.blocks[index])

    def chosen(self, request: GenerationRequest, version: str) -> None:
        """Note from whose keys and values the token was chosen that `version` has just appended."""
        if request.kv_versions != {version}:
            request.mixed.append(len(request.tokens) - 1)
            self.mixed_tokens += 1

    def leave(self, request: GenerationRequest) -> None:
        """Let go of the request's blocks; what it offered stays until the memory is needed."""
        self._pool.release(request.blocks, request.generation)
        request.leave_cache()

    def blocks_for(self, tokens: int) -> int:
        """Count the blocks of a sequence."""
        return -(-tokens // self._pool.block_size)

    def statistics(self) -> Mapping[str, Any]:
        """Return counts for ``stats``: what was reused, across versions too, and whose blocks there are."""
        return {
            "reused_tokens": self.reused_tokens,
            "crossed_tokens": self.crossed_tokens,
            "mixed_tokens": self.mixed_tokens,
            "blocks_by_version": dict(sorted(self._pool.by_version().items())),
        }
