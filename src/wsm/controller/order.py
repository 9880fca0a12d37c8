"""What a caller asks of a group: one command, and how long to wait for what. Plain data, knows no words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wsm.command import CommandArguments
from wsm.states.words import Operation


@dataclass(frozen=True)
class Order:
    """One request to a :class:`wsm.Controller`.

    Parameters
    ----------
    operation : Operation
        What is asked of the ranks: ``CLEAR``, ``UPDATE`` or ``HOT_UPDATE``.
    arguments : CommandArguments
        What travels with it.
    deadline_s : float
        Seconds after which an undecided command is aborted.
    settle_s : float
        Seconds after a decision until the caller is told who is not done.
    wait_s : float
        Seconds to wait for another controller to finish its command.
    force : bool
        Whether an update loads a version that is served already.
    still_wanted : callable or None
        Asked once it is this order's turn, before anything is written.
    fallback : str or None
        Why an update that was asked for hot is done in place.
    """

    operation: Operation
    arguments: CommandArguments
    deadline_s: float
    settle_s: float
    wait_s: float = 0.0
    force: bool = False
    still_wanted: Callable[[], bool] | None = None
    fallback: str | None = None

    @property
    def is_hot(self) -> bool:
        """Whether the version is to be staged beside the one that serves."""
        return self.operation is Operation.HOT_UPDATE

    def in_place(self, why: str) -> Order:
        """Return the ordinary update that does the same with a longer pause."""
        return replace(self, operation=Operation.UPDATE, fallback=why)

    @property
    def served(self) -> int | None:
        """The version that need not be loaded if the group serves it; None where there is no such."""
        return None if self.force else self.arguments.version
