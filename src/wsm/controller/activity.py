"""What a rank is doing, by the names of its own plans, and which ranks have been at one thing for too long.

Reads words and slots, and the time by one controller's clock: how long an action has taken is counted from
when this controller first saw it, so no other process' clock is believed. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from wsm.clock import Clock
from wsm.controller.group_view import GroupView
from wsm.declared_plans import DeclaredAction, DeclaredPlan, DeclaredPlansError
from wsm.signals.presence import Doing
from wsm.states.view import View
from wsm.states.words import Operation, StatusCode, StatusWord, StepKind, code_name


@dataclass(frozen=True)
class Hang:
    """An action that a rank does not come out of.

    Parameters
    ----------
    rank : int
        Whom the others wait for.
    action : str
        Where it is, or where it never came.
    seconds : float
        How long that has been so, as far as this controller saw it.
    deadline_s : float
        How long the action may take.
    stopped : bool
        Whether the process is stopped.
    """

    rank: int
    action: str
    seconds: float
    deadline_s: float
    stopped: bool


def plan_of(group: GroupView, rank: int, epoch: int) -> DeclaredPlan | None:
    """Return the plan that a rank has at hand; None if that cannot be known."""
    return _plan_of(group, rank, epoch, group.presence(rank).doing)


def action_inside(group: GroupView, rank: int, epoch: int) -> DeclaredAction | None:
    """Return the action that a rank is inside of; None if it is inside none, or that cannot be known."""
    return _action_of(group, rank, epoch, group.presence(rank).doing)


def action_named(group: GroupView, rank: int, status: StatusWord) -> str:
    """Return the name of the action that a status word gives by its number."""
    plan = plan_of(group, rank, status.epoch)
    action = None if plan is None else plan.numbered(status.action)
    return f"action {status.action} of its plan" if action is None else action.name


def doing(group: GroupView, rank: int, status: StatusWord | None, operation: Operation) -> str:
    """Say in a few words what a rank is doing for the command at hand."""
    stopped = " (its process is stopped)" if group.stopped(rank) else ""
    if status is None:
        return f"has not answered{stopped}"
    inside = action_inside(group, rank, status.epoch)
    if status.code is StatusCode.RUNNING and inside is None:
        return f"waits for votes before {action_named(group, rank, status)}{stopped}"
    where = "" if inside is None else f" {'' if status.code is StatusCode.RUNNING else 'in '}{inside.name}"
    return f"is {code_name(operation, status.code).lower()}{where}{stopped}"


def waits_in_step(view: View, rank: int, other: int) -> bool:
    """Whether `rank` is inside a step that `other` has not entered: nobody leaves it before all are in."""
    inside = view.steps[rank]
    return (inside.epoch, inside.kind) == (view.steps[other].epoch, StepKind.RUNNING) and (
        inside.step > view.steps[other].step
    )


class Overdue:
    """Watches for actions that take longer than they may.

    Parameters
    ----------
    group : GroupView
        The group.
    epoch : int
        Whose plans count.
    clock : Clock
        What the seconds are measured by.
    """

    def __init__(self, group: GroupView, epoch: int, clock: Clock) -> None:
        self._group = group
        self._epoch = epoch
        self._clock = clock
        self._since: dict[int, tuple[Doing, int, int]] = {}

    def left_s(self) -> float | None:
        """Seconds until the next deadline that is known of; None if nobody was inside an action."""
        deadlines = [
            action.deadline_s - self._elapsed_s(rank)
            for rank in self._since
            if (action := self._action(rank)) is not None
        ]
        return min(deadlines, default=None)

    def look(self, view: View) -> list[Hang]:
        """Return whom the others wait for because of an action that is past its deadline; mostly none."""
        now_ns = self._clock.monotonic_ns()
        for rank in range(self._group.participants):
            presence = self._group.presence(rank)
            known = self._since.get(rank)
            if presence.doing.action is None:
                self._since.pop(rank, None)
            elif known is None or known[:2] != (presence.doing, presence.since_ns):
                self._since[rank] = (presence.doing, presence.since_ns, now_ns)
        late = [
            rank
            for rank in self._since
            if (action := self._action(rank)) is not None and self._elapsed_s(rank) > action.deadline_s
        ]
        return self._culprits(late, view)

    def _culprits(self, late: list[int], view: View) -> list[Hang]:
        """Of those in one collective action, name who holds it up: nobody gets out while one is not in."""
        hangs: dict[int, Hang] = {}
        for rank in late:
            action = self._action(rank)
            if action is None:
                continue
            who = (
                self._held_up_by(rank, view)
                if action.collective
                else [rank, *self._stopped_before(rank, view)]
            )
            for culprit in who:
                stopped = self._group.stopped(culprit)
                hangs.setdefault(
                    culprit,
                    Hang(
                        self._group.named(culprit),
                        action.name,
                        self._elapsed_s(rank),
                        action.deadline_s,
                        stopped,
                    ),
                )
        return [hangs[rank] for rank in sorted(hangs)]

    def _stopped_before(self, rank: int, view: View) -> list[int]:
        """Return stopped ranks that hold this one inside a step, where it cannot see what it has staged."""
        return [
            other
            for other in range(len(view.steps))
            if waits_in_step(view, rank, other) and self._group.stopped(other)
        ]

    def _held_up_by(self, rank: int, view: View) -> list[int]:
        index = view.statuses[rank].action
        absent = [
            other
            for other in range(self._group.participants)
            if other not in self._since
            and (status := view.of_command(other)) is not None
            and (status.code, status.action) == (StatusCode.RUNNING, index)
        ]
        inside = [other for other in self._since if view.statuses[other].action == index]
        return absent or [other for other in inside if self._group.stopped(other)] or inside

    def _action(self, rank: int) -> DeclaredAction | None:
        return _action_of(self._group, rank, self._epoch, self._since[rank][0])

    def _elapsed_s(self, rank: int) -> float:
        return (self._clock.monotonic_ns() - self._since[rank][2]) / 1e9


def _plan_of(group: GroupView, rank: int, epoch: int, what: Doing) -> DeclaredPlan | None:
    try:
        plans = group.plans(rank, epoch)
    except DeclaredPlansError:
        return None
    return None if plans is None else plans.at(what.plan)


def _action_of(group: GroupView, rank: int, epoch: int, what: Doing) -> DeclaredAction | None:
    plan = _plan_of(group, rank, epoch, what)
    return None if plan is None or what.action is None else plan.at(what.action)
