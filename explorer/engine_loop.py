"""Every order of what an engine, a trainer and FastDeploy's loop can do about one weights word.

Rank 0 is wsm's own (:class:`wsm.fastdeploy._entries.Deciding`), with its tables and its order of reading and
answering; nothing of it is written anew here. Stand-ins: the word's memory, a controller whose commands end
in every way in which a command can, the loop of FastDeploy around it, an engine and a trainer. Each access to
the word, and each turn, is a place where one of these may act.

A search goes from one turn of FastDeploy's loop to the next: within a turn by going through all choices, over
turns by remembering which situations were met. So it ends, and everything within its bounds was seen.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

from explorer.errors import RuleBrokenError, broken_by
from wsm.config import WsmConfig
from wsm.controller import engine_bridge
from wsm.controller.engine_bridge import held_by
from wsm.controller.errors import CommandWithdrawnError
from wsm.errors import GroupError, WsmError
from wsm.fastdeploy import _entries
from wsm.fastdeploy._entries import Deciding
from wsm.group_segment import own_group
from wsm.signals.errors import RoleBusyError
from wsm.signals.segment import Segment
from wsm.states import engine_words as contract
from wsm.states.decide import Resident
from wsm.states.engine_words import Entry
from wsm.states.epochs import Backoff
from wsm.states.vocabulary import KVState, WeightState
from wsm.status.facts import GroupStatus
from wsm.worker import HOLD, SERVE

NORMAL, UPDATING, CLEARING, CLEARED = contract.NORMAL, contract.UPDATING, contract.CLEARING, contract.CLEARED

#: What the engine stores over which word, as its client does; it looks first, and stores some time later.
WISHES = {NORMAL: CLEARING, CLEARED: UPDATING}

#: In which ways a command of rank 0 may end, and what all ranks hold then; None: what they held before, and
#: MIXED: different things. The first is a success.
ENDS: dict[str, tuple[str, ...]] = {
    "clear": ("cleared", "failed: kept", "failed: cleared", "failed: mixed"),
    "update": ("updated", "failed: kept", "failed: cleared", "failed: mixed"),
}

#: What two ranks hold; of those that differ, one has failed in a teardown.
_HELD = {
    NORMAL: (WeightState.NORMAL, WeightState.NORMAL),
    CLEARED: (WeightState.CLEARED, WeightState.CLEARED),
    None: (WeightState.CLEARED, WeightState.FAULTED),
}

#: How often the engine and the trainer act within one turn of FastDeploy's loop, and how often commands fail.
MOST_WISHES, MOST_COMMANDS, MOST_FAILURES = 2, 1, 1

#: Turns in a row in which nothing has changed: nothing more comes of it.
AT_REST = 2

#: More turns than this within one call are no example of anything.
_LONGEST = 40


class Loop(NamedTuple):
    """A build of FastDeploy's loop.

    Parameters
    ----------
    block : bool
        Whether ranks stay inside the check while weights are away: always in 2025, in 2026 where groups go.
    polls : bool
        Whether it has the second line.
    """

    block: bool
    polls: bool

    def __str__(self) -> str:
        return f"{'stays inside' if self.block else 'sleeps outside'}{', polls' if self.polls else ''}"


LOOPS = tuple(Loop(block, polls) for block in (True, False) for polls in (True, False))


class Situation(NamedTuple):
    """Where all stand between two turns of FastDeploy's loop.

    Parameters
    ----------
    word : int
        The weights word.
    wish : int
        What the engine has stored there and has no answer to; NORMAL: nothing.
    storing : int
        What the engine is about to store, having looked; NORMAL: nothing.
    held : int or None
        NORMAL or CLEARED, if all ranks hold that.
    open_command : str
        The trainer's command that is open; empty: none.
    hold : bool
        Whether the trainer's hold is in force.
    asleep : bool
        Whether FastDeploy's loop sleeps until the word says UPDATING.
    rank_0 : tuple
        What rank 0 remembers, as :data:`_REMEMBERED` names it.
    """

    word: int = NORMAL
    wish: int = NORMAL
    storing: int = NORMAL
    held: int | None = NORMAL
    open_command: str = ""
    hold: bool = False
    asleep: bool = False
    rank_0: tuple[object, ...] = ()


#: What rank 0 remembers from one turn to the next, besides numbers that only grow.
_REMEMBERED = ("_shown", "_woken", "_asleep", "_left")


class _AtRestError(Exception):
    """Nothing more comes of this turn: all wait for the engine or the trainer."""


class _MetError(Exception):
    """From here on all goes as it did on a way that was gone before."""


class _CommandFailedError(GroupError):
    """A command of rank 0 came to no good end."""

    def __init__(self, how: str) -> None:
        super().__init__(f"the command has {how}", how=how)


class _Choices:
    """One way through all choices of a turn; :func:`_ways` goes through all of them."""

    def __init__(self, taken: Sequence[int]) -> None:
        self.taken = list(taken)
        self.open: list[int] = []  # how many there were at each place
        self.said: list[str] = []

    @property
    def at_the_end(self) -> bool:
        """Whether the next choice is one that no way before has come to."""
        return len(self.open) == len(self.taken)

    def one_of(self, options: Sequence[str]) -> str:
        """Take one; the first is that nothing happens, or that all goes well."""
        place = len(self.open)
        if place == len(self.taken):
            self.taken.append(0)
        self.open.append(len(options))
        return options[self.taken[place]]


def _ways(turn: Callable[[_Choices], None]) -> Iterator[_Choices]:
    """Go every way through a turn, depth first."""
    taken: list[int] = []
    while True:
        choices = _Choices(taken)
        turn(choices)
        yield choices
        taken = choices.taken[: len(choices.open)]
        while taken and taken[-1] + 1 == choices.open[len(taken) - 1]:
            taken.pop()
        if not taken:
            return
        taken[-1] += 1


def _where(frame: FrameType | None) -> tuple[object, ...]:
    """Return where a thread stands in rank 0's code and in the loop's, with what is known there."""
    found: list[object] = []
    while frame is not None and frame.f_code.co_name != "explore":
        if frame.f_code.co_filename in _FOLLOWED:
            known = [_plain(value) for value in frame.f_locals.values()]
            found.append((frame.f_code, frame.f_lasti, *known))
        frame = frame.f_back
    return tuple(found)


def _plain(value: object) -> object:
    """Return what of a local variable the rest of a turn can depend on; of a time whether there is one."""
    if isinstance(value, _Rank0):
        wish, sequence = value._wishes.failed, cast("_World", value._controller).sequence
        return wish.word, sequence > wish.sequence, *(getattr(value, name) for name in _REMEMBERED)
    if isinstance(value, SimpleNamespace) and hasattr(value, "engine_state"):
        return value.over, value.engine_state, value.hold, value.missing, held_by(cast("Any", value))
    if isinstance(value, float):
        return bool(value)
    return value if isinstance(value, int | str | tuple | Enum | None) else type(value)


_FOLLOWED = (__file__, _entries.__file__, engine_bridge.__file__)


@dataclass
class _World:
    """One turn on its way, with stand-ins for the word, the group's controller and rank 0's worker.

    Parameters
    ----------
    loop : Loop
        The build.
    now : Situation
        Where it began; kept up to date.
    choices : _Choices
        Which way it goes.
    met : dict
        Places within turns at which a way has been before, and which it was; from there on nothing is new,
        but a way that meets itself goes round for ever.
    """

    loop: Loop
    now: Situation
    choices: _Choices
    met: dict[object, tuple[Situation, tuple[int, ...]]]
    wishes: int = 0
    commands: int = 0
    failures: int = 0
    turns: int = 0
    idle: int = 0
    running: int = 0  # looks until the command of rank 0 is over
    beats: int = 0
    sequence: int = 1  # of the last command that is over
    aborted: bool = False  # whether that was
    rank = finished = 0
    tried: set[str] = field(default_factory=set)  # since the wish: a clear, an update that came

    def __post_init__(self) -> None:
        self.began = self.now

    def happens(self, what: str, **changed: object) -> None:
        """Note what has happened, and what is otherwise now."""
        self.choices.said.append(what)
        self.now = self.now._replace(**changed)  # type: ignore[arg-type]  # fields by name
        self.idle = 0

    def others_act(self) -> None:
        """Let the engine or the trainer do one thing, or nothing."""
        if self.choices.at_the_end:
            self._look_round()
        taken = self.choices.one_of(["nothing", *self._acts()])
        if taken.startswith("trainer"):
            self.commands += 1
            self.happens(taken, open_command=taken.removeprefix("trainer "))
        elif taken == "engine looks":
            self.wishes += 1
            self.happens(taken, storing=WISHES[self.now.word])
        elif taken == "engine asks":
            self.wishes += 1
            self._store(taken, WISHES[self.now.word])
        elif taken == "engine stores":
            self._store(taken, self.now.storing)

    def _look_round(self) -> None:
        """Go no way on from a place that another one has come to; one that comes round to itself is wrong."""
        counts = self.wishes, self.commands, self.failures, self.idle, self.running
        place = (self.now, *counts, frozenset(self.tried), _where(sys._getframe(2)))
        taken = tuple(self.choices.taken)
        began, before = self.met.setdefault(place, (self.began, taken))
        if (began, before) == (self.began, taken):
            return
        if began == self.began and before == taken[: len(before)]:
            self._break("each turn comes to an end, or to rest", "it goes round for ever")
        raise _MetError

    def _acts(self) -> Iterator[str]:
        now = self.now
        if now.storing != NORMAL:
            yield "engine stores"
        elif self.wishes < MOST_WISHES and now.word in WISHES and now.wish == NORMAL:
            yield from ("engine asks", "engine looks")
        if not self.loop.polls or self.commands == MOST_COMMANDS or now.open_command or now.held is None:
            return
        if now.hold:
            yield "trainer releases"
        else:
            yield from ("trainer clears", "trainer updates", "trainer holds")

    def _store(self, what: str, wish: int) -> None:
        """Store what the engine asks; what the word says already cannot be told from rank 0's own."""
        is_new = self.now.word != wish
        if is_new:
            self.tried.clear()
        left = wish if is_new else self.now.wish
        self.happens(f"{what} {_named(wish)}", word=wish, wish=left, storing=NORMAL)

    def settle_command(self) -> None:
        """Let the trainer's command come to its end: every rank polls."""
        command = self.now.open_command
        held = {"clears": CLEARED, "updates": NORMAL}.get(command, self.now.held)
        hold = {"holds": True, "releases": False}.get(command, self.now.hold)
        self.sequence, self.aborted = self.sequence + 1, False
        if command == "updates" or "failed update" in self.tried:
            self.tried.add("update")
        self.happens(f"the trainer's command is done ({command})", open_command="", held=held, hold=hold)

    def status(self) -> SimpleNamespace:
        """Return what the controller's status says of two ranks."""
        self.beats += 1
        now = self.now
        ranks = [
            SimpleNamespace(
                rank=rank,
                resident=Resident(
                    weights, KVState.NORMAL if weights is WeightState.NORMAL else KVState.CLEARED
                ),
                weights=weights.name,
                heartbeat=self.beats,
            )
            for rank, weights in enumerate(_HELD[now.held])
        ]
        said = SimpleNamespace(
            over=not now.open_command,
            serving=now.held == NORMAL and not now.hold and not now.open_command,
            ranks=ranks,
            hold="hold" if now.hold else None,
            missing=frozenset(tag for rank in ranks for tag in rank.resident.missing),
            epoch=1,
            sequence=self.sequence,
            operation="ABORT" if self.aborted else "COMMIT",
        )
        said.engine_state = GroupStatus.engine_state.fget(said)  # type: ignore[attr-defined]  # a property
        return said

    def begin_clear(self, *, still_wanted: Callable[[], bool], **_asked: object) -> Any:
        """Begin a clear."""
        return self.command("clear", still_wanted)

    def begin_update(self, *, still_wanted: Callable[[], bool], **_asked: object) -> Any:
        """Begin an update."""
        return self.command("update", still_wanted)

    def command(self, operation: str, still_wanted: Callable[[], bool]) -> Any:
        """Begin a command of rank 0, as a controller does; return what drives it."""
        if self.now.open_command:
            raise RoleBusyError(path="explored", pid=1, waited_s=0.0)
        if not still_wanted():
            raise CommandWithdrawnError("it is wanted no more", operation=operation, request_id="explored")
        if operation == "update" and self.now.wish != UPDATING:
            self._break("weights are loaded for the engine only where it asks for them", "it asks nothing")
        if operation == "clear":
            self.tried.add(operation)
        self.idle = 0
        ends = ENDS[operation] if self.failures < MOST_FAILURES else ENDS[operation][:1]
        mixed = operation == "update" and self.now.held is None
        how = "failed: mixed" if mixed else self.choices.one_of(ends)
        self.failures += how.startswith("failed") and not mixed
        after = {"cleared": CLEARED, "updated": NORMAL, "failed: cleared": CLEARED, "failed: mixed": None}
        held = after.get(how, self.now.held)
        this = self
        self.running = 2

        class Pending:
            @property
            def sequence(self) -> int:
                return this.sequence

            @property
            def over(self) -> bool:
                this.running -= 1
                return not this.running

            @staticmethod
            def result() -> None:
                this.sequence, this.aborted = this.sequence + 1, how.startswith("failed")
                if operation == "update":
                    this.tried.add("failed update" if this.aborted else "update")
                this.happens(f"the {operation} has {how}", held=held)
                if how.startswith("failed"):
                    raise _CommandFailedError(how)

        return Pending()

    def poll(self) -> object:
        """One turn of the worker: HOLD while the group may not step."""
        self.turns += 1
        self.idle += 1
        if self.turns > _LONGEST:
            self._break("each turn comes to an end, or to rest", f"it turns for ever ({self.choices.said})")
        self.others_act()
        if self.now.open_command and self.idle:
            self.settle_command()
        elif self.idle > AT_REST:
            raise _AtRestError
        return SERVE if self.now.held == NORMAL and not self.now.hold else HOLD

    def wait(self, seconds: float) -> None:
        """Wait no time."""

    def beat(self) -> None:
        """Say that it lives, to no process."""

    @property
    def weights(self) -> WeightState:
        """What rank 0 holds."""
        return WeightState.NORMAL if self.now.held == NORMAL else WeightState.CLEARED

    @property
    def kv(self) -> KVState:
        """What rank 0 holds besides."""
        return KVState.NORMAL if self.now.held == NORMAL else KVState.CLEARED

    def read(self) -> int:
        """Read the word."""
        return self.now.word

    def change(self, before: int, after: int) -> bool:
        """Compare and exchange; what an engine has asked for is overwritten by an answer alone."""
        self.others_act()
        now = self.now
        if now.word != before:
            return False
        if now.wish == before:
            self._answer(after)
        self.happens(f"rank 0: {_named(before)} becomes {_named(after)}", word=after, wish=self._left(after))
        return True

    def _left(self, after: int) -> int:
        """Return what is left of the engine's wish: an answer ends it."""
        answered = (NORMAL, CLEARED) if self.now.wish == UPDATING else (NORMAL, CLEARED, UPDATING)
        return NORMAL if after in answered else self.now.wish

    def _answer(self, after: int) -> None:
        """Check an answer to what the engine has asked."""
        now, says = self.now, f"{_named(self.now.wish)} is answered {_named(after)}"
        true = {NORMAL: now.held == NORMAL and not now.hold, CLEARED: now.held == CLEARED or now.hold}
        if not true.get(after, True):
            held = ", held" * now.hold
            self._break("the word says what every rank holds", f"{says} over {_shown(now.held)}{held}")
        if now.wish == UPDATING and after == NORMAL and "update" not in self.tried:
            self._break("what the engine asks for is loaded after it has asked", says)
        kept = now.wish == CLEARING and after in (NORMAL, UPDATING)
        if kept and ("clear" not in self.tried or now.held != NORMAL):
            self._break("a wish to clear is given up only where a clear was tried and weights serve", says)

    def steps(self) -> None:
        """Check that a step may be entered now."""
        if self.now.held != NORMAL or self.now.hold:
            seen = f"a step is entered over {_shown(self.now.held)}{', held' * self.now.hold}"
            self._break("no step is entered without weights, or under a hold", seen)

    def rests(self, *, inside: bool) -> None:
        """Check a situation in which nothing more comes without the engine or the trainer."""
        now = self.now
        if now.storing != NORMAL:
            return
        where = "inside" if inside else "asleep" if now.asleep else "outside"
        seen = f"{where}, all rest at {_named(now.word)} over {_shown(now.held)}"
        if now.open_command:
            self._break("a trainer's command comes to its end", f"{seen}, with {now.open_command} open")
        waits = now.hold and now.word in contract.ASKS  # for the hold's release
        if now.wish != NORMAL and not waits:
            self._break("what the engine asks for is answered", f"{seen}, with {_named(now.wish)} open")
        if now.asleep and not inside and now.word != CLEARED:
            self._break("a loop that sleeps is woken by UPDATING", seen)
        if inside and now.word == NORMAL:
            self._break("ranks that the engine sends requests to leave the check", seen)
        serves = now.held == NORMAL and not now.hold
        truth = {NORMAL: serves, CLEARED: not serves, CLEARING: waits, UPDATING: waits}[now.word]
        if not truth or (now.held is None and not waits):
            self._break("at rest the word says what every rank holds", seen)

    def _break(self, rule: str, seen: str) -> None:
        raise RuleBrokenError(rule=rule, seen=seen)


class _Rank0(Deciding):
    """wsm's rank 0, without the other ranks: it tells them nothing, and does not look whether they live."""

    def _say(self, word: int, **_told: object) -> None:
        self._left = word

    def _require_all_here(self) -> None:
        pass

    @property
    def _woken(self) -> bool:
        return self._wishes.woken

    @_woken.setter
    def _woken(self, woken: bool) -> None:
        self._wishes.woken = woken

    @property
    def _polls(self) -> bool:
        """Never: the thread that wakes the loop is gone through in the loop's own turn."""
        return False

    @_polls.setter
    def _polls(self, polls: bool) -> None:
        pass


def _rank_0(world: _World, segment: Segment) -> Deciding:
    stands_in = cast("Any", world)
    deciding = _Rank0(stands_in, segment, stands_in, stands_in, deadline_s=1.0)
    deciding._adopted = True
    deciding._stopping = cast("Any", SimpleNamespace(wait=lambda _s: _wait(world), set=bool, clear=bool))
    for name, value in zip(_REMEMBERED, world.now.rank_0, strict=False):
        setattr(deciding, name, value)
    return deciding


def _wait(world: _World) -> bool:
    """One look of the thread that wakes a sleeping loop; true ends it: the loop has seen the word."""
    if world.now.word == UPDATING:
        return True
    world.idle += 1
    if world.idle > AT_REST:
        raise _AtRestError
    world.others_act()
    return world.now.word == UPDATING


def _turn(world: _World, segment: Segment) -> None:
    """One turn of FastDeploy's loop, or what it does while it sleeps."""
    rank_0 = _rank_0(world, segment)
    inside = False
    try:
        if world.now.asleep:
            if world.loop.polls and rank_0._asleep:
                rank_0._wake()
            while world.now.word != UPDATING:
                _wait(world)
            world.happens("FastDeploy's loop wakes", asleep=False, word=UPDATING)
        if world.loop.polls and not rank_0.between_turns(lambda: 0):
            serves = False
        else:
            serves = not world.loop.polls or not rank_0._asleep
        world.others_act()
        signal = world.now.word
        if signal == NORMAL:
            if serves and not world.now.open_command:
                world.steps()
        else:
            world.happens(f"FastDeploy's loop comes in for {_named(signal)}", word=signal)  # a plain store
            inside = True
            rank_0.stay(Entry(signal, block=world.loop.block))
            inside = False
            if signal == CLEARING and not world.loop.block:
                world.happens("FastDeploy's loop sleeps", asleep=True)
            else:
                world.steps()
    except _AtRestError:
        world.rests(inside=inside)
        world.now = world.now._replace(rank_0=("at rest",))
        return
    if not world.now.asleep and world.now.word == NORMAL and world.now.wish == NORMAL:
        world.rests(inside=False) if not world.now.open_command else None
    world.now = world.now._replace(rank_0=tuple(getattr(rank_0, name) for name in _REMEMBERED))


class Explored(NamedTuple):
    """What an exploration has found.

    Parameters
    ----------
    situations, ways : int
        How many situations there are, and how many ways were gone from them.
    broken : str
        The rule that is broken; empty if none is.
    way : tuple of str
        What happened in the turn that broke it.
    """

    situations: int
    ways: int
    broken: str = ""
    way: tuple[str, ...] = ()


def explore(loop: Loop) -> Explored:
    """Go through every situation that can come of a group that serves. Blocks for some seconds."""
    first = Situation()
    met, due, ways = {first}, [first], 0
    places: dict[object, tuple[Situation, tuple[int, ...]]] = {}
    with _segment() as segment, mock.patch.object(contract, "AGAIN", Backoff(0.0, 0.0)):
        while due:
            situation = due.pop()
            found: list[Situation] = []
            broken = ""

            def turn(choices: _Choices) -> None:
                nonlocal broken
                world = _World(loop, situation, choices, places)  # noqa: B023 - called within this turn
                try:
                    _turn(world, segment)
                except _MetError:
                    return
                except (WsmError, AssertionError, LookupError, TypeError, ValueError) as error:
                    broken = broken_by(error)
                found.append(world.now)  # noqa: B023 - likewise

            for choices in _ways(turn):
                ways += 1
                if broken:
                    return Explored(len(met), ways, broken, (str(situation), *choices.said))
            for one in found:
                if one not in met and one.rank_0 != ("at rest",):
                    met.add(one)
                    due.append(one)
    return Explored(len(met), ways)


@contextmanager
def _segment() -> Iterator[Segment]:
    with (
        tempfile.TemporaryDirectory(prefix="wsm-explored-") as directory,
        own_group(WsmConfig(name="explored", ranks=1), directory=directory) as segment,
    ):
        yield segment
        segment.unlink()


def _named(word: int) -> str:
    return WeightState(word).name


def _shown(held: int | None) -> str:
    return "ranks that differ" if held is None else _named(held)
