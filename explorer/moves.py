"""Everything that can happen next in a world: which participant does what, and which world that leads to.

What one participant can do depends on little: itself, the words, and sometimes where the others are. So it is
asked once per such situation and remembered; most worlds of a search ask for situations that were met before.
That is sound because every function that is asked is pure, and sees nothing but what it is remembered by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from explorer.answers import look
from explorer.controller_moves import ControllerMoves
from explorer.errors import broken_by
from explorer.invariants import beside_a_stopped_controller
from explorer.rank_moves import NO_INTENT, STEPPING, RankMoves, Surroundings
from explorer.scope import Budget, Scope
from explorer.world import (
    ENTERED,
    FIRST,
    PRESENCE,
    WORDS,
    Alternative,
    ControllerState,
    ParticipantState,
    Position,
    PublicState,
    Seen,
    World,
    affordable,
    all_public,
    controller_of,
    group_view,
    memory,
    pack,
    pack_controller,
    spent,
    unpack,
    view_of,
    word_name,
)
from wsm.states import epochs
from wsm.states.group import GroupTodo
from wsm.states.phases import Do
from wsm.states.words import CommittedWord

CONTROLLER = -1

_OF_RANKS = frozenset((Budget.STEPS, Budget.FAILURES, Budget.RANK_CRASHES, Budget.BROKEN_STEPS, Budget.HANGS))
_OF_CONTROLLER = frozenset(Budget) - _OF_RANKS - {Budget.STALE_READS}


class WorldMove(NamedTuple):
    """One edge.

    Attributes
    ----------
    actor : int
        A participant, or :data:`CONTROLLER`.
    label : str
        What it does, as the rest of a sentence.
    world : tuple of bytes or None
        Where that leads; None if it breaks a rule.
    by_itself : bool
        Whether it happens without a wish from outside: no work is given, no command, nothing is killed.
    broken : str
        Which rule it breaks, and how.
    """

    actor: int
    label: str
    world: World | None
    by_itself: bool
    broken: str = ""


class Moves:
    """The moves of the worlds of one exploration.

    Parameters
    ----------
    scope : Scope
        Its bounds.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._told: dict[tuple[object, ...], Do | str] = {}
        self._answers: dict[Do | str, Do | str] = {}
        self._shown: set[bytes] = set()
        self._of_rank: dict[tuple[object, ...], list[Alternative]] = {}
        self._of_controller: dict[tuple[object, ...], list[Alternative]] = {}

    def of(self, world: World) -> Iterator[WorldMove]:
        """Iterate over the moves of a world."""
        left, others = affordable(world[1]), all_public(world)
        controller = controller_of(world)
        for index in range(self._scope.participants):
            found = self._rank(world, controller, others, index, left & _OF_RANKS)
            yield from self._apply(world, index, FIRST + index, found)
        found = self._controller(world, controller, others, left & _OF_CONTROLLER)
        yield from self._apply(world, CONTROLLER, 0, found)

    def situations(self) -> int:
        """Return for how many different situations the protocol was asked."""
        return len(self._told) + len(self._of_rank) + len(self._of_controller)

    def _apply(self, world: World, actor: int, place: int, found: list[Alternative]) -> Iterator[WorldMove]:
        for label, after, spends, broken, changed in found:
            budgets = world[1]
            for budget in spends:
                budgets = spent(budgets, budget)
            if broken:
                yield WorldMove(actor, label, None, not spends, broken)
                continue
            following = _with(world, budgets, place, after)
            yield WorldMove(actor, label, following, not spends)
            if changed and budgets[Budget.STALE_READS]:
                yield from self._unseen(following, actor, label, changed)

    def _unseen(
        self, world: World, actor: int, label: str, changed: tuple[tuple[int, int], ...]
    ) -> Iterator[WorldMove]:
        """Add the worlds in which one reader goes on seeing a word as it was."""
        budgets = spent(world[1], Budget.STALE_READS)
        controller = controller_of(world)
        for word, value in changed:
            name = word_name(word)
            for index in range(self._scope.participants):
                reader = unpack(world[FIRST + index], index)
                if index != actor and reader.alive and not reader.seen.word:
                    late = pack(reader._replace(seen=Seen(word, value)))
                    said = f"{label}; rank {index} sees {name} as it was"
                    yield WorldMove(actor, said, _with(world, budgets, FIRST + index, late), by_itself=False)
            status = actor != CONTROLLER and name.startswith("status")
            if status and controller.alive and not controller.seen.word:
                late = pack_controller(controller._replace(seen=Seen(word, value)))
                said = f"{label}; the controller sees {name} as it was"
                yield WorldMove(actor, said, _with(world, budgets, 0, late), by_itself=False)

    # -- what a participant can do -----------------------------------------------------------------

    def _rank(
        self,
        world: World,
        controller: ControllerState,
        people: tuple[PublicState, ...],
        index: int,
        wallet: frozenset[Budget],
    ) -> list[Alternative]:
        packed = world[FIRST + index]
        me = unpack(packed, index)
        free = me.alive and not me.hung and me.position is Position.FREE and me.intent == NO_INTENT
        told = self._tell(packed, index, me, controller.command, people) if free else None
        around = (
            index,
            controller.command,
            controller.says,
            CommittedWord.unpack(controller.committed).held,
            controller.closed,
            controller.stands if self._scope.requests else None,
            controller.frozen and self._is_overdue(controller, people),
            me.hung and self._is_late(controller, people, index),
            controller.replaces,
            wallet,
        )
        key = (packed, around, id(told), self._others(people, me, told))
        found = self._of_rank.get(key)
        if found is None:
            surroundings = Surroundings(*around, people, self._scope)
            found = self._of_rank[key] = _moves_of_rank(me, told, surroundings)
        return found

    def _tell(
        self, packed: bytes, index: int, me: ParticipantState, command: int, people: tuple[PublicState, ...]
    ) -> Do | str:
        """Let a participant look, or remember what it was told when it looked at the same."""
        remembers = memory(packed)
        key = (index, remembers, command, tuple([each[WORDS] for each in people]))
        told = self._told.get(key)
        if told is None:
            view = view_of(command, people, self._scope.ranks, me.seen)
            try:
                told = look(me.state, view, first=remembers not in self._shown)
            except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
                told = broken_by(error)
            self._shown.add(remembers)
            told = self._told[key] = self._answers.setdefault(told, told)
        return told

    def _is_overdue(self, controller: ControllerState, people: tuple[PublicState, ...]) -> bool:
        """Whether a stopped controller has let the deadline of its command pass, as every rank finds."""
        view = group_view(controller, people, self._scope.ranks)
        return beside_a_stopped_controller(view) is GroupTodo.FAIL

    def _is_late(self, controller: ControllerState, people: tuple[PublicState, ...], index: int) -> bool:
        """Whether the owner of the group ends a process that hangs: the group waits for it too long."""
        view = group_view(controller, people, self._scope.ranks)
        joined = view.statuses[index].epoch == view.command.epoch
        hung = epochs.hung(view, (), waited_s=1.0, limit_s=0.0, drain_s=0.0)
        return not controller.gave_up and (not joined or index in hung)

    def _others(
        self, people: tuple[PublicState, ...], me: ParticipantState, told: Do | str | None
    ) -> tuple[object, ...]:
        """Return the part of the others that matters for what a participant can do."""
        left = told if isinstance(told, Do) else me.intent
        if left.todo in STEPPING or left.meanwhile in STEPPING:
            return tuple([each[ENTERED] for each in people])
        if told is not None:
            return ()
        if me.position is Position.IN_STEP:
            return tuple([(each.step, each[PRESENCE]) for each in people[: self._scope.ranks]])
        return people if me.position is Position.IN_ACTION else ()

    # -- what the controller can do ----------------------------------------------------------------

    def _controller(
        self,
        world: World,
        controller: ControllerState,
        people: tuple[PublicState, ...],
        wallet: frozenset[Budget],
    ) -> list[Alternative]:
        visible = tuple([(each[WORDS], each.alive, each.hung, each.loaded) for each in people])
        key = (world[0], wallet, visible)
        found = self._of_controller.get(key)
        if found is None:
            found = ControllerMoves(controller, people, self._scope, wallet).collect()
            self._of_controller[key] = found
        return found


def _with(world: World, budgets: bytes, place: int, part: bytes) -> World:
    parts = [*world]
    parts[1], parts[place] = budgets, part
    return tuple(parts)


def _moves_of_rank(me: ParticipantState, told: Do | str | None, around: Surroundings) -> list[Alternative]:
    """Return the moves, and what is raised instead of one: it may be a value that grows without end."""
    moves = RankMoves(me, around)
    try:
        if me.hung:
            pass
        elif isinstance(told, str):
            moves.found.append(Alternative("looks", b"", (), told))
        elif told is not None:
            moves.after_looking(told)
        elif not me.alive:
            moves.start()
        elif me.intent != NO_INTENT:
            moves.carry_on()
        elif me.position is Position.LEAVING:
            moves.join()
        elif me.position is Position.IN_ACTION:
            moves.inside_an_action()
        else:
            moves.inside_a_step()
        moves.add_strikes()
    except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
        moves.found.append(Alternative("moves", b"", (), broken_by(error)))
    return moves.found
