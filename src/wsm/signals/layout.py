"""What is where in a segment. Pure arithmetic on world size and helpers, the same in every process.

=================  =============================================================================
bytes              content
=================  =============================================================================
0 .. 255           constant header (:mod:`wsm.signals.layout`)
256 .. 319         who owns the segment, and who replaces its ranks (:mod:`wsm.signals.presence`)
320 ..             one 64-byte line per word: command, committed, then per participant who it is
                   and its status, step and heartbeat words
next page ..       payload slots of 16 KiB: two for arguments, one for the owner's settings, two for what the
                   group has committed, then per participant a report, what it loaded last, an
                   error and its plans
behind them        rings of 64 KiB for the last journal lines: one per participant, one for controllers
=================  =============================================================================

A word has a cache line to itself, so that a rank that stores its step does not slow its peers' reads
down, and so that no word can ever lie across two lines (such words tear). A heartbeat shares its line with
the words of :mod:`wsm.signals.presence`: the same participant writes them, and they are not polled.

The constant part of a segment: what it is and of which group. Written once, before any process sees it.

Everything that changes later (who owns it, the words) lies outside and has its own protection. The
checks go from what every build of wsm understands (magic, layout version) to what only this one does,
so that each mistake gets the error that names it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wsm.signals import errors
from wsm.signals.errors import SegmentTruncatedError

#: Grows with every change of what is where, or of what a word or a byte of the lock file means.
LAYOUT_VERSION = 8

LINE_BYTES = 64
WORD_BYTES = 8
PAGE_BYTES = 4096
HEADER_BYTES = 256
HEADER_LINES = HEADER_BYTES // LINE_BYTES
SLOT_BYTES = 16 * 1024
RING_BYTES = 64 * 1024

MAX_WORLD_SIZE = 1024
MAX_HELPERS = 64

_ARGUMENT_SLOTS = 2
_RECORD_SLOTS = 2
_GROUP_SLOTS = _ARGUMENT_SLOTS + 1 + _RECORD_SLOTS
_SUPERVISOR_OFFSET = 4  # words behind the owner's record, in the same line
_LINES_PER_PARTICIPANT = 4
_SLOTS_PER_PARTICIPANT = 4


#: Key of the owner's settings in their slot.
SETTINGS_KEY = (1, 0, 1)


@dataclass(frozen=True)
class Layout:
    """Indexes into ``segment.words`` (64-bit elements) and byte offsets of the slots; see :func:`layout_of`.

    Attributes
    ----------
    world_size, helpers, participants : int
        Ranks, participants without steps, and their sum. Helpers are numbered after the ranks.
    owner, supervisor, command, committed : int
        Index of the records of the owner, of the process that replaces ranks, and of the words.
    occupant, status, step, heartbeat : tuple of int
        One index per participant. A helper has a step word too, which is never written.
    arguments : tuple of int
        Byte offsets of the two slots for command arguments.
    settings : int
        Byte offset of the slot for what the owner says of the whole group.
    records : tuple of int
        Byte offsets of the two slots for what the group has committed.
    report, last_commit, error, plans : tuple of int
        Byte offsets of the slots of each participant.
    journal : tuple of int
        Byte offset of each participant's ring, and behind them that of the controllers'.
    total_bytes : int
        Length of the file.
    """

    world_size: int
    helpers: int
    participants: int
    owner: int
    supervisor: int
    command: int
    committed: int
    occupant: tuple[int, ...]
    status: tuple[int, ...]
    step: tuple[int, ...]
    heartbeat: tuple[int, ...]
    arguments: tuple[int, ...]
    settings: int
    records: tuple[int, ...]
    report: tuple[int, ...]
    last_commit: tuple[int, ...]
    error: tuple[int, ...]
    plans: tuple[int, ...]
    journal: tuple[int, ...]
    total_bytes: int


def layout_of(world_size: int, helpers: int = 0) -> Layout:
    """Lay out a segment for `world_size` ranks (1..1024) and `helpers` helpers (0..64).

    Raises
    ------
    BadInputError
        If one of them is out of range.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise errors.segment_shape(
            field="world size", value=world_size, limit=f"between 1 and {MAX_WORLD_SIZE}"
        )
    if not 0 <= helpers <= MAX_HELPERS:
        raise errors.segment_shape(
            field="number of helpers", value=helpers, limit=f"between 0 and {MAX_HELPERS}"
        )
    participants = world_size + helpers
    owner_line, command_line, committed_line, first_line = range(HEADER_LINES, HEADER_LINES + 4)
    end_line = first_line + participants * _LINES_PER_PARTICIPANT
    occupant, status, step, heartbeat = (
        tuple(_word_of(line) for line in range(first_line + place, end_line, _LINES_PER_PARTICIPANT))
        for place in range(_LINES_PER_PARTICIPANT)
    )
    slots_begin = -(-end_line * LINE_BYTES // PAGE_BYTES) * PAGE_BYTES
    rings_begin = slots_begin + (_GROUP_SLOTS + _SLOTS_PER_PARTICIPANT * participants) * SLOT_BYTES
    total_bytes = rings_begin + (participants + 1) * RING_BYTES
    slots = tuple(range(slots_begin, rings_begin, SLOT_BYTES))
    report, last_commit, error, plans = (
        slots[begin : begin + participants] for begin in range(_GROUP_SLOTS, len(slots), participants)
    )
    return Layout(
        world_size=world_size,
        helpers=helpers,
        participants=participants,
        owner=_word_of(owner_line),
        supervisor=_word_of(owner_line) + _SUPERVISOR_OFFSET,
        command=_word_of(command_line),
        committed=_word_of(committed_line),
        occupant=occupant,
        status=status,
        step=step,
        heartbeat=heartbeat,
        arguments=slots[:_ARGUMENT_SLOTS],
        settings=slots[_ARGUMENT_SLOTS],
        records=slots[_GROUP_SLOTS - _RECORD_SLOTS : _GROUP_SLOTS],
        report=report,
        last_commit=last_commit,
        error=error,
        plans=plans,
        journal=tuple(range(rings_begin, total_bytes, RING_BYTES)),
        total_bytes=total_bytes,
    )


def _word_of(line: int) -> int:
    return line * LINE_BYTES // WORD_BYTES


MAGIC = b"WSMGROUP"
MAX_RUN_ID_BYTES = 128

# magic, layout version, world size, helpers, run id length, total length, configuration digest, run id
_CONSTANT = struct.Struct(f"<8s4IQQ{MAX_RUN_ID_BYTES}s")
_CHECKSUM = struct.Struct("<I")


class Header(NamedTuple):
    """The facts of a group that never change while its segment exists.

    ``configuration_digest`` is an unsigned 64-bit digest of whatever all processes of the group must
    agree on; this package only compares it.
    """

    world_size: int
    helpers: int
    run_id: str
    configuration_digest: int

    def pack(self) -> bytes:
        """Return the bytes of the header, checksum included.

        Raises
        ------
        BadInputError
            If a field does not fit.
        """
        run_id = self.run_id.encode()
        if len(run_id) > MAX_RUN_ID_BYTES:
            raise errors.segment_shape(
                field="run id", value=self.run_id, limit=f"at most {MAX_RUN_ID_BYTES} bytes of UTF-8"
            )
        if not 0 <= self.configuration_digest < 1 << 64:
            raise errors.segment_shape(
                field="configuration digest",
                value=self.configuration_digest,
                limit="an unsigned 64-bit number",
            )
        constant = _CONSTANT.pack(
            MAGIC,
            LAYOUT_VERSION,
            self.world_size,
            self.helpers,
            len(run_id),
            layout_of(self.world_size, self.helpers).total_bytes,
            self.configuration_digest,
            run_id,
        )
        return constant + _CHECKSUM.pack(zlib.crc32(constant))

    @classmethod
    def unpack(cls, data: bytes, *, path: Path, file_bytes: int) -> Header:
        """Read the first bytes of the file `path`, which has `file_bytes` bytes.

        Raises
        ------
        BadInputError, SegmentTruncatedError
            If it is no segment, of another build, cut short, or damaged.
        """
        magic = data[: len(MAGIC)]
        if data and not MAGIC.startswith(magic):
            raise errors.not_a_segment(path=str(path), magic=magic)
        if len(data) < HEADER_BYTES:
            raise SegmentTruncatedError(path=str(path), size=file_bytes, needed_bytes=HEADER_BYTES)
        _, version, world_size, helpers, run_id_bytes, total, digest, run_id = _CONSTANT.unpack_from(data)
        if version != LAYOUT_VERSION:
            raise errors.layout_version_mismatch(path=str(path), found=version, expected=LAYOUT_VERSION)
        (found,) = _CHECKSUM.unpack_from(data, _CONSTANT.size)
        expected = zlib.crc32(data[: _CONSTANT.size])
        if found != expected:
            raise errors.header_damaged(path=str(path), found=found, expected=expected)
        # A build that forgot to count its layout up says what it needs, too.
        needed = max(total, layout_of(world_size, helpers).total_bytes)
        if file_bytes < needed:
            raise SegmentTruncatedError(path=str(path), size=file_bytes, needed_bytes=needed)
        return cls(world_size, helpers, run_id[:run_id_bytes].decode(), digest)
