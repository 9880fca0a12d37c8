"""One participant of an explored group: its words, what its process remembers, what its memory holds.

The words are the real packed ones, the protocol's memory is the real RankState, the machines' states are
a real JointState. The rest is what the world knows and the participant does not: which version really
is in its memory, which step and which collective action it is really inside.
"""

from __future__ import annotations

import enum
import struct
from functools import lru_cache
from typing import NamedTuple

from explorer.packing import Packing
from wsm.states.joint import START, JointState
from wsm.states.rank_state import Phase, RankState, Todo
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, StatusWord, StepWord


class Place(enum.IntEnum):
    """Where a process is."""

    FREE = 0  # in its loop
    IN_STEP = 1  # inside a step: it leaves when all have entered
    IN_ACTION = 2  # inside a collective action, likewise


class Seen(NamedTuple):
    """A word that a reader goes on seeing as it was: which one (0: none), and how it was.

    Word 1 is the command word, 2 + 2i the step word and 3 + 2i the status word of participant i.
    """

    word: int = 0
    value: int = 0


COMMAND_WORD = 1


def step_word(participant: int) -> int:
    """Return the number of a participant's step word."""
    return 2 + 2 * participant


def status_word(participant: int) -> int:
    """Return the number of a participant's status word."""
    return 3 + 2 * participant


class Pending(NamedTuple):
    """What a process has made up its mind to do and has not done yet (fine exploration only)."""

    todo: Todo = Todo.LOOK
    step: int = 0  # word to store; 0: none
    status: int = 0


class Public(NamedTuple):
    """What others can see or bump into."""

    step: int  # packed step word
    status: int  # packed status word
    alive: bool
    place: Place
    epoch: int
    entered_step: int
    step_version: int  # what it served in that step
    ran: int  # the last sequence that it accepted in this epoch
    phase: Phase
    entered_action: int  # 1 + number of the last collective action that it entered for that sequence
    loaded: int  # the version that it says it has prepared


class Presence(NamedTuple):
    """Whether a participant is, or ever will be, where others are."""

    step: int  # packed step word
    alive: bool
    epoch: int
    entered_step: int


class Entered(NamedTuple):
    """Which step a participant has entered, what it served in it, and what it has accepted since."""

    epoch: int
    step: int
    version: int
    ran: int


class Participant(NamedTuple):
    """One participant.

    Attributes
    ----------
    step, status : int
        Packed words in shared memory; they outlive the process.
    alive : bool
        Whether there is a process.
    state : RankState
        What the process remembers of the protocol.
    joint : JointState
        Its machines.
    content : int
        Version of the weights in memory; 0: none, or not whole.
    staged : int
        Version that lies beside them, verified; 0: none.
    loaded : int
        Version that it reports as prepared; 0: none.
    version : int
        Version that it says it serves; 0: none.
    blocks : int
        Version that computed what is in the KV cache; 0: nothing is.
    began, from_normal, torn, moved : bool
        The command at hand: whether its work was set up, whether the rank served then, whether a byte was let
        go or written that nothing brings back, whether the machines have left the states of before.
    tags : int
        What the command at hand is about.
    had_kv : bool
        Whether there was a KV cache when its work was set up.
    step_version, ran, entered_action : int
        See :class:`Public`.
    pending, seen
        See there.
    """

    step: int
    status: int
    alive: bool
    place: Place
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
    step_version: int = 0
    ran: int = 0
    entered_action: int = 0
    pending: Pending = Pending()
    seen: Seen = Seen()

    @property
    def sees_all(self) -> bool:
        """Whether no word is hidden from it."""
        return self.seen.word == 0


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

#: Which of them are its two words.
WORD_BYTES = slice(0, struct.calcsize("<QQ"))

#: Where the protocol's memory begins, behind what is public and what is private to the world.
STATE_BYTES = slice(_PUBLIC.size + _PRIVATE.size, None)

#: Where a packed participant says which word is hidden from it.
SEEN_BYTE = _PUBLIC.size + struct.calcsize("<2BH5BQQ")

_PHASES = list(Phase)
_TODOS = list(Todo)
_WEIGHTS = list(WeightState)
_KV = list(KVState)


def pack(participant: Participant) -> bytes:
    """Return a participant as bytes: the same for every rank that is in the same situation."""
    p, state, joint = participant, participant.state, participant.joint
    public = _PUBLIC.pack(
        p.step,
        p.status,
        p.alive,
        p.place,
        state.epoch,
        state.step,
        p.step_version,
        p.ran,
        _PHASES.index(state.phase),
        p.entered_action,
        p.loaded,
    )
    flags = p.began | p.from_normal << 1 | p.torn << 2 | joint.kv_stale << 3 | joint.held << 4
    flags |= p.moved << 5 | p.had_kv << 6 | p.tags << 7
    private = _PRIVATE.pack(
        _WEIGHTS.index(joint.weights),
        _KV.index(joint.kv),
        flags,
        p.content,
        p.staged,
        p.version,
        p.blocks,
        _TODOS.index(p.pending.todo),
        p.pending.step,
        p.pending.status,
        p.seen.word,
        p.seen.value,
    )
    nobody = bytearray(_STATE.pack(state))
    nobody[_RANK_FIELD] = 0
    return public + private + bytes(nobody)


#: RankState's first field is the rank itself, which the place in the world tells already.
_RANK_FIELD = 0


@lru_cache(maxsize=1 << 18)
def unpack(data: bytes, rank: int) -> Participant:
    """Return the participant of what :func:`pack` returned, in the place of `rank`."""
    public = read_public(data[:PUBLIC_BYTES])
    split = PUBLIC_BYTES + _PRIVATE.size
    private = _PRIVATE.unpack(data[PUBLIC_BYTES:split])
    weights, kv, flags, content, staged, version, blocks, todo, step, status, word, value = private
    state = bytearray(data[split:])
    state[_RANK_FIELD] = rank + 0x80
    return Participant(
        step=public.step,
        status=public.status,
        alive=public.alive,
        place=public.place,
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
        tags=flags >> 7,
        step_version=public.step_version,
        ran=public.ran,
        entered_action=public.entered_action,
        pending=Pending(_TODOS[todo], step, status),
        seen=Seen(word, value),
    )


@lru_cache(maxsize=1 << 18)
def read_public(data: bytes) -> Public:
    """Return what others can see of a packed participant, given its first :data:`PUBLIC_BYTES` bytes."""
    step, status, alive, place, epoch, entered, version, ran, phase, action, loaded = _PUBLIC.unpack(data)
    return Public(
        step, status, bool(alive), Place(place), epoch, entered, version, ran, _PHASES[phase], action, loaded
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
