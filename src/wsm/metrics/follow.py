"""What was written into a group's journals since the last look: its files, or the rings of its segment.

Files hold everything since their directory was new, so a counter goes on where it was when the exporter is
started again. Rings hold the last lines: what was in them before the exporter's first look may be part of a
story, and what left them between two looks is lost, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from wsm.journal import entry as kinds
from wsm.journal.entry import LONGEST_LINE_BYTES, JournalFormatError, read_ndjson
from wsm.metrics.history import JournalCounts
from wsm.shared_directory import EVERY_USER, ForeignPathError, open_ours
from wsm.signals.owner_settings import settings_in
from wsm.signals.segment import SegmentImage

_CHUNK_BYTES: Final = 1 << 20

#: Most lines of a file, which nothing is counted of; its kind stands near the beginning of a line.
_UNCOUNTED: Final = tuple(f'"kind":"{kind}"' for kind in (kinds.INPUT, kinds.WORD_WRITTEN))
_KIND_WITHIN: Final = 60


class Followed:
    """The journals of one group, as far as they were read.

    Parameters
    ----------
    directory : Path or None
        Where its files are; None: where the group's owner says.

    Attributes
    ----------
    history : JournalCounts
        What they told.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.history = JournalCounts()
        self._directory = directory
        self._files: dict[Path, _File] = {}
        self._seen: dict[str, list[int]] = {}  # of each ring, by the run of its group

    def look(self, image: SegmentImage | None) -> None:
        """Take in what is new; `image` is None where the segment cannot be read any more."""
        if self._directory is None and image is not None:
            self._directory = settings_in(image.settings).journals
        files = [] if self._directory is None else sorted(self._directory.glob("*.ndjson"))
        for path in files:
            file = self._files.setdefault(path, _File(path))
            for lines in file.new_lines():
                self._take(lines)
        if not self._files and image is not None:
            self._look_at_rings(image)

    def _look_at_rings(self, image: SegmentImage) -> None:
        rings = image.journals
        seen = self._seen.setdefault(image.run_id, [0] * len(rings))
        for place, ring in enumerate(rings):
            lines, seen[place], lost = ring.lines_since(seen[place])
            self.history.lost_lines += lost
            self._take(lines[1:] if lost else lines)

    def _take(self, lines: Iterable[str]) -> None:
        for line in lines:
            if any(kind in line[:_KIND_WITHIN] for kind in _UNCOUNTED):
                continue
            try:
                for entry in read_ndjson([line]):
                    self.history.take(entry)
            except JournalFormatError:
                self.history.unreadable_lines += 1


class _File:
    """One file, read up to the end of its last whole line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0

    def new_lines(self) -> Iterator[list[str]]:
        """Yield whole lines that are new, some at a time; nothing where the file cannot be read."""
        try:
            # Nothing that stands there is acted on, so it may be any user's.
            descriptor = open_ours(self._path, os.O_RDONLY, also=EVERY_USER)
        except (OSError, ForeignPathError):
            return
        try:
            found = os.fstat(descriptor)
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset = found.st_ino, 0
            while True:
                data = os.pread(descriptor, _CHUNK_BYTES, self._offset)
                end = data.rfind(b"\n") + 1
                if end == 0 and len(data) <= LONGEST_LINE_BYTES:
                    return  # a line that is not whole yet
                end = end or len(data)
                self._offset += end
                yield data[:end].decode("utf-8", "replace").split("\n")
        finally:
            os.close(descriptor)
