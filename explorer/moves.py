"""Everything that can happen next in a world: which participant does what, and which world that leads to.

What one participant can do depends on little: itself, the words, and sometimes where the others are. So it is
asked once per such situation and remembered; most worlds of a search ask for situations that were met before.
That is sound because every function that is asked is pure, and sees nothing but what it is remembered by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from explorer.admission import terms_of
from explorer.controller_moves import ControllerMoves
from explorer.errors import broken_by
from explorer.rank_moves import (
    NO_INTENT,
    STEPPING,
    Answer,
    RankMoves,
    Surroundings,
    look,
    view_as_read,
)
from explorer.scope import Budget, Scope
from explorer.world import (
    AFTERS,
    ALIVE_BYTE,
    ENTERED_BYTES,
    FIRST,
    LOADED_BYTE,
    PRESENCE_BYTES,
    PUBLIC_BYTES,
    SEEN_BYTE,
    STATE_BYTES,
    STEP_BYTES,
    WORD_BYTES,
    Alternative,
    ControllerState,
    ParticipantState,
    Position,
    Seen,
    World,
    affordable,
    controller_of,
    pack,
    pack_controller,
    participant,
    read_public,
    read_words,
    spent,
    unpack,
    view_of,
    word_name,
)
from wsm.states import decide, epochs
from wsm.states.decide import Duty, Role
from wsm.states.words import CommittedWord

CONTROLLER = -1

_OF_RANKS = frozenset((Budget.STEPS, Budget.FAILURES, Budget.RANK_CRASHES, Budget.BROKEN_STEPS, Budget.HANGS))
_OF_CONTROLLER = frozenset(
    (
        Budget.COMMANDS,
        Budget.GIVE_UPS,
        Budget.CONTROLLER_CRASHES,
        Budget.CONTROLLER_LOSSES,
        Budget.CONTROLLER_STOPS,
        Budget.LEASES,
    )
)


class GroupMove(NamedTuple):
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
        self._all_participants = range(scope.participants)
        self._told: dict[tuple[object, ...], Answer] = {}
        self._answers: dict[Answer, Answer] = {}
        self._shown: set[bytes] = set()
        self._of_rank: dict[tuple[object, ...], list[Alternative]] = {}
        self._of_controller: dict[tuple[object, ...], list[Alternative]] = {}
        self._wallets: dict[bytes, tuple[frozenset[Budget], frozenset[Budget]]] = {}

    def of(self, world: World) -> Iterator[GroupMove]:
        """Iterate over the moves of a world."""
        of_ranks, of_controller = self._wallets_of(world[1])
        controller = controller_of(world)
        for index in self._all_participants:
            found = self._rank(world, controller, index, of_ranks)
            yield from self._apply(world, index, FIRST + index, found)
        yield from self._apply(world, CONTROLLER, 0, self._controller(world, controller, of_controller))

    def situations(self) -> int:
        """Return for how many different situations the protocol was asked."""
        return len(self._told) + len(self._of_rank) + len(self._of_controller)

    def _apply(self, world: World, actor: int, place: int, found: list[Alternative]) -> Iterator[GroupMove]:
        for label, after, spends, broken, changed in found:
            budgets = world[1]
            for budget in spends:
                budgets = spent(budgets, budget)
            if broken:
                yield GroupMove(actor, label, None, not spends, broken)
                continue
            parts = list(world)
            parts[1] = budgets
            parts[place] = after
            following = tuple(parts)
            yield GroupMove(actor, label, following, not spends)
            if changed and budgets[Budget.STALE_READS]:
                yield from self._unseen(following, actor, label, changed)

    def _unseen(
        self, world: World, actor: int, label: str, changed: tuple[tuple[int, int], ...]
    ) -> Iterator[GroupMove]:
        """Add the worlds in which one reader goes on seeing a word as it was."""
        budgets = spent(world[1], Budget.STALE_READS)
        controller = controller_of(world)
        for word, value in changed:
            name = word_name(word)
            for index in self._all_participants:
                reader = participant(world, index)
                if index != actor and reader.alive and not reader.seen.word:
                    parts = [*world]
                    parts[1], parts[FIRST + index] = budgets, pack(reader._replace(seen=Seen(word, value)))
                    said = f"{label}; rank {index} sees {name} as it was"
                    yield GroupMove(actor, said, tuple(parts), by_itself=False)
            status = actor != CONTROLLER and name.startswith("status")
            if status and controller.alive and not controller.seen.word:
                late = pack_controller(controller._replace(seen=Seen(word, value)))
                said = f"{label}; the controller sees {name} as it was"
                yield GroupMove(actor, said, (late, budgets, *world[FIRST:]), by_itself=False)

    # -- what a participant can do -----------------------------------------------------------------

    def _rank(
        self, world: World, controller: ControllerState, index: int, wallet: frozenset[Budget]
    ) -> list[Alternative]:
        packed = world[FIRST + index]
        me = unpack(packed, index)
        free = me.alive and not me.hung and me.position is Position.FREE and me.intent == NO_INTENT
        told = self._tell(world, index, packed, me, controller.command) if free else None
        others = self._others(world, me, told)
        overdue = self._is_overdue(world, controller)
        held = CommittedWord.unpack(controller.committed).held
        admission = (controller.after, held, controller.closed, controller.hold, controller.policy)
        requests = (controller.stands,) if self._scope.requests else ()
        late = me.hung and self._is_late(world, controller, index)
        said = (controller.version, controller.tags, controller.clears_half, controller.restores)
        asked = (*said, overdue, controller.replaces)
        key = (index, packed, late, controller.command, asked, admission, requests, wallet, id(told), others)
        found = self._of_rank.get(key)
        if found is None:
            around = Surroundings(
                index,
                controller.command,
                controller.version,
                controller.tags,
                controller.clears_half,
                controller.restores,
                AFTERS[controller.after],
                held,
                controller.closed,
                terms_of(controller.hold),
                terms_of(controller.stands) if self._scope.requests else None,
                controller.policy,
                tuple(read_public(each[:PUBLIC_BYTES]) for each in world[FIRST:]),
                self._scope.ranks,
                fine=self._scope.fine,
                long_plans=self._scope.long_plans,
                affordable=wallet,
                overdue=overdue,
                late=late,
                replaces=controller.replaces,
                requests=self._scope.requests,
            )
            found = self._of_rank[key] = _moves_of_rank(me, told, around)
        return found

    def _tell(self, world: World, index: int, packed: bytes, me: ParticipantState, command: int) -> Answer:
        """Let a participant look, or remember what it was told when it looked at the same."""
        words = tuple([each[WORD_BYTES] for each in world[FIRST:]])
        key = (index, packed[SEEN_BYTE:], command, words)
        told = self._told.get(key)
        if told is None:
            read = [read_words(each) for each in words]
            memory = packed[STATE_BYTES]
            view = view_as_read(command, read, self._scope.ranks, me.seen)
            answer = look(me.state, view, first=memory not in self._shown)
            self._shown.add(memory)
            told = self._told[key] = self._answers.setdefault(answer, answer)
        return told

    def _is_overdue(self, world: World, controller: ControllerState) -> bool:
        """Whether a stopped controller has let the deadline of its command pass, as every rank finds."""
        if not controller.frozen:
            return False
        others = [read_public(each[:PUBLIC_BYTES]) for each in world[FIRST:]]
        view = view_of(controller._replace(seen=Seen()), others, self._scope.ranks)
        return decide.duty(view, Role.STALLED, expired=True) is Duty.FAIL

    def _is_late(self, world: World, controller: ControllerState, index: int) -> bool:
        """Whether the owner of the group ends a process that hangs: the group waits for it too long."""
        others = [read_public(each[:PUBLIC_BYTES]) for each in world[FIRST:]]
        view = view_of(controller._replace(seen=Seen()), others, self._scope.ranks)
        joined = view.statuses[index].epoch == view.command.epoch
        hung = epochs.hung(view, (), waited_s=1.0, limit_s=0.0, drain_s=0.0)
        return not controller.gave_up and (not joined or index in hung)

    def _others(self, world: World, me: ParticipantState, told: Answer | None) -> tuple[bytes, ...]:
        """Return the part of the others that matters for what a participant can do."""
        people = world[FIRST:]
        todo = me.intent.todo if told is None else told.todo
        if todo in STEPPING:
            return tuple([each[ENTERED_BYTES] for each in people])
        if told is not None:
            return ()
        if me.position is Position.IN_STEP:
            return tuple([each[STEP_BYTES] + each[PRESENCE_BYTES] for each in people[: self._scope.ranks]])
        return tuple([each[:PUBLIC_BYTES] for each in people]) if me.position is Position.IN_ACTION else ()

    # -- what the controller can do ----------------------------------------------------------------

    def _controller(
        self, world: World, controller: ControllerState, wallet: frozenset[Budget]
    ) -> list[Alternative]:
        visible = tuple([(each[WORD_BYTES], each[ALIVE_BYTE], each[LOADED_BYTE]) for each in world[FIRST:]])
        key = (world[0], wallet, visible)
        found = self._of_controller.get(key)
        if found is None:
            others = tuple(read_public(each[:PUBLIC_BYTES]) for each in world[FIRST:])
            found = ControllerMoves(controller, others, self._scope, wallet).collect()
            self._of_controller[key] = found
        return found

    def _wallets_of(self, budgets: bytes) -> tuple[frozenset[Budget], frozenset[Budget]]:
        found = self._wallets.get(budgets)
        if found is None:
            left = affordable(budgets)
            found = self._wallets[budgets] = (left & _OF_RANKS, left & _OF_CONTROLLER)
        return found


def _moves_of_rank(me: ParticipantState, told: Answer | None, around: Surroundings) -> list[Alternative]:
    """Return the moves, and what is raised instead of one: it may be a value that grows without end."""
    moves = RankMoves(me, around)
    try:
        if me.hung:
            pass
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
