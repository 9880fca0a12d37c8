"""What a successor does with the command that a dead controller left open.

The successor holds the role's kernel lock, which proves that the other one is dead; a timeout never
does. All that the dead one knew is lost, the words are not, and they are enough: a decision that
stands in the command word is completed, an undecided command is decided.
"""

from __future__ import annotations

import enum

from wsm.protocol.decide import decision, is_over
from wsm.protocol.view import View


class Inheritance(enum.Enum):
    """What a successor finds."""

    NOTHING = "nothing"  # the last command is over
    COMPLETE = "complete"  # decided: write the committed version if it is missing, wait until it is over
    DECIDE = "decide"  # undecided: COMMIT if all are PREPARED and agree, else ABORT


def inherited(view: View) -> Inheritance:
    """Say what must be done before a new command may be written."""
    if is_over(view):
        return Inheritance.NOTHING
    if view.command.operation.is_decision:
        return Inheritance.COMPLETE
    return Inheritance.DECIDE if decision(view, agree=True, give_up=True) else Inheritance.COMPLETE
