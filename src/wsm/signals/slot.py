"""Places in a segment for what is longer than a word: slots for one payload, rings for the last lines.

A slot holds one payload under a key (epoch, sequence, kind): arguments, reports, error texts. Writer and
reader share no lock and no fence: the reader copies what is there and believes it only if a checksum over
key, length and bytes fits. So it does not matter in which order the stores become visible, on aarch64
neither.

A ring is a bounded record of lines: the last ones stay, whatever becomes of their writer. One process writes
at a time, any process reads at any time, and none takes a lock. The ring says how many bytes were ever
written; it says so after they are there. A reader that is overtaken, or that finds what a killed writer left
half done, gets broken lines at the oldest end, which it cannot mistake for entries: it parses what it reads.
Nothing here knows what a payload or a line says.
"""

from __future__ import annotations

import struct
import zlib

from wsm.signals import errors
from wsm.signals._memory import Memory
from wsm.signals.errors import SlotReusedError
from wsm.signals.layout import RING_BYTES, SLOT_BYTES

# checksum, length, epoch, sequence, kind, and what keeps the bytes behind it aligned
_HEAD = struct.Struct("<5I4x")
_KEY = struct.Struct("<4I")

#: Bytes that fit into one slot.
SLOT_CAPACITY = SLOT_BYTES - _HEAD.size


class PayloadSlot:
    """One slot of a segment. One process writes it, any process reads it.

    Parameters
    ----------
    memory : Memory
        The segment's memory.
    offset : int
        Where the slot begins.
    """

    def __init__(self, memory: Memory, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._written: tuple[int, int, frozenset[int]] = (0, 0, frozenset())

    def write(self, epoch: int, sequence: int, kind: int, data: bytes) -> None:
        """Put `data` there for the key. To be followed by the store of the word that announces it.

        Parameters
        ----------
        epoch, sequence, kind : int
            The key, each 0..2**32-1. Each key is written once.
        data : bytes
            At most :data:`SLOT_CAPACITY` bytes.

        Raises
        ------
        BadInputError
            If `data` does not fit.
        SlotReusedError
            If this key was written already.
        """
        kinds = self._written[2] if self._written[:2] == (epoch, sequence) else frozenset()
        if kind in kinds or self.read(epoch, sequence, kind) is not None:
            raise SlotReusedError(epoch=epoch, sequence=sequence, kind=kind)
        self.write_over(epoch, sequence, kind, data)
        self._written = (epoch, sequence, kinds | {kind})

    def write_over(self, epoch: int, sequence: int, kind: int, data: bytes) -> None:
        """As :meth:`write`, over what a writer left under the same key that died before its word said so.

        Raises
        ------
        BadInputError
            If `data` does not fit.
        """
        if len(data) > SLOT_CAPACITY:
            raise errors.payload_too_large(size=len(data), capacity=SLOT_CAPACITY)
        head = _HEAD.pack(_checksum(epoch, sequence, kind, data), len(data), epoch, sequence, kind)
        begin = self._offset + _HEAD.size
        memory = self._memory.bytes
        memory[begin : begin + len(data)] = data
        memory[self._offset : begin] = head

    def read(self, epoch: int, sequence: int, kind: int) -> bytes | None:
        """Return a copy of what was written for the key.

        Returns
        -------
        bytes or None
            None if something else is there, nothing, or a write that is under way or was torn by the
            death of its writer. The caller retries until its own deadline or the writer's death.
        """
        last = self.last()
        return last[1] if last is not None and last[0] == (epoch, sequence, kind) else None

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


_WRITTEN_HEAD = struct.Struct("<Q")

#: Bytes of lines that a ring holds.
RING_CAPACITY = RING_BYTES - _WRITTEN_HEAD.size

#: Longest line; a longer one is left out rather than allowed to push all the others out.
MAX_LINE_BYTES = RING_CAPACITY // 8


class LineRing:
    """One ring of a segment.

    Parameters
    ----------
    memory : Memory
        The segment's memory.
    offset : int
        Where the ring begins.
    """

    def __init__(self, memory: Memory, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._begin = offset + _WRITTEN_HEAD.size

    def append(self, *lines: str) -> bool:
        """Write lines, each without its line feed; return whether they were short enough to be written."""
        data = "\n".join([*lines, ""]).encode("utf-8", "backslashreplace")
        if len(data) > MAX_LINE_BYTES:
            if len(lines) > 1:
                were_short = [self.append(line) for line in lines]
                return all(were_short)
            return False
        written, memory = self._written(), self._memory.bytes
        place = written % RING_CAPACITY
        first = data[: RING_CAPACITY - place]
        memory[self._begin + place : self._begin + place + len(first)] = first
        rest = data[len(first) :]
        memory[self._begin : self._begin + len(rest)] = rest
        memory[self._offset : self._begin] = _WRITTEN_HEAD.pack(written + len(data))
        return True

    def lines(self) -> list[str]:
        """Return the lines that are there, oldest first; the oldest may be the end of one."""
        return self._kept(self._written()).decode("utf-8", "replace").splitlines()

    def lines_since(self, seen: int) -> tuple[list[str], int, bool]:
        """Return what was written since a reader looked last.

        Parameters
        ----------
        seen : int
            Bytes that had ever been written then; 0: it never looked.

        Returns
        -------
        lines : list of str
            Oldest first; the oldest may be the end of one if some are lost.
        written : int
            Bytes that have ever been written, for the next look.
        lost : bool
            Whether lines are gone that this reader has not seen.
        """
        written = self._written()
        new = written - seen if 0 <= seen <= written else written  # less than before: another segment's
        kept = self._kept(written)
        found = kept[len(kept) - new :] if new <= len(kept) else kept
        return found.decode("utf-8", "replace").splitlines(), written, new > len(kept)

    def _kept(self, written: int) -> bytes:
        content = bytes(self._memory.bytes[self._begin : self._begin + RING_CAPACITY])
        place = written % RING_CAPACITY
        kept = content[place:] + content[:place] if written > RING_CAPACITY else content[:place]
        if written == RING_CAPACITY:
            kept = content
        # What was written while we copied lies at the oldest end.
        overtaken = max(self._written() - RING_CAPACITY, 0) - max(written - RING_CAPACITY, 0)
        return kept[overtaken:]

    def _written(self) -> int:
        (written,) = _WRITTEN_HEAD.unpack(self._memory.bytes[self._offset : self._begin])
        return int(written)
