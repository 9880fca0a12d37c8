"""One block of a delta: whatever changed comes back bit by bit, and nothing announces more than it may."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from wsm.strategies.delta._blocks import SAME_BLOCK, Block, BlockKind, table_problem
from wsm.strategies.delta._codec import BlockError, decode, encode

ITEMS = (1, 2, 4, 8)


def changed_bytes(base: bytes, part: float, item: int, seed: int = 0) -> bytes:
    generator = np.random.default_rng(seed)
    rows = np.frombuffer(base, np.uint8).reshape(-1, item).copy()
    chosen = generator.random(len(rows)) < part
    rows[chosen, 0] ^= generator.integers(1, 256, int(chosen.sum()), dtype=np.uint8)
    return rows.tobytes()


def patched(
    base: bytes, block: Block, data: bytes | memoryview, item: int, cuts: tuple[int, ...] = ()
) -> bytes:
    if block.kind is BlockKind.FULL:
        return bytes(data)
    whole = bytearray(base)
    if block.kind is not BlockKind.SAME:
        patch = decode(block, bytes(data), length=len(base), item=item)
        edges = sorted({0, *cuts, len(base)})
        for begin, end in itertools.pairwise(edges):
            patch.apply(memoryview(whole)[begin:end], begin)
    return bytes(whole)


def test_the_form_follows_from_how_much_has_changed():
    base = np.random.default_rng(3).bytes(1 << 18)

    def encoded(part):
        return encode(memoryview(base), memoryview(changed_bytes(base, part, 2)), 2)[0]

    def kind(part):
        return encoded(part).kind

    assert kind(0.0) is BlockKind.SAME
    assert kind(0.01) in {BlockKind.OVERWRITE, BlockKind.SPARSE_XOR}
    assert encoded(0.01).stored < len(base) * 0.03
    assert kind(0.2) is BlockKind.SPARSE_XOR
    assert kind(0.9) is BlockKind.XOR  # the high bytes are as they were
    foreign = np.random.default_rng(4).bytes(1 << 18)
    assert encode(memoryview(base), memoryview(foreign), 2)[0].kind is BlockKind.FULL


def test_elements_that_are_set_to_one_value_are_overwritten():
    base = np.random.default_rng(3).bytes(1 << 18)
    new = np.frombuffer(base, "<u2").copy()
    new[::50] = 0
    block, data = encode(memoryview(base), memoryview(new).cast("B"), 2)
    assert block.kind is BlockKind.OVERWRITE
    assert patched(base, block, data, 2) == new.tobytes()


def test_small_steps_take_less_than_the_elements_that_they_change():
    base = np.random.default_rng(3).integers(0, 1 << 16, 1 << 18, np.uint16)
    new = base.copy()
    new[np.random.default_rng(4).random(len(base)) < 0.1] += 1
    block, data = encode(memoryview(base).cast("B"), memoryview(new).cast("B"), 2)
    assert block.kind is BlockKind.SPARSE_XOR
    assert block.stored < base.nbytes * 0.1
    assert patched(base.tobytes(), block, data, 2) == new.tobytes()


def test_signs_of_zero_and_payloads_of_nan_are_changes():
    base = np.array([0.0, np.nan, 1.0, 2.0], "<f4")
    new = base.copy().view("<u4")
    new[0] ^= 1 << 31
    new[1] ^= 1
    block, data = encode(memoryview(base).cast("B"), memoryview(new).cast("B"), 4)
    assert patched(base.tobytes(), block, data, 4) == new.tobytes()


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    item=st.sampled_from(ITEMS),
    count=st.integers(1, 700),
    seed=st.integers(0, 1 << 16),
    part=st.sampled_from([0.0, 0.002, 0.05, 0.2, 0.6, 1.0]),
    cuts=st.lists(st.integers(0, 5600), max_size=4),
)
def test_a_block_may_be_put_into_place_in_any_parts(item, count, seed, part, cuts):
    base = np.random.default_rng(seed).bytes(count * item)
    new = changed_bytes(base, part, item, seed)
    block, data = encode(memoryview(base), memoryview(new), item)
    assert block.stored == len(data)
    assert table_problem([block], nbytes=len(base), block_bytes=len(base), item=item) is None
    within = tuple(cut % len(base) for cut in cuts)
    assert patched(base, block, data, item, within) == new


@settings(deadline=None, max_examples=300)
@given(item=st.sampled_from(ITEMS), plain=st.binary(min_size=1, max_size=600))
def test_no_position_leads_out_of_the_block(item, plain):
    packed = zstandard.compress(plain, 1)
    block = Block(BlockKind.OVERWRITE, len(packed), len(plain))
    if table_problem([block], nbytes=4096, block_bytes=4096, item=item) is not None:
        return
    try:
        patch = decode(block, packed, length=4096, item=item)
    except BlockError:
        return
    target = bytearray(4096 + 64)
    patch.apply(memoryview(target)[:4096], 0)
    assert not any(target[4096:])


def test_a_bomb_is_refused_by_what_its_frame_says_and_by_what_it_unfolds_to():
    bomb = zstandard.compress(bytes(1 << 26), 19)
    assert len(bomb) < 1 << 13
    block = Block(BlockKind.XOR, len(bomb), 4096)
    with pytest.raises(BlockError, match="declares 67108864 bytes instead of 4096"):
        decode(block, bomb, length=4096, item=2)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 26))
    with pytest.raises(BlockError, match="instead of 4096"):
        decode(Block(BlockKind.XOR, len(silent), 4096), silent, length=4096, item=2)


def test_a_second_frame_behind_the_first_is_refused():
    packed = zstandard.compress(bytes(4096)) + zstandard.compress(b"more")
    with pytest.raises(BlockError):
        decode(Block(BlockKind.XOR, len(packed), 4096), packed, length=4096, item=1)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([SAME_BLOCK], "1 blocks instead of 2"),
        ([SAME_BLOCK, Block(BlockKind.SAME, 1, 0)], "block 1 holds bytes although it changes nothing"),
        ([Block(BlockKind.SPARSE_XOR, 9, 6 * 2049), SAME_BLOCK], "declares 12294 bytes of positions"),
        ([SAME_BLOCK, Block(BlockKind.FULL, 4096, 4096)], "declares 4096 bytes instead of 904"),
        ([Block(BlockKind.FULL, 4000, 4096), SAME_BLOCK], "has 4000 bytes instead of 4096"),
        ([Block(BlockKind.XOR, 10, 1 << 40), SAME_BLOCK], "block 0 declares 1099511627776 bytes"),
        ([Block(BlockKind.XOR, 1 << 40, 4096), SAME_BLOCK], "has 1099511627776 bytes for 4096"),
        ([Block(BlockKind.XOR, 0, 4096), SAME_BLOCK], "has 0 bytes"),
        ([Block(BlockKind.OVERWRITE, 9, 7), SAME_BLOCK], "declares 7 bytes of positions"),
        ([Block(BlockKind.OVERWRITE, 9, 6 * 2049), SAME_BLOCK], "declares 12294 bytes of positions"),
        ([Block(BlockKind.OVERWRITE, 9, 0), SAME_BLOCK], "declares 0 bytes of positions"),
    ],
)
def test_what_a_table_declares_is_held_against_the_tensor(blocks, says):
    assert says in (table_problem(blocks, nbytes=5000, block_bytes=4096, item=2) or "")


def test_a_table_for_a_tensor_of_any_size_is_refused_at_once():
    assert table_problem([SAME_BLOCK], nbytes=1 << 200, block_bytes=4096, item=2) is not None
