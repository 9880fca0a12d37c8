"""Every order of events of a small group, on the real protocol functions and real packed words.

The world below is a controller and N ranks whose words live in tuples. A move is one poll of one rank,
one thing that a rank was told to do, or one look of the controller; anything that may fail may fail.
The steps and the collective actions are real in the sense that matters: whoever enters one stays in
it until all have entered.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, replace

import pytest

from wsm.protocol import decide, rank as protocol
from wsm.protocol.rank_state import Move, Phase, RankState, Todo
from wsm.protocol.view import View
from wsm.signals.word import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

FREE, IN_STEP, IN_ACTION = "free", "in step", "in action"
PLAN = {Operation.CLEAR: (False,), Operation.UPDATE: (True, False), Operation.HOT_UPDATE: ()}
TOUCHING = {Operation.CLEAR: 0, Operation.UPDATE: 1}


@dataclass(frozen=True)
class Actor:
    state: RankState
    place: str = FREE
    version: int | None = 1


@dataclass(frozen=True)
class World:
    command: int
    committed: int
    steps: tuple[int, ...]
    statuses: tuple[int, ...]
    actors: tuple[Actor, ...]
    work: int
    fails: int
    give_ups: int
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


def first_world(
    ranks: int, *, work: int, fails: int, give_ups: int, commands: tuple[Operation, ...]
) -> World:
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


def put(items: tuple, index: int, item: object) -> tuple:
    return (*items[:index], item, *items[index + 1 :])


def apply(world: World, r: int, move: Move, **changes: object) -> World:
    if move.step is not None:
        world = replace(world, steps=put(world.steps, r, move.step.pack()))
    if move.status is not None:
        check_status(StatusWord.unpack(world.statuses[r]), move.status)
        world = replace(world, statuses=put(world.statuses, r, move.status.pack()))
    return replace(world, actors=put(world.actors, r, replace(world.actors[r], state=move.state, **changes)))


def check_status(before: StatusWord, after: StatusWord) -> None:
    assert (after.epoch, after.sequence) >= (before.epoch, before.sequence)
    if (after.epoch, after.sequence) == (before.epoch, before.sequence):
        assert after.ready >= before.ready, "a vote was hidden"
        assert not before.code.is_terminal, "a terminal code was taken back"


def enter_step(world: World, r: int) -> World:
    actor = world.actors[r]
    move = protocol.entered(actor.state)
    assert actor.version is not None, "a rank served without weights"
    for step, version in world.served:
        assert step != move.state.step or version == actor.version, "one step, two versions"
    served = tuple(sorted({*world.served, (move.state.step, actor.version)}))
    return apply(replace(world, served=served), r, move, place=IN_STEP)


def controller_moves(world: World) -> list[tuple[str, World]]:
    view, found = world.view(), []
    for give_up in (False, True) if world.give_ups else (False,):
        word = decide.decision(view, agree=True, give_up=give_up)
        if word is not None:
            used = world.give_ups - (give_up and decide.decision(view, agree=True, give_up=False) is None)
            found.append(
                (
                    f"decide {word.name}",
                    replace(world, command=decide.decided(view, word).pack(), give_ups=used),
                )
            )
    if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
        done = decide.committed(view, view.command.sequence + 1).pack()
        found.append(("committed", replace(world, committed=done)))
    if world.commands and decide.is_over(view):
        word = decide.next_command(view, world.commands[0])
        found.append(
            (
                f"command {word.operation.name}",
                replace(world, command=word.pack(), commands=world.commands[1:]),
            )
        )
    return found


def rank_moves(world: World, r: int) -> list[tuple[str, World]]:
    actor, view = world.actors[r], world.view()
    if actor.place == IN_STEP:
        if all(word.step >= actor.state.step for word in view.steps):
            return [("leave step", replace(world, actors=put(world.actors, r, replace(actor, place=FREE))))]
        return []
    if actor.place == IN_ACTION:
        key = (actor.state.sequence, actor.state.action)
        if all((*key, peer) in world.inside for peer in range(len(world.actors))):
            return outcome(world, r, replace(actor, place=FREE))
        return []
    move = protocol.advance(actor.state, view)
    return todo(apply(world, r, move), r, move.todo, view)


def outcome(world: World, r: int, actor: Actor) -> list[tuple[str, World]]:
    state = actor.state
    touches = TOUCHING.get(state.operation) == state.action
    world = replace(world, actors=put(world.actors, r, actor))
    version = None if touches else actor.version
    found = [("action", apply(world, r, protocol.action_finished(state, touched=touches), version=version))]
    if world.fails:
        less = replace(world, fails=world.fails - 1)
        found.append(
            ("action fails", apply(less, r, protocol.failed(state, touched=touches), version=version))
        )
    return found


def todo(world: World, r: int, what: Todo, view: View) -> list[tuple[str, World]]:
    actor = world.actors[r]
    state = actor.state
    found: list[tuple[str, World]] = []
    if what is Todo.LOOK or what is Todo.WAIT:
        found.append(("look", world))
    elif what is Todo.JOIN:
        found.append(("join", enter_step(world, r)))
    elif what is Todo.SERVE:
        found.append(("serve", world))
        if world.work:
            found.append(("step", enter_step(replace(world, work=world.work - 1), r)))
    elif what is Todo.BEGIN:
        if state.holds or state.operation is not Operation.HOT_UPDATE:
            found.append(("begin", apply(world, r, protocol.began(state, PLAN[state.operation]))))
        else:
            found.append(("refuse", apply(world, r, protocol.refused(state))))
    elif what is Todo.DRAIN:
        found.append(("drained", apply(world, r, protocol.drained(state))))
        if world.work and state.holds:
            found.append(("step", enter_step(replace(world, work=world.work - 1), r)))
    elif what is Todo.ACCEPT:
        found.append(("accept", apply(world, r, protocol.accepted(state))))
    elif what is Todo.RUN:
        if state.collective[state.action]:
            inside = world.inside | {(state.sequence, state.action, r)}
            actors = put(world.actors, r, replace(actor, place=IN_ACTION))
            found.append(("enter action", replace(world, actors=actors, inside=inside)))
        else:
            found += outcome(world, r, actor)
    elif what is Todo.FORSAKEN:
        found.append(("forsaken", apply(world, r, protocol.failed(state))))
    elif what is Todo.FINISH:
        found.append(("finish", apply(world, r, protocol.finished(state))))
    elif what is Todo.STAGE:
        found.append(("staged", apply(world, r, protocol.staged(state))))
    elif what is Todo.COMMIT:
        assert view.command.operation.is_commit
        found.append(
            ("commit", apply(world, r, protocol.committed(state), version=view.command.sequence + 1))
        )
    elif what is Todo.UNDO:
        found.append(("stop", apply(world, r, protocol.stopped(state, touched=False))))
    elif what is Todo.KEEP:
        assert not state.touched
        found.append(("keep", apply(world, r, protocol.settled(state, StatusCode.DONE_KEPT))))
    elif what is Todo.DROP:
        found.append(
            ("drop", apply(world, r, protocol.settled(state, StatusCode.DONE_CLEARED), version=None))
        )
    if protocol.may_fail(state) and world.fails and what in (Todo.DRAIN, Todo.WAIT, Todo.STAGE):
        less = replace(world, fails=world.fails - 1)
        found.append(("deadline", apply(less, r, protocol.failed(state))))
    return found


def successors(world: World) -> list[tuple[str, World]]:
    found = controller_moves(world)
    for r in range(len(world.actors)):
        found += [(f"rank {r}: {name}", after) for name, after in rank_moves(world, r)]
    return [(name, after) for name, after in found if after != world]


def explore(first: World) -> tuple[int, list[World]]:
    seen: dict[World, tuple[World, str] | None] = {first: None}
    queue, ends = collections.deque([first]), []
    while queue:
        world = queue.popleft()
        try:
            following = successors(world)
        except Exception as error:
            raise AssertionError(f"{error!r} after:\n{trace(seen, world)}") from error
        if not following:
            ends.append(world)
            assert_good_end(world, trace(seen, world))
        for name, after in following:
            if after not in seen:
                seen[after] = (world, name)
                queue.append(after)
    return len(seen), ends


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


CASES = [
    (2, 1, 1, 1, (Operation.CLEAR, Operation.UPDATE)),
    (2, 2, 1, 0, (Operation.UPDATE,)),
    (2, 1, 1, 1, (Operation.UPDATE, Operation.CLEAR)),
    (2, 2, 1, 1, (Operation.HOT_UPDATE,)),
    (2, 1, 0, 1, (Operation.HOT_UPDATE, Operation.CLEAR)),
    (3, 1, 1, 0, (Operation.CLEAR,)),
    (3, 1, 1, 0, (Operation.UPDATE,)),
    (3, 2, 0, 0, (Operation.HOT_UPDATE,)),
    (2, 2, 2, 1, (Operation.UPDATE, Operation.CLEAR, Operation.UPDATE)),
]


@pytest.mark.parametrize(("ranks", "work", "fails", "give_ups", "commands"), CASES)
def test_every_order_of_events_ends_with_one_version_on_all_ranks(ranks, work, fails, give_ups, commands):
    states, ends = explore(first_world(ranks, work=work, fails=fails, give_ups=give_ups, commands=commands))
    assert states > 100
    assert ends
