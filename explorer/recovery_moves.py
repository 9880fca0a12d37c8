"""What the group's owner does when a rank is gone: ends the epoch, restores what was served, or gives up.

As :mod:`wsm.controller.recovery`, and :mod:`wsm.rollout` above it: what is open is decided, what the group
must hold is stored, the epoch is raised; then an ordinary update brings it back, and is tried again while it
fails. What follows when is asked of :mod:`wsm.states.restoring`.
"""

from __future__ import annotations

from collections.abc import Callable

from explorer import invariants
from explorer.clerk import Clerk, serves
from explorer.desk import Desk
from explorer.scope import Budget
from wsm.states import decide, epochs, restoring
from wsm.states.restoring import Attempt
from wsm.states.words import Operation

#: How many attempts to restore a group may fail in one epoch; a rollout reads it from its configuration.
ATTEMPTS = 2


def raise_epoch(clerk: Clerk, *, agree: bool, version_of: Callable[[Operation], int]) -> None:
    """Decide what is open, store what the group must hold again, then begin the epoch."""
    view, desk = clerk.view, clerk.desk
    clerk.add("gives the group up", lambda: desk._replace(gave_up=True), (Budget.GIVE_UPS,))
    open_still = decide.decision(view, agree=agree, give_up=True)
    if open_still is not None:
        label = f"decides {open_still.name} before the epoch ends"
        after = desk._replace(version=version_of(open_still))
        clerk.write(label, decide.decided(view, open_still), desk=after)
        return
    goal = restoring.goal(view, asked=desk.version, served=desk.before, restores=desk.restores)
    completed = epochs.completed_commit(view, goal) if goal is not None else None
    word = completed or epochs.goal_word(view, goal)
    if word is not None:
        said = "nothing" if goal is None else f"version {goal}"
        clerk.add(f"stores that the group must serve {said} again", lambda: clerk.commits(word))
        return
    owed, label = clerk.owed(), f"raises the epoch: {clerk.lost} gone or broken"

    def checked() -> Desk:
        invariants.check_goal(goal, owed)
        return desk

    clerk.add(label, checked)
    if not clerk.found or clerk.found[-1].after is not None:
        after = desk._replace(driving=False, gives_up=False, recovering=True, owed=owed, failed=0)
        clerk.write(label, epochs.next_epoch(view), desk=after)


def restore(clerk: Clerk, open_with: Callable[[int], None]) -> None:
    """Load what the group must serve again, once all have joined the new epoch, as often as that may fail.

    Parameters
    ----------
    clerk : Clerk
        In a world in which no command is driven.
    open_with : callable
        Opens the update that brings a version back.
    """
    view, desk = clerk.view, clerk.desk
    version = None if serves(view) else epochs.unrestored(view, restores=desk.restores)
    due = restoring.next_attempt(view, restores=desk.restores, failed=desk.failed, limit=ATTEMPTS)
    if due is Attempt.MAKE and version is not None:
        clerk.add("restores once more", lambda: _checked(desk))
        open_with(version)
    elif desk.recovering and decide.is_over(view):
        clerk.add("has nothing to restore", lambda: desk._replace(recovering=False))


def _checked(desk: Desk) -> Desk:
    invariants.check_attempts(desk.failed, ATTEMPTS)
    return desk
