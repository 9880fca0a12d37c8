"""The segment of one group, as a process sees it: its words, slots, facts and owner.

What is where is :mod:`wsm.signals.layout`; who may create, adopt or replace a segment is decided in
:mod:`wsm.signals.ownership`. This module knows what no word means, and reads what the owner says of the group
beside them (:func:`owner_said`).

A copy of a segment that is only looked at: of a living group, a dead one, a file that a user saved.

Nothing is mapped, locked, registered or created, so a copy can be taken of what this process may not write,
and of what is damaged. Its words were loaded one after the other, like those that any process reads.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, final

from wsm.shared_directory import EVERY_USER, ForeignPathError, open_ours
from wsm.signals import errors, ownership
from wsm.signals._memory import SharedFile, refusal
from wsm.signals.errors import SegmentBusyError, SegmentMissingError, SegmentTruncatedError
from wsm.signals.layout import HEADER_BYTES, MAGIC, SETTINGS_KEY, Header, layout_of
from wsm.signals.lock_file import LockFile, LockHold
from wsm.signals.names import SHARED_MEMORY_DIRECTORY, segment_path
from wsm.signals.presence import Occupant, ProcessIdentity, read_occupant, write_occupant
from wsm.signals.slot import LineRing, PayloadSlot

_PREFIX = "wsm."  # of the names of segments


@final
class Segment:
    """A group's shared memory, mapped into this process.

    Get one with :meth:`create`, :meth:`attach` or :meth:`create_or_adopt`. All of them return at once;
    none is collective. A segment that a forked child inherits works in it, without the ownership.

    Attributes
    ----------
    name : str
        The group's name.
    path : Path
        The file.
    world_size, helpers : int
        Ranks, and participants without steps behind them.
    run_id : str
        What the creator called this run.
    configuration_digest : int
        Unsigned 64-bit digest that the creator gave.
    layout : Layout
        Indexes into `words`.
    words : memoryview
        The words, unsigned 64-bit elements; reading one costs about 16 ns. Dead after :meth:`close`.
    adopted : bool
        Whether this process took the segment over from a dead owner.
    lock_file : LockFile
        The byte locks of the group.
    settings : PayloadSlot
        What the owner says of the whole group; written by the owner alone.
    records : tuple of PayloadSlot
        The two slots for what the group has committed (:mod:`wsm.committed_record`).
    """

    def __init__(
        self, name: str, memory: SharedFile, header: Header, lock_file: LockFile, owner_hold: LockHold | None
    ) -> None:
        self.name = name
        self.path = memory.path
        self.world_size, self.helpers, self.run_id, self.configuration_digest = header
        self.layout = layout_of(self.world_size, self.helpers)
        self.words: memoryview[int] = memory.cast("Q")
        self.adopted = False
        self.lock_file = lock_file
        self.address = memory.address
        self._memory = memory
        self._owner_hold = owner_hold
        self._is_closed = False
        layout = self.layout
        slots = (layout.arguments, layout.report, layout.last_commit, layout.error, layout.plans)
        self._arguments, self._reports, self._commits, self._errors, self._plans = (
            tuple(PayloadSlot(memory, offset) for offset in offsets) for offsets in slots
        )
        self.settings = PayloadSlot(memory, layout.settings)
        self.records = tuple(PayloadSlot(memory, offset) for offset in layout.records)
        self._rings = tuple(LineRing(memory, offset) for offset in self.layout.journal)

    @classmethod
    def create(
        cls,
        name: str,
        *,
        world_size: int,
        helpers: int = 0,
        run_id: str,
        configuration_digest: int,
        directory: str | os.PathLike[str] | None = None,
    ) -> Segment:
        """Create the segment of a new group and own it until :meth:`close`.

        Parameters
        ----------
        name : str
            The group's name: 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
        world_size, helpers : int
            Ranks, and participants without steps.
        run_id : str
            Anything that names this run, at most 128 bytes of UTF-8.
        configuration_digest : int
            Unsigned 64 bits; compared when a later starter adopts the segment.
        directory : path or None
            Where to create it; ``/dev/shm`` by default.

        Raises
        ------
        SegmentNameError, BadInputError
            If an argument is out of range.
        SegmentOwnedError, SegmentExistsError
            If another process owns that name, or a file is there.
        RefusedError, SegmentAccessError
            If the file cannot be made; nothing is left behind.
        """
        header = Header(world_size, helpers, run_id, configuration_digest)
        path = segment_path(name, directory)
        content = header.pack()
        with ownership.claimed(path) as claim:
            memory = ownership.publish_segment(path, header, content)
            return cls._own(name, memory, header, claim)

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
        """Own the segment `name`, whatever a predecessor left.

        Nothing there: it is created. Its owner died and a participant lives: it is adopted with all its words
        (`adopted` is true, `run_id` is the old one). None of them lives: it is removed and created anew,
        whatever the file holds. Of two starters at once the kernel lets one win.

        Parameters
        ----------
        name, world_size, helpers, run_id, configuration_digest, directory
            As for :meth:`create`.

        Raises
        ------
        SegmentOwnedError
            If the owner lives (a stopped process lives), or another starter was first.
        BadInputError
            If a participant of a group of another shape or configuration still lives.
        BadInputError, SegmentTruncatedError
            If a participant lives and the file is no segment that this build can adopt.
        SegmentNameError, BadInputError, RefusedError, SegmentAccessError
            As for :meth:`create`.
        """
        header = Header(world_size, helpers, run_id, configuration_digest)
        path = segment_path(name, directory)
        content = header.pack()
        with ownership.claimed(path) as claim:
            found = ownership.adopt_or_reclaim(path, header, claim)
            if found is not None:
                segment = cls._own(name, *found, claim)
                segment.adopted = True
                return segment
            return cls._own(name, ownership.publish_segment(path, header, content), header, claim)

    @classmethod
    def attach(
        cls, name: str, *, world_size: int | None = None, directory: str | os.PathLike[str] | None = None
    ) -> Segment:
        """Map the existing segment `name`, as a participant, a controller or an onlooker.

        Parameters
        ----------
        name : str
            The group's name.
        world_size : int or None
            What this process was configured for; None to take what is there.
        directory : path or None
            Where it lies; ``/dev/shm`` by default.

        Raises
        ------
        SegmentMissingError
            If there is none.
        BadInputError, SegmentTruncatedError
            If the file is no segment that this build can read.
        BadInputError
            If it is of a group of another size.
        SegmentNameError, SegmentAccessError
            If the name is none, or the file is of another kind or another user.
        """
        memory, header, lock_file = ownership.attach_consistently(segment_path(name, directory))
        if world_size is not None and header.world_size != world_size:
            memory.close()
            lock_file.close()
            raise errors.world_size_mismatch(
                path=str(memory.path), field="world size", found=header.world_size, expected=world_size
            )
        return cls(name, memory, header, lock_file, None)

    @classmethod
    def _own(cls, name: str, memory: SharedFile, header: Header, claim: ownership.Claim) -> Segment:
        lock_file, hold = claim.keep()
        segment = cls(name, memory, header, lock_file, hold)
        write_occupant(segment.words, segment.layout.owner, Occupant(ProcessIdentity.current(), present=True))
        return segment

    @property
    def owner(self) -> ProcessIdentity | None:
        """Who owns the segment now, dead or alive; None if the owner left it in good order."""
        occupant = read_occupant(self.words, self.layout.owner)
        return occupant.identity if occupant is not None and occupant.present else None

    @property
    def supervisor(self) -> ProcessIdentity | None:
        """Which process replaces ranks that are lost, dead or alive; None if none does, or any more."""
        occupant = read_occupant(self.words, self.layout.supervisor)
        return occupant.identity if occupant is not None and occupant.present else None

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
    def participants(self) -> int:
        """Number of ranks and helpers."""
        return self.layout.participants

    def arguments(self, sequence: int) -> PayloadSlot:
        """Slot for the arguments of command `sequence`; two slots alternate."""
        return self._arguments[sequence % len(self._arguments)]

    def report(self, participant: int) -> PayloadSlot:
        """Slot for what `participant` reports about a command."""
        return self._reports[self.check_participant(participant)]

    def last_commit(self, participant: int) -> PayloadSlot:
        """Slot for what `participant` reports of a load; only the next load that commits writes over it."""
        return self._commits[self.check_participant(participant)]

    def error(self, participant: int) -> PayloadSlot:
        """Slot for why `participant` failed."""
        return self._errors[self.check_participant(participant)]

    def plans(self, participant: int) -> PayloadSlot:
        """Slot for the plans that `participant` derived when it joined an epoch."""
        return self._plans[self.check_participant(participant)]

    def journal(self, participant: int) -> LineRing:
        """Ring for the last journal lines of `participant`."""
        return self._rings[self.check_participant(participant)]

    def journals(self) -> list[LineRing]:
        """Rings of all participants, and behind them that of the controllers."""
        return list(self._rings)

    @property
    def controller_journal(self) -> LineRing:
        """Ring for the last journal lines of all holders of the controller role, in the order of writing."""
        return self._rings[-1]

    @property
    def content(self) -> bytes:
        """A copy of all bytes, as they are now."""
        return bytes(self._memory.bytes)

    def check_participant(self, participant: int) -> int:
        """Return `participant` if the segment has a place for it.

        Raises
        ------
        BadInputError
            If it has none.
        """
        if not 0 <= participant < self.layout.participants:
            raise errors.participant_unknown(participant=participant, participants=self.layout.participants)
        return participant

    def inode_changed(self) -> bool:
        """Whether the path names another segment by now, or none: no new process sees what is stored here.

        One ``stat``; made for idle polls.
        """
        return self._memory.is_replaced()

    def is_truncated(self) -> bool:
        """Whether another process has made the file shorter than what is mapped. One ``fstat``."""
        return self._memory.missing_bytes() > 0

    def require_whole(self) -> None:
        """See that the file is as long as what is mapped, before words are read or written.

        A file that is cut between this look and the access still ends the process, by SIGBUS: memory that is
        shared by name cannot be sealed.

        Raises
        ------
        SegmentTruncatedError
            If it is not.
        """
        missing = self._memory.missing_bytes()
        if missing:
            size = self._memory.size
            raise SegmentTruncatedError(path=str(self.path), size=size - missing, needed_bytes=size)

    def unlink(self) -> None:
        """Remove segment and lock file. What is mapped stays usable for those who have it.

        Raises
        ------
        RefusedError
            If this process does not own the segment.
        """
        if not self.is_owner:
            raise errors.not_owner(path=str(self.path))
        self._memory.remove()
        self.lock_file.remove()

    def close(self) -> None:
        """Unmap the memory and give the ownership back. Does nothing the second time.

        A segment that its owner closes without :meth:`unlink` waits to be adopted or reclaimed.

        Raises
        ------
        SegmentBusyError
            If a view into the memory is alive elsewhere; the segment stays as it was then.
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
        except SegmentBusyError:
            self.words = self._memory.cast("Q")
            self._is_closed = False
            if owner is not None:
                write_occupant(self.words, self.layout.owner, Occupant(owner, present=True))
            raise
        self.address = 0
        if self._owner_hold is not None:
            self._owner_hold.release()
        self.lock_file.close()

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        """Copy a file. Root may look at every user's: nothing that stands there is acted on.

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

    @property
    def records(self) -> tuple[PayloadSlot, ...]:
        """Slots for what the group has committed; only to be read."""
        return tuple(PayloadSlot(self._copy, offset) for offset in self.layout.records)

    @property
    def settings(self) -> PayloadSlot:
        """What the owner said of the whole group; only to be read."""
        return PayloadSlot(self._copy, self.layout.settings)

    def arguments(self, sequence: int) -> PayloadSlot:
        """Slot for the arguments of a command; only to be read."""
        return PayloadSlot(self._copy, self.layout.arguments[sequence % len(self.layout.arguments)])

    def report(self, participant: int) -> PayloadSlot:
        """Slot for what a participant reported; only to be read."""
        return PayloadSlot(self._copy, self.layout.report[participant])

    def last_commit(self, participant: int) -> PayloadSlot:
        """Slot for what a participant reported of a commit; only to be read."""
        return PayloadSlot(self._copy, self.layout.last_commit[participant])

    def error(self, participant: int) -> PayloadSlot:
        """Slot for why a participant failed; only to be read."""
        return PayloadSlot(self._copy, self.layout.error[participant])

    def plans(self, participant: int) -> PayloadSlot:
        """Slot for a participant's plans; only to be read."""
        return PayloadSlot(self._copy, self.layout.plans[participant])

    def journals(self) -> list[LineRing]:
        """Rings of all participants, and behind them that of the controllers; only to be read."""
        return [LineRing(self._copy, offset) for offset in self.layout.journal]


#: How often settings are read while the owner writes them, and the pause in between, in seconds.
_READS, _PAUSE_S = 20, 0.001


def owner_said(segment: Segment | SegmentImage) -> Mapping[str, Any]:
    """Return what the segment's owner says of the whole group, by name; empty where it says nothing."""
    for _ in range(_READS):
        data = segment.settings.read(*SETTINGS_KEY)
        if data is not None or isinstance(segment, SegmentImage):  # a copy changes no more
            break
        time.sleep(_PAUSE_S)  # the owner is writing it, or was torn from it by its death
    return {} if data is None else _parsed(data)


@functools.lru_cache(maxsize=8)
def _parsed(data: bytes) -> Mapping[str, Any]:
    """Read what an owner says; the same bytes are read with each command."""
    try:
        said = json.loads(data)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def loop_without_poll(segment: Segment) -> str | None:
    """Return where the ranks' loops would have to look at a command of this process; None: they do."""
    loop = owner_said(segment).get("loop")
    if not isinstance(loop, dict) or loop.get("polls") or loop.get("pid") == os.getpid():
        return None
    return str(loop.get("place", ""))


def existing_groups(directory: Path = SHARED_MEMORY_DIRECTORY) -> list[str]:
    """Return the names of all groups that have a segment, living or dead, in order."""
    return sorted(
        path.name.removeprefix(_PREFIX) for path in directory.glob(f"{_PREFIX}*") if _is_segment(path)
    )


def _is_segment(path: Path) -> bool:
    """Whether a file begins as segments do; what lies beside a segment under its name does not."""
    try:
        descriptor = open_ours(path, os.O_RDONLY, also=EVERY_USER)
    except (OSError, ForeignPathError):  # gone meanwhile, another user's, or no file at all
        return False
    try:
        return os.pread(descriptor, len(MAGIC), 0) == MAGIC
    finally:
        os.close(descriptor)
