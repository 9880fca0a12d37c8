"""What a caller asks of a group: one command, and how long to wait for what. Plain data, knows no words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wsm.command import CommandArguments
from wsm.signals.word import Operation


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
    """

    operation: Operation
    arguments: CommandArguments
    deadline_s: float
    settle_s: float
    wait_s: float = 0.0
    force: bool = False
    still_wanted: Callable[[], bool] | None = None

    @property
    def served(self) -> int | None:
        """The version that need not be loaded if the group serves it; None where there is no such."""
        return None if self.force else self.arguments.version
