"""Who is to blame for a command that failed: the first cause that is no echo of another. Pure.

A controller says what it saw when it decided or gave up waiting (:class:`Situation`) and what the ranks have
reported since; here the culprit is found, and what is said of the ranks that others wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wsm.report import STEP, FailureReport
from wsm.status.facts import GroupFacts, who
from wsm.status.rank_progress import doing, in_sentence, is_done, is_echo, is_wait, late_ranks, waited_for


@dataclass(frozen=True)
class Hang:
    """An action that a rank does not come out of.

    Parameters
    ----------
    rank : int
        The rank that the others wait for.
    action : str
        The action that it is in, or that it never entered.
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


class Late(NamedTuple):
    """The ranks that a command waits for.

    Parameters
    ----------
    doing : mapping of int to str
        What each of them is doing.
    culprits : tuple of int
        Those of them that all the others wait for.
    """

    doing: Mapping[int, str] = {}
    culprits: tuple[int, ...] = ()

    @classmethod
    def of(cls, group: GroupFacts) -> Late:
        """Find them among the facts of a group."""
        return cls(late_ranks(group), tuple(waited_for(group)))

    def sentence(self) -> str:
        """Say it: ``rank 1 (has not answered; its process is stopped); rank 0 waits for it``."""
        if not self.doing:
            return "no rank"
        blamed = {rank: what for rank, what in self.doing.items() if rank in self.culprits} or self.doing
        others = [who(rank) for rank in self.doing if rank not in blamed]
        waits = f"; {' and '.join(others)} {'wait' if len(others) > 1 else 'waits'} for it" if others else ""
        return in_sentence(blamed) + waits


@dataclass(frozen=True)
class Situation:
    """What a controller saw of the ranks when it decided, or gave waiting up.

    Parameters
    ----------
    late : Late
        The ranks that the others waited for.
    doing : mapping of int to str
        What each rank was doing that was not done.
    lost : tuple of int
        The ranks whose processes were gone.
    broken : tuple of int
        Of these, those whose last step had raised: mostly since another rank left them alone in a collective.
    hangs : tuple of Hang
        The actions that had taken longer than they may.
    deadline_s : float
        Of the command, in seconds.
    gave_up : bool
        Whether the caller gave up.
    expired : bool
        Whether the deadline had passed.
    failed : tuple of int
        The ranks that had reported a failure of their own.
    """

    late: Late = field(default_factory=Late)
    doing: Mapping[int, str] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    hangs: tuple[Hang, ...] = ()
    deadline_s: float = 0.0
    gave_up: bool = False
    expired: bool = False
    failed: tuple[int, ...] = ()


class Blame(NamedTuple):
    """The cause of a command's failure; at most one of the three is given, none: it took too long.

    Parameters
    ----------
    lost : tuple of int
        The ranks whose processes are gone.
    hang : Hang or None
        The action that a rank did not come out of.
    failure : FailureReport or None
        What a rank has reported; `refused`: that it refused the command.
    refused : bool
        See `failure`.
    others : mapping of int to str
        What else failed, by rank.
    """

    lost: tuple[int, ...] = ()
    hang: Hang | None = None
    failure: FailureReport | None = None
    refused: bool = False
    others: Mapping[int, str] = {}


def blame(then: Situation, failures: Mapping[int, tuple[FailureReport, bool]]) -> Blame:
    """Find the first cause.

    Parameters
    ----------
    then : Situation
        What was seen when the command was decided or given up.
    failures : mapping of int to (FailureReport, bool)
        What ranks have reported of it until now, and whether they refused it.
    """
    found = [
        failures[rank]
        # What was reported only after the decision is no cause of it.
        for rank in sorted(failures, key=lambda rank: (rank not in then.failed, rank))
        # A step that raised only after the deadline raised because of a rank that was late then.
        if not (then.expired and rank not in then.failed and failures[rank][0].action == STEP)
    ]
    found.sort(key=lambda one: (is_echo(one[0].error), is_wait(one[0].error)))
    if found and is_echo(found[0][0].error):
        found = []  # no rank failed of itself: the controller had decided before
    if set(then.lost) - set(then.broken) or (then.lost and not found):
        return Blame(lost=then.lost)
    if then.hangs:
        hang = max(then.hangs, key=lambda one: (one.stopped, one.seconds))
        others = {one.rank: f"is in {one.action}, too" for one in then.hangs if one is not hang}
        return Blame(hang=hang, others=others)
    if not found:
        return Blame()
    failure, refused = found[0]
    gone: Collection[int] = (*then.lost, *then.broken)
    others = {
        **{other.rank: other.message for other, _ in found[1:]},
        **dict.fromkeys(gone, "its process is gone"),
    }
    return Blame(failure=failure, refused=refused, others=others)


def late_then(failure: FailureReport, then: Situation) -> str:
    """Say which ranks were late when a rank failed that had only waited for others; else nothing."""
    late = {rank: what for rank, what in then.late.doing.items() if rank != failure.rank}
    return f"; late then: {in_sentence(late)}" if late and is_wait(failure.error) else ""


def doings(group: GroupFacts) -> dict[int, str]:
    """Say what every rank that is not done with the command is doing."""
    return {rank.number: doing(rank, group) for rank in group.ranks if not is_done(rank, group)}
