from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wsm.rollout.block_pool import ROOT_CHAIN, SCRATCH_BLOCK, BlockPool
from wsm.rollout.errors import BlockAccountingError

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def filled(pool: BlockPool, version: int) -> list[int]:
    """Compute PROMPT with `version` and let it go."""
    blocks = pool.take(2)
    chain = pool.publish(version, ROOT_CHAIN, PROMPT[:4], blocks[0])
    pool.publish(version, chain, PROMPT[4:], blocks[1])
    pool.release(blocks, pool.generation)
    return blocks


def test_a_prefix_is_found_by_the_version_that_computed_it():
    pool = BlockPool(8, 4)
    blocks = filled(pool, version=7)
    assert pool.match([*PROMPT, 9], version=7).blocks == blocks


def test_a_prefix_is_never_found_by_another_version():
    pool = BlockPool(8, 4)
    filled(pool, version=7)
    assert pool.match([*PROMPT, 9], version=8).blocks == []
    assert pool.match([*PROMPT, 9], version=6).blocks == []


def test_the_last_token_of_a_prompt_is_always_computed():
    pool = BlockPool(8, 4)
    blocks = filled(pool, version=1)
    assert pool.match(PROMPT, version=1).blocks == blocks[:1]


def test_a_block_with_other_tokens_before_it_is_not_reused():
    pool = BlockPool(8, 4)
    filled(pool, version=1)
    assert pool.match([9, 9, 9, 9, *PROMPT[4:], 0], version=1).blocks == []


def test_a_forgotten_prefix_is_not_found_and_its_holders_have_nothing_to_release():
    pool = BlockPool(8, 4)
    blocks, generation = filled(pool, version=1), pool.generation
    pool.match([*PROMPT, 9], version=1)
    pool.forget()
    pool.release(blocks, generation)
    assert pool.match([*PROMPT, 9], version=1).blocks == []
    assert pool.available() == 7


def test_idle_prefixes_give_way_and_take_what_follows_them_with_them():
    pool = BlockPool(4, 4)
    filled(pool, version=1)
    assert pool.take(2) is not None  # the free one, and the first idle one
    assert pool.match([*PROMPT, 9], version=1).blocks == []
    assert pool.take(2) is None
    assert pool.available() == 1


def test_the_scratch_block_is_never_handed_out():
    pool = BlockPool(4, 4)
    assert SCRATCH_BLOCK not in pool.take(3)
    assert pool.take(1) is None


def test_releasing_a_block_that_nobody_holds_is_a_bug_that_is_named():
    pool = BlockPool(4, 4)
    blocks = pool.take(1)
    pool.release(blocks, pool.generation)
    with pytest.raises(BlockAccountingError, match=f"KV block {blocks[0]}"):
        pool.release(blocks, pool.generation)


class Accounting(RuleBasedStateMachine):
    """Whatever requests do, each block is free, idle or held, and a match is what was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9, 2)
        self.held: list[tuple[list[int], int]] = []
        self.content: dict[int, tuple[int, tuple[int, ...]]] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=2, max_size=8), version=st.integers(1, 2))
    def compute(self, tokens, version):
        match = self.pool.match(tokens, version)
        for index, block in enumerate(match.blocks):
            assert self.content[block] == (version, tuple(tokens[: 2 * index + 2]))
        missing = len(tokens) // 2 - len(match.blocks)
        more = self.pool.take(missing)
        if more is None:
            self.pool.release(match.blocks, self.pool.generation)
            return
        chain, blocks = match.chain, match.blocks + more
        for index in range(len(match.blocks), len(tokens) // 2):
            self.content[blocks[index]] = (version, tuple(tokens[: 2 * index + 2]))
            chain = self.pool.publish(version, chain, tokens[2 * index : 2 * index + 2], blocks[index])
        self.held.append((blocks, self.pool.generation))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data):
        self.pool.release(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def forget(self):
        self.pool.forget()
        self.content.clear()

    @invariant()
    def every_block_is_accounted_for(self):
        current = {block for blocks, made in self.held if made == self.pool.generation for block in blocks}
        assert self.pool.available() + len(current) == 8


TestAccounting = Accounting.TestCase
