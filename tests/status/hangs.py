"""Random hangs of a group, made by the rules that ranks follow: whoever stops going on is known beforehand.

Every rank runs :mod:`wsm.states.rank` on the words of the others until none goes on any more. One of them, or
the controller, ceases at a random turn: between two polls, in a step, or in an action.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from wsm.command import CommandArguments
from wsm.journal.entry import CONTROLLER
from wsm.states import rank as protocol
from wsm.states.phases import Event, Happened, Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.words import (
    CommandWord,
    CommittedWord,
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
)
from wsm.status.facts import ALIVE, DEAD, NO_STEP, STOPPED, ActionFacts, GroupStatus, RankStatus

EPOCH, SEQUENCE = 2, 7
_DECISIONS = {
    Operation.UPDATE: (Operation.COMMIT, Operation.ABORT),
    Operation.HOLD: (Operation.COMMIT, Operation.ABORT),
    Operation.HOT_UPDATE: (Operation.HOT_COMMIT, Operation.HOT_ABORT),
}
OPERATIONS = (Operation.UPDATE, Operation.CLEAR, Operation.HOT_UPDATE, Operation.HOLD)
_OUTCOMES = {
    Todo.DRAIN: Event.DRAINED,
    Todo.ACCEPT: Event.ACCEPTED,
    Todo.FINISH: Event.FINISHED,
    Todo.UNDO: Event.STOPPED,
    Todo.KEEP: Event.KEPT,
    Todo.DROP: Event.CLEARED,
    Todo.LEAVE_VOTE: Event.FAILED,
}


@dataclass
class Participant:
    """One rank, or the helper, that takes one turn after the other."""

    number: int
    state: RankState
    step: StepWord | None
    status: StatusWord
    plan: tuple[ActionFacts, ...]
    ceases_at: int | None = None
    turns: int = 0
    steps_left: int = 0
    in_step: bool = False
    idle: bool = False
    inside: ActionFacts | None = None
    staging_hangs: bool = False
    drain_hangs: bool = False

    @property
    def ceased(self) -> bool:
        return self.ceases_at is not None and self.turns >= self.ceases_at


@dataclass
class Group:
    """Ranks, a helper where there is one, and a controller; each turn is one participant's."""

    chance: random.Random
    operation: Operation
    ranks: list[Participant] = field(default_factory=list)
    command: CommandWord = field(init=False)
    entered: dict[int, set[int]] = field(default_factory=dict)  # collective actions, by their index
    controller_ceases_at: int | None = None
    controller_turns: int = 0
    aborts_at: int | None = None

    def __post_init__(self) -> None:
        self.command = CommandWord(EPOCH, SEQUENCE, self.operation)

    @property
    def world(self) -> int:
        return sum(one.step is not None for one in self.ranks)

    def view(self) -> View:
        steps = [one.step for one in self.ranks if one.step is not None]
        return View(self.command, steps, [one.status for one in self.ranks], CommittedWord(6, 3))

    def run(self) -> None:
        """Let all go on until none does."""
        going_on = True
        while going_on:
            order = [*self.ranks, None]
            self.chance.shuffle(order)
            turns = [self.decide() if one is None else self.turn(one) for one in order]
            going_on = any(turns)

    def decide(self) -> bool:
        if self.controller_ceases_at is not None and self.controller_turns >= self.controller_ceases_at:
            return False
        self.controller_turns += 1
        if self.command.operation not in _DECISIONS:
            return False
        commit, abort = _DECISIONS[self.command.operation]
        codes = [
            None if word is None else word.code
            for word in map(self.view().of_command, range(len(self.ranks)))
        ]
        given_up = self.aborts_at is not None and self.controller_turns >= self.aborts_at
        if given_up or any(code is not None and code.is_failure for code in codes):
            self.command = self.command._replace(operation=abort)
            return True
        if all(code is StatusCode.PREPARED for code in codes):
            self.command = self.command._replace(operation=commit)
            return True
        return (self.aborts_at or 0) > self.controller_turns

    def turn(self, rank: Participant) -> bool:
        """Let one participant take a turn; return whether it went on."""
        if rank.ceased:
            return False
        before = rank.turns
        went_on = self._leave(rank) if rank.in_step or rank.inside is not None else self._look(rank)
        rank.turns = before + went_on
        return went_on

    def _leave(self, rank: Participant) -> bool:
        """Come out of a step or an action, if that can end."""
        if rank.in_step:
            rank.in_step = any(
                one.step is not None and one.state.step < rank.state.step for one in self.ranks
            )
            return not rank.in_step
        if rank.state.phase is Phase.STAGING:
            return self._look(rank)
        inside, index = rank.inside, rank.state.action
        if inside.collective and len(self.entered[index]) < self.world:
            return False
        rank.inside = None
        event = Event.COMMITTED if rank.state.phase is Phase.COMMITTING else Event.ACTION_DONE
        self._tell(rank, event)
        return True

    def _look(self, rank: Participant) -> bool:
        view, before = self.view(), (rank.state, rank.step, rank.status)
        do = protocol.step(rank.state, view, idle=rank.idle)
        self._store(rank, do.move)
        hangs = rank.staging_hangs and do.todo is Todo.STAGE and rank.inside is not None
        todo = Todo.JOIN if hangs and do.meanwhile is Todo.JOIN else do.todo
        rank.idle = True
        serves = todo is Todo.SERVE or (todo is Todo.STAGE and rank.inside is not None)
        if todo is Todo.JOIN or (serves and rank.steps_left):
            rank.steps_left -= todo is not Todo.JOIN
            return self._enter(rank)
        if (todo is Todo.STAGE and rank.staging_hangs) or (todo is Todo.DRAIN and rank.drain_hangs):
            if rank.inside is None and todo is Todo.STAGE:
                rank.inside = ActionFacts("stage_weights", rank.plan[-1].deadline_s)
                return True
            return False
        self._do(rank, todo)
        return todo not in (Todo.WAIT, Todo.SERVE) or before != (rank.state, rank.step, rank.status)

    def _do(self, rank: Participant, todo: Todo) -> None:
        """Do what the rank was told to do, or begin an action of it."""
        if todo is Todo.BEGIN:
            hot = rank.state.operation.is_hot
            self._tell(
                rank, Event.BEGAN, collective=() if hot else tuple(one.collective for one in rank.plan)
            )
        elif todo is Todo.RUN:
            rank.inside = rank.plan[rank.state.action]
            if rank.inside.collective:
                self.entered.setdefault(rank.state.action, set()).add(rank.number)
        elif todo is Todo.STAGE and rank.inside is None:
            rank.inside = ActionFacts("stage_weights", rank.plan[-1].deadline_s)
        elif todo is Todo.STAGE:
            rank.inside = None
            self._tell(rank, Event.STAGED)
        elif todo is Todo.COMMIT:
            rank.inside = ActionFacts("resume_admitting", rank.plan[-1].deadline_s)
        elif todo in _OUTCOMES:
            rank.inside = None
            self._tell(rank, _OUTCOMES[todo])

    def _enter(self, rank: Participant) -> bool:
        rank.in_step, rank.idle = True, False
        self._tell(rank, Event.ENTERED)
        return True

    def _tell(self, rank: Participant, event: Event, **said) -> None:
        self._store(rank, protocol.take_in(rank.state, Happened(event, **said)))

    def _store(self, rank: Participant, move) -> None:
        rank.state = move.state
        rank.step = rank.step if move.step is None else move.step
        rank.status = rank.status if move.status is None else move.status


@dataclass(frozen=True)
class Hang:
    """What hangs, and how: the truth that is to be found.

    Parameters
    ----------
    facts : GroupStatus
        What is read of the group.
    culprit : int
        Who does not go on; :data:`CONTROLLER`: the controller.
    action : str
        What it is inside of, or what others wait for it in; empty: neither.
    how : str
        ``hangs``, ``stopped`` or ``dead``.
    overdue : bool
        Whether a deadline has passed.
    """

    facts: GroupStatus
    culprit: int
    action: str
    how: str
    overdue: bool

    def __str__(self) -> str:
        words = "; ".join(
            f"{one.rank}{'h' * one.helper} {one.life} {one.status.code.name if one.status else None}"
            f"({one.status.action if one.status else ''},{one.status.ready if one.status else ''}) "
            f"{one.step_kind or ''} {one.step} "
            f"{one.action and (one.action.name, one.action.seconds, one.action.deadline_s)} {one.beat_s}"
            for one in self.facts.ranks
        )
        return f"{self.culprit} {self.how} in {self.action!r}: {self.facts.command.operation.name} [{words}]"


def random_hang(seed: int) -> Hang:
    """Make a hang; the same seed makes the same one."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    while True:
        group, ceased = _begin(chance)
        group.run()
        if _is_over(group):
            continue  # it would have ceased later than that
        return _hang(group, ceased, chance)


def _begin(chance: random.Random) -> tuple[Group, Participant | None]:
    operation = chance.choice(OPERATIONS)
    group = Group(chance, operation)
    world = chance.randint(2, 4)
    deadline_s = chance.choice((5.0, 60.0, 600.0))
    plan = tuple(
        ActionFacts(f"action_{index}", deadline_s, collective=chance.random() < 0.4)
        for index in range(chance.randint(1, 5))
    )
    if operation is Operation.HOLD:
        plan = (ActionFacts("settle", deadline_s),)
    step = chance.randint(3, 50)
    for number in range(world):
        state = RankState(number, EPOCH, step=step, done=SEQUENCE - 1, holds=True, parked=False)
        step_word = StepWord(EPOCH, SEQUENCE - 1, StepKind.RUNNING, step)
        status = StatusWord(EPOCH, SEQUENCE - 1, StatusCode.DONE_COMMITTED)
        group.ranks.append(
            Participant(number, state, step_word, status, plan, steps_left=chance.randint(0, 3))
        )
    if chance.random() < 0.3:
        state = RankState(world, EPOCH, done=SEQUENCE - 1, steps=False)
        status = StatusWord(EPOCH, SEQUENCE - 1, StatusCode.DONE_COMMITTED)
        own = (ActionFacts("release_kv_cache", deadline_s),)
        group.ranks.append(Participant(world, state, None, status, own))
    if operation is not Operation.CLEAR and chance.random() < 0.3:
        group.aborts_at = chance.randint(1, 25)
    if chance.random() < 0.1:
        group.controller_ceases_at = 0
        group.aborts_at = None
        return group, None
    ceased = chance.choice(group.ranks)
    if operation.is_hot and chance.random() < 0.15:
        ceased.staging_hangs = True
    elif not operation.is_hot and ceased.step is not None and chance.random() < 0.1:
        ceased.drain_hangs = True
    else:
        ceased.ceases_at = chance.randint(0, 30)
    return group, ceased


def _is_over(group: Group) -> bool:
    return all(one.status.sequence == SEQUENCE and one.status.code.is_terminal for one in group.ranks)


def _hang(group: Group, ceased: Participant | None, chance: random.Random) -> Hang:
    lasts_s = chance.choice((3.0, 30.0, 300.0, 3000.0))
    how = chance.choice(("hangs", "hangs", "stopped", "dead"))
    if ceased is not None and ceased.ceases_at is None:
        how = "hangs"
    ranks = tuple(_facts(one, lasts_s, chance) for one in group.ranks)
    lives = {"hangs": ALIVE, "stopped": STOPPED, "dead": DEAD}
    culprit, action = CONTROLLER, ""
    if ceased is not None:
        culprit = ceased.number
        ranks = tuple(replace(one, life=lives[how]) if one.rank == culprit else one for one in ranks)
        action = _action(group, ceased)
    controller = {
        "hangs": {"controller_pid": 900, "controller_hung": True, "controller_unanswered_s": lasts_s},
        "stopped": {"controller_pid": 900, "controller_stopped": True},
        "dead": {"controller_pid": None},
    }[how if ceased is None else "hangs"]
    if ceased is not None:
        controller = {"controller_pid": 900}
    arguments = CommandArguments(
        "nightly", None if group.operation in (Operation.CLEAR, Operation.HOLD) else "4"
    )
    if group.operation is Operation.CLEAR:
        arguments = CommandArguments("nightly", clears=True)
    facts = GroupStatus(
        "policy",
        run_id="r",
        command=group.command,
        arguments=arguments,
        asked_version="4",
        owner_pid=800,
        owner_lives=True,
        supervisor_pid=800,
        supervisor_life=ALIVE,
        ranks=ranks,
        **controller,
    )
    overdue = any(one.is_inside and one.action.seconds > one.action.deadline_s for one in ranks)
    return Hang(facts, culprit, action, how, overdue)


def _facts(rank: Participant, lasts_s: float, chance: random.Random) -> RankStatus:
    """Say what is read of a rank that long after all stood still."""
    turns = not (rank.ceased or rank.in_step or (rank.inside is not None and not rank.staging_hangs))
    action = None
    if rank.inside is not None:
        action = replace(rank.inside, seconds=lasts_s + chance.random())
    elif rank.status.code is StatusCode.RUNNING and rank.status.action < len(rank.plan):
        action = rank.plan[rank.status.action]
    return RankStatus(
        rank.number,
        helper=rank.step is None,
        pid=100 + rank.number,
        status=rank.status,
        step_word=rank.step or NO_STEP,
        since_s=lasts_s + chance.random(),
        beat_s=chance.random() / 2 if turns else lasts_s,
        action=action,
    )


def _action(group: Group, ceased: Participant) -> str:
    """Return what it is inside of; else what another one is inside of because of it."""
    waiting = [one.inside.name for one in (ceased, *group.ranks) if one.inside is not None]
    return waiting[0] if waiting else ""
