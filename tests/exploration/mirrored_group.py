"""A group of real worker loops that is led, move by move, the way that an explored group goes.

The explorer's miniature of a worker's shell is only worth something if the real shell does the same. Here the
real :class:`wsm.worker._loop.RankLoop` runs on the real words of a real segment, with actions that end as
the explored move says; after every turn its memory, its words and its machines must be those of the world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from explorer.moves import CONTROLLER, GroupMove, Moves
from explorer.rank_moves import view_as_read
from explorer.scope import Scope
from explorer.world import (
    ParticipantState,
    Position,
    Seen,
    World,
    all_participants,
    controller_of,
    first_worlds,
    label_of,
    participant,
    read_command,
)
from wsm.actions import names
from wsm.actions.base import Action, ActionContext, Plan, Plans, SteppedAction
from wsm.clock import ManualClock
from wsm.command import ARGUMENTS_KIND, CommandArguments
from wsm.config import Deadlines
from wsm.signals.segment import Segment
from wsm.states import rank as protocol
from wsm.states.phases import Todo
from wsm.states.plan_key import CLEAR, DISCARD, HOT, REJOIN, UPDATE, UPDATE_IN_PLACE, PlanKey
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation
from wsm.testing import InMemoryRunner
from wsm.worker._command import Work
from wsm.worker._loop import RankLoop
from wsm.worker.errors import FlipFailedError, TeardownFailedError
from wsm.worker.recording import Recorder

#: How much likelier than a strike from outside is what happens by itself.
_PATIENCE = 6

#: How often what a rank has begun is drained, or staged, in the same turn.
_GOES_ON = 0.5

#: Behind what a turn looks again, and does what it is told then.
_LOOKS_AGAIN = frozenset((Todo.LOOK, Todo.BEGIN, Todo.DRAIN, Todo.STAGE))

STAGED = ("stages the new weights", "stages another version", "fails to stage")

LACKS = "lacks what its plan needs"

#: What is not led: reading that fails without a reason in the words.
UNLED = frozenset({"fails to begin"})
LEAVES = ("gives back what it held", "joins the new epoch")
LEAVES_NEVER = "fails to give back what it held, and ends"


class AsLedError(Exception):
    """An action ends as the explored move says."""


class StillInsideError(BaseException):
    """A collective action is entered, and the others have not entered yet: only here can one look away."""


class Script:
    """How the next piece of work of one rank ends: the label of an explored move."""

    def __init__(self) -> None:
        self.label = ""
        self.drained = True

    def end(self, context: ActionContext, version: str | None) -> None:
        """End an action."""
        label = self.label
        if label.startswith("enters collective action"):
            raise StillInsideError
        touches = ("loads", "loads another version", "releases", "fails to release")
        if label in (*touches, "fails in the middle of loading", "raises in the collective action"):
            context.weights_touched = True
        if label.startswith(("fails", "raises", "is torn out", "breaks")):
            raise AsLedError(label)
        if label.startswith(("loads", "stages")) and version is not None:
            context.facts["version"] = str(int(version) + label.endswith("another version"))


class LedAction(Action):
    purpose = "ends as it is led"

    def __init__(self, script: Script, name: str, *, collective: bool = False) -> None:
        self.name = name
        self.collective = collective
        self._script = script

    def precondition(self, _context: ActionContext) -> None:
        if self._script.label == LACKS:
            raise AsLedError(LACKS)

    def run(self, context: ActionContext) -> None:
        self._script.end(context, context.version)

    def undo(self, context: ActionContext) -> None:
        if self._script.label == "fails to undo":
            raise AsLedError(self._script.label)


class LedStaging:
    """The staging thread, without a thread: what it is given ends when it is led to."""

    cancelled = False

    def __init__(self, script: Script) -> None:
        self._script = script
        self._work: Callable[[], None] | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        self._work = work

    def ended(self) -> bool:
        if self._script.label not in STAGED or self._work is None:
            return False
        try:
            self._work()
        except AsLedError as error:
            self._error = error
        return True

    def result(self) -> None:
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        self.cancelled = True

    def retire(self, last: Callable[[], None]) -> None:
        last()

    def rest(self, _timeout_s: float) -> bool:
        return True


class LedDraining(SteppedAction):
    name = names.STOP_ADMITTING
    purpose = "has drained when it is led to"

    def __init__(self, script: Script) -> None:
        self._script = script

    def run(self, context: ActionContext) -> None:
        """Nothing to stop."""

    def undo(self, context: ActionContext) -> None:
        if self._script.label == "fails to undo":
            raise AsLedError(self._script.label)

    def settled(self, context: ActionContext) -> bool:
        return self._script.drained


def plans_led_by(script: Script) -> Plans:
    """Return the explorer's miniature plans."""

    def plan(key: PlanKey, *actions: Action) -> Plan:
        return Plan(key=key, actions=actions, before_parking=(LedDraining(script),))

    def release() -> Action:
        return LedAction(script, names.RELEASE_KV_CACHE)

    def load() -> Action:
        return LedAction(script, names.LOAD_WEIGHTS)

    def meet() -> Action:
        return LedAction(script, "meet", collective=True)

    plans = (
        plan(CLEAR, release()),
        plan(UPDATE, meet(), load()),
        plan(UPDATE_IN_PLACE, load(), meet()),
        Plan(
            key=HOT,
            actions=(LedAction(script, names.STAGE_WEIGHTS), LedAction(script, names.FLIP_WEIGHTS)),
            before_parking=(LedDraining(script),),
            staged=1,
        ),
        plan(DISCARD, release()),
        Plan(REJOIN, ()),
    )
    return Plans({one.name: one for one in plans})


class LedRank:
    """One real loop."""

    def __init__(self, segment: Segment, rank: int) -> None:
        self.script, self.clock = Script(), ManualClock()
        work = Work(
            InMemoryRunner([]),
            plans_led_by(self.script),
            load=lambda _context, _target: {},
            threads=lambda _rank: LedStaging(self.script),
        )
        recorder = Recorder(rank=rank, clock=self.clock)
        self.loop = RankLoop(
            segment, rank, work=work, deadlines=Deadlines(), clock=self.clock, recorder=recorder
        )

    def turn(self, label: str) -> None:
        """Take one turn that ends as it is led; a teardown of several actions takes several."""
        self.script.label = label
        before = self.loop.state
        for _ in range(4 if label in ("drops its weights", "keeps what it had") else 1):
            try:
                self.loop.turn()
            except (StillInsideError, FlipFailedError, TeardownFailedError):
                return
            if self.loop.state.phase is not before.phase and self.loop.state.sequence == 0:
                return


class MirroredGroup:
    """An explored world, and real loops that follow it."""

    def __init__(self, directory: Path, scope: Scope, seed: int) -> None:
        self.scope = scope
        self.world = next(iter(first_worlds(scope)))
        self.segment = Segment.create(
            f"mirror-{seed}",
            world_size=scope.ranks,
            run_id="mirror",
            configuration_digest=1,
            directory=directory,
        )
        self.ranks: dict[int, LedRank] = {}
        self.trail: list[str] = []
        self._moves = Moves(scope)
        self._random = random.Random(seed)  # noqa: S311 - a way to be found again, no secret
        self._store_controller_words(self.world)

    def close(self) -> None:
        self.segment.unlink()
        self.segment.close()

    def wander(self, moves: int) -> None:
        """Make random moves, and hold every loop to its participant after each."""
        for _ in range(moves):
            possible = [move for move in self._moves.of(self.world) if self._is_led(move)]
            if not possible:
                return
            # Strikes that come too early end in worlds in which little is left to happen.
            weights = [_PATIENCE if move.by_itself else 1 for move in possible]
            (move,) = self._random.choices(possible, weights)
            self._make(move, goes_on=self._random.random() < _GOES_ON)

    def boot(self) -> None:
        """Let every rank attach, and an ordinary update bring the first version."""
        for rank in range(self.scope.ranks):
            self.lead(rank, "is started anew")
        self.lead(CONTROLLER, "opens UPDATE")
        while controller_of(self.world).driving:
            self._make(next(move for move in self._moves.of(self.world) if move.by_itself))

    def lead(self, actor: int, label: str) -> None:
        """Make the move of somebody whose label begins so."""
        moves = [move for move in self._moves.of(self.world) if move.actor == actor]
        self._make(next(move for move in moves if move.label.startswith(label)))

    def _make(self, move: GroupMove, *, goes_on: bool = False) -> None:
        """Make a move; `goes_on`: a rank that begins has drained, or staged, when its turn comes to that."""
        if move.actor == CONTROLLER:
            self._go(move)
            self._store_controller_words(self.world)
        else:
            self._lead(move.actor, move, goes_on=goes_on)

    def _is_led(self, move: GroupMove) -> bool:
        if move.label == LACKS:
            # Only what has to be voted for is looked at before it.
            return self._me(move.actor).state.collective[:1] == (True,)
        if move.label in ("passes its deadline while draining", "fails to undo"):
            return self._has_to_drain(move.actor)
        if move.label == "has work beside the staging":
            # A world lets a rank begin a step that it has looked for; a real turn looks and begins at once.
            return protocol.meanwhile(self._me(move.actor).state, self._view()) is Todo.SERVE
        return move.label not in UNLED

    def _has_to_drain(self, rank: int) -> bool:
        """Whether there is anything to drain and to undo; not for a clear with nothing to do."""
        state = self._me(rank).state
        return state.operation is not Operation.CLEAR or bool(state.collective)

    def _me(self, rank: int) -> ParticipantState:
        return participant(self.world, rank)

    def _go(self, move: GroupMove) -> None:
        assert not move.broken, f"{move.broken}\n" + "\n".join(self.trail)
        self.trail.append(f"{move.actor}: {move.label}")
        assert move.world is not None
        self.world = move.world

    def _lead(self, rank: int, move: GroupMove, *, goes_on: bool) -> None:
        """Let a rank make one move, and whatever a real turn does in the same breath."""
        me, led = self._me(rank), self.ranks.get(rank)
        if move.label == "dies":
            self._go(move)
            del self.ranks[rank]
            return
        if led is not None and move.label == LEAVES_NEVER:
            self._go(move)
            led.turn(move.label)
            words, layout = self.segment.words, self.segment.layout
            assert words[layout.step[rank]] == self._me(rank).step, "it joined another epoch"
            del self.ranks[rank]
            return
        if led is None:
            self._go(move)
            self.ranks[rank] = LedRank(self.segment, rank)
            self.ranks[rank].loop.join()
        elif me.position is Position.IN_STEP:
            self._go(move)
            if not move.label.startswith("leaves"):
                led.loop.broke_step(AsLedError(move.label))
        elif me.position is Position.IN_ACTION:
            epoch_is_over = read_command(controller_of(self.world).command).epoch > me.state.epoch
            label = move.label
            self._go(move)
            if epoch_is_over:
                # A real turn that is torn out looks again at once.
                following = next(each for each in self._by(rank) if each.label in LEAVES)
                label = following.label
                self._go(following)
            led.turn(label)
        else:
            self._take_a_turn(rank, led, move, goes_on=goes_on)
        self._compare(rank)

    def _take_a_turn(self, rank: int, led: LedRank, chosen: GroupMove, *, goes_on: bool) -> None:
        """Look, and look again, until something is done; what, if there is a choice, is `chosen`.

        A turn that begins a command looks again, too: it goes on to what comes next, which is done already or
        is not.
        """
        led.script.drained = True
        if chosen.label.startswith("passes its deadline"):
            self._go(chosen)
            led.script.drained = False
            led.clock.advance(10_000)
            led.turn(chosen.label)
            return
        if chosen.label.startswith(("has work", "joins step")):
            led.script.drained, led.script.label = False, ""
            assert led.loop.turn() in (Todo.SERVE, Todo.JOIN)
            self._go(chosen)
            led.loop.enter_step()
            return
        label = ""
        while True:
            todo = self._told(rank)
            self._go(chosen)
            if todo is not Todo.LOOK:
                label = chosen.label
            if todo not in _LOOKS_AGAIN:
                break
            following, told = list(self._by(rank)), self._told(rank)
            if not following or told is Todo.JOIN:
                break
            if todo is Todo.BEGIN and told in (Todo.DRAIN, Todo.STAGE):
                led.script.drained = goes_on or not self._has_to_drain(rank)
                if not (led.script.drained if told is Todo.DRAIN else goes_on):
                    break
            chosen = self._random.choice(following)
        led.turn(label)

    def _told(self, rank: int) -> Todo:
        """Ask what a rank is told in the world; within a turn the real words lag behind it."""
        return protocol.advance(self._me(rank).state, self._view()).todo

    def _view(self) -> View:
        words = [(each.step, each.status) for each in all_participants(self.world)]
        return view_as_read(controller_of(self.world).command, words, self.scope.ranks, Seen())

    def _by(self, rank: int, label: str = "") -> Iterator[GroupMove]:
        """Iterate over what a rank does next by itself."""
        for move in list(self._moves.of(self.world)):
            if move.actor == rank and move.by_itself and move.label.startswith(label):
                yield move

    def _store_controller_words(self, world: World) -> None:
        controller, memory, layout = controller_of(world), self.segment.words, self.segment.layout
        command = CommandWord.unpack(controller.command)
        slot = self.segment.arguments(command.sequence)
        opening = command.operation.name in ("CLEAR", "UPDATE", "HOT_UPDATE")
        if opening and slot.read(command.epoch, command.sequence, ARGUMENTS_KIND) is None:
            arguments = CommandArguments(
                "led", label_of(controller.version), clears=command.operation.name == "CLEAR"
            )
            slot.write(command.epoch, command.sequence, ARGUMENTS_KIND, arguments.to_bytes())
        memory[layout.committed] = CommittedWord.unpack(controller.committed).pack()
        memory[layout.command] = controller.command

    def _compare(self, rank: int) -> None:
        """Hold a loop to its participant."""
        me, loop = self._me(rank), self.ranks[rank].loop
        memory, layout = self.segment.words, self.segment.layout
        real = (
            loop.state,
            memory[layout.step[rank]],
            memory[layout.status[rank]],
            loop.life.joint,
            int(loop.version or 0),
        )
        explored = (me.state, me.step, me.status, me.joint, me.version)
        if real != explored:
            way = "\n".join(self.trail)
            raise AssertionError(f"the worker differs:\n{real}\n{explored}\nafter\n{way}")
