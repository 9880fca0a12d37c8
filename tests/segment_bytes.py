"""The bytes of a group's segment, as a process has them that damages it: those of its file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from wsm.signals.segment import Segment


@contextmanager
def segment_bytes(segment: Segment) -> Iterator[mmap.mmap]:
    """Map the file of a segment once more; what is written there all processes of the group read."""
    with segment.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as found:
        yield found


def damage_arguments_slot(segment: Segment, sequence: int) -> None:
    """Let nothing be read any more of what the command `sequence` says besides its word."""
    begin = segment.layout.arguments[sequence % 2]
    with segment_bytes(segment) as found:
        found[begin : begin + 8] = bytes(8)


def damage_records(segment: Segment, *places: int) -> None:
    """Let a bit of the committed records at `places` differ; without any of both."""
    with segment_bytes(segment) as found:
        for begin in [segment.layout.records[place] for place in places] or segment.layout.records:
            found[begin + 24] ^= 1
