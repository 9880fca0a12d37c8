"""A controller and N ranks in tuples, on the real protocol functions and real packed words, and every order.

A move is one poll of one rank, one thing that a rank was told to do, or one look of the controller;
anything that may fail may fail. The steps and the collective actions are real in the sense that
matters: whoever enters one stays in it until all have entered.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass, replace

from wsm.states import decide
from wsm.states import rank as protocol
from wsm.states.phases import Event, Happened
from wsm.states.rank_state import Move, Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

FREE, IN_STEP, IN_ACTION = "free", "in step", "in action"
PLAN = {Operation.CLEAR: (False,), Operation.UPDATE: (True, False), Operation.HOT_UPDATE: ()}
TOUCHING = {Operation.CLEAR: 0, Operation.UPDATE: 1}


@dataclass(frozen=True)
class Actor:
    """A rank: what it remembers, where its process is, and which version its weights are."""

    state: RankState
    place: str = FREE
    version: int | None = 1


@dataclass(frozen=True)
class World:
    """All words, all ranks, and how much may still happen."""

    command: int
    committed: int
    steps: tuple[int, ...]
    statuses: tuple[int, ...]
    actors: tuple[Actor, ...]
    work: int  # steps that somebody may begin
    fails: int  # actions and deadlines that may fail
    give_ups: int  # callers that may lose their patience
    commands: tuple[Operation, ...]
    served: tuple[tuple[int, int], ...] = ()  # (step, version that served it)
    inside: frozenset[tuple[int, int, int]] = frozenset()  # (sequence, action, rank) that entered it

    def view(self) -> View:
        return View(
            CommandWord.unpack(self.command),
            [StepWord.unpack(word) for word in self.steps],
            [StatusWord.unpack(word) for word in self.statuses],
            CommittedWord.unpack(self.committed),
        )


Found = list[tuple[str, World]]


def first_world(
    ranks: int, *, work: int, fails: int, give_ups: int, commands: tuple[Operation, ...]
) -> World:
    """A group that serves version 1."""
    state = [RankState(rank=r, epoch=1, holds=True, weights=0, kv=0, parked=False) for r in range(ranks)]
    return World(
        CommandWord(1, 0, Operation.NONE).pack(),
        CommittedWord(0, 1).pack(),
        tuple(StepWord(1, 0, StepKind.RUNNING, 0).pack() for _ in state),
        tuple(StatusWord(1, 0, StatusCode.ATTACHED).pack() for _ in state),
        tuple(Actor(s) for s in state),
        work,
        fails,
        give_ups,
        commands,
    )


def explore(first: World) -> tuple[int, list[World]]:
    """Take every move from every world; return how many worlds there are, and those where nothing can move.

    Raises
    ------
    AssertionError
        With the moves that lead there, if a rule is broken or a group can get stuck.
    """
    seen: dict[World, tuple[World, str] | None] = {first: None}
    queue, ends = collections.deque([first]), []
    while queue:
        world = queue.popleft()
        following = successors_or_trace(world, seen)
        if not following:
            ends.append(world)
            assert_good_end(world, trace(seen, world))
        for name, after in following:
            if after not in seen:
                seen[after] = (world, name)
                queue.append(after)
    return len(seen), ends


def successors_or_trace(world: World, seen: dict) -> Found:
    try:
        return successors(world)
    except Exception as error:
        raise AssertionError(f"{error!r} after:\n{trace(seen, world)}") from error


def trace(seen: dict, world: World) -> str:
    names = []
    while seen[world] is not None:
        world, name = seen[world]
        names.append(name)
    return "\n".join(reversed(names))


def assert_good_end(world: World, how: str) -> None:
    view = world.view()
    assert not world.commands, f"commands were never taken:\n{how}"
    assert decide.is_over(view), f"a command is open for ever:\n{how}"
    assert all(a.place == FREE and a.state.phase is Phase.IDLE for a in world.actors), (
        f"a rank is stuck:\n{how}"
    )
    assert len({a.version for a in world.actors}) == 1, f"two versions:\n{how}"
    assert all((a.version is not None) == a.state.holds for a in world.actors), how
    if world.actors[0].version is not None:
        assert view.committed.version == world.actors[0].version, how


def successors(world: World) -> Found:
    found = controller_moves(world)
    for r in range(len(world.actors)):
        found += [(f"rank {r}: {name}", after) for name, after in rank_moves(world, r)]
    return [(name, after) for name, after in found if after != world]


def controller_moves(world: World) -> Found:
    view, found = world.view(), []
    for give_up in (False, True) if world.give_ups else (False,):
        word = decide.decision(view, agree=True, give_up=give_up)
        if word is not None:
            used = world.give_ups - (give_up and decide.decision(view, agree=True, give_up=False) is None)
            after = replace(world, command=decide.decided(view, word).pack(), give_ups=used)
            found.append((f"decide {word.name}", after))
    if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
        done = decide.committed(view, view.command.sequence + 1).pack()
        found.append(("committed", replace(world, committed=done)))
    if world.commands and decide.is_over(view):
        word = decide.next_command(view, world.commands[0])
        after = replace(world, command=word.pack(), commands=world.commands[1:])
        found.append((f"command {word.operation.name}", after))
    return found


def rank_moves(world: World, r: int) -> Found:
    actor, view = world.actors[r], world.view()
    if actor.place == IN_STEP:
        if all(word.step >= actor.state.step for word in view.steps):
            return [("leave step", replace(world, actors=put(world.actors, r, replace(actor, place=FREE))))]
        return []
    if actor.place == IN_ACTION:
        key = (actor.state.sequence, actor.state.action)
        if all((*key, peer) in world.inside for peer in range(len(world.actors))):
            return outcomes(world, r, replace(actor, place=FREE))
        return []
    move = protocol.advance(actor.state, view)
    return deadline(world, r) + DEEDS[move.todo](apply(world, r, move), r)


def deadline(world: World, r: int) -> Found:
    """A rank's patience ends; it may have read the words before they became what they are now."""
    state = world.actors[r].state
    if not world.fails or state.phase is Phase.IDLE or not protocol.may_fail(state):
        return []
    return [
        (
            "deadline",
            apply(replace(world, fails=world.fails - 1), r, protocol.take_in(state, Happened(Event.FAILED))),
        )
    ]


def outcomes(world: World, r: int, actor: Actor) -> Found:
    """What may come of the action that a rank is at."""
    state = actor.state
    touches = TOUCHING.get(state.operation) == state.action
    world = replace(world, actors=put(world.actors, r, actor))
    version = None if touches else actor.version
    done = protocol.take_in(state, Happened(Event.ACTION_DONE, touched=touches))
    found = [("action", apply(world, r, done, version=version))]
    if world.fails:
        less = replace(world, fails=world.fails - 1)
        failed = protocol.take_in(state, Happened(Event.FAILED, touched=touches))
        found.append(("action fails", apply(less, r, failed, version=version)))
    return found


def stepping(world: World, r: int) -> Found:
    """A step that the rank begins because it has work."""
    if not (world.work and world.actors[r].state.holds):
        return []
    return [("step", enter_step(replace(world, work=world.work - 1), r))]


def begin(world: World, r: int) -> Found:
    state = world.actors[r].state
    if not state.holds and state.operation is Operation.HOT_UPDATE:
        return [("refuse", apply(world, r, protocol.take_in(state, Happened(Event.REFUSED))))]
    began = Happened(Event.BEGAN, collective=PLAN[state.operation])
    return [("begin", apply(world, r, protocol.take_in(state, began)))]


def run(world: World, r: int) -> Found:
    actor = world.actors[r]
    state = actor.state
    if not state.collective[state.action]:
        return outcomes(world, r, actor)
    inside = world.inside | {(state.sequence, state.action, r)}
    actors = put(world.actors, r, replace(actor, place=IN_ACTION))
    return [("enter action", replace(world, actors=actors, inside=inside))]


def commit(world: World, r: int) -> Found:
    command = CommandWord.unpack(world.command)
    assert command.operation.is_commit, "a rank committed what was not decided"
    move = protocol.take_in(world.actors[r].state, Happened(Event.COMMITTED))
    return [("commit", apply(world, r, move, version=command.sequence + 1))]


def keep(world: World, r: int) -> Found:
    state = world.actors[r].state
    assert not state.touched, "a rank kept weights that it had touched"
    return [("keep", apply(world, r, protocol.take_in(state, Happened(Event.KEPT))))]


def drop(world: World, r: int) -> Found:
    move = protocol.take_in(world.actors[r].state, Happened(Event.CLEARED))
    return [("drop", apply(world, r, move, version=None))]


def told(event: Event) -> Callable[[World, int], Found]:
    """What the rank did needs no more than to be taken in."""
    happened = Happened(event)
    return lambda world, r: [
        (event.value, apply(world, r, protocol.take_in(world.actors[r].state, happened)))
    ]


DEEDS: dict[Todo, Callable[[World, int], Found]] = {
    Todo.LOOK: lambda world, _: [("look", world)],
    Todo.WAIT: lambda world, _: [("look", world)],
    Todo.JOIN: lambda world, r: [("join", enter_step(world, r))],
    Todo.SERVE: lambda world, r: [("serve", world), *stepping(world, r)],
    Todo.BEGIN: begin,
    Todo.DRAIN: lambda world, r: [*told(Event.DRAINED)(world, r), *stepping(world, r)],
    Todo.ACCEPT: told(Event.ACCEPTED),
    Todo.RUN: run,
    Todo.FORSAKEN: told(Event.FAILED),
    Todo.FINISH: told(Event.FINISHED),
    Todo.STAGE: told(Event.STAGED),
    Todo.COMMIT: commit,
    Todo.UNDO: told(Event.STOPPED),
    Todo.KEEP: keep,
    Todo.DROP: drop,
}


def enter_step(world: World, r: int) -> World:
    actor = world.actors[r]
    move = protocol.take_in(actor.state, Happened(Event.ENTERED))
    assert actor.version is not None, "a rank served without weights"
    for step, version in world.served:
        assert step != move.state.step or version == actor.version, "one step, two versions"
    served = tuple(sorted({*world.served, (move.state.step, actor.version)}))
    return apply(replace(world, served=served), r, move, place=IN_STEP)


def apply(world: World, r: int, move: Move, **changes: object) -> World:
    if move.step is not None:
        world = replace(world, steps=put(world.steps, r, move.step.pack()))
    if move.status is not None:
        check_status(StatusWord.unpack(world.statuses[r]), move.status)
        world = replace(world, statuses=put(world.statuses, r, move.status.pack()))
    return replace(world, actors=put(world.actors, r, replace(world.actors[r], state=move.state, **changes)))


def check_status(before: StatusWord, after: StatusWord) -> None:
    assert (after.epoch, after.sequence) >= (before.epoch, before.sequence), "a word went back"
    if (after.epoch, after.sequence) == (before.epoch, before.sequence):
        assert after.ready >= before.ready, "a vote was hidden"
        assert not before.code.is_terminal, "a terminal code was taken back"


def put(items: tuple, index: int, item: object) -> tuple:
    return (*items[:index], item, *items[index + 1 :])
