"""What is where in a segment. Pure arithmetic on world size and helpers, the same in every process.

=================  =============================================================================
bytes              content
=================  =============================================================================
0 .. 255           constant header (:mod:`wsm.signals.header`)
256 .. 319         who owns the segment, and who replaces its ranks (:mod:`wsm.signals.identity`)
320 ..             one 64-byte line per word: command, committed, then per participant who it is
                   and its status, step and heartbeat words
next page ..       payload slots of 16 KiB: two for arguments, one for the owner's settings, then per
                   participant a report, what it committed last, an error and its plans
behind them        rings of 64 KiB for the last journal lines: one per participant, one for controllers
=================  =============================================================================

A word has a cache line to itself, so that a rank that stores its step does not slow its peers' reads
down, and so that no word can ever lie across two lines (such words tear). A heartbeat shares its line with
the words of :mod:`wsm.signals.presence`: the same participant writes them, and nobody polls them.
"""

from __future__ import annotations

from dataclasses import dataclass

from wsm.signals import errors

#: Grows with every change of what is where, or of what a word or a byte of the lock file means.
LAYOUT_VERSION = 5

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
_GROUP_SLOTS = _ARGUMENT_SLOTS + 1
_SUPERVISOR_OFFSET = 4  # words behind the owner's record, in the same line
_LINES_PER_PARTICIPANT = 4
_SLOTS_PER_PARTICIPANT = 4


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
        One index per participant. A helper has a step word too, which nobody writes.
    arguments : tuple of int
        Byte offsets of the two slots for command arguments.
    settings : int
        Byte offset of the slot for what the owner says of the whole group.
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
        report=report,
        last_commit=last_commit,
        error=error,
        plans=plans,
        journal=tuple(range(rings_begin, total_bytes, RING_BYTES)),
        total_bytes=total_bytes,
    )


def _word_of(line: int) -> int:
    return line * LINE_BYTES // WORD_BYTES
