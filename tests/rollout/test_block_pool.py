from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from examples.rollout.block_pool import ROOT_CHAIN, SCRATCH_BLOCK, BlockPool
from tests.raising import raising

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def filled(pool: BlockPool, version: int) -> list[int]:
    """Compute PROMPT with `version` and let it go."""
    blocks = pool.take(2)
    pool.written(blocks, version)
    chain = pool.publish(ROOT_CHAIN, PROMPT[:4], blocks[0])
    pool.publish(chain, PROMPT[4:], blocks[1])
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
    with raising("block-accounting", match=f"KV block {blocks[0]}"):
        pool.release(blocks, pool.generation)


def test_a_kept_prefix_is_found_by_other_versions_and_says_whose_it_is():
    pool = BlockPool(8, 4)
    blocks = filled(pool, version=7)
    assert pool.keep_all() == 2
    found = pool.match([*PROMPT, 9], version=8)
    assert (found.blocks, found.versions, found.crossed) == (blocks, {7}, 2)
    own = pool.match([*PROMPT, 9], version=7)
    assert (own.blocks, own.versions, own.crossed) == (blocks, {7}, 0)


def test_what_was_computed_after_the_last_keep_is_for_its_own_version_alone():
    pool = BlockPool(8, 4)
    pool.keep_all()
    filled(pool, version=7)
    assert pool.match([*PROMPT, 9], version=8).blocks == []


def test_a_version_prefers_what_it_has_computed_itself():
    pool = BlockPool(8, 4)
    filled(pool, version=7)
    pool.keep_all()
    own = filled(pool, version=8)
    assert pool.match([*PROMPT, 9], version=8).blocks == own


def test_a_forgotten_cache_is_read_by_nobody_though_it_was_kept_once():
    pool = BlockPool(8, 4)
    filled(pool, version=7)
    pool.keep_all()
    pool.forget()
    filled(pool, version=7)
    assert pool.match([*PROMPT, 9], version=8).blocks == []


def test_forgetting_what_is_idle_leaves_holders_their_blocks_and_nobody_a_prefix():
    pool = BlockPool(8, 4)
    filled(pool, version=1)
    held, idle = pool.match([*PROMPT, 9], version=1).blocks
    pool.release([idle], pool.generation)
    assert pool.forget_idle() == 1
    assert pool.forget_idle() == 1
    assert pool.match([*PROMPT, 9], version=1).blocks == []
    assert pool.available() == 6
    pool.release([held], pool.generation)
    assert pool.available() == 7


def test_nothing_is_offered_behind_a_chain_that_can_no_longer_be_found():
    pool = BlockPool(8, 4)
    blocks = pool.take(2)
    pool.written(blocks, 1)
    chain = pool.publish(ROOT_CHAIN, PROMPT[:4], blocks[0])
    pool.forget_idle()
    assert pool.publish(chain, PROMPT[4:], blocks[1]) is None


def test_a_block_that_two_versions_have_written_into_is_offered_to_nobody():
    pool = BlockPool(8, 4)
    blocks = pool.take(1)
    pool.written(blocks, 1)
    pool.written(blocks, 2)
    assert pool.publish(ROOT_CHAIN, PROMPT[:4], blocks[0]) is None
    assert pool.by_version() == {1: 1, 2: 1}


class Accounting(RuleBasedStateMachine):
    """Whatever requests do, each block is free, idle or held, and a match is what somebody may read."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9, 2)
        self.held: list[tuple[list[int], int]] = []
        self.content: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.readable: frozenset[int] = frozenset()

    @rule(tokens=st.lists(st.integers(0, 1), min_size=2, max_size=8), version=st.integers(1, 3))
    def compute(self, tokens, version):
        match = self.pool.match(tokens, version)
        crossed = 0
        for index, block in enumerate(match.blocks):
            maker, found = self.content[block]
            assert found == tuple(tokens[: 2 * index + 2])
            if maker != version:
                crossed += 1
                assert maker in self.readable
        assert match.crossed == crossed
        missing = len(tokens) // 2 - len(match.blocks)
        more = self.pool.take(missing)
        if more is None:
            self.pool.release(match.blocks, self.pool.generation)
            return
        self.pool.written(more, version)
        chain, blocks = match.chain, match.blocks + more
        for index in range(len(match.blocks), len(tokens) // 2):
            self.content[blocks[index]] = (version, tuple(tokens[: 2 * index + 2]))
            chain = self.pool.publish(chain, tokens[2 * index : 2 * index + 2], blocks[index])
            assert chain is not None
        self.held.append((blocks, self.pool.generation))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data):
        self.pool.release(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def forget(self):
        self.pool.forget()
        self.content.clear()
        self.readable = frozenset()

    @rule()
    def keep_what_runs(self):
        assert self.pool.forget_idle() == len(self.holding())
        self.content.clear()  # none of it may be matched again
        self.readable = frozenset()

    @rule()
    def keep_everything(self):
        self.pool.keep_all()
        self.readable = frozenset(maker for maker, _ in self.content.values())

    def holding(self):
        return {block for blocks, made in self.held if made == self.pool.generation for block in blocks}

    @invariant()
    def every_block_is_accounted_for(self):
        assert self.pool.available() + len(self.holding()) == 8


TestAccounting = pytest.mark.slow(Accounting.TestCase)
