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
                   error and what it is at
behind them        rings of 64 KiB for the last journal lines: one per participant, one for controllers
=================  =============================================================================

A word has a cache line to itself, so that a rank that stores its step does not slow its peers' reads, and no
word lies across two lines (such words tear). A heartbeat shares its line with the words of
:mod:`wsm.signals.presence`. The header is written once, before any process sees it. Its checks go from what
every build of wsm understands (magic, layout version) to what only this one does.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from wsm.errors import BadInputError
from wsm.journal.lines import RING_BYTES
from wsm.signals.errors import SegmentTruncatedError

#: Grows with every change of what is where, or of what a word or a byte of the lock file means.
LAYOUT_VERSION = 11

LINE_BYTES = 64
WORD_BYTES = 8
PAGE_BYTES = 4096
HEADER_BYTES = 256
SLOT_BYTES = 16 * 1024

MAX_WORLD_SIZE = 1024
MAX_HELPERS = 64

_LINE = LINE_BYTES // WORD_BYTES
_HEADER_WORDS = HEADER_BYTES // WORD_BYTES
_GROUP_SLOTS = 5
_SUPERVISOR_OFFSET = 4  # words behind the owner's record, in the same line
_LINES_PER_PARTICIPANT = 4
_SLOTS_PER_PARTICIPANT = 4


class Layout:
    """Indexes into ``segment.words`` (64-bit elements) and byte offsets of the slots and rings.

    For 1 to 1024 ranks and 0 to 64 helpers (else BadInputError), who are numbered after the ranks. A tuple
    has one element per participant; `arguments` and `records` have two slots, and the controllers' ring
    stands last in `journal`. A helper has a step word too, which is never written.
    """

    def __init__(self, world_size: int, helpers: int = 0) -> None:
        if not 1 <= world_size <= MAX_WORLD_SIZE:
            raise _bad_shape("world size", world_size, f"between 1 and {MAX_WORLD_SIZE}")
        if not 0 <= helpers <= MAX_HELPERS:
            raise _bad_shape("number of helpers", helpers, f"between 0 and {MAX_HELPERS}")
        self.participants = participants = world_size + helpers
        self.owner = _HEADER_WORDS
        self.command, self.committed, first = (_HEADER_WORDS + line * _LINE for line in (1, 2, 3))
        self.supervisor = self.owner + _SUPERVISOR_OFFSET
        end = first + participants * _LINES_PER_PARTICIPANT * _LINE
        self.occupant, self.status, self.step, self.heartbeat = (
            tuple(range(first + place * _LINE, end, _LINES_PER_PARTICIPANT * _LINE))
            for place in range(_LINES_PER_PARTICIPANT)
        )
        slots_begin = -(-end * WORD_BYTES // PAGE_BYTES) * PAGE_BYTES
        rings_begin = slots_begin + (_GROUP_SLOTS + _SLOTS_PER_PARTICIPANT * participants) * SLOT_BYTES
        slots = tuple(range(slots_begin, rings_begin, SLOT_BYTES))
        self.arguments, self.settings, self.records = slots[:2], slots[2], slots[3:_GROUP_SLOTS]
        self.report, self.last_commit, self.error, self.at_hand = (
            slots[begin : begin + participants] for begin in range(_GROUP_SLOTS, len(slots), participants)
        )
        self.total_bytes = rings_begin + (participants + 1) * RING_BYTES
        self.journal = tuple(range(rings_begin, self.total_bytes, RING_BYTES))


def _bad_shape(field: str, value: object, limit: str) -> BadInputError:
    return BadInputError(
        f"{field} {value!r} is not {limit}; correct the configuration",
        code="segment-shape",
        field=field,
        value=value,
        limit=limit,
    )


MAGIC = b"WSMGROUP"
MAX_RUN_ID_BYTES = 128

# magic, layout version, world size, helpers, run id length, total length, configuration digest, run id
_CONSTANT = struct.Struct(f"<8s4IQQ{MAX_RUN_ID_BYTES}s")
_CHECKSUM = struct.Struct("<I")


class Header(NamedTuple):
    """The facts of a group that never change while its segment exists.

    The digest, unsigned 64 bits, is of whatever all processes of the group must agree on.
    """

    world_size: int
    helpers: int
    run_id: str
    configuration_digest: int

    @property
    def layout(self) -> Layout:
        """What is where in the segment."""
        return Layout(self.world_size, self.helpers)

    def pack(self) -> bytes:
        """Return the bytes of the header, checksum included; BadInputError if a field does not fit."""
        run_id = self.run_id.encode()
        if len(run_id) > MAX_RUN_ID_BYTES:
            raise _bad_shape("run id", self.run_id, f"at most {MAX_RUN_ID_BYTES} bytes of UTF-8")
        if not 0 <= self.configuration_digest < 1 << 64:
            raise _bad_shape("configuration digest", self.configuration_digest, "an unsigned 64-bit number")
        constant = _CONSTANT.pack(
            MAGIC,
            LAYOUT_VERSION,
            self.world_size,
            self.helpers,
            len(run_id),
            self.layout.total_bytes,
            self.configuration_digest,
            run_id,
        )
        return constant + _CHECKSUM.pack(zlib.crc32(constant))

    @classmethod
    def unpack(cls, data: bytes, *, path: Path, file_bytes: int) -> Header:
        """Read the first bytes of the file `path`, which has `file_bytes` bytes.

        Raises BadInputError or SegmentTruncatedError if it is no segment, of another build, cut short or
        damaged.
        """
        magic = data[: len(MAGIC)]
        if data and not MAGIC.startswith(magic):
            raise BadInputError(
                f"{path} begins with {magic!r} and is no segment of wsm; remove it, or use another name",
                code="not-a-segment",
                path=str(path),
                magic=magic,
            )
        if len(data) < HEADER_BYTES:
            raise SegmentTruncatedError(path=str(path), size=file_bytes, needed_bytes=HEADER_BYTES)
        _, version, world_size, helpers, run_id_bytes, total, digest, run_id = _CONSTANT.unpack_from(data)
        if version != LAYOUT_VERSION:
            raise BadInputError(
                f"{path} has layout version {version}, this build of wsm reads version {LAYOUT_VERSION}; "
                "run the same version of wsm in all processes of the group",
                code="layout-version-mismatch",
                path=str(path),
                found=version,
                expected=LAYOUT_VERSION,
            )
        (found,) = _CHECKSUM.unpack_from(data, _CONSTANT.size)
        expected = zlib.crc32(data[: _CONSTANT.size])
        if found != expected:
            raise BadInputError(
                f"the header of {path} is damaged (checksum {found:#010x}, its bytes give {expected:#010x}); "
                "stop what uses it, remove it and start again",
                code="header-damaged",
                path=str(path),
                found=found,
                expected=expected,
            )
        # A build that forgot to count its layout up says what it needs, too.
        needed = max(total, Layout(world_size, helpers).total_bytes)
        if file_bytes < needed:
            raise SegmentTruncatedError(path=str(path), size=file_bytes, needed_bytes=needed)
        return cls(world_size, helpers, run_id[:run_id_bytes].decode(), digest)
