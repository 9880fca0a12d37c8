"""What matters for what one participant does next, besides itself. Whoever asks fills it in.

Two worlds in which these are alike are alike for the participant: its moves are remembered by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.participant import Entered
from explorer.scope import Budget


@dataclass(frozen=True)
class Situation:
    """What matters for what a participant does.

    Parameters
    ----------
    index : int
        Who it is.
    command : int
        The command word as it is now.
    version, tags : int
        What the command's arguments name, and what they say it is about.
    clears_half : bool
        Whether they say that it is a clear, of one half.
    entered : tuple of Entered
        Who is in which step; empty where nobody can enter one.
    fine, long_plans : bool
        As in :class:`explorer.scope.Scope`.
    affordable : frozenset of Budget
        What may still go wrong.
    overdue : bool
        Whether the command's controller is stopped, and its deadline has passed.
    """

    index: int
    command: int
    version: int
    tags: int
    clears_half: bool
    entered: tuple[Entered, ...]
    fine: bool
    long_plans: bool
    affordable: frozenset[Budget]
    overdue: bool = False
