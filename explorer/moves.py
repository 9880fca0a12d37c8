"""Everything that can happen next in a world: who does what, and which world that leads to.

What one participant can do depends on little: itself, the words, and sometimes where the others stand. So
it is asked once per such situation and remembered; most worlds of a search ask for situations that were met
before. That is sound because every function that is asked is pure, and sees nothing but what it is
remembered by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from explorer import (
    adversary,
    company,
    controller_moves,
    deeds,
)
from explorer import (
    desk as desks,
)
from explorer import (
    participant as participants,
)
from explorer.clerk import Group, Visible
from explorer.deeds import STEPPING
from explorer.desk import Desk
from explorer.errors import broken_by
from explorer.looking import Reading, Told, look
from explorer.outcomes import Outcome
from explorer.participant import (
    ENTERED_BYTES,
    PRESENCE_BYTES,
    PUBLIC_BYTES,
    SEEN_BYTE,
    STATE_BYTES,
    STEP_BYTES,
    WORD_BYTES,
    Entered,
    Participant,
    Pending,
    Place,
    Presence,
    Seen,
    read_public,
    read_words,
)
from explorer.scope import Budget, Scope
from explorer.situation import Situation
from explorer.world import FIRST, World, affordable, desk_of, participant, spent
from wsm.states import takeover
from wsm.states.takeover import Duty, Role

CONTROLLER = -1

_OF_RANKS = frozenset((Budget.STEPS, Budget.FAILURES, Budget.RANK_CRASHES, Budget.BROKEN_STEPS))
_OF_CONTROLLER = frozenset(
    (
        Budget.COMMANDS,
        Budget.GIVE_UPS,
        Budget.CONTROLLER_CRASHES,
        Budget.CONTROLLER_LOSSES,
        Budget.CONTROLLER_STOPS,
    )
)


class Move(NamedTuple):
    """One edge.

    Attributes
    ----------
    actor : int
        Who moves: a participant, or :data:`CONTROLLER`.
    label : str
        What it does, as the rest of a sentence.
    world : tuple of bytes or None
        Where that leads; None if it breaks a rule.
    by_itself : bool
        Whether it happens without anybody outside wanting it: nobody gives work, commands, kills.
    broken : str
        Which rule it breaks, and how.
    """

    actor: int
    label: str
    world: World | None
    by_itself: bool
    broken: str = ""


class _Remembered(NamedTuple):
    label: str
    after: bytes
    spends: tuple[Budget, ...]
    broken: str
    changed: tuple[tuple[int, int], ...]


class Moves:
    """The moves of the worlds of one exploration.

    Parameters
    ----------
    scope : Scope
        Its bounds.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._everybody = range(scope.participants)
        self._told: dict[tuple[object, ...], Told] = {}
        self._answers: dict[Told, Told] = {}
        self._shown: set[bytes] = set()
        self._of_rank: dict[tuple[object, ...], list[_Remembered]] = {}
        self._of_controller: dict[tuple[object, ...], list[_Remembered]] = {}
        self._wallets: dict[bytes, tuple[frozenset[Budget], frozenset[Budget]]] = {}

    def of(self, world: World) -> Iterator[Move]:
        """Iterate over the moves of a world."""
        of_ranks, of_controller = self._wallets_of(world[1])
        for index in self._everybody:
            yield from self._apply(world, index, FIRST + index, self._rank(world, index, of_ranks))
        yield from self._apply(world, CONTROLLER, 0, self._controller(world, of_controller))

    def situations(self) -> int:
        """Return for how many different situations the protocol was asked."""
        return len(self._told) + len(self._of_rank) + len(self._of_controller)

    # -- from remembered moves to worlds -----------------------------------------------------------

    def _apply(self, world: World, actor: int, place: int, found: list[_Remembered]) -> Iterator[Move]:
        for label, after, spends, broken, changed in found:
            budgets = world[1]
            for budget in spends:
                budgets = spent(budgets, budget)
            if broken:
                yield Move(actor, label, None, not spends, broken)
                continue
            parts = list(world)
            parts[1] = budgets
            parts[place] = after
            following = tuple(parts)
            yield Move(actor, label, following, not spends)
            if changed and budgets[Budget.STALE_READS]:
                yield from self._unseen(following, actor, label, changed)

    def _unseen(
        self, world: World, actor: int, label: str, changed: tuple[tuple[int, int], ...]
    ) -> Iterator[Move]:
        """Add the worlds in which one reader goes on seeing a word as it was."""
        budgets = spent(world[1], Budget.STALE_READS)
        for word, value in changed:
            name = adversary.word_name(word)
            for index in self._everybody:
                reader = participant(world, index)
                if index != actor and reader.alive and reader.sees_all:
                    after = participants.pack(reader._replace(seen=Seen(word, value)))
                    parts = [*world]
                    parts[1], parts[FIRST + index] = budgets, after
                    yield Move(
                        actor, f"{label}; rank {index} sees {name} as it was", tuple(parts), by_itself=False
                    )
            desk = desk_of(world)
            if actor != CONTROLLER and name.startswith("status") and desk.alive and not desk.seen.word:
                late = desks.pack(desk._replace(seen=Seen(word, value)))
                yield Move(
                    actor,
                    f"{label}; the controller sees {name} as it was",
                    (late, budgets, *world[FIRST:]),
                    by_itself=False,
                )

    # -- what a participant can do -----------------------------------------------------------------

    def _rank(self, world: World, index: int, wallet: frozenset[Budget]) -> list[_Remembered]:
        packed = world[FIRST + index]
        me = participants.unpack(packed, index)
        desk = desk_of(world)
        free = me.alive and me.place is Place.FREE and me.pending == _NOTHING_PENDING
        told = self._tell(world, index, packed, me, desk.command) if free else None
        others = self._others(world, me, told)
        overdue = self._is_overdue(world, desk)
        asked = (desk.version, desk.tags, desk.clears_half, overdue)
        key = (index, packed, desk.command, asked, wallet, id(told), others)
        found = self._of_rank.get(key)
        if found is None:
            situation = self._situation(index, world, wallet, overdue=overdue)
            found = self._of_rank[key] = _whatever_happens(
                lambda: _with_strikes(index, me, self._outcomes(world, me, told, situation), wallet)
            )
        return found

    def _tell(self, world: World, index: int, packed: bytes, me: Participant, command: int) -> Told:
        """Let a participant look, or remember what it was told when it looked at the same."""
        words = tuple([each[WORD_BYTES] for each in world[FIRST:]])
        key = (index, packed[SEEN_BYTE:], command, words)
        told = self._told.get(key)
        if told is None:
            reading = Reading(self._scope.ranks, command, tuple(read_words(each) for each in words), me.seen)
            memory = packed[STATE_BYTES]
            answer = look(me.state, reading, first=memory not in self._shown)
            self._shown.add(memory)
            told = self._told[key] = self._answers.setdefault(answer, answer)
        return told

    def _is_overdue(self, world: World, desk: Desk) -> bool:
        """Whether a stopped controller has let the deadline of its command pass, as every rank finds."""
        if not desk.frozen:
            return False
        visible = tuple([Visible(*read_words(each[WORD_BYTES]), 1, 0) for each in world[FIRST:]])
        group = Group(self._scope.ranks, visible, self._scope.operations, halves=False, fine=False)
        found = takeover.duty(group.view(desk._replace(seen=Seen())), Role.STALLED, expired=True)
        return found is Duty.FAIL

    def _situation(self, index: int, world: World, wallet: frozenset[Budget], *, overdue: bool) -> Situation:
        desk = desk_of(world)
        entered = tuple(
            Entered(other.epoch, other.entered_step, other.step_version, other.ran)
            for other in (read_public(each[:PUBLIC_BYTES]) for each in world[FIRST:])
        )
        return Situation(
            index,
            desk.command,
            desk.version,
            desk.tags,
            desk.clears_half,
            entered,
            fine=self._scope.fine,
            long_plans=self._scope.long_plans,
            affordable=wallet,
            overdue=overdue,
        )

    def _others(self, world: World, me: Participant, told: Told | None) -> tuple[bytes, ...]:
        """Return the part of the others that matters for what a participant can do."""
        people = world[FIRST:]
        todo = me.pending.todo if told is None else told.todo
        if todo in STEPPING:
            return tuple([each[ENTERED_BYTES] for each in people])
        if told is not None:
            return ()
        if me.place is Place.IN_STEP:
            return tuple([each[STEP_BYTES] + each[PRESENCE_BYTES] for each in people[: self._scope.ranks]])
        return tuple([each[:PUBLIC_BYTES] for each in people]) if me.place is Place.IN_ACTION else ()

    def _outcomes(
        self, world: World, me: Participant, told: Told | None, situation: Situation
    ) -> list[Outcome]:
        if told is not None:
            return deeds.after_looking(me, told, situation)
        if not me.alive:
            return company.start(me, situation)
        if me.pending != _NOTHING_PENDING:
            return deeds.carry_on(me, situation)
        everybody = [read_public(each[:PUBLIC_BYTES]) for each in world[FIRST:]]
        if me.place is Place.IN_ACTION:
            return company.inside_an_action(me, situation, everybody[: self._scope.ranks])
        ranks = [
            Presence(other.step, other.alive, other.epoch, other.entered_step)
            for other in everybody[: self._scope.ranks]
        ]
        return company.inside_a_step(me, situation, ranks)

    # -- what the controller can do ----------------------------------------------------------------

    def _controller(self, world: World, wallet: frozenset[Budget]) -> list[_Remembered]:
        seen = tuple([each[:PUBLIC_BYTES] for each in world[FIRST:]])
        visible = tuple([Visible(*read_words(each[WORD_BYTES]), each[16], each[-1]) for each in seen])
        key = (world[0], wallet, visible)
        found = self._of_controller.get(key)
        if found is None:
            found = self._of_controller[key] = _whatever_happens(
                lambda: self._controller_anew(world, visible, wallet)
            )
        return found

    def _controller_anew(
        self, world: World, visible: tuple[Visible, ...], wallet: frozenset[Budget]
    ) -> Iterator[_Remembered]:
        desk, scope = desk_of(world), self._scope
        group = Group(scope.ranks, visible, scope.operations, halves=scope.halves, fine=scope.fine)
        for label, after, spends, broken in controller_moves.moves(desk, group, wallet):
            if after is None:
                yield _Remembered(label, b"", spends, broken, ())
            else:
                changed = adversary.changed_command(desk, after)
                yield _Remembered(label, desks.pack(after), spends, "", changed)
        if desk.seen.word:
            word = adversary.word_name(desk.seen.word)
            yield _Remembered(f"sees {word} as it is", desks.pack(desk._replace(seen=Seen())), (), "", ())
        at_work = desk.driving or desk.pending or group.lost(desk)
        if not (desk.alive and at_work):
            return
        if Budget.CONTROLLER_STOPS in wallet:
            label = "goes on" if desk.frozen else "is stopped, with the role"
            standing = desks.pack(desk._replace(frozen=not desk.frozen))
            yield _Remembered(label, standing, (Budget.CONTROLLER_STOPS,), "", ())
        if Budget.CONTROLLER_LOSSES in wallet:
            gone = desks.pack(adversary.controller_killed(desk)._replace(left=True))
            yield _Remembered("dies, and none follows", gone, (Budget.CONTROLLER_LOSSES,), "", ())
        if Budget.CONTROLLER_CRASHES not in wallet:
            return
        spends = (Budget.CONTROLLER_CRASHES,)
        yield _Remembered("dies", desks.pack(adversary.controller_killed(desk)), spends, "", ())
        if adversary.takes_over_from_the_living and desk.pending:
            yield _Remembered("is stopped", desks.pack(adversary.controller_stopped(desk)), spends, "", ())

    def _wallets_of(self, budgets: bytes) -> tuple[frozenset[Budget], frozenset[Budget]]:
        found = self._wallets.get(budgets)
        if found is None:
            left = affordable(budgets)
            found = self._wallets[budgets] = (left & _OF_RANKS, left & _OF_CONTROLLER)
        return found


_NOTHING_PENDING = Pending()


def _whatever_happens(moves: Callable[[], Iterator[_Remembered]]) -> list[_Remembered]:
    """Return the moves, and what is raised instead of one: it may be a value that grows without end."""
    found: list[_Remembered] = []
    try:
        found.extend(moves())
    except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
        found.append(_Remembered("moves", b"", (), broken_by(error), ()))
    return found


def _with_strikes(
    index: int, me: Participant, outcomes: list[Outcome], wallet: frozenset[Budget]
) -> Iterator[_Remembered]:
    """Add to what a participant does by itself what can be done to it."""
    for label, after, spends, broken in outcomes:
        paid = () if spends is None else (spends,)
        if after is None:
            yield _Remembered(label, b"", paid, broken, ())
        else:
            changed = adversary.changed_words(index, me, after)
            yield _Remembered(label, participants.pack(after), paid, "", changed)
    if me.alive and not me.sees_all:
        word = adversary.word_name(me.seen.word)
        yield _Remembered(f"sees {word} as it is", participants.pack(me._replace(seen=Seen())), (), "", ())
    if me.alive and Budget.RANK_CRASHES in wallet:
        yield _Remembered("dies", participants.pack(adversary.killed(me)), (Budget.RANK_CRASHES,), "", ())
