"""Memory of tensors whose last two axes lie the other way round than in their source, to and fro in blocks.

A block of rows is packed tile by tile before it is turned, because columns of a large matrix fall into the
same few places of a cache. Knows no targets and no digests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Elements = np.ndarray[Any, Any]

#: Bytes of one block, unless its rows are longer: as much as is copied and digested at a time.
BLOCK_BYTES = 1 << 20
#: The longest block. A tensor of longer rows is turned element by element where a row ends within one.
MAX_BLOCK_BYTES = 16 << 20
# So many rows at least make a block where they fit: fewer, and each cache line is written several times.
_ROWS = 64
_TILE_COLUMNS = 128


def swapped_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` with the last two extents exchanged; shorter ones as they are."""
    return shape if len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2])


def block_bytes(spec: TensorSpec) -> int:
    """Return how many bytes of a tensor are turned at a time: whole elements, whole rows where they fit."""
    row = spec.shape[-1] * ITEM_BYTES[spec.dtype] if spec.shape else 0
    if not row or row > MAX_BLOCK_BYTES:
        return min(spec.nbytes, BLOCK_BYTES)
    rows = max(BLOCK_BYTES // row, min(_ROWS, MAX_BLOCK_BYTES // row))
    return min(spec.nbytes, rows * row)


class TransposedMemory:
    """Memory of a tensor with its last two axes exchanged, which takes bytes in the source's order.

    Parameters
    ----------
    memory : memoryview
        Flat, writable, of the tensor's size.
    spec : TensorSpec
        Of the tensor as its source has it; with fewer than two axes there is nothing to exchange.
    """

    def __init__(self, memory: memoryview, spec: TensorSpec) -> None:
        import numpy as np  # noqa: PLC0415 - only loads with such tensors need it

        self._type = f"u{ITEM_BYTES[spec.dtype]}"
        self._rows, self._columns = spec.shape[-2:] if len(spec.shape) > 1 else (1, math.prod(spec.shape))
        there = np.frombuffer(memory, self._type)
        self._there = there.reshape(math.prod(spec.shape[:-2]), self._columns, self._rows)

    def put(self, offset: int, data: memoryview) -> None:
        """Bring bytes to where they belong.

        Parameters
        ----------
        offset : int
            Where they begin in the source's order; a multiple of the element's size, as their length is.
        data : memoryview
            Flat.
        """
        import numpy as np  # noqa: PLC0415 - as above

        elements = np.frombuffer(data, self._type)
        at = offset // elements.itemsize
        while len(elements):
            row, column = divmod(at, self._columns)
            matrix, row = divmod(row, self._rows)
            if column or len(elements) < self._columns:  # a row that does not begin or end here
                count = min(self._columns - column, len(elements))
                self._there[matrix, column : column + count, row] = elements[:count]
            else:
                fitting = BLOCK_BYTES // (self._columns * self._there.itemsize)
                rows = min(len(elements) // self._columns, self._rows - row, max(_ROWS, fitting))
                count = rows * self._columns
                block = elements[:count].reshape(rows, self._columns)
                _turn(block, self._there[matrix, :, row : row + rows])
            at += count
            elements = elements[count:]


def in_source_order(memory: memoryview, spec: TensorSpec) -> memoryview:
    """Return a copy of the bytes of a tensor with exchanged axes, read-only, as its source has them.

    Parameters
    ----------
    memory : memoryview
        Its bytes; flat.
    spec : TensorSpec
        Of the tensor as its source has it.
    """
    if not memory:
        return memoryview(b"")
    turned = TensorSpec(spec.name, spec.dtype, swapped_shape(spec.shape))
    copy = memoryview(bytearray(spec.nbytes))
    TransposedMemory(copy, turned).put(0, memory)
    return copy.toreadonly()


def _turn(block: Elements, there: Elements) -> None:
    for begin in range(0, block.shape[1], _TILE_COLUMNS):
        there[begin : begin + _TILE_COLUMNS] = block[:, begin : begin + _TILE_COLUMNS].copy().T
