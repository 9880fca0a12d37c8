"""What is done with a command whose controller does not come back: by a successor, and by the group itself.

A successor holds the role's kernel lock, which proves that the controller before it is gone; a timeout
never does. All that the dead one knew is lost, the words are not, and they are enough: a decision that stands
in the command word is completed, an undecided command is decided.

A controller that is only stopped still has the role, and may write its next word at any moment. Which word
that is, is known once a participant has failed: no participant that failed is PREPARED later, so the only
decision left is ABORT, and a rank that writes it first writes what the controller would write itself. While
all are PREPARED it may be about to write COMMIT, and nothing is decided in its place.
"""

from __future__ import annotations

import enum

from wsm.states.decide import decision, is_over
from wsm.states.view import View
from wsm.states.words import Operation


class Inheritance(enum.Enum):
    """What a successor finds."""

    NOTHING = "nothing"  # the last command is over
    COMPLETE = "complete"  # decided: write the committed version if it is missing, wait until it is over
    DECIDE = "decide"  # undecided: COMMIT if all are PREPARED and agree, else ABORT


class Role(enum.Enum):
    """What can be known of the controller role from outside."""

    FREE = "free"  # nobody has it: whoever gave the open command is gone, or gave it up
    KEPT = "kept"  # by a process that goes on, and will decide
    STALLED = "stalled"  # by a process that is stopped, or that let the command's deadline pass


class Duty(enum.Enum):
    """What whoever keeps a group owes the command at hand."""

    NOTHING = "nothing"  # it is over, or its participants end it alone, or its controller will
    TAKE_ROLE = "take the role"  # take it without waiting, look again, write what is missing, give it back
    FAIL = "fail"  # its deadline has passed: every participant that still may says FAILED
    ABORT = "abort"  # write the only decision that is left, in the controller's place
    NAME = "name"  # all are PREPARED, or it is decided: say who must be ended, and decide nothing


def inherited(view: View) -> Inheritance:
    """Say what must be done before a new command may be written."""
    if is_over(view):
        return Inheritance.NOTHING
    if view.command.operation.is_decision:
        return Inheritance.COMPLETE
    return Inheritance.DECIDE if decision(view, agree=True, give_up=True) else Inheritance.COMPLETE


def lacks_a_word(view: View) -> bool:
    """Whether the command at hand needs a controller's word still: a decision, or the committed version."""
    command = view.command
    if command.operation.is_commit:
        return view.committed.sequence != command.sequence
    return command.operation is not Operation.NONE and inherited(view) is Inheritance.DECIDE


def duty(view: View, role: Role, *, expired: bool) -> Duty:
    """Say what whoever keeps the group owes its command now.

    Parameters
    ----------
    view : View
        What was read.
    role : Role
        What was found out about the controller role, after the view was read.
    expired : bool
        Whether the deadline of the command has passed.
    """
    if role is Role.KEPT or not lacks_a_word(view):
        return Duty.NOTHING
    if role is Role.FREE:
        return Duty.TAKE_ROLE
    if view.command.operation.is_decision:
        return Duty.NAME
    due = decision(view, agree=True, give_up=False)
    if due is None:
        return Duty.FAIL if expired else Duty.NOTHING
    return Duty.ABORT if due.is_abort else Duty.NAME
