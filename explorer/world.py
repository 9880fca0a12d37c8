"""One state of an explored group as a tuple of bytes: small, hashable, the same in every process.

``(controller, budgets, participant 0, participant 1, ...)``, ranks first, then helpers. The words are the
real packed ones, a participant's memory of the protocol is the real RankState, its machines are a real
JointState. The rest is what the world knows and the participant does not: which version really is in its
memory, which step and which collective action it is really inside. Knows how a world is taken apart, put
together and told from another; it knows no move.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import xxhash

from explorer.errors import RuleBrokenError, UnpackableError
from explorer.scope import Budget, Scope, Start
from wsm.committed_record import CommittedRecord, named_by
from wsm.states.epochs import first_epoch
from wsm.states.joint import START, JointState
from wsm.states.phases import Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.vocabulary import After, KVState, Tag, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

World = tuple[bytes, ...]

#: Where the first participant is.
FIRST = 2

#: What a command is about.
NOTHING, WEIGHTS, KV_CACHE = 0, 1, 2
BOTH = WEIGHTS | KV_CACHE
TAGS = {
    NOTHING: frozenset[Tag](),
    WEIGHTS: frozenset({Tag.WEIGHTS}),
    KV_CACHE: frozenset({Tag.KV_CACHE}),
    BOTH: frozenset(Tag),
}

#: What a command may leave of admission.
AFTERS = tuple(After)

_SERVING = JointState(WeightState.NORMAL, KVState.NORMAL)

Value = TypeVar("Value")

#: A packed tuple of booleans is one byte: a leading 1, then the booleans.
_MOST_BOOLEANS = 7


class Packing(Generic[Value]):
    """How the values of one dataclass become bytes: one byte per field.

    The protocol's own :class:`~wsm.states.phases.RankState` is packed by the fields that it has, so that
    a field that is added to it becomes part of every world by itself, and a value that the bytes cannot hold
    is an error, never a world that is taken for another one.

    Parameters
    ----------
    kind : type
        The dataclass; its fields are integers (-128..127), booleans, enumerations, optional integers
        (0..126), or tuples of at most seven booleans.
    """

    def __init__(self, kind: type[Value]) -> None:
        hints = get_type_hints(kind)
        self._kind = kind
        self._fields = [(field.name, _coder(hints[field.name])) for field in fields(kind)]  # type: ignore[arg-type]  # `kind` is a dataclass; there is no type for that

    def pack(self, value: Value) -> bytes:
        """Return the bytes of a value.

        Raises
        ------
        UnpackableError
            If a field's value does not fit.
        """
        found = bytearray()
        for name, (to_byte, _) in self._fields:
            part = getattr(value, name)
            byte = to_byte(part)
            if not 0 <= byte <= 0xFF:
                raise UnpackableError(field=name, value=part)
            found.append(byte)
        return bytes(found)

    def unpack(self, data: bytes) -> Value:
        """Return the value of what :meth:`pack` returned."""
        pairs = zip(self._fields, data, strict=True)
        return self._kind(**{name: from_byte(byte) for (name, (_, from_byte)), byte in pairs})


Coder = tuple[Callable[[Any], int], Callable[[int], Any]]


def _coder(hint: Any) -> Coder:
    if hint is bool:
        return int, bool
    if hint is int:
        return (lambda value: value + 0x80), (lambda byte: byte - 0x80)
    if hint == int | None:
        return (lambda value: 0 if value is None else value + 1), (lambda byte: byte - 1 if byte else None)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members: list[enum.Enum] = list(hint)
        places = {member: place for place, member in enumerate(members)}
        return places.__getitem__, members.__getitem__
    if hint == tuple[bool, ...]:
        return _booleans_to_byte, _byte_to_booleans
    raise UnpackableError(field="a field of this type", value=hint)


def _booleans_to_byte(values: tuple[bool, ...]) -> int:
    if len(values) > _MOST_BOOLEANS:
        return -1
    byte = 1
    for value in values:
        byte = byte << 1 | value
    return byte


def _byte_to_booleans(byte: int) -> tuple[bool, ...]:
    return tuple(digit == "1" for digit in f"{byte:b}"[1:])


# -- one participant -------------------------------------------------------------------------------


class Position(enum.IntEnum):
    """Where a process is."""

    FREE = 0  # in its loop
    IN_STEP = 1  # inside a step: it leaves when all have entered
    IN_ACTION = 2  # inside a collective action, likewise
    LEAVING = 3  # between the teardown of what it held in an epoch that has ended, and the next one


class Seen(NamedTuple):
    """A word that a reader goes on seeing as it was: which one (0: none), and how it was.

    Word 1 is the command word, 2 + 2i the step word and 3 + 2i the status word of participant i.
    """

    word: int = 0
    value: int = 0


COMMAND_WORD = 1


def step_word(index: int) -> int:
    """Return the number of a participant's step word."""
    return 2 + 2 * index


def status_word(index: int) -> int:
    """Return the number of a participant's status word."""
    return 3 + 2 * index


def word_name(word: int) -> str:
    """Say which word a number means."""
    if word == COMMAND_WORD:
        return "the command word"
    index, kind = divmod(word - step_word(0), 2)
    return f"{'status' if kind else 'step'} word {index}"


class Intent(NamedTuple):
    """What a process has decided to do and has not done yet (fine exploration only)."""

    todo: Todo = Todo.LOOK
    step: int = 0  # word to store; 0: none
    status: int = 0


class PublicState(NamedTuple):
    """What others can see of a participant, or meet in a step or a collective action."""

    step: int  # packed step word
    status: int  # packed status word
    alive: bool
    position: Position
    epoch: int
    entered_step: int
    step_version: int  # what it served in that step
    ran: int  # the last sequence that it accepted in this epoch
    phase: Phase
    entered_action: int  # 1 + number of the last collective action that it entered for that sequence
    loaded: int  # the version that it says it has prepared
    hung: bool  # it lives, and never looks again


class ParticipantState(NamedTuple):
    """One participant.

    Attributes
    ----------
    step, status : int
        Packed words in shared memory; they outlive the process.
    alive, hung : bool
        Whether there is a process; whether it never looks again.
    position : Position
        Where the process is.
    state : RankState
        What the process remembers of the protocol.
    joint : JointState
        Its machines.
    content : int
        Version of the weights in memory; 0: none, or not whole.
    staged : int
        Version that is staged beside them, verified; 0: none.
    loaded : int
        Version that it reports as prepared; 0: none.
    version : int
        Version that it says it serves; 0: none.
    blocks : int
        Version that computed what is in the KV cache; 0: nothing is.
    began, from_normal, torn, moved : bool
        The command at hand: whether its work was set up, whether the rank served then, whether a byte was
        released or written that nothing brings back, whether the machines have left the states of before.
    tags : int
        What the command at hand is about.
    had_kv, had_blocks : bool
        Whether there was a KV cache when its work was set up, and something in it.
    aside : bool
        Whether a hold has set requests aside.
    step_version, ran, entered_action : int
        See :class:`PublicState`.
    intent, seen
        See there.
    """

    step: int
    status: int
    alive: bool
    position: Position
    state: RankState
    joint: JointState = START
    content: int = 0
    staged: int = 0
    loaded: int = 0
    version: int = 0
    blocks: int = 0
    began: bool = False
    from_normal: bool = False
    torn: bool = False
    moved: bool = False
    tags: int = 0
    had_kv: bool = False
    had_blocks: bool = False
    aside: bool = False
    step_version: int = 0
    ran: int = 0
    entered_action: int = 0
    hung: bool = False
    intent: Intent = Intent()
    seen: Seen = Seen()


_STATE = Packing(RankState)
_PUBLIC = struct.Struct("<QQ9B")
_WORDS = struct.Struct("<QQ")
_PRIVATE = struct.Struct("<2BH5BQQBQ")

#: Bytes of a packed participant that others may look at.
PUBLIC_BYTES = _PUBLIC.size

#: Which of them tell the step that a participant has entered.
ENTERED_BYTES = slice(struct.calcsize("<QQBB"), struct.calcsize("<QQBBBBBB"))

#: Which of them tell whether it is, and in which step.
STEP_BYTES = slice(0, struct.calcsize("<Q"))
PRESENCE_BYTES = slice(struct.calcsize("<QQ"), struct.calcsize("<QQBBBB"))

#: Which of them are its two words; and those, with what a controller finds out besides.
WORD_BYTES = slice(0, struct.calcsize("<QQ"))
ALIVE_BYTE, LOADED_BYTE = struct.calcsize("<QQ"), _PUBLIC.size - 1

#: Where the protocol's memory begins, behind what is public and what is private to the world.
STATE_BYTES = slice(_PUBLIC.size + _PRIVATE.size, None)

#: Where a packed participant, and a packed controller, say which word is hidden from them.
SEEN_BYTE = _PUBLIC.size + struct.calcsize("<2BH5BQQ")
CONTROLLER_SEEN_BYTE = struct.calcsize("<QQBQQBBBQ6B8B")

_PHASES = list(Phase)
_TODOS = list(Todo)
_WEIGHTS = list(WeightState)
_KV = list(KVState)

#: RankState's first field is the rank itself, which the place in the world tells already.
_RANK_FIELD = 0


def pack(me: ParticipantState) -> bytes:
    """Return a participant as bytes: the same for every rank that is in the same situation."""
    state, joint = me.state, me.joint
    public = _PUBLIC.pack(
        me.step,
        me.status,
        me.alive | me.hung << 1,
        me.position,
        state.epoch,
        state.step,
        me.step_version,
        me.ran,
        _PHASES.index(state.phase),
        me.entered_action,
        me.loaded,
    )
    flags = me.began | me.from_normal << 1 | me.torn << 2 | joint.kv_stale << 3 | joint.held << 4
    flags |= me.moved << 5 | me.had_kv << 6 | me.tags << 7 | me.had_blocks << 9 | me.aside << 10
    private = _PRIVATE.pack(
        _WEIGHTS.index(joint.weights),
        _KV.index(joint.kv),
        flags,
        me.content,
        me.staged,
        me.version,
        me.blocks,
        _TODOS.index(me.intent.todo),
        me.intent.step,
        me.intent.status,
        *me.seen,
    )
    memory = bytearray(_STATE.pack(state))
    memory[_RANK_FIELD] = 0
    return public + private + bytes(memory)


@lru_cache(maxsize=1 << 18)
def unpack(data: bytes, index: int) -> ParticipantState:
    """Return the participant of what :func:`pack` returned, in the place of `index`."""
    public = read_public(data[:PUBLIC_BYTES])
    split = PUBLIC_BYTES + _PRIVATE.size
    private = _PRIVATE.unpack(data[PUBLIC_BYTES:split])
    weights, kv, flags, content, staged, version, blocks, todo, step, status, word, value = private
    state = bytearray(data[split:])
    state[_RANK_FIELD] = index + 0x80
    return ParticipantState(
        step=public.step,
        status=public.status,
        alive=public.alive,
        position=public.position,
        state=_STATE.unpack(bytes(state)),
        joint=JointState(_WEIGHTS[weights], _KV[kv], bool(flags & 8), bool(flags & 16)),
        content=content,
        staged=staged,
        loaded=public.loaded,
        version=version,
        blocks=blocks,
        began=bool(flags & 1),
        from_normal=bool(flags & 2),
        torn=bool(flags & 4),
        moved=bool(flags & 32),
        had_kv=bool(flags & 64),
        had_blocks=bool(flags & 512),
        aside=bool(flags & 1024),
        tags=flags >> 7 & BOTH,
        step_version=public.step_version,
        ran=public.ran,
        entered_action=public.entered_action,
        hung=public.hung,
        intent=Intent(_TODOS[todo], step, status),
        seen=Seen(word, value),
    )


@lru_cache(maxsize=1 << 18)
def read_public(data: bytes) -> PublicState:
    """Return what others can see of a packed participant, given its first :data:`PUBLIC_BYTES` bytes."""
    step, status, alive, position, epoch, entered, version, ran, phase, action, loaded = _PUBLIC.unpack(data)
    return PublicState(
        step,
        status,
        bool(alive & 1),
        Position(position),
        epoch,
        entered,
        version,
        ran,
        _PHASES[phase],
        action,
        loaded,
        bool(alive & 2),
    )


@lru_cache(maxsize=1 << 16)
def read_words(data: bytes) -> tuple[int, int]:
    """Return step word and status word of a packed participant, given its :data:`WORD_BYTES`."""
    step, status = _WORDS.unpack(data)
    return step, status


@lru_cache(maxsize=1 << 14)
def read_command(word: int) -> CommandWord:
    """Unpack a command word; the same few words come again and again."""
    return CommandWord.unpack(word)


@lru_cache(maxsize=1 << 14)
def read_step(word: int) -> StepWord:
    """Unpack a step word."""
    return StepWord.unpack(word)


@lru_cache(maxsize=1 << 16)
def read_status(word: int) -> StatusWord:
    """Unpack a status word."""
    return StatusWord.unpack(word)


# -- the controller --------------------------------------------------------------------------------


class Slot(NamedTuple):
    """A record of what was committed: with which sequence, which version (0: none), whether held, and how.

    The last is packed, as :mod:`explorer.admission` reads it.
    """

    sequence: int = 0
    version: int = 0
    held: bool = False
    hold: int = 0

    @property
    def record(self) -> CommittedRecord:
        """The record."""
        return _record(*self[:3])


@lru_cache(maxsize=1 << 16)
def _record(sequence: int, version: int, held: bool) -> CommittedRecord:
    return CommittedRecord(sequence, str(version) if version else None, hold={} if held else None)


def _slot(sequence: int, version: int, held: int, hold: int) -> Slot:
    return Slot(sequence, version, bool(held), hold)


class ControllerState(NamedTuple):
    """The controller's words, its process, and what the owner of the group remembers.

    Attributes
    ----------
    command, committed : int
        Packed words in shared memory.
    records : tuple of Slot
        The two slots for what was committed, in their order.
    version : int
        What the command's arguments name; stored before the word.
    alive : bool
        Whether a process holds, or could take, the controller role.
    driving : bool
        Whether it drives a command that is not over.
    gives_up : bool
        Whether it aborts what is not decided: it took over from one that died.
    pending : int
        The command word that it has decided to write (fine exploration only); 0: none.
    pending_version : int
        What goes with it.
    spoiled : bool
        Whether a controller died after it had stored the next command's arguments, so that the next command
        skips two sequences.
    recovering : bool
        Whether it has raised the epoch and keeps the role until the group is restored.
    before, pending_before : bool
        What the command's arguments say: whether the group served when it was admitted; and those of the word
        that is not written yet.
    tags, pending_tags : int
        What the command's arguments say it is about; likewise.
    clears_half : bool
        What the command's arguments say besides: whether it is a clear, of one half.
    restores, pending_restores : bool
        What the arguments say besides: whether the command restores what the group served before it lost a
        rank, or repairs a rank for that; likewise.
    failed, repaired : int
        What the owner remembers: how many attempts to restore the group have failed in this epoch, and how
        many to repair a FAULTED rank.
    repairs : bool
        Whether the command that it drives is such a repair.
    replaces : bool
        Whether the owner ends the processes of FAULTED ranks, since clearing them again did not help.
    gave_up : bool
        Whether the owner recovers the group no more: a participant that is gone stays away.
    owed : int
        What no process knows, and a rule asks for: the version that the group must serve if an epoch ends
        now; 0: none.
    stopped : int
        Only where a seeded fault lets a process write beside one that lives: the command word that is still
        meant to be written.
    left : bool
        Whether its process died, and no other controller follows: the group ends what is open by itself.
    ending : bool
        Whether a process of the group has the role, to do so.
    frozen : bool
        Whether its process is stopped, with the role, and may go on at any time or never.
    after, pending_after : int
        What the command's arguments say it leaves of admission, as a place in :data:`AFTERS`; likewise.
    hold, pending_hold : int
        The hold that the command's arguments begin, packed (:mod:`explorer.admission`); 0: none; likewise.
    policy, pending_policy : int
        What they say about requests; likewise.
    holds : int
        How many holds were asked for, where they are told from each other.
    closed : bool
        What no process knows, and a rule asks for: whether a hold was decided last, and no end of it.
    stands : int
        Nor that: which hold, packed; 0: none.
    orphaned : bool
        What no process knows either: whether who gave the open command is gone.
    lapsed, saw_lapse : bool
        Whether the lease of the hold has run out; whether the process that keeps the group has seen that.
    says_commit, says_abort : bool
        What was said by who decides the command, where its controller does not. A caller says it to its own
        process, and with that it is gone; what is said outside stays.
    voted : bool
        Whether who decides outside, or by a lease, was told that all are PREPARED.
    leased, lease_over : bool
        Whether the arguments say that a lease holds the decision; whether that is over.
    seen : Seen
        A status word that it goes on seeing as it was.
    """

    command: int
    committed: int
    version: int
    alive: bool = True
    driving: bool = False
    gives_up: bool = False
    pending: int = 0
    pending_version: int = 0
    spoiled: bool = False
    recovering: bool = False
    before: bool = False
    pending_before: bool = False
    tags: int = BOTH
    pending_tags: int = BOTH
    clears_half: bool = False
    restores: bool = False
    pending_restores: bool = False
    failed: int = 0
    repaired: int = 0
    repairs: bool = False
    replaces: bool = False
    gave_up: bool = False
    owed: int = 0
    stopped: int = 0
    left: bool = False
    ending: bool = False
    frozen: bool = False
    after: int = 0
    pending_after: int = 0
    hold: int = 0
    pending_hold: int = 0
    policy: int = 0
    pending_policy: int = 0
    holds: int = 0
    closed: bool = False
    stands: int = 0
    orphaned: bool = False
    lapsed: bool = False
    saw_lapse: bool = False
    says_commit: bool = False
    says_abort: bool = False
    voted: bool = False
    leased: bool = False
    lease_over: bool = False
    records: tuple[Slot, Slot] = (Slot(), Slot())
    seen: Seen = Seen()


_CONTROLLER = struct.Struct("<QQBQQBBBQ6B8BBQ")

#: How many bits count the attempts to restore that failed.
_FAILED_BITS = 4

#: Packed into one bit each, in this order.
_FLAGS = tuple(name for name, default in ControllerState._field_defaults.items() if isinstance(default, bool))


@lru_cache(maxsize=1 << 17)
def pack_controller(controller: ControllerState) -> bytes:
    """Return a controller as bytes."""
    flags = (controller.failed | controller.repaired << _FAILED_BITS) << len(_FLAGS)
    for bit, name in enumerate(_FLAGS):
        flags |= getattr(controller, name) << bit
    return _CONTROLLER.pack(
        controller.command,
        controller.committed,
        controller.version,
        flags,
        controller.pending,
        controller.pending_version,
        controller.owed,
        controller.tags
        | controller.pending_tags << 2
        | controller.after << 4
        | controller.pending_after << 6,
        controller.stopped,
        controller.hold,
        controller.pending_hold,
        controller.policy,
        controller.pending_policy,
        controller.holds,
        controller.stands,
        *controller.records[0],
        *controller.records[1],
        *controller.seen,
    )


@lru_cache(maxsize=1 << 17)
def unpack_controller(data: bytes) -> ControllerState:
    """Return the controller of what :func:`pack_controller` returned."""
    command, committed, version, flags, pending, pending_version, owed, *rest = _CONTROLLER.unpack(data)
    tags, stopped, hold, pending_hold, policy, pending_policy, holds, stands, *slots, word, value = rest
    return ControllerState(
        command,
        committed,
        version,
        pending=pending,
        pending_version=pending_version,
        failed=flags >> len(_FLAGS) & (1 << _FAILED_BITS) - 1,
        repaired=flags >> len(_FLAGS) + _FAILED_BITS,
        tags=tags & BOTH,
        pending_tags=tags >> 2 & BOTH,
        after=tags >> 4 & 3,
        pending_after=tags >> 6,
        owed=owed,
        stopped=stopped,
        hold=hold,
        pending_hold=pending_hold,
        policy=policy,
        pending_policy=pending_policy,
        holds=holds,
        stands=stands,
        records=(_slot(*slots[:4]), _slot(*slots[4:])),
        seen=Seen(word, value),
        **{name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)},
    )


class Alternative(NamedTuple):
    """One thing that a participant, or the controller, can do next.

    Attributes
    ----------
    label : str
        What happens, as the rest of a sentence that begins with a name.
    after : bytes
        What becomes of it, packed; empty if the move breaks a rule.
    spends : tuple of Budget
        What pays for it; empty: it happens by itself.
    broken : str
        Which rule it breaks, and how; empty: none.
    changed : tuple of (int, int)
        Which words it stores, each with what it said before.
    """

    label: str
    after: bytes
    spends: tuple[Budget, ...] = ()
    broken: str = ""
    changed: tuple[tuple[int, int], ...] = ()


# -- the whole group -------------------------------------------------------------------------------


def first_worlds(scope: Scope) -> Iterator[World]:
    """Iterate over the worlds in which an exploration begins."""
    budgets = bytes(scope.budget(budget) for budget in Budget)
    for start in scope.starts:
        serving = start is Start.SERVING
        command = first_epoch() if not serving else CommandWord(1, 0, Operation.NONE)
        record = CommittedRecord(0, "1" if serving else None)
        controller = ControllerState(
            command.pack(),
            record.word.pack(),
            int(serving),
            owed=int(serving),
            records=(Slot(0, int(serving)), Slot()),
        )
        people = [_at_first(index, scope, start) for index in range(scope.participants)]
        yield (pack_controller(controller), budgets, *(pack(each) for each in people))


def _at_first(index: int, scope: Scope, start: Start) -> ParticipantState:
    if start is Start.EMPTY:
        unused = RankState(rank=index, epoch=0, steps=index < scope.ranks)
        return ParticipantState(0, 0, alive=False, position=Position.FREE, state=unused)
    serving, steps = start is Start.SERVING, index < scope.ranks
    weights, kv = (0, 0) if serving else (-2, -2)
    kind = StepKind.RUNNING if serving else StepKind.PARKED
    return ParticipantState(
        StepWord(1, 0, kind, 0).pack() if steps else 0,
        StatusWord(1, 0, StatusCode.ATTACHED, weights=weights, kv=kv).pack(),
        alive=True,
        position=Position.FREE,
        state=RankState(
            rank=index,
            epoch=1,
            holds=serving,
            weights=weights,
            kv=kv,
            parked=not serving or not steps,
            steps=steps,
        ),
        joint=_SERVING if serving else START,
        content=int(serving),
        version=int(serving),
    )


def controller_of(world: World) -> ControllerState:
    """Return the controller."""
    return unpack_controller(world[0])


def participant(world: World, index: int) -> ParticipantState:
    """Return one participant."""
    return unpack(world[FIRST + index], index)


def all_participants(world: World) -> list[ParticipantState]:
    """Return all participants."""
    return [participant(world, index) for index in range(len(world) - FIRST)]


def view_of(
    controller: ControllerState, others: Sequence[PublicState | ParticipantState], ranks: int
) -> View:
    """Return what the controller reads now."""
    hidden, value = controller.seen
    return View(
        read_command(controller.command),
        [read_step(other.step) for other in others[:ranks]],
        [
            read_status(value if hidden == status_word(index) else other.status)
            for index, other in enumerate(others)
        ],
        CommittedWord.unpack(controller.committed),
    )


def label_of(version: int | None) -> str | None:
    """Return the label of a version of the world, which counts them; 0 and None: there is none."""
    return str(version) if version else None


def committed_version(controller: ControllerState) -> int | None:
    """Return the version that the group has committed, as word and records say; None: none.

    Raises
    ------
    RuleBrokenError
        If the word names a record that is not there.
    """
    word = CommittedWord.unpack(controller.committed)
    place = named_by(word, [slot.record for slot in controller.records])
    if place is not None:
        return controller.records[place].version or None
    if word.version_id is None:
        return None
    raise RuleBrokenError(
        rule="what a group has committed is known, whenever a process dies",
        seen=f"its committed word names a record of sequence {word.sequence}, and the slots hold "
        f"{controller.records}",
    )


def hold_byte_of(controller: ControllerState) -> int:
    """Return the hold that the group stands under, packed, as its record says; 0: none."""
    word = CommittedWord.unpack(controller.committed)
    place = named_by(word, [slot.record for slot in controller.records])
    return 0 if place is None else controller.records[place].hold


@lru_cache(maxsize=1 << 14)
def affordable(budgets: bytes) -> frozenset[Budget]:
    """Return the budgets of which something is left."""
    return frozenset(budget for budget in Budget if budgets[budget])


@lru_cache(maxsize=1 << 14)
def spent(budgets: bytes, budget: Budget) -> bytes:
    """Return the budgets after one of them was spent once."""
    rest = bytearray(budgets)
    rest[budget] -= 1
    return bytes(rest)


def fingerprint(world: World) -> int:
    """Return 64 bits that tell a world from every other one, but for one chance in many millions."""
    return xxhash.xxh3_64_intdigest(b"".join(world))


class Symmetry:
    """Ranks have no names: worlds that differ only in the order of their ranks have one representative.

    Where words are hidden, some such worlds may stay apart: that costs time, and hides nothing.

    Parameters
    ----------
    scope : Scope
        Whether that is wanted, and how many ranks there are.
    """

    def __init__(self, scope: Scope) -> None:
        self._ranks = scope.ranks if scope.symmetric else 1
        self._end = FIRST + self._ranks

    def representative(self, world: World) -> World:
        """Return the world that counts for all of them."""
        if self._ranks == 1:
            return world
        ranks = world[FIRST : self._end]
        if world[0][CONTROLLER_SEEN_BYTE] > COMMAND_WORD or any(
            each[SEEN_BYTE] > COMMAND_WORD for each in world[FIRST:]
        ):
            return self._renamed(world)
        return (*world[:FIRST], *sorted(ranks), *world[self._end :])

    def _renamed(self, world: World) -> World:
        """Sort the ranks by what they are themselves, and call them by their new names in what they see."""
        order = sorted(range(self._ranks), key=lambda rank: _without_hidden_word(world[FIRST + rank]))
        new_names = {old: new for new, old in enumerate(order)}
        people = [_with_new_names(each, SEEN_BYTE, new_names) for each in world[FIRST:]]
        return (
            _with_new_names(world[0], CONTROLLER_SEEN_BYTE, new_names),
            world[1],
            *(people[old] for old in order),
            *people[self._ranks :],
        )


def _without_hidden_word(packed: bytes) -> tuple[bytes, bytes]:
    """Return a packed participant without the name of whose word is hidden from it."""
    return packed[:SEEN_BYTE], packed[SEEN_BYTE + 1 :]


def _with_new_names(packed: bytes, place: int, new_names: dict[int, int]) -> bytes:
    word = packed[place]
    if word <= COMMAND_WORD:
        return packed
    owner, kind = divmod(word - step_word(0), 2)
    renamed = step_word(new_names.get(owner, owner)) + kind
    return packed[:place] + bytes([renamed]) + packed[place + 1 :]
