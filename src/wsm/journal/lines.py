"""Where lines of journals stand: all of them in a file, the last ones in a ring of the group's segment.

A file is appended to, all lines of one look in one write of the kernel, so they survive their process. A full
disk or a kill may cut its last line short; the next writer begins a new one behind it.

A ring is a bounded record of lines: the last ones stay, whatever becomes of their writer. One process writes
at a time, any process reads at any time, and none takes a lock. The ring says how many bytes were ever
written; it says so after they are there. A reader that is overtaken, or that finds what a killed writer left
half done, gets broken lines at the oldest end, which it cannot mistake for entries: it parses what it reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from wsm.journal.entry import JournalEntry, JournalFormatError, read_ndjson
from wsm.shared_directory import open_to_append

#: No line of a file is longer, in bytes: it holds all words of the largest group, and what else was known.
LONGEST_LINE_BYTES = 256 * 1024

#: Bytes of a segment for one ring.
RING_BYTES = 64 * 1024


class Memory(Protocol):
    """Bytes of a segment: a mapped file, or a copy of one that is only read."""

    @property
    def bytes(self) -> memoryview[int]:
        """All of it, element format ``B``."""
        ...


_WRITTEN_HEAD = struct.Struct("<Q")

#: Bytes of lines that a ring holds.
RING_CAPACITY = RING_BYTES - _WRITTEN_HEAD.size

#: Longest line of a ring; a longer one is left out rather than allowed to push all the others out.
MAX_LINE_BYTES = RING_CAPACITY // 8


class LineRing:
    """One ring of a segment, which begins at `offset`."""

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

    def entries(self) -> list[JournalEntry]:
        """Return the entries that are there, oldest first; broken lines are left out."""
        entries = []
        for line in self.lines():
            with contextlib.suppress(JournalFormatError):
                entries += read_ndjson([line])
        return entries

    def lines_since(self, seen: int) -> tuple[list[str], int, bool]:
        """Return what was written since a reader looked last.

        `seen`: bytes that had ever been written then; 0: it never looked.

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
        kept = content[place:] + content[:place] if written >= RING_CAPACITY else content[:place]
        # What was written while we copied lies at the oldest end.
        overtaken = max(self._written() - RING_CAPACITY, 0) - max(written - RING_CAPACITY, 0)
        return kept[overtaken:]

    def _written(self) -> int:
        (written,) = _WRITTEN_HEAD.unpack(self._memory.bytes[self._offset : self._begin])
        return int(written)


class LineFile:
    """One file of lines; its directory is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open(self) -> None:
        """Open the file, and end a line that its last writer left torn; nothing if it is open.

        Raises
        ------
        wsm.shared_directory.ForeignPathError
            If every user can make names there, and what is there is no regular file of ours.
        OSError
            If the operating system refuses.
        """
        if self._descriptor is not None:
            return
        try:
            self._descriptor = open_to_append(self.path)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = open_to_append(self.path)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            self._write(b"\n")

    def append(self, lines: Iterable[str]) -> None:
        """Write lines, each without its line feed, in one write; raises as :meth:`open`, closed then."""
        try:
            self.open()
            self._write("\n".join([*lines, ""]).encode())
        except BaseException:
            self.close()
            raise

    def _write(self, data: bytes) -> None:
        if self._descriptor is None or os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file; the next lines open it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
