"""Places in a segment for what is longer than a word: each holds one payload.

A slot holds one payload under a key (epoch, sequence, kind). Writer and reader share no lock and no fence:
the reader copies what is there and believes it only if a checksum over key, length and bytes fits. So the
order in which the stores become visible does not matter, on aarch64 neither.
"""

from __future__ import annotations

import struct
import zlib

from wsm.errors import BadInputError
from wsm.journal.lines import Memory
from wsm.signals.errors import SlotReusedError
from wsm.signals.layout import SLOT_BYTES

# checksum, length, epoch, sequence, kind, and what keeps the bytes behind it aligned
_HEAD = struct.Struct("<5I4x")
_KEY = struct.Struct("<4I")

#: Bytes that fit into one slot.
SLOT_CAPACITY = SLOT_BYTES - _HEAD.size


class PayloadSlot:
    """The slot of a segment that begins at `offset`. One process writes it, any process reads it."""

    def __init__(self, memory: Memory, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._written: tuple[int, int, frozenset[int]] = (0, 0, frozenset())

    def write(self, epoch: int, sequence: int, kind: int, data: bytes) -> None:
        """Put `data` there for the key, whose numbers are 0..2**32-1; then store the word that announces it.

        Raises
        ------
        BadInputError, SlotReusedError
            If `data` does not fit; if this key was written already.
        """
        kinds = self._written[2] if self._written[:2] == (epoch, sequence) else frozenset()
        if kind in kinds or self.read(epoch, sequence, kind) is not None:
            raise SlotReusedError(
                f"a payload of kind {kind} was written already for epoch {epoch}, sequence {sequence}; "
                "this is a bug in wsm, please report it",
                epoch=epoch,
                sequence=sequence,
                kind=kind,
            )
        self.write_over(epoch, sequence, kind, data)
        self._written = (epoch, sequence, kinds | {kind})

    def write_over(self, epoch: int, sequence: int, kind: int, data: bytes) -> None:
        """As :meth:`write`, over what a writer left under the same key that died before its word said so."""
        if len(data) > SLOT_CAPACITY:
            raise BadInputError(
                f"a payload of {len(data)} bytes does not fit a slot of {SLOT_CAPACITY}; shorten it, "
                "or pass a path to it",
                code="payload-too-large",
                size=len(data),
                capacity=SLOT_CAPACITY,
            )
        head = _HEAD.pack(_checksum(epoch, sequence, kind, data), len(data), epoch, sequence, kind)
        begin = self._offset + _HEAD.size
        memory = self._memory.bytes
        memory[begin : begin + len(data)] = data
        memory[self._offset : begin] = head

    def read(self, epoch: int, sequence: int, kind: int) -> bytes | None:
        """Return a copy of what was written for the key.

        None if something else is there, nothing, or a write that is under way or was torn by the death of
        its writer. The caller retries until its own deadline or the writer's death.
        """
        last = self.last()
        return last[1] if last is not None and last[0] == (epoch, sequence, kind) else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return not any(self._memory.bytes[self._offset : self._offset + _HEAD.size])

    def last(self) -> tuple[tuple[int, int, int], bytes] | None:
        """Return the key and a copy of what was written last, as :meth:`read`."""
        begin = self._offset + _HEAD.size
        memory = self._memory.bytes
        checksum, length, epoch, sequence, kind = _HEAD.unpack(memory[self._offset : begin])
        if length > SLOT_CAPACITY or epoch == 0:  # nothing is ever written for epoch 0
            return None
        data = bytes(memory[begin : begin + length])
        return ((epoch, sequence, kind), data) if checksum == _checksum(epoch, sequence, kind, data) else None


def _checksum(epoch: int, sequence: int, kind: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_KEY.pack(epoch, sequence, kind, len(data))))
