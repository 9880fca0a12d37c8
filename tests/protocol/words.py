"""Short ways to write words and views, for tests that look at single rules."""

from __future__ import annotations

from collections.abc import Sequence

from wsm.states.group import GroupState, Known, May, advance
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord


def running(step: int, *, done: int = 0, epoch: int = 1) -> StepWord:
    return StepWord(epoch, done, StepKind.RUNNING, step)


def parked(step: int, *, sequence: int = 1, epoch: int = 1) -> StepWord:
    return StepWord(epoch, sequence, StepKind.PARKED, step)


def broken(step: int, *, done: int = 0, epoch: int = 1) -> StepWord:
    return StepWord(epoch, done, StepKind.BROKEN, step)


def says(code: StatusCode, *, sequence: int = 1, epoch: int = 1, ready: int = 0) -> StatusWord:
    return StatusWord(epoch, sequence, code, ready=ready)


def view(
    operation: Operation,
    *statuses: StatusWord,
    steps: Sequence[StepWord] = (),
    committed: CommittedWord | None = None,
    sequence: int = 1,
    epoch: int = 1,
) -> View:
    return View(
        CommandWord(epoch, sequence, operation),
        steps or [running(0, epoch=epoch) for _ in statuses],
        statuses,
        committed or CommittedWord(0, None),
    )


def decision(found: View, *, agree: bool, give_up: bool, verdict: bool | None = None) -> Operation | None:
    """Return what the controller of an open command decides now; None: nothing."""
    mine = GroupState(found.command, follows=True, mine=True)
    command = advance(mine, found, Known(May.DRIVE, agree=agree, gave_up=give_up, verdict=verdict)).command
    return None if command is None else command.operation
