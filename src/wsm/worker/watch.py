"""What this rank is inside of, since when, and until when it may be.

Says it to the other processes (:mod:`wsm.signals.presence`) and to the watchdog of this one, and checks the
deadline where an action asks. It starts nothing and ends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wsm.actions.base import Action, Plan, Plans
from wsm.clock import Clock
from wsm.declared_plans import DeclaredAction, DeclaredPlan, DeclaredPlans
from wsm.errors import WsmError
from wsm.signals.presence import Doing, PresenceWords
from wsm.worker.errors import ActionDeadlineError


@dataclass(frozen=True)
class Running:
    """The action that a rank is inside of.

    Parameters
    ----------
    action : Action
        Which.
    index : int or None
        What status words call it; None for one before parking or of the commit.
    since_ns : int
        When it began, by the worker's clock.
    """

    action: Action
    index: int | None
    since_ns: int


class ActionWatch:
    """The action at hand of one rank.

    Parameters
    ----------
    rank : int
        Whose.
    presence : PresenceWords
        Where it is said.
    plans : Plans
        Of this engine.
    clock : Clock
        For the times.

    Attributes
    ----------
    running : Running or None
        The action that the rank is inside of; may be read from another thread.
    deadline_s : float
        Of the action that began last.
    interruption : str or None
        Why the watchdog called the loop out of the last action; None if it did not.
    on_plan : callable or None
        Called when a plan is taken up: the watchdog wakes.
    stalled : (int, WsmError) or None
        The command, by its sequence, that its controller lets wait beyond its deadline, and what there is to
        be said of that; the watchdog's finding.
    """

    def __init__(self, rank: int, presence: PresenceWords, plans: Plans, clock: Clock) -> None:
        self.running: Running | None = None
        self._rank = rank
        self._presence = presence
        self._plans = tuple(plans)
        self._clock = clock
        self.interruption: str | None = None
        self.deadline_s = 0.0
        self.on_plan: Callable[[], object] | None = None
        self.stalled: tuple[int, WsmError] | None = None
        self._plan: int | None = None
        self._places = {
            id(action): (number, place, _index(plan, place))
            for number, plan in enumerate(self._plans)
            for place, action in enumerate(plan)
        }

    def declaration(self) -> DeclaredPlans:
        """Return the plans as the other processes may know them, in the order that the words count in."""
        return DeclaredPlans(
            tuple(
                DeclaredPlan(
                    plan.name,
                    len(plan.before_parking),
                    tuple(
                        DeclaredAction(action.name, action.deadline_s, action.collective) for action in plan
                    ),
                )
                for plan in self._plans
            )
        )

    def takes_up(self, plan: Plan | None) -> None:
        """Say which plan is at hand from now on; None: none."""
        place = next((place for place, one in enumerate(self._plans) if one is plan), None)
        if place != self._plan:
            self._plan = place
            self._presence.does(Doing(place), self._clock.monotonic_ns())
        self.wake()

    def wake(self) -> None:
        """Let the watchdog look: something begins that it may have to end."""
        if self.on_plan is not None:
            self.on_plan()

    def stalled_in(self, sequence: int) -> WsmError | None:
        """Return why a command cannot be waited for although nothing is decided; None if it can."""
        stalled = self.stalled
        return stalled[1] if stalled is not None and stalled[0] == sequence else None

    def begins(self, action: Action, *, beside: bool = False) -> None:
        """Say that the rank is inside `action` from now on.

        One that runs `beside` the serving loop is named to others only: nothing may end it for its hanging,
        since what the loop itself is inside of is a step.
        """
        self._plan, place, index = self._places.get(id(action), (self._plan, None, None))
        now_ns = self._clock.monotonic_ns()
        self.interruption = None
        self.deadline_s = action.deadline_s
        self.running = None if beside else Running(action, index, now_ns)
        self._presence.does(Doing(self._plan, place), now_ns)

    def ends(self) -> None:
        """Say that the rank is inside no action any more. Idempotent."""
        self.running = None
        self._presence.does(Doing(self._plan), self._clock.monotonic_ns())

    def interrupted(self, running: Running, why: str) -> None:
        """Take in that the loop is called out of an action, if it is still inside; for the watchdog."""
        if self.running is running:
            self.interruption = why

    def elapsed_s(self, running: Running) -> float:
        """Seconds that an action has taken so far."""
        return (self._clock.monotonic_ns() - running.since_ns) / 1e9

    def check(self) -> None:
        """Show progress, and end an action that is past its deadline where it lets itself be ended.

        Raises
        ------
        ActionDeadlineError
            If it is.
        """
        now_ns = self._clock.monotonic_ns()
        self._presence.beat(now_ns)
        running = self.running
        if running is not None and (now_ns - running.since_ns) / 1e9 > running.action.deadline_s:
            raise ActionDeadlineError(
                rank=self._rank,
                action=running.action.name,
                seconds=(now_ns - running.since_ns) / 1e9,
                deadline_s=running.action.deadline_s,
            )


def _index(plan: Plan, place: int) -> int | None:
    """Return what status words call the action at `place` of all actions of `plan`."""
    if plan.staged:  # a hot update's status words name no action
        return None
    index = place - len(plan.before_parking)
    return index if 0 <= index < len(plan.actions) else None
