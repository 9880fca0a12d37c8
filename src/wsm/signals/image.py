"""A copy of a segment that is only looked at: of a living group, a dead one, a file that somebody saved.

Nothing is mapped, locked, registered or created, so a copy can be taken of what this process may not write,
and of what is damaged. Its words were loaded one after the other, like those that any process reads.
"""

from __future__ import annotations

import os
from pathlib import Path

from wsm.shared_directory import EVERY_USER, ForeignPathError, open_ours
from wsm.signals.errors import SegmentMissingError
from wsm.signals.header import Header
from wsm.signals.identity import ProcessIdentity, read_occupant
from wsm.signals.layout import HEADER_BYTES, layout_of
from wsm.signals.memory import refusal
from wsm.signals.ring import LineRing
from wsm.signals.segment import Segment
from wsm.signals.slot import PayloadSlot


class _Copy:
    """Bytes that stand for a mapping."""

    def __init__(self, content: bytes) -> None:
        self.bytes: memoryview[int] = memoryview(content)


class SegmentImage:
    """What stood in a segment at one moment.

    Parameters
    ----------
    path : Path
        Where it came from.
    content : bytes
        All of the file.

    Attributes
    ----------
    world_size, helpers : int
        Ranks, and participants without steps.
    run_id : str
        Of the run.
    layout : Layout
        Indexes into `words`.
    words : memoryview
        Unsigned 64-bit elements, read-only.

    Raises
    ------
    BadInputError, SegmentTruncatedError
        If the content is no segment that this build can read.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        header = Header.unpack(content[:HEADER_BYTES], path=path, file_bytes=len(content))
        self.world_size, self.helpers, self.run_id, _ = header
        self.layout = layout_of(self.world_size, self.helpers)
        self._copy = _Copy(content[: self.layout.total_bytes])
        self.words: memoryview[int] = self._copy.bytes.cast("Q")

    @classmethod
    def read(cls, path: Path) -> SegmentImage:
        """Copy a file. Root may look at everybody's: nothing that stands there is acted on.

        Raises
        ------
        SegmentMissingError, SegmentAccessError
            If there is none, or it must not be read. Others as the constructor.
        """
        try:
            descriptor = open_ours(path, os.O_RDONLY, also=() if os.geteuid() else EVERY_USER)
        except FileNotFoundError:
            raise SegmentMissingError(path=str(path)) from None
        except (OSError, ForeignPathError) as error:
            raise refusal(path, error) from error
        try:
            return cls(path, os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        finally:
            os.close(descriptor)

    @classmethod
    def of(cls, segment: Segment) -> SegmentImage:
        """Copy what is mapped, which may be another file than the one that lies at its path by now."""
        return cls(segment.path, segment.content)

    @property
    def participants(self) -> int:
        """Number of ranks and helpers."""
        return self.layout.participants

    @property
    def owner(self) -> ProcessIdentity | None:
        """Who owned it; None if the owner left it in good order."""
        occupant = read_occupant(self.words, self.layout.owner)
        return occupant.identity if occupant is not None and occupant.present else None

    @property
    def supervisor(self) -> ProcessIdentity | None:
        """Which process replaced ranks that were lost; None if none did."""
        occupant = read_occupant(self.words, self.layout.supervisor)
        return occupant.identity if occupant is not None and occupant.present else None

    def arguments(self, sequence: int) -> PayloadSlot:
        """Slot for the arguments of a command; only to be read."""
        return PayloadSlot(self._copy, self.layout.arguments[sequence % len(self.layout.arguments)])

    def report(self, participant: int) -> PayloadSlot:
        """Slot for what a participant reported; only to be read."""
        return PayloadSlot(self._copy, self.layout.report[participant])

    def error(self, participant: int) -> PayloadSlot:
        """Slot for why a participant failed; only to be read."""
        return PayloadSlot(self._copy, self.layout.error[participant])

    def plans(self, participant: int) -> PayloadSlot:
        """Slot for a participant's plans; only to be read."""
        return PayloadSlot(self._copy, self.layout.plans[participant])

    def journals(self) -> list[LineRing]:
        """Rings of all participants, and behind them that of the controllers; only to be read."""
        return [LineRing(self._copy, offset) for offset in self.layout.journal]
