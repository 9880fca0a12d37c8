"""What is where in a segment. Pure arithmetic on world size and helpers, the same in every process.

=================  =============================================================================
bytes              content
=================  =============================================================================
0 .. 255           constant header (:mod:`wsm.signals.header`)
256 .. 319         who owns the segment (:mod:`wsm.signals.identity`)
320 ..             one 64-byte line per word: command, committed, then per participant who it is
                   and its status, step and heartbeat words
next page ..       payload slots of 16 KiB: two for arguments, then per participant a report and an error
=================  =============================================================================

A word has a cache line to itself, so that a rank that stores its step does not slow its peers' reads
down, and so that no word can ever lie across two lines (such words tear).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wsm.signals.errors import SegmentShapeError

#: Grows with every change of what is where, or of what a word means.
LAYOUT_VERSION = 1

LINE_BYTES = 64
WORD_BYTES = 8
PAGE_BYTES = 4096
HEADER_BYTES = 256
SLOT_BYTES = 16 * 1024

MAX_WORLD_SIZE = 1024
MAX_HELPERS = 64

_ARGUMENT_SLOTS = 2
_LINES_PER_PARTICIPANT = 4


@dataclass(frozen=True)
class Layout:
    """Indexes into ``segment.words`` (64-bit elements) and byte offsets of the slots.

    Parameters
    ----------
    world_size : int
        Number of ranks, 1..1024.
    helpers : int
        Number of participants without steps, 0..64; they follow the ranks.

    Attributes
    ----------
    owner, command, committed : int
        Index of the owner's record and of the words.
    occupant, status, step, heartbeat : tuple of int
        One index per participant. A helper has a step word too, which nobody writes.
    arguments : tuple of int
        Byte offsets of the two slots for command arguments.
    report, error : tuple of int
        Byte offsets of the slots of each participant.
    total_bytes : int
        Length of the file.

    Raises
    ------
    SegmentShapeError
        If `world_size` or `helpers` is out of range.
    """

    world_size: int
    helpers: int = 0
    participants: int = field(init=False)
    owner: int = field(init=False)
    command: int = field(init=False)
    committed: int = field(init=False)
    occupant: tuple[int, ...] = field(init=False)
    status: tuple[int, ...] = field(init=False)
    step: tuple[int, ...] = field(init=False)
    heartbeat: tuple[int, ...] = field(init=False)
    arguments: tuple[int, ...] = field(init=False)
    report: tuple[int, ...] = field(init=False)
    error: tuple[int, ...] = field(init=False)
    total_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.world_size <= MAX_WORLD_SIZE:
            raise SegmentShapeError(
                field="world size", value=self.world_size, limit=f"between 1 and {MAX_WORLD_SIZE}"
            )
        if not 0 <= self.helpers <= MAX_HELPERS:
            raise SegmentShapeError(
                field="number of helpers", value=self.helpers, limit=f"between 0 and {MAX_HELPERS}"
            )
        set_once = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - frozen dataclass
        participants = self.world_size + self.helpers
        set_once("participants", participants)

        first_line = HEADER_BYTES // LINE_BYTES
        set_once("owner", _word_of(first_line))
        set_once("command", _word_of(first_line + 1))
        set_once("committed", _word_of(first_line + 2))
        first_own = first_line + 3
        for place, name in enumerate(("occupant", "status", "step", "heartbeat")):
            lines = range(first_own + place, first_own + place + participants * _LINES_PER_PARTICIPANT, 4)
            set_once(name, tuple(map(_word_of, lines)))

        words_end = (first_own + participants * _LINES_PER_PARTICIPANT) * LINE_BYTES
        slots_begin = -(-words_end // PAGE_BYTES) * PAGE_BYTES
        slots = _ARGUMENT_SLOTS + 2 * participants
        offsets = tuple(range(slots_begin, slots_begin + slots * SLOT_BYTES, SLOT_BYTES))
        set_once("arguments", offsets[:_ARGUMENT_SLOTS])
        set_once("report", offsets[_ARGUMENT_SLOTS : _ARGUMENT_SLOTS + participants])
        set_once("error", offsets[_ARGUMENT_SLOTS + participants :])
        set_once("total_bytes", slots_begin + slots * SLOT_BYTES)


def _word_of(line: int) -> int:
    return line * LINE_BYTES // WORD_BYTES
