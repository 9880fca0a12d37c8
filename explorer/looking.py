"""What a participant is told to do, given what it reads: the real :func:`wsm.states.rank.advance`.

Asked once per memory and words. Each memory is also shown commands of the past, and one that skips ahead: the
first must move nobody, the second must be an error for all to see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from explorer.errors import RuleBrokenError, broken_by
from explorer.participant import (
    COMMAND_WORD,
    Seen,
    read_command,
    read_status,
    read_step,
    status_word,
    step_word,
)
from wsm.states import rank as protocol
from wsm.states.errors import ProtocolViolationError
from wsm.states.rank_state import Move, Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.words import CommandWord, Operation, StatusCode, StepKind

#: What participants say that are not whole any more, or may not be.
_TOUCHED = frozenset((StatusCode.STOPPED_TOUCHED, StatusCode.DONE_CLEARED, StatusCode.DONE_FAULTED))

_QUIET = frozenset((Todo.WAIT, Todo.SERVE, Todo.JOIN))


class Told(NamedTuple):
    """What a participant was told.

    Attributes
    ----------
    state : RankState
        What it remembers now.
    todo : Todo
        What it is to do.
    step, status : int
        Packed words to store before; 0: none.
    label : str
        For the trace.
    broken : str
        Which rule it breaks by looking; empty: none.
    """

    state: RankState
    todo: Todo
    step: int = 0
    status: int = 0
    label: str = "looks"
    broken: str = ""


@dataclass(frozen=True)
class Reading:
    """The words of a group, as one participant reads them.

    Parameters
    ----------
    ranks : int
        How many participants are ranks; only their step words count.
    command : int
        The command word.
    words : tuple of (int, int)
        Step word and status word of every participant.
    seen : Seen
        Which of them it goes on seeing as it was.
    """

    ranks: int
    command: int
    words: tuple[tuple[int, int], ...]
    seen: Seen

    def view(self) -> View:
        """Return the reading as the protocol takes it."""
        hidden, value = self.seen
        return View(
            read_command(value if hidden == COMMAND_WORD else self.command),
            [
                read_step(value if hidden == step_word(index) else step)
                for index, (step, _) in enumerate(self.words[: self.ranks])
            ],
            [
                read_status(value if hidden == status_word(index) else status)
                for index, (_, status) in enumerate(self.words)
            ],
        )


def look(state: RankState, reading: Reading, *, first: bool) -> Told:
    """Ask the protocol; the `first` time with a memory, show it the other commands too."""
    try:
        view = reading.view()
        move = protocol.advance(state, view)
        check_ends_alike(state, move, view)
        check_steps_can_end(move, view)
        if first:
            check_other_commands(state, view)
        return told(move)
    except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
        return Told(state, Todo.WAIT, broken=broken_by(error))


def told(move: Move) -> Told:
    """Return a move of the protocol in packed words."""
    step = move.step.pack() if move.step else 0
    status = move.status.pack() if move.status else 0
    label = f"is {move.state.phase.value}" if move.status is None else f"says {move.status.code.name}"
    return Told(move.state, move.todo, step, status, label)


def check_ends_alike(before: RankState, move: Move, view: View) -> None:
    """Check how a participant that has stopped for an ABORT is told to end: it drops what somebody touched.

    Raises
    ------
    RuleBrokenError
        If it is told to drop what nobody has touched, or before all have said whether they did.
    """
    if before.phase is not Phase.STOPPED or move.state.phase is not Phase.SETTLING:
        return
    said = [word.code for word in view.statuses if word[:2] == (before.epoch, before.sequence)]
    if len(said) < len(view.statuses) or min(said) < StatusCode.STOPPED_UNTOUCHED:
        raise RuleBrokenError(
            rule="nobody ends an aborted command before all have said whether they touched anything",
            seen=f"it ends, and of {len(view.statuses)} these have stopped: {[code.name for code in said]}",
        )
    if move.state.touched and not _TOUCHED.intersection(said):
        raise RuleBrokenError(
            rule="what nobody has touched is kept",
            seen=f"it drops its weights, and the others say {[code.name for code in said]}",
        )


def check_steps_can_end(move: Move, view: View) -> None:
    """Check that nobody is sent into a step that not all can enter any more.

    Raises
    ------
    RuleBrokenError
        If a step of that epoch has raised on somebody, and it says so to whoever looks.
    """
    if move.todo not in (Todo.SERVE, Todo.JOIN):
        return
    for index, step in enumerate(view.steps):
        if step.epoch == move.state.epoch and step.kind is StepKind.BROKEN:
            raise RuleBrokenError(
                rule="nobody is sent into a step after one has raised in its epoch",
                seen=f"it is told to {move.todo.value}, and step {step.step} has raised on rank {index}",
            )


def check_other_commands(state: RankState, view: View) -> None:
    """Show a participant commands of the past, and one that skips ahead.

    Raises
    ------
    RuleBrokenError
        If it takes one for its own.
    """
    last = max(state.done, state.sequence)
    old = [CommandWord(state.epoch - 1, last, Operation.UPDATE)] if state.epoch > 1 else []
    if last:
        old += [
            CommandWord(state.epoch, last - 1, operation)
            for operation in (Operation.CLEAR, Operation.ABORT, Operation.COMMIT)
        ]
    for command in old:
        move = protocol.advance(state, replace(view, command=command))
        if move.state != state or move.todo not in _QUIET or move.step or move.status:
            raise RuleBrokenError(
                rule="a command of the past moves nobody",
                seen=f"it takes {tuple(command)} in and does {move.todo.value}",
            )
    if state.phase is Phase.IDLE or view.command.epoch != state.epoch:
        return
    skipping = CommandWord(state.epoch, state.sequence + 1, Operation.CLEAR)
    try:
        protocol.advance(state, replace(view, command=skipping))
    except ProtocolViolationError:
        return
    raise RuleBrokenError(
        rule="a command that begins before the last one is over is an error for all to see",
        seen=f"{state.phase.value} with sequence {state.sequence}, it takes {tuple(skipping)} for it",
    )
