"""What is drawn, as plain data: drawings of states and edges, and summaries of plans.

Between :mod:`.extract`, which reads tables, and the renderers, which write text. It knows neither.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from wsm.states.errors import PlanSummaryError
from wsm.states.vocabulary import PlanName


class NodeKind(enum.Enum):
    """How a state is marked."""

    RESTING = "resting"
    WORKING = "working"
    DECIDING = "deciding"
    SERVING = "serving"
    FAULTED = "faulted"


@dataclass(frozen=True)
class Node:
    """One state of a drawing.

    Parameters
    ----------
    key : str
        Identifier, unique in the drawing: letters, digits and underscores.
    title : str
        What is written in it.
    kind : NodeKind
        How it is marked.
    meaning : str
        One line below the title; may be empty.
    note : tuple of str
        Lines beside it: the plans that run there.
    initial, final : bool
        Whether a new process starts there, and whether it is never left.
    """

    key: str
    title: str
    kind: NodeKind
    meaning: str = ""
    note: tuple[str, ...] = ()
    initial: bool = False
    final: bool = False


@dataclass(frozen=True)
class Arrow:
    """One transition of a drawing.

    Parameters
    ----------
    source, dest : str
        Keys of nodes.
    event : str
        What happens.
    guard : str or None
        What must hold.
    of_kv : bool
        Whether it is the KV cache that moves, in a drawing of both.
    """

    source: str
    event: str
    dest: str
    guard: str | None = None
    of_kv: bool = False

    @property
    def label(self) -> str:
        """The event, whose it is where that is not clear, and the guard in brackets."""
        event = f"kv {self.event}" if self.of_kv else self.event
        return event if self.guard is None else f"{event} [{self.guard}]"


@dataclass(frozen=True)
class Drawing:
    """States and edges, in the order in which they are written.

    Parameters
    ----------
    name : str
        Base name of its files.
    title : str
        Its heading.
    nodes, arrows : tuple
        What is in it.
    remark : str
        One line on what it leaves out; may be empty.
    """

    name: str
    title: str
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    remark: str = ""


def side_by_side(arrows: Iterable[Arrow]) -> dict[tuple[str, str], list[str]]:
    """Group the labels of arrows between the same two nodes; renderers would draw them over each other."""
    together: dict[tuple[str, str], list[str]] = {}
    for arrow in arrows:
        together.setdefault((arrow.source, arrow.dest), []).append(arrow.label)
    return together


@dataclass(frozen=True)
class StepSummary:
    """One action of a plan, as far as a reviewer wants to know it.

    Parameters
    ----------
    name : str
        Its constant name.
    collective : bool
        Whether every rank must be inside at the same time, so that it is voted on.
    touches_weights : bool
        Whether this rank may be unable to serve what it served before, once it has begun.
    purpose : str
        One phrase.
    """

    name: str
    collective: bool
    touches_weights: bool
    purpose: str


@dataclass(frozen=True)
class PlanSummary:
    """One plan.

    Parameters
    ----------
    name : str
        A value of :class:`wsm.states.vocabulary.PlanName`.
    steps : tuple of StepSummary
        In order.
    staged : int
        How many of them, from the first, run beside the serving loop.
    """

    name: str
    steps: tuple[StepSummary, ...]
    staged: int = 0


class StepLike(Protocol):
    """What is read of an action."""

    name: str
    collective: bool
    touches_weights: bool
    purpose: str


class PlanLike(Protocol):
    """What is read of a plan; :class:`wsm.actions.base.Plan` is one."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def actions(self) -> Sequence[StepLike]:
        """Its actions, in order."""
        ...

    @property
    def staged(self) -> int:
        """How many of them run beside the serving loop."""
        ...


def summarise(plans: Iterable[PlanLike]) -> tuple[PlanSummary, ...]:
    """Return the summaries of plans; this package must not import where plans come from."""
    return tuple(
        PlanSummary(
            plan.name,
            tuple(
                StepSummary(step.name, step.collective, step.touches_weights, step.purpose)
                for step in plan.actions
            ),
            plan.staged,
        )
        for plan in plans
    )


def by_name(plans: Sequence[PlanSummary] | None) -> dict[PlanName, PlanSummary]:
    """Return the summaries by the names that the tables use; None gives plans without steps.

    Raises
    ------
    PlanSummaryError
        If a plan that the tables name is missing, or there is one that they do not name, or twice.
    """
    if plans is None:
        return {name: PlanSummary(name.value, ()) for name in PlanName}
    given = [plan.name for plan in plans]
    wanted = {name.value: name for name in PlanName}
    missing = [name for name in wanted if name not in given]
    unexpected = [name for index, name in enumerate(given) if name not in wanted or name in given[:index]]
    if missing or unexpected:
        raise PlanSummaryError(missing=missing, unexpected=unexpected)
    return {wanted[plan.name]: plan for plan in plans}
