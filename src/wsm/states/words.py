"""The 64-bit words of a group, packed and unpacked. Pure arithmetic: no memory, no states.

Whatever must be read consistently is in one word, because one aligned 64-bit load never tears and
two loads read as a pair do. Every field has a fixed width and refuses to wrap
(:class:`wsm.states.errors.FieldOverflowError`). All words are unsigned and little-endian; a zero word
means "never written", which is why epochs start at 1.

=========  ======================================================================  ================
word       fields, from the most significant bit                                   written by
=========  ======================================================================  ================
command    spare 22, epoch 11, sequence 24, decider 2, owes 1, operation 4         controller
committed  sequence 24, held 1, version id 38, present 1                           controller
status     spare 2, epoch 11, sequence 24, weights 3, kv 3, ready 8, action 8,     that participant
           code 5
step       sequence 24, kind 2, epoch mod 64 6, | epoch div 64 5, step 27          that rank
=========  ======================================================================  ================

The low 32 bits of command and status, and the high 32 bits of step, change with every change that a
process waits for; a futex watches 32 bits (:mod:`wsm.signals.waiting`). So they hold the low five bits of a
status' sequence, the lowest bit of a command's epoch, and the low bits of a step's epoch.

**Steps have no end.** A rank counts them without a limit; its word has the number modulo 2**27. Ranks of one
epoch are a few steps apart, so of two such numbers the later one is known (:func:`steps_ahead`).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from wsm.errors import InternalError
from wsm.labels import VERSION_ID_BITS
from wsm.states.errors import FieldOverflowError, WordFormatError

EPOCH_BITS = 11
SEQUENCE_BITS = 24
STEP_BITS = 27

MAX_EPOCH = (1 << EPOCH_BITS) - 1
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
#: The largest number of a step in a word; the one behind it is 0 again.
MAX_STEP = (1 << STEP_BITS) - 1
MAX_VERSION_ID = (1 << VERSION_ID_BITS) - 1
MAX_ACTION = 254
#: The codes of ``WeightState`` and ``KVState`` in :mod:`wsm.states`, which this package does not import.
WEIGHT_CODES = range(-3, 3)
KV_CODES = range(-2, 2)

#: Of which fields of these words a journal's inputs are made; inputs of other ones cannot be run again.
WORDS_VERSION = 3

_LOW_EPOCH_BITS = 6
_HALF_OF_STEPS = 1 << (STEP_BITS - 1)
#: Three bits as a signed number.
_SIGNED = (0, 1, 2, 3, -4, -3, -2, -1)


#: Of the sequences of a segment so many are kept for what ends and restores its last commands.
KEPT_SEQUENCES = 1 << 12

#: From so few sequences on every status says that the group is to be started anew.
FEW_SEQUENCES = 1 << 20


class Decider(enum.IntEnum):
    """Who decides a command, and what may be done in its place once it is gone."""

    CONTROLLER = 0  # the process that wrote the command; its successor, in its place
    CALLER = 1  # the caller of that process, once all are PREPARED


def step_in_word(step: int) -> int:
    """Return the number under which a step that was counted without end stands in a word."""
    return step & MAX_STEP


def steps_ahead(one: int, other: int) -> int:
    """Return how many steps `one` is ahead of `other`, negative if it is behind.

    Both are numbers in words, or counted without end. Exact while they are less than 2**26 steps apart.
    """
    return ((one - other + _HALF_OF_STEPS) & MAX_STEP) - _HALF_OF_STEPS


class Operation(enum.IntEnum):
    """What the command word asks for, or what was decided about it.

    `is_open`: whether it asks for something that is not decided yet. `is_hot`: whether new weights are staged
    beside the old ones while the group serves. `is_of_admission`: whether the group is asked to stand still
    or to go on, and moves nothing in memory.
    """

    is_decision: bool
    is_open: bool
    is_commit: bool
    is_abort: bool
    is_hot: bool
    is_of_admission: bool

    NONE = 0
    CLEAR = 1
    UPDATE = 2
    COMMIT = 3
    ABORT = 4
    HOT_UPDATE = 5
    HOT_COMMIT = 6
    HOT_ABORT = 7
    HOLD = 8
    RELEASE = 9

    @property
    def phrase(self) -> str:
        """What errors and logs call it."""
        return self.name.lower().replace("_", " ")


#: What follows from an operation is kept on it: a rank asks at every look.
for _each in Operation:
    _each.is_commit = _each in (Operation.COMMIT, Operation.HOT_COMMIT)
    _each.is_abort = _each in (Operation.ABORT, Operation.HOT_ABORT)
    _each.is_decision = _each.is_commit or _each.is_abort
    _each.is_open = not (_each.is_decision or _each is Operation.NONE)
    _each.is_hot = _each in (Operation.HOT_UPDATE, Operation.HOT_COMMIT, Operation.HOT_ABORT)
    _each.is_of_admission = _each in (Operation.HOLD, Operation.RELEASE)

_LAST_OPERATION = max(Operation)


class StatusCode(enum.IntEnum):
    """How far a participant is with a sequence. Grows within one sequence; compare with ``>=``.

    `is_terminal`: whether the participant is done with the sequence. `is_failure`: whether the participant
    will never be PREPARED for the sequence (terminal codes aside).
    """

    is_terminal: bool
    is_failure: bool

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


for _code in StatusCode:
    _code.is_terminal = _code >= StatusCode.DONE_KEPT
    _code.is_failure = StatusCode.FAILED <= _code <= StatusCode.STOPPED_TOUCHED


def code_name(operation: Operation, code: StatusCode) -> str:
    """Return what people call a code: a rank that has seen a hot update and still steps is staging."""
    return "STAGING" if operation.is_hot and code is StatusCode.DRAINING else code.name


def is_at_work(status: int) -> bool:
    """Whether a status word says only that its participant goes on, which decides nothing."""
    return StatusCode.DRAINING <= status & 0x1F <= StatusCode.RUNNING


class StepKind(enum.IntEnum):
    """What a rank says in its step word."""

    PARKED = 0
    RUNNING = 1
    BROKEN = 2


class CommandWord(NamedTuple):
    """``(epoch, sequence, operation, decider)``: what the controller asks, or what was decided.

    ``owes``: whether the group is owed its committed version behind this command, unless that commits an
    update (:func:`wsm.states.epochs.unrestored`).
    """

    epoch: int
    sequence: int
    operation: Operation
    decider: Decider = Decider.CONTROLLER
    owes: bool = False

    @property
    def commands_left(self) -> int:
        """How many commands callers may give behind this one, in this segment."""
        return max(MAX_SEQUENCE - KEPT_SEQUENCES - self.sequence, 0)

    def pack(self) -> int:
        """Return the 64-bit value."""
        if self.epoch >> EPOCH_BITS or self.sequence >> SEQUENCE_BITS:
            raise _overflow(epoch=(self.epoch, MAX_EPOCH), sequence=(self.sequence, MAX_SEQUENCE))
        return self.epoch << 31 | self.sequence << 7 | self.decider << 5 | self.owes << 4 | self.operation

    @classmethod
    def unpack(cls, word: int) -> CommandWord:
        """Read the 64-bit value; a zero word is ``(0, 0, NONE, CONTROLLER)``.

        Raises
        ------
        WordFormatError
            If operation or decider is none that this build knows.
        """
        code, decider = word & 0xF, (word >> 5) & 3
        if word >> 42 or code > _LAST_OPERATION or decider > Decider.CALLER:
            raise WordFormatError(kind="command", word=word)
        return cls(
            (word >> 31) & MAX_EPOCH,
            (word >> 7) & MAX_SEQUENCE,
            Operation(code),
            Decider(decider),
            bool(word >> 4 & 1),
        )


class CommittedWord(NamedTuple):
    """``(sequence, version_id, held)``: what the whole group committed last; version_id None: no version.

    The id stands for the version's label (:func:`wsm.labels.version_id`); the label itself is in the record
    that the word names (:mod:`wsm.committed_record`). ``held``: whether the group is to stand still although
    it has what a step needs.
    """

    sequence: int
    version_id: int | None
    held: bool = False

    def pack(self) -> int:
        """Return the 64-bit value."""
        named = self.version_id or 0
        if self.sequence >> SEQUENCE_BITS or named >> VERSION_ID_BITS:
            raise _overflow(sequence=(self.sequence, MAX_SEQUENCE), version_id=(named, MAX_VERSION_ID))
        return self.sequence << 40 | self.held << 39 | named << 1 | (self.version_id is not None)

    @classmethod
    def unpack(cls, word: int) -> CommittedWord:
        """Read the 64-bit value.

        Raises
        ------
        WordFormatError
            If bits are set that this build never sets.
        """
        version_id = (word >> 1) & MAX_VERSION_ID if word & 1 else None
        committed = cls(word >> 40, version_id, bool(word >> 39 & 1))
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
        epoch, sequence, code, action, ready, weights, kv = self
        fits = not (epoch >> EPOCH_BITS or sequence >> SEQUENCE_BITS or ready >> 8)
        if not (fits and 0 <= action <= MAX_ACTION):
            of_word = {"epoch": (epoch, MAX_EPOCH), "sequence": (sequence, MAX_SEQUENCE)}
            raise _overflow(**of_word, action=(action, MAX_ACTION), ready=(ready, MAX_ACTION + 1))
        if weights not in WEIGHT_CODES or kv not in KV_CODES:
            value, codes = (weights, WEIGHT_CODES) if weights not in WEIGHT_CODES else (kv, KV_CODES)
            raise FieldOverflowError(field="state code", value=value, limit=codes[-1])
        return (
            epoch << 51
            | sequence << 27
            | (weights & 7) << 24
            | (kv & 7) << 21
            | ready << 13
            | action << 5
            | code
        )

    @classmethod
    def unpack(cls, word: int) -> StatusWord:
        """Read the 64-bit value.

        Raises
        ------
        WordFormatError
            If a code or an action is none that this build knows.
        """
        code, action = word & 0x1F, word >> 5 & 0xFF
        weights, kv = _SIGNED[word >> 24 & 7], _SIGNED[word >> 21 & 7]
        known = code <= StatusCode.DONE_FAULTED and weights in WEIGHT_CODES and kv in KV_CODES
        if not known or action > MAX_ACTION or word >> 62:
            raise WordFormatError(kind="status", word=word)
        return cls(
            word >> 51,
            (word >> 27) & MAX_SEQUENCE,
            StatusCode(code),
            action,
            (word >> 13) & 0xFF,
            weights,
            kv,
        )


class StepWord(NamedTuple):
    """Where one rank stands between steps.

    RUNNING ``(epoch, last finished sequence, n)``: inside or past step n, not parked. PARKED ``(epoch,
    sequence, n)``: stands behind step n for that sequence. BROKEN ``(epoch, last finished sequence, n)``:
    step n raised, no further step in this epoch. The number of the step is that of :func:`step_in_word`.
    """

    epoch: int
    sequence: int
    kind: StepKind
    step: int

    def pack(self) -> int:
        """Return the 64-bit value."""
        if self.epoch >> EPOCH_BITS or self.sequence >> SEQUENCE_BITS or self.step >> STEP_BITS:
            of_word = {"epoch": (self.epoch, MAX_EPOCH), "sequence": (self.sequence, MAX_SEQUENCE)}
            raise _overflow(**of_word, step=(self.step, MAX_STEP))
        high, low = divmod(self.epoch, 1 << _LOW_EPOCH_BITS)
        return self.sequence << 40 | self.kind << 38 | low << 32 | high << 27 | self.step

    @classmethod
    def unpack(cls, word: int) -> StepWord:
        """Read the 64-bit value.

        Raises
        ------
        WordFormatError
            If the kind is none that this build knows.
        """
        kind = (word >> 38) & 3
        if kind > StepKind.BROKEN:
            raise WordFormatError(kind="step", word=word)
        epoch = (word >> 27 & 0x1F) << _LOW_EPOCH_BITS | (word >> 32 & 0x3F)
        return cls(epoch, word >> 40, StepKind(kind), word & MAX_STEP)


def _overflow(**fields: tuple[int, int]) -> FieldOverflowError:
    for field, (value, limit) in fields.items():
        if not 0 <= value <= limit:
            return FieldOverflowError(field=field.replace("_", " "), value=value, limit=limit)
    raise InternalError(f"each of {fields} fits into its word")
