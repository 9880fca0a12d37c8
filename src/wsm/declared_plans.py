"""What a rank says of its plans when it joins an epoch: the names of their actions, and the deadlines.

It stands in the rank's slot as long as the epoch lasts, so that a reader of the group's words can call an
action by its name and knows how long it may take. JSON, checked on arrival. Knows no words, and of an action
no more than stands here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from wsm.errors import BadInputError

#: Kind under which they stand in their payload slot.
PLANS_KIND = 1


class DeclaredPlansError(BadInputError):
    """What stands in a slot for plans is not what a worker of this build writes."""

    def __init__(self, *, problem: str) -> None:
        super().__init__(
            f"the declared plans are unusable: {problem}; run the same version of wsm everywhere",
            problem=problem,
        )


@dataclass(frozen=True)
class DeclaredAction:
    """One action.

    Parameters
    ----------
    name : str
        One of :mod:`wsm.actions.names`.
    deadline_s : float
        Seconds that it may take, and that ranks may wait for each other's votes before it.
    collective : bool
        Whether all ranks must be inside at once.
    """

    name: str
    deadline_s: float
    collective: bool


@dataclass(frozen=True)
class DeclaredPlan:
    """One plan.

    Parameters
    ----------
    name : str
        As diagrams call it.
    before_parking : int
        How many of the actions come before the rank parks.
    actions : tuple of DeclaredAction
        All of them in order: before parking, the plan's own, those of the commit.
    """

    name: str
    before_parking: int
    actions: tuple[DeclaredAction, ...]

    def at(self, place: int) -> DeclaredAction | None:
        """Return the action at a place among all of them; None if there is none."""
        return self.actions[place] if 0 <= place < len(self.actions) else None

    def numbered(self, index: int) -> DeclaredAction | None:
        """Return the action that a status word calls `index`: it counts from the first one after parking."""
        return self.at(self.before_parking + index)


@dataclass(frozen=True)
class DeclaredPlans:
    """All plans of one rank, in the order in which :class:`wsm.signals.presence.Doing` counts them."""

    plans: tuple[DeclaredPlan, ...]

    def at(self, place: int | None) -> DeclaredPlan | None:
        """Return the plan at a place; None if there is none."""
        return self.plans[place] if place is not None and 0 <= place < len(self.plans) else None

    def collectives(self) -> Sequence[tuple[str, Sequence[tuple[str, bool]]]]:
        """Return what must be equal on all ranks; deadlines may differ."""
        return [
            (plan.name, [(action.name, action.collective) for action in plan.actions]) for plan in self.plans
        ]

    def to_bytes(self) -> bytes:
        """Return the JSON text."""
        content = [
            [
                plan.name,
                plan.before_parking,
                [[action.name, action.deadline_s, int(action.collective)] for action in plan.actions],
            ]
            for plan in self.plans
        ]
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> DeclaredPlans:
        """Read it back.

        Raises
        ------
        DeclaredPlansError
            If it is not such a text.
        """
        try:
            return cls(
                tuple(
                    DeclaredPlan(
                        str(name),
                        int(before),
                        tuple(
                            DeclaredAction(str(action), float(seconds), bool(collective))
                            for action, seconds, collective in actions
                        ),
                    )
                    for name, before, actions in json.loads(data)
                )
            )
        except (ValueError, TypeError) as error:
            raise DeclaredPlansError(problem=f"{type(error).__name__}: {error}") from error
