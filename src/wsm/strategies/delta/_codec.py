"""The bytes of one block of a delta: found by comparing, written small, unfolded and put into place.

Elements are compared as whole numbers, so that -0.0 and 0.0 differ and a NaN equals itself. Positions and
values are stored by byte position (all lowest bytes first), which is what makes them compress. Needs numpy
and zstandard, so it is imported only where a delta is written or read. Knows no files and no manifests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from wsm.strategies.delta._blocks import MAX_BLOCK_BYTES, POSITION_BYTES, SAME_BLOCK, Block, BlockKind

#: zstd's fastest ordinary level: the others cost more time than their bytes do on any network with GPUs.
LEVEL = 1

# Up to this part of changed elements positions cost less than zeros do.
_SPARSE_UP_TO = 0.4
# Up to this part values are tried as they are, too: smaller where elements are set to one value.
_OVERWRITE_UP_TO = 0.05
# A block that does not shrink below this part of itself is stored as it is: quicker to read.
_WORTH = 0.875

_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Zstd(threading.local):
    """What compresses and decompresses in one thread; neither must be shared."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_BLOCK_BYTES)


_zstd = _Zstd()


class BlockError(ValueError):
    """The bytes of a block are not what its row in the table says; the text says why."""


def encode(base: memoryview, new: memoryview, item: int) -> tuple[Block, bytes | memoryview]:
    """Return what turns `base` into `new`, in the smallest of the forms that are worth trying.

    Parameters
    ----------
    base, new : memoryview
        Flat, of one length, a multiple of `item`.
    item : int
        Bytes of one element: 1, 2, 4 or 8.
    """
    old, now = _elements(base, item), _elements(new, item)
    changed = np.flatnonzero(old != now)
    if not len(changed):
        return SAME_BLOCK, b""
    part = len(changed) / len(now)
    best = Block(BlockKind.FULL, len(new), len(new))
    data: bytes | memoryview = new
    limit = int(len(new) * _WORTH)
    for kind, plain in _candidates(changed, part, old, now):
        packed = _zstd.compressor.compress(plain)
        if len(packed) <= limit and len(packed) < best.stored:
            best, data = Block(kind, len(packed), len(plain)), packed
    return best, data


def _candidates(changed: Any, part: float, old: Any, now: Any) -> Iterator[tuple[BlockKind, bytes]]:
    if part > _SPARSE_UP_TO:
        yield BlockKind.XOR, _planes(old ^ now)
        return
    positions = _planes(np.diff(changed, prepend=-1).astype("<u4") - np.uint32(1))
    yield BlockKind.SPARSE_XOR, positions + _planes(old[changed] ^ now[changed])
    if part <= _OVERWRITE_UP_TO:
        yield BlockKind.OVERWRITE, positions + _planes(now[changed])


@dataclass(frozen=True)
class Patch:
    """One unfolded block of `length` bytes, ready to be put into place, in parts if need be."""

    kind: BlockKind
    length: int
    planes: _Bytes
    positions: Any = None

    def apply(self, destination: memoryview, begin: int) -> None:
        """Turn base bytes into new ones.

        Parameters
        ----------
        destination : memoryview
            Holds the base's bytes from `begin` of the block on; writable, no longer than the block.
        begin : int
            Offset in the block, in bytes.
        """
        if (
            len(destination) != self.length
        ):  # each element for itself, so the rest of the block may be anything
            whole = memoryview(bytearray(self.length))
            part = whole[begin : begin + len(destination)]
            part[:] = destination
            self.apply(whole, 0)
            destination[:] = part
            return
        item = len(self.planes)
        here: _Bytes = np.frombuffer(destination, np.uint8)
        if self.kind is BlockKind.XOR:
            for plane, change in enumerate(self.planes):
                if change.any():  # high bytes seldom change
                    np.bitwise_xor(here[plane::item], change, out=here[plane::item])
            return
        values = np.ascontiguousarray(self.planes.T).reshape(-1).view(_UNSIGNED[item])
        elements = here.view(_UNSIGNED[item])
        if self.kind is BlockKind.SPARSE_XOR:
            elements[self.positions] ^= values  # no position is there twice
        else:
            elements[self.positions] = values


def decode(block: Block, data: bytes | memoryview, *, length: int, item: int) -> Patch:
    """Unfold a block whose row was checked (:func:`wsm.strategies.delta._blocks.table_problem`).

    Takes at most the memory that the row declares, whatever the data say of themselves.

    Parameters
    ----------
    block : Block
        Its row; of a kind that is compressed.
    data : bytes or memoryview
        Its bytes in the file.
    length : int
        Bytes of the tensor that it stands for.
    item : int
        Bytes of one element.

    Raises
    ------
    BlockError
        If the data are not what the row says.
    """
    plain = np.frombuffer(_decompressed(data, block.decoded), np.uint8)
    if block.kind is BlockKind.XOR:
        return Patch(block.kind, length, plain.reshape(item, -1))
    count = len(plain) // (POSITION_BYTES + item)
    lanes = plain[: POSITION_BYTES * count].reshape(POSITION_BYTES, -1)
    gaps = np.ascontiguousarray(lanes.T).reshape(-1).view("<u4")
    positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if positions[-1] >= length // item:  # they only grow, and no sum of so few gaps overflows
        raise BlockError(f"element {positions[-1]} of {length // item} is changed")
    return Patch(block.kind, length, plain[POSITION_BYTES * count :].reshape(item, -1), positions)


def same_memory(left: memoryview, right: memoryview) -> bool:
    """Whether two views begin at one address."""
    views = [np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in (left, right) if view]
    return len(views) == 2 and views[0] == views[1]


def _decompressed(data: bytes | memoryview, expected: int) -> bytes:
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size != expected:  # which is what is allocated, and filled or refused
            raise BlockError(f"its frame declares {frame.content_size} bytes instead of {expected}")
        plain: bytes = _zstd.decompressor.decompress(data, max_output_size=expected, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BlockError(f"zstd cannot read it ({error})") from error
    return plain


def _elements(view: memoryview, item: int) -> Any:
    return np.frombuffer(view, _UNSIGNED[item])


def _planes(elements: Any) -> bytes:
    """Return the bytes of `elements`, all lowest ones first."""
    item = elements.dtype.itemsize
    lanes: _Bytes = np.ascontiguousarray(elements).view(np.uint8)
    return b"".join(lanes[plane::item].tobytes() for plane in range(item))
