"""One state of an explored group as a tuple of bytes: small, hashable, the same in every process.

``(controller, budgets, participant 0, participant 1, ...)``, ranks first, then helpers. The words are the
real packed ones, a participant's memory of the protocol is the real RankState, its machines are a real
JointState. The rest is what the world knows and the participant does not: which version really is in its
memory, which step and which collective action it is really inside. msgspec packs all of it by its types, so
that a field that is added to RankState becomes part of every world. Knows how a world is taken apart, put
together and told from another; it knows no move.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import xxhash
from msgspec import msgpack

from explorer.errors import RuleBrokenError
from explorer.scope import Budget, Scope, Start
from wsm.committed_record import CommittedRecord, named_by
from wsm.states.command_events import Asked
from wsm.states.epochs import first_epoch
from wsm.states.holding import UNKNOWN_HOLD
from wsm.states.joint import START, JointState
from wsm.states.phases import Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, KVState, Tag, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

World = tuple[bytes, ...]

#: Where the first participant is.
FIRST = 2

#: What a command is about: tags in their order, for sets have none.
Tags = tuple[Tag, ...]
NOTHING: Tags = ()
WEIGHTS: Tags = (Tag.WEIGHTS,)
KV_CACHE: Tags = (Tag.KV_CACHE,)
BOTH: Tags = tuple(Tag)

_SERVING = JointState(WeightState.NORMAL, KVState.NORMAL)

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
    meanwhile: Todo = Todo.WAIT


class PublicState(NamedTuple):
    """What others can see of a participant, or meet in a step or a collective action."""

    step: int  # packed step word
    status: int  # packed status word
    alive: bool
    hung: bool  # it lives, and never looks again
    position: Position
    epoch: int
    entered_step: int
    step_version: int  # what it served in that step
    ran: int  # the last sequence that it accepted in this epoch
    phase: Phase
    entered_action: int  # 1 + number of the last collective action that it entered for that sequence
    loaded: int  # the version that it says it has prepared


#: Which part of it is its words; which tells the step that it has entered; which tells whether it is in one.
WORDS, ENTERED, PRESENCE = slice(0, 2), slice(5, 9), slice(2, 7)


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
    about, before, begun
        Of the command at hand, once its work was set up: see :attr:`asked`.
    torn : bool
        Whether a byte was released or written that nothing brings back.
    had_blocks : bool
        Whether there was something in the KV cache when its work was set up.
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
    about: Tags | None = None
    before: JointState = START
    begun: bool = False
    torn: bool = False
    had_blocks: bool = False
    aside: bool = False
    step_version: int = 0
    ran: int = 0
    entered_action: int = 0
    hung: bool = False
    intent: Intent = Intent()
    seen: Seen = Seen()

    @property
    def asked(self) -> Asked | None:
        """The command at hand, once its work was set up; its request is that of the operation."""
        if self.about is None:
            return None
        operation = self.state.operation
        request = operation if operation.is_open else Operation.CLEAR
        return Asked(request, frozenset(self.about), self.before, begun=self.begun)


_pack = msgpack.Encoder().encode
_unpack_participant = msgpack.Decoder(ParticipantState).decode


def pack(me: ParticipantState) -> bytes:
    """Return a participant as bytes: the same for every rank that is in the same situation."""
    return _pack(me._replace(state=replace(me.state, rank=0)))


@lru_cache(maxsize=1 << 18)
def unpack(data: bytes, index: int) -> ParticipantState:
    """Return the participant of what :func:`pack` returned, in the place of `index`."""
    me = _unpack_participant(data)
    return me._replace(state=replace(me.state, rank=index)) if index else me


@lru_cache(maxsize=1 << 18)
def public(data: bytes) -> PublicState:
    """Return what others can see of a packed participant."""
    me = unpack(data, 0)
    state, served = me.state, (me.step_version, me.ran)
    entered = state.epoch, state.step, *served
    return PublicState(
        me.step,
        me.status,
        me.alive,
        me.hung,
        me.position,
        *entered,
        state.phase,
        me.entered_action,
        me.loaded,
    )


@lru_cache(maxsize=1 << 18)
def memory(data: bytes) -> bytes:
    """Return what a packed participant remembers, and which word is hidden from it."""
    me = unpack(data, 0)
    return _pack((me.state, me.seen))


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


class Terms(NamedTuple):
    """What is known of a hold.

    Attributes
    ----------
    number : int
        Which it is, from 1 on: its id.
    owner : int
        A place in :data:`explorer.admission.OWNERS`.
    stays : bool
        Whether it stays when its lease has run out.
    drops : bool
        Whether the blocks of the KV cache are forgotten.
    keeps : bool
        Whether the requests that ran are set aside; else they are ended.
    """

    number: int
    owner: int = 0
    stays: bool = False
    drops: bool = False
    keeps: bool = False


class Arguments(NamedTuple):
    """What is stored before a command word, as far as it matters.

    Attributes
    ----------
    version : int
        What it brings; for a command that is asked for, 0 means: what no other command brings.
    before : bool
        Whether the group served when it was admitted, or is owed that.
    tags : tuple of Tag
        What it is about.
    clears_half : bool
        Whether it is a clear, of one half.
    restores : bool
        Whether it restores what the group served before it lost a rank, or repairs a rank for that.
    owing : bool
        What no process knows, and a rule asks for: whether it began on a group that served, and owes it the
        version before if it fails.
    after : After
        What it leaves of admission.
    hold : Terms or None
        The hold that it begins.
    in_flight, names_policy
        What becomes of requests; whether its caller has said that.
    leased : bool
        Whether a lease holds its decision.
    """

    version: int = 0
    before: bool = False
    tags: Tags = BOTH
    clears_half: bool = False
    restores: bool = False
    owing: bool = False
    after: After = After.AS_BEFORE
    hold: Terms | None = None
    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    names_policy: bool = False
    leased: bool = False


class Slot(NamedTuple):
    """A record of what was committed: with which sequence, which version (0: none), whether held, and how."""

    sequence: int = 0
    version: int = 0
    held: bool = False
    hold: Terms | None = None

    @property
    def record(self) -> CommittedRecord:
        """The record."""
        return _record(*self[:3])


@lru_cache(maxsize=1 << 16)
def _record(sequence: int, version: int, held: bool) -> CommittedRecord:
    return CommittedRecord(sequence, str(version) if version else None, hold=UNKNOWN_HOLD if held else None)


class ControllerState(NamedTuple):
    """The controller's words, its process, and what the owner of the group remembers.

    Attributes
    ----------
    command, committed : int
        Packed words in shared memory.
    says : Arguments
        The command's arguments; stored before the word.
    pending : (int, Arguments) or None
        The command word that it has decided to write, and what goes with it (fine exploration only).
    records : tuple of Slot
        The two slots for what was committed, in their order.
    alive : bool
        Whether a process holds, or could take, the controller role.
    driving : bool
        Whether it drives a command that is not over.
    spoiled : bool
        Whether a controller died after it had stored the next command's arguments, so that the next command
        skips two sequences.
    recovering : bool
        Whether it has raised the epoch and keeps the role until the group is restored.
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
    holds : int
        How many holds were asked for, where they are told from each other.
    closed, stands
        What no process knows, and a rule asks for: whether a hold was decided last, and no end of it; which.
    orphaned : bool
        What no process knows either: whether who gave the open command is gone.
    lapsed, saw_lapse : bool
        Whether the lease of the hold has run out; whether the process that keeps the group has seen that.
    verdict : bool or None
        What the caller has decided where the controller does not. It says that to its own process, and with
        that it is gone.
    told : bool
        Whether its caller was told that all are PREPARED.
    lease_over : bool
        Whether the lease is over that holds the decision.
    seen : Seen
        A status word that it goes on seeing as it was.
    """

    command: int
    committed: int
    says: Arguments
    pending: tuple[int, Arguments] | None = None
    records: tuple[Slot, Slot] = (Slot(), Slot())
    alive: bool = True
    driving: bool = False
    spoiled: bool = False
    recovering: bool = False
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
    holds: int = 0
    closed: bool = False
    stands: Terms | None = None
    orphaned: bool = False
    lapsed: bool = False
    saw_lapse: bool = False
    verdict: bool | None = None
    told: bool = False
    lease_over: bool = False
    seen: Seen = Seen()


#: Return a controller as bytes.
pack_controller = lru_cache(maxsize=1 << 17)(_pack)
#: Return the controller of what :func:`pack_controller` returned.
unpack_controller = lru_cache(maxsize=1 << 17)(msgpack.Decoder(ControllerState).decode)


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
            Arguments(int(serving)),
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


def all_participants(world: World) -> list[ParticipantState]:
    """Return all participants."""
    return [unpack(packed, index) for index, packed in enumerate(world[FIRST:])]


def all_public(world: World) -> tuple[PublicState, ...]:
    """Return what all participants show."""
    return tuple([public(packed) for packed in world[FIRST:]])


def view_of(
    command: int,
    others: Sequence[PublicState | ParticipantState],
    ranks: int,
    seen: Seen = Seen(),  # noqa: B008 - it is immutable
    committed: CommittedWord | None = None,
) -> View:
    """Return the words of a group as one reader reads them.

    Parameters
    ----------
    command : int
        The packed command word.
    others : sequence of PublicState
        All participants.
    ranks : int
        How many of them are ranks; only their step words count.
    seen : Seen
        Which word the reader goes on seeing as it was.
    committed : CommittedWord or None
        The committed word; None: it is not looked at.
    """
    hidden, value = seen
    view = View(
        read_command(value if hidden == COMMAND_WORD else command),
        [
            read_step(value if hidden == step_word(index) else other.step)
            for index, other in enumerate(others[:ranks])
        ],
        [
            read_status(value if hidden == status_word(index) else other.status)
            for index, other in enumerate(others)
        ],
    )
    return view if committed is None else replace(view, committed=committed)


def group_view(
    controller: ControllerState, others: Sequence[PublicState | ParticipantState], ranks: int
) -> View:
    """Return the words as they are, with what is committed."""
    return view_of(controller.command, others, ranks, committed=CommittedWord.unpack(controller.committed))


def label_of(version: int | None) -> str | None:
    """Return the label of a version of the world, which counts them; 0 and None: there is none."""
    return str(version) if version else None


def named_slot(controller: ControllerState) -> Slot | None:
    """Return the record that the committed word names; None: it is not there."""
    place = named_by(CommittedWord.unpack(controller.committed), [slot.record for slot in controller.records])
    return None if place is None else controller.records[place]


def committed_version(controller: ControllerState) -> int:
    """Return the version that the group has committed, as word and record say; 0: none.

    Raises
    ------
    RuleBrokenError
        If the word names a record that is not there.
    """
    word, slot = CommittedWord.unpack(controller.committed), named_slot(controller)
    if slot is None and word.version_id is not None:
        raise RuleBrokenError(
            rule="what a group has committed is known, whenever a process dies",
            seen=f"its committed word names a record of sequence {word.sequence}, and the slots hold "
            f"{controller.records}",
        )
    return 0 if slot is None else slot.version


def hold_in_force(controller: ControllerState) -> Terms | None:
    """Return the hold that the group stands under, as its record says; None: none."""
    slot = named_slot(controller)
    return None if slot is None else slot.hold


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

    A word that is hidden has an owner with a name, so such worlds stay apart: that costs time, hides nothing.

    Parameters
    ----------
    scope : Scope
        Whether that is wanted, how many ranks there are, and whether words may be hidden.
    """

    def __init__(self, scope: Scope) -> None:
        self._ranks = scope.ranks if scope.symmetric else 1
        self._end = FIRST + self._ranks
        self._hides = bool(scope.stale_reads)

    def representative(self, world: World) -> World:
        """Return the world that counts for all of them."""
        if self._ranks == 1 or (self._hides and _names_a_rank(world)):
            return world
        return (*world[:FIRST], *sorted(world[FIRST : self._end]), *world[self._end :])


def _names_a_rank(world: World) -> bool:
    hidden = [controller_of(world).seen, *(unpack(packed, 0).seen for packed in world[FIRST:])]
    return max(hidden).word > COMMAND_WORD
