"""Where a group's files lie, and what is where in its segment: words, header, payload slots and rings.

``DIRECTORY/wsm.NAME`` is the segment, with ``.lock`` its lock file, with ``.new`` the segment while its owner
still fills it. No name of a group ends so, or as an engine's files beside it (``.run``, ``.requests``).

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

A slot holds one payload under a key (epoch, sequence, kind). Writer and reader share no lock and no fence:
the reader copies what is there and believes it only if a checksum over key, length and bytes fits. So the
order in which the stores become visible does not matter, on aarch64 neither.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from wsm.errors import BadInputError
from wsm.journal.entry import RING_BYTES, Memory
from wsm.shared_directory import private_directory
from wsm.signals.errors import SegmentNameError, SegmentTruncatedError, SlotReusedError

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


# checksum, length, epoch, sequence, kind, and what keeps the bytes behind it aligned
_HEAD = struct.Struct("<5I4x")
_KEY = struct.Struct("<4I")

#: Bytes that fit into one slot.
SLOT_CAPACITY = SLOT_BYTES - _HEAD.size


class PayloadSlot:
    """The slot of a segment that begins at `offset`. One process writes it, any process reads it."""

    def __init__(self, memory: Memory, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._written: tuple[int, int, frozenset[int]] = (0, 0, frozenset())

    def write(self, epoch: int, sequence: int, kind: int, data: bytes) -> None:
        """Put `data` there for the key, whose numbers are 0..2**32-1; then store the word that announces it.

        Raises
        ------
        BadInputError, SlotReusedError
            If `data` does not fit; if this key was written already.
        """
        kinds = self._written[2] if self._written[:2] == (epoch, sequence) else frozenset()
        if kind in kinds or self.read(epoch, sequence, kind) is not None:
            raise SlotReusedError(
                f"a payload of kind {kind} was written already for epoch {epoch}, sequence {sequence}; "
                "this is a bug in wsm, please report it",
                epoch=epoch,
                sequence=sequence,
                kind=kind,
            )
        self.write_over(epoch, sequence, kind, data)
        self._written = (epoch, sequence, kinds | {kind})

    def write_over(self, epoch: int, sequence: int, kind: int, data: bytes) -> None:
        """As :meth:`write`, over what a writer left under the same key that died before its word said so."""
        if len(data) > SLOT_CAPACITY:
            raise BadInputError(
                f"a payload of {len(data)} bytes does not fit a slot of {SLOT_CAPACITY}; shorten it, "
                "or pass a path to it",
                code="payload-too-large",
                size=len(data),
                capacity=SLOT_CAPACITY,
            )
        head = _HEAD.pack(_checksum(epoch, sequence, kind, data), len(data), epoch, sequence, kind)
        begin = self._offset + _HEAD.size
        memory = self._memory.bytes
        memory[begin : begin + len(data)] = data
        memory[self._offset : begin] = head

    def read(self, epoch: int, sequence: int, kind: int) -> bytes | None:
        """Return a copy of what was written for the key.

        None if something else is there, nothing, or a write that is under way or was torn by the death of
        its writer. The caller retries until its own deadline or the writer's death.
        """
        last = self.last()
        return last[1] if last is not None and last[0] == (epoch, sequence, kind) else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return not any(self._memory.bytes[self._offset : self._offset + _HEAD.size])

    def last(self) -> tuple[tuple[int, int, int], bytes] | None:
        """Return the key and a copy of what was written last, as :meth:`read`."""
        begin = self._offset + _HEAD.size
        memory = self._memory.bytes
        checksum, length, epoch, sequence, kind = _HEAD.unpack(memory[self._offset : begin])
        if length > SLOT_CAPACITY or epoch == 0:  # nothing is ever written for epoch 0
            return None
        data = bytes(memory[begin : begin + length])
        return ((epoch, sequence, kind), data) if checksum == _checksum(epoch, sequence, kind, data) else None


def _checksum(epoch: int, sequence: int, kind: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_KEY.pack(epoch, sequence, kind, len(data))))


_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_MAX_NAME_LENGTH = 100
_KEPT_SUFFIXES = (".lock", ".new", ".run", ".requests")


def check_name(name: str) -> str:
    """Return `name` if it can name a segment.

    Raises
    ------
    SegmentNameError
        If it is empty, too long, no single path component, or ends as wsm's own companion files do.
    """
    if not name or len(name) > _MAX_NAME_LENGTH:
        raise SegmentNameError(name=name, reason=f"it has {len(name)} characters")
    if not _SANE.fullmatch(name):
        raise SegmentNameError(name=name, reason="it holds a character that is not allowed there")
    if name.endswith(_KEPT_SUFFIXES):
        raise SegmentNameError(name=name, reason="it ends as a companion file of another segment would")
    return name


def segment_path(name: str, directory: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the segment `name`, in `directory` or in the private directory of this user.

    Raises SegmentNameError; ForeignPathError if the private directory must not be used.
    """
    check_name(name)
    return (private_directory() if directory is None else Path(directory)) / f"wsm.{name}"


def lock_path(path: Path) -> Path:
    """Path of the lock file beside the segment `path`."""
    return path.with_name(path.name + ".lock")
