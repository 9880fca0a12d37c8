"""The 64-bit words of a group, packed and unpacked. Pure arithmetic: no memory, no states.

Whatever must be read consistently is in one word, because one aligned 64-bit load never tears and
two loads read as a pair do. Every field has a fixed width and refuses to wrap
(:class:`wsm.signals.errors.FieldOverflowError`). All words are unsigned and little-endian; a zero word
means "never written", which is why epochs start at 1.

=========  ======================================================================  ================
word       fields, from the most significant bit                                   written by
=========  ======================================================================  ================
command    spare 32, epoch 11, sequence 16, operation 5                            controller
committed  sequence 16, spare 7, version 40, present 1                             controller
status     epoch 11, sequence 16, spare 5, | sequence mod 32 5, weights 3, kv 3,   that participant
           ready 8, action 8, code 5
step       epoch 11, sequence 16, kind 2, step 35                                  that rank
=========  ======================================================================  ================

The low 32 bits of command and status, and the high 32 bits of step, change with every change that a
process waits for; a futex watches 32 bits (:mod:`wsm.signals.waiting`). The low five bits of a status'
sequence are repeated below the bar for that reason.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from wsm.states.errors import FieldOverflowError, WordFormatError

EPOCH_BITS = 11
SEQUENCE_BITS = 16
STEP_BITS = 35
VERSION_BITS = 40

MAX_EPOCH = (1 << EPOCH_BITS) - 1
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
MAX_STEP = (1 << STEP_BITS) - 1
MAX_VERSION = (1 << VERSION_BITS) - 1
MAX_ACTION = 254
#: The codes of ``WeightState`` and ``KVState`` in :mod:`wsm.states`, which this package does not import.
WEIGHT_CODES = range(-3, 3)
KV_CODES = range(-2, 2)


class Operation(enum.IntEnum):
    """What the command word asks for, or what was decided about it."""

    NONE = 0
    CLEAR = 1
    UPDATE = 2
    COMMIT = 3
    ABORT = 4
    HOT_UPDATE = 5
    HOT_COMMIT = 6
    HOT_ABORT = 7

    @property
    def is_decision(self) -> bool:
        """Whether the word carries a final decision."""
        return self in _DECISIONS

    @property
    def is_commit(self) -> bool:
        """Whether the decision is to serve the new version."""
        return self in (Operation.COMMIT, Operation.HOT_COMMIT)

    @property
    def is_abort(self) -> bool:
        """Whether the decision is against the command."""
        return self in (Operation.ABORT, Operation.HOT_ABORT)

    @property
    def is_hot(self) -> bool:
        """Whether new weights are staged beside the old ones while the group serves."""
        return self in (Operation.HOT_UPDATE, Operation.HOT_COMMIT, Operation.HOT_ABORT)


_DECISIONS = frozenset((Operation.COMMIT, Operation.ABORT, Operation.HOT_COMMIT, Operation.HOT_ABORT))


class StatusCode(enum.IntEnum):
    """How far a participant is with a sequence. Grows within one sequence; compare with ``>=``."""

    NONE = 0
    ATTACHED = 1  # in this epoch, no command seen yet
    DRAINING = 2  # saw the command, still stepping: until requests are drained, or a hot version is staged
    PARKING = 3  # stands at a step boundary, waits for the others
    ACCEPTED = 4  # all stand at the same boundary
    RUNNING = 5  # inside the action that the word names
    PREPARED = 6  # all that can fail is done; only a decision or a new epoch counts now
    FAILED = 7  # an action, a vote or a deadline failed; waits for the decision
    REFUSED = 8  # the command is illegal in this state; nothing was changed
    STOPPED_UNTOUCHED = 9  # saw ABORT, has stopped and undone; the old weights are whole
    STOPPED_TOUCHED = 10  # saw ABORT, has stopped; the weights are not whole
    DONE_KEPT = 11  # aborted; everything as before the command
    DONE_CLEARED = 12  # holds no weights
    DONE_COMMITTED = 13  # serves the new version
    DONE_FAULTED = 14  # a teardown failed; holds who knows what, serves nothing

    @property
    def is_terminal(self) -> bool:
        """Whether the participant is done with the sequence."""
        return self >= StatusCode.DONE_KEPT

    @property
    def is_failure(self) -> bool:
        """Whether the participant will never be PREPARED for the sequence (terminal codes aside)."""
        return StatusCode.FAILED <= self <= StatusCode.STOPPED_TOUCHED


def code_name(operation: Operation, code: StatusCode) -> str:
    """Return what people call a code: a rank that has seen a hot update and still steps is staging."""
    return "STAGING" if operation.is_hot and code is StatusCode.DRAINING else code.name


class StepKind(enum.IntEnum):
    """What a rank says in its step word."""

    PARKED = 0
    RUNNING = 1
    BROKEN = 2


class CommandWord(NamedTuple):
    """``(epoch, sequence, operation)``: what the controller asks, or has decided."""

    epoch: int
    sequence: int
    operation: Operation

    def pack(self) -> int:
        """Return the 64-bit value."""
        _check("epoch", self.epoch, MAX_EPOCH)
        _check("sequence", self.sequence, MAX_SEQUENCE)
        return self.epoch << 21 | self.sequence << 5 | self.operation

    @classmethod
    def unpack(cls, word: int) -> CommandWord:
        """Read the 64-bit value; a zero word is ``(0, 0, NONE)``.

        Raises
        ------
        WordFormatError
            If the operation is none that this build knows.
        """
        code = word & 0x1F
        if word >> 32 or code > Operation.HOT_ABORT:
            raise WordFormatError(kind="command", word=word)
        return cls((word >> 21) & MAX_EPOCH, (word >> 5) & MAX_SEQUENCE, Operation(code))


class CommittedWord(NamedTuple):
    """``(sequence, version)``: the last version that the whole group committed; version None: none yet."""

    sequence: int
    version: int | None

    def pack(self) -> int:
        """Return the 64-bit value."""
        _check("sequence", self.sequence, MAX_SEQUENCE)
        if self.version is None:
            return self.sequence << 48
        _check("version", self.version, MAX_VERSION)
        return self.sequence << 48 | self.version << 1 | 1

    @classmethod
    def unpack(cls, word: int) -> CommittedWord:
        """Read the 64-bit value.

        Raises
        ------
        WordFormatError
            If bits are set that this build never sets.
        """
        version = (word >> 1) & MAX_VERSION if word & 1 else None
        committed = cls(word >> 48, version)
        if committed.pack() != word:
            raise WordFormatError(kind="committed", word=word)
        return committed


class StatusWord(NamedTuple):
    """How far one participant is, and what it holds.

    ``action`` is the index of the action that it is in or failed in; ``ready`` is one more than the index
    of the last collective action that it voted for (0: none), kept by every later code of the same
    sequence, so that a vote that was given is never hidden by what came after it. ``weights`` and ``kv``
    are FastDeploy's signed state codes (-3..3).
    """

    epoch: int
    sequence: int
    code: StatusCode
    action: int = 0
    ready: int = 0
    weights: int = -2
    kv: int = -2

    def pack(self) -> int:
        """Return the 64-bit value."""
        _check("epoch", self.epoch, MAX_EPOCH)
        _check("sequence", self.sequence, MAX_SEQUENCE)
        _check("action", self.action, MAX_ACTION)
        _check("ready", self.ready, MAX_ACTION + 1)
        for state, codes in ((self.weights, WEIGHT_CODES), (self.kv, KV_CODES)):
            if state not in codes:
                raise FieldOverflowError(field="state code", value=state, limit=codes[-1])
        return (
            self.epoch << 53
            | self.sequence << 37
            | (self.sequence & 0x1F) << 27
            | (self.weights & 7) << 24
            | (self.kv & 7) << 21
            | self.ready << 13
            | self.action << 5
            | self.code
        )

    @classmethod
    def unpack(cls, word: int) -> StatusWord:
        """Read the 64-bit value.

        Raises
        ------
        WordFormatError
            If a code is none that this build knows, or the word contradicts itself.
        """
        code = word & 0x1F
        sequence = (word >> 37) & MAX_SEQUENCE
        repeated, spare = (word >> 27) & 0x1F, (word >> 32) & 0x1F
        weights, kv = _signed3(word >> 24), _signed3(word >> 21)
        known = code <= StatusCode.DONE_FAULTED and weights in WEIGHT_CODES and kv in KV_CODES
        if not known or repeated != sequence & 0x1F or spare:
            raise WordFormatError(kind="status", word=word)
        return cls(
            word >> 53,
            sequence,
            StatusCode(code),
            (word >> 5) & 0xFF,
            (word >> 13) & 0xFF,
            weights,
            kv,
        )


class StepWord(NamedTuple):
    """Where one rank stands between steps.

    RUNNING ``(epoch, last finished sequence, n)``: inside or past step n, not parked. PARKED ``(epoch,
    sequence, n)``: stands behind step n for that sequence. BROKEN ``(epoch, last finished sequence, n)``:
    step n raised, no further step in this epoch.
    """

    epoch: int
    sequence: int
    kind: StepKind
    step: int

    def pack(self) -> int:
        """Return the 64-bit value."""
        _check("epoch", self.epoch, MAX_EPOCH)
        _check("sequence", self.sequence, MAX_SEQUENCE)
        _check("step", self.step, MAX_STEP)
        return self.epoch << 53 | self.sequence << 37 | self.kind << 35 | self.step

    @classmethod
    def unpack(cls, word: int) -> StepWord:
        """Read the 64-bit value.

        Raises
        ------
        WordFormatError
            If the kind is none that this build knows.
        """
        kind = (word >> 35) & 3
        if kind > StepKind.BROKEN:
            raise WordFormatError(kind="step", word=word)
        return cls(word >> 53, (word >> 37) & MAX_SEQUENCE, StepKind(kind), word & MAX_STEP)


def _signed3(bits: int) -> int:
    value = bits & 7
    return value - 8 if value & 4 else value


def _check(field: str, value: int, limit: int) -> None:
    if not 0 <= value <= limit:
        raise FieldOverflowError(field=field, value=value, limit=limit)
