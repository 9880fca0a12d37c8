"""The segment of one group, as a process sees it: its words, slots, facts and owner.

What is where is :mod:`wsm.signals.layout`; who may create, adopt or replace a segment is decided in
:mod:`wsm.signals.ownership`. This module knows what no word means.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, final

from wsm.errors import BadInputError, RefusedError
from wsm.journal.entry import LineRing, Memory
from wsm.shared_directory import EVERY_USER, private_directory
from wsm.signals import ownership
from wsm.signals._memory import SharedFile, opened
from wsm.signals.errors import SegmentTruncatedError
from wsm.signals.layout import HEADER_BYTES, MAGIC, Header, PayloadSlot, segment_path
from wsm.signals.lock_file import LockFile, LockHold
from wsm.signals.presence import Occupant, ProcessIdentity, read_occupant, write_occupant

_PREFIX = "wsm."  # of the names of segments


class GroupMemory:
    """Words, slots and rings of a group, in mapped memory or in a copy of it.

    Attributes
    ----------
    configuration_digest : int
        Unsigned 64-bit digest that the creator gave.
    words : memoryview
        The words, unsigned 64-bit elements; reading one costs about 16 ns. `layout` has their indexes.
    settings, records : PayloadSlot
        What the owner says, written by it alone; and what the group has committed
        (:mod:`wsm.committed_record`), in two slots.
    reports, last_commits, errors, at_hand : tuple of PayloadSlot
        Per participant: what it reports about a command; and of a load, which only the next load that commits
        writes over; why it failed; and the action that it is at.
    journals, controller_journal : tuple of LineRing, LineRing
        The last journal lines: of all participants, and behind them of the controllers, in the order of
        writing.
    """

    def __init__(self, path: Path, memory: Memory, words: memoryview[int], header: Header) -> None:
        self.path = path
        self.world_size, self.helpers, self.run_id, self.configuration_digest = header
        self.layout = layout = header.layout
        self.participants = layout.participants
        self.words = words
        slots = (layout.arguments, layout.report, layout.last_commit, layout.error, layout.at_hand)
        self._arguments, self.reports, self.last_commits, self.errors, self.at_hand = (
            tuple(PayloadSlot(memory, offset) for offset in offsets) for offsets in slots
        )
        self.settings = PayloadSlot(memory, layout.settings)
        self.records = tuple(PayloadSlot(memory, offset) for offset in layout.records)
        self.journals = tuple(LineRing(memory, offset) for offset in layout.journal)
        self.controller_journal = self.journals[-1]

    @property
    def owner(self) -> ProcessIdentity | None:
        """Who owns the segment, dead or alive; None if the owner left it in good order."""
        return self._present_at(self.layout.owner)

    @property
    def supervisor(self) -> ProcessIdentity | None:
        """Which process replaces ranks that are lost, dead or alive; None if none does, or any more."""
        return self._present_at(self.layout.supervisor)

    def _present_at(self, index: int) -> ProcessIdentity | None:
        occupant = read_occupant(self.words, index)
        return occupant.identity if occupant is not None and occupant.present else None

    def arguments(self, sequence: int) -> PayloadSlot:
        """Slot for the arguments of command `sequence`; two slots alternate."""
        return self._arguments[sequence % len(self._arguments)]

    def check_participant(self, participant: int) -> int:
        """Return `participant` if the segment has a place for it, else raise BadInputError."""
        if not 0 <= participant < self.participants:
            raise BadInputError(
                f"participant {participant} is none of 0..{self.participants - 1}; check rank and world size",
                code="participant-unknown",
                participant=participant,
                participants=self.participants,
            )
        return participant


@final
class Segment(GroupMemory):
    """A group's shared memory, mapped into this process.

    Get one with :meth:`attach` or :meth:`create_or_adopt`. Both return at once; none is collective. A segment
    that a forked child inherits works in it, without the ownership. Its `words` are dead after :meth:`close`,
    and its `address` is 0 then.
    """

    def __init__(
        self, name: str, memory: SharedFile, header: Header, lock_file: LockFile, owner_hold: LockHold | None
    ) -> None:
        super().__init__(memory.path, memory, memory.cast("Q"), header)
        self.name = name
        self.adopted = False
        self.lock_file = lock_file
        self.address = memory.address
        self._memory = memory
        self._owner_hold = owner_hold
        self._is_closed = False

    @classmethod
    def create_or_adopt(
        cls,
        name: str,
        *,
        world_size: int,
        helpers: int = 0,
        run_id: str,
        configuration_digest: int,
        directory: str | os.PathLike[str] | None = None,
    ) -> Segment:
        """Own the segment `name` until :meth:`close`, whatever a predecessor left.

        Nothing there: it is created. Its owner died and a participant lives: it is adopted with all its words
        (`adopted` is true, `run_id` is the old one). None of them lives: it is removed and created anew,
        whatever the file holds. Of two starters at once the kernel lets one win.

        Parameters
        ----------
        name, run_id : str
            1 to 100 letters, digits, ``.``, ``_`` or ``-``; and what names this run, at most 128 bytes of
            UTF-8.
        configuration_digest : int
            Unsigned 64 bits; compared when a segment is adopted.
        directory : path or None
            Where it lies; this user's private directory by default.

        Raises
        ------
        SegmentOwnedError
            If the owner lives (a stopped process lives), or another starter was first.
        BadInputError, SegmentTruncatedError
            If a participant lives, and the segment is of another shape, configuration or build.
        SegmentNameError, BadInputError, RefusedError, SegmentAccessError
            If an argument is out of range, or the file cannot be made; nothing is left behind.
        """
        header = Header(world_size, helpers, run_id, configuration_digest)
        path = segment_path(name, directory)
        content = header.pack()
        with ownership.claimed(path) as claim:
            found = ownership.adopt_or_reclaim(path, header, claim)
            memory, header = found or (ownership.publish_segment(path, header, content), header)
            segment = cls(name, memory, header, *claim.keep())
            segment.adopted = found is not None
            owner = Occupant(ProcessIdentity.current(), present=True)
            write_occupant(segment.words, segment.layout.owner, owner)
            return segment

    @classmethod
    def attach(
        cls, name: str, *, world_size: int | None = None, directory: str | os.PathLike[str] | None = None
    ) -> Segment:
        """Map the existing segment `name`, as a participant, a controller or an onlooker.

        Parameters
        ----------
        world_size : int or None
            What this process was configured for; None to take what is there.
        directory : path or None
            Where it lies; this user's private directory by default.

        Raises
        ------
        SegmentMissingError
            If there is none.
        BadInputError, SegmentTruncatedError
            If the file is no segment that this build can read, or of a group of another size.
        SegmentNameError, SegmentAccessError
            If the name is none, or the file is of another kind or another user.
        """
        memory, header, lock_file = ownership.attach_consistently(segment_path(name, directory))
        if world_size is not None and header.world_size != world_size:
            memory.close()
            lock_file.close()
            raise ownership.another_shape(memory.path, "world size", header.world_size, world_size)
        return cls(name, memory, header, lock_file, None)

    def supervise(self, *, begins: bool) -> None:
        """Say that this process replaces ranks from now on, or that it does so no more."""
        me = ProcessIdentity.current()
        if begins or self.supervisor == me:
            write_occupant(self.words, self.layout.supervisor, Occupant(me, present=begins))

    @property
    def is_owner(self) -> bool:
        """Whether this very process owns the segment."""
        return self._owner_hold is not None and self._owner_hold.is_held

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._is_closed

    @property
    def content(self) -> bytes:
        """A copy of all bytes, as they are now."""
        return bytes(self._memory.bytes)

    def inode_changed(self) -> bool:
        """Whether the path names another segment by now, or none. One ``stat``; made for idle polls."""
        return self._memory.is_replaced()

    def is_truncated(self) -> bool:
        """Whether another process has made the file shorter than what is mapped. One ``fstat``."""
        return self._memory.missing_bytes() > 0

    def require_whole(self) -> None:
        """Raise SegmentTruncatedError if the file is shorter than what is mapped: an access would be SIGBUS.

        A cut between this look and the access still ends the process: memory shared by name cannot be sealed.
        """
        missing = self._memory.missing_bytes()
        if missing:
            size = self._memory.size
            raise SegmentTruncatedError(path=str(self.path), size=size - missing, needed_bytes=size)

    def unlink(self) -> None:
        """Remove segment and lock file, as their owner. What is mapped stays usable for those who have it."""
        if not self.is_owner:
            raise RefusedError(
                f"{self.path} is not owned by this process and cannot be removed by it; "
                "let its owner do it, or take it over with create_or_adopt",
                code="not-owner",
                path=str(self.path),
            )
        self._memory.remove()
        self.lock_file.remove()

    def close(self) -> None:
        """Unmap the memory and give the ownership back. Does nothing the second time.

        A segment that its owner closes without :meth:`unlink` waits to be adopted or reclaimed. Raises
        RefusedError if a view into the memory is alive elsewhere; the segment stays as it was then.
        """
        if self._is_closed:
            return
        owner = self.owner if self.is_owner and not self.is_truncated() else None
        if owner is not None:
            write_occupant(self.words, self.layout.owner, Occupant(owner, present=False))
        self._is_closed = True  # first: a thread that finds the words released asks why
        self.words.release()
        try:
            self._memory.close()
        except BufferError:
            self.words = self._memory.cast("Q")
            self._is_closed = False
            if owner is not None:
                write_occupant(self.words, self.layout.owner, Occupant(owner, present=True))
            raise RefusedError(
                f"{self.path} cannot be closed while a slice or array over its memory is alive; "
                "drop those first",
                code="segment-busy",
                path=str(self.path),
            ) from None
        self.address = 0
        if self._owner_hold is not None:
            self._owner_hold.release()
        self.lock_file.close()

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@final
class SegmentImage(GroupMemory):
    """What stood in a segment at one moment: of a living group, a dead one, a file that a user saved.

    Nothing is mapped, locked or created, so a copy can be taken of what this process may not write, and of
    what is damaged. Its words were loaded one after the other; they and its slots are only to be read. Raises
    BadInputError or SegmentTruncatedError if `content`, all of the file, is no segment that this build can
    read.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        header = Header.unpack(content[:HEADER_BYTES], path=path, file_bytes=len(content))
        copy = _Copy(memoryview(content[: header.layout.total_bytes]))
        super().__init__(path, copy, copy.bytes.cast("Q"), header)

    @classmethod
    def read(cls, path: Path) -> SegmentImage:
        """Copy a file. Root may look at every user's: nothing that stands there is acted on.

        Raises SegmentMissingError or SegmentAccessError if it cannot be read, else as the constructor.
        """
        also = () if os.geteuid() else EVERY_USER
        with opened(path, os.O_RDONLY, also=also) as (descriptor, size):
            return cls(path, os.pread(descriptor, size, 0))

    @classmethod
    def of(cls, segment: Segment) -> SegmentImage:
        """Copy what is mapped, which may be another file than the one that lies at its path by now."""
        return cls(segment.path, segment.content)


class _Copy(NamedTuple):
    bytes: memoryview[int]


def existing_groups(directory: Path | None = None) -> list[str]:
    """Return the names of all groups that have a segment, living or dead, in order."""
    found = (directory or private_directory()).glob(f"{_PREFIX}*")
    return sorted(path.name.removeprefix(_PREFIX) for path in found if _is_segment(path))


def _is_segment(path: Path) -> bool:
    try:
        with opened(path, os.O_RDONLY, also=EVERY_USER) as (descriptor, _):
            return os.pread(descriptor, len(MAGIC), 0) == MAGIC
    except RefusedError:  # gone meanwhile, or no file at all
        return False
