"""A bounded record of lines in a segment: the last ones stay, whatever becomes of their writer.

One process writes at a time, any process reads at any time, and none takes a lock. The ring says how many
bytes were ever written; it says so after they are there. A reader that is overtaken, or that finds
what a killed writer left half done, gets broken lines at the oldest end, which it cannot mistake for
entries: it parses what it reads. Nothing here knows what a line says.
"""

from __future__ import annotations

import struct

from wsm.signals._memory import Memory
from wsm.signals.layout import RING_BYTES

_HEAD = struct.Struct("<Q")

#: Bytes of lines that a ring holds.
RING_CAPACITY = RING_BYTES - _HEAD.size

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
        self._begin = offset + _HEAD.size

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
        memory[self._offset : self._begin] = _HEAD.pack(written + len(data))
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
        (written,) = _HEAD.unpack(self._memory.bytes[self._offset : self._begin])
        return int(written)
