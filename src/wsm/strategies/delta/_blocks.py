"""How a tensor's change is cut into blocks, and what the table of them may say. Pure: no bytes are touched.

A block stands for `block_bytes` of the tensor and is compressed by itself, so that a reader needs the memory
of one block, starts at any of them, and does several at a time. What a table declares is checked here, before
anything is decompressed: no process can announce a block that unfolds to more than the tensor's own bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

from wsm.strategies.promise import Count

#: Bytes of a tensor that one block stands for, unless a writer chooses otherwise.
BLOCK_BYTES = 1 << 20
MIN_BLOCK_BYTES = 1 << 12
MAX_BLOCK_BYTES = 1 << 24
BlockBytes: TypeAlias = Annotated[
    int, msgspec.Meta(ge=MIN_BLOCK_BYTES, le=MAX_BLOCK_BYTES, multiple_of=MIN_BLOCK_BYTES)
]

#: Bytes of one position in a block that lists them.
POSITION_BYTES = 4


class BlockKind(enum.IntEnum):
    """What a block holds.

    SAME: nothing, the bytes are those of the base. FULL: the new bytes as they are. OVERWRITE: positions and
    values of the changed elements, compressed. XOR: base and new bytes exclusive-or, compressed. SPARSE_XOR:
    positions of the changed elements, and their old and new values exclusive-or, compressed; the smallest for
    the small steps of training, which change few bits of few elements.
    """

    SAME = 0
    FULL = 1
    OVERWRITE = 2
    XOR = 3
    SPARSE_XOR = 4


#: Kinds that list positions.
SPARSE = frozenset({BlockKind.OVERWRITE, BlockKind.SPARSE_XOR})


class Block(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One row of a table: what it holds, its bytes in the file, and its bytes once decompressed."""

    kind: BlockKind
    stored: Count
    decoded: Count


#: A block that changes nothing.
SAME_BLOCK = Block(BlockKind.SAME, 0, 0)


def table_problem(blocks: Sequence[Block], *, nbytes: int, block_bytes: int, item: int) -> str | None:
    """Return what is wrong with the table of a tensor of `nbytes`; None if it can be believed.

    Parameters
    ----------
    blocks : sequence of Block
        The table; empty for a tensor that has not changed.
    nbytes, item : int
        Bytes of the tensor and of one element.
    block_bytes : int
        Bytes of the tensor per block.
    """
    if not blocks:
        return None
    count = -(-nbytes // block_bytes)  # a table may declare any shape, so nothing is made of that many
    if len(blocks) != count:
        return f"{len(blocks)} blocks instead of {count}"
    for index, block in enumerate(blocks):
        length = min(block_bytes, nbytes - index * block_bytes)
        problem = _block_problem(block, length, item)
        if problem:
            return f"block {index} {problem}"
    return None


def _block_problem(block: Block, length: int, item: int) -> str | None:
    if block.kind is BlockKind.SAME:
        return "holds bytes although it changes nothing" if block.stored or block.decoded else None
    if block.kind in SPARSE:
        count, rest = divmod(block.decoded, POSITION_BYTES + item)
        if rest or not 0 < count <= length // item:
            return f"declares {block.decoded} bytes of positions and values for {length} bytes"
    elif block.decoded != length:
        return f"declares {block.decoded} bytes instead of {length}"
    if block.kind is BlockKind.FULL:
        return None if block.stored == length else f"has {block.stored} bytes instead of {length}"
    # What zstd needs at most for what does not compress, and never nothing.
    if not 0 < block.stored <= block.decoded + block.decoded // 128 + 512:
        return f"has {block.stored} bytes for {block.decoded} bytes decompressed"
    return None
