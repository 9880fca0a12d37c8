"""The words that a rank writes for what it remembers, and how it forgets a command. For :mod:`.rank`."""

from __future__ import annotations

from dataclasses import replace

from wsm.protocol.rank_state import Move, RankState, Todo
from wsm.signals.word import StatusCode, StatusWord, StepKind, StepWord


def stand(state: RankState) -> Move:
    """Say that this rank stands, before it looks at the others again.

    A hot update parks after PREPARED, which no lesser code may take back: its step word says enough.
    """
    moved = replace(state, parked=True)
    word = StepWord(state.epoch, state.sequence, StepKind.PARKED, state.step)
    status = None if state.operation.is_hot else status_word(moved, StatusCode.PARKING)
    return Move(moved, Todo.LOOK, word, status)


def without_command(state: RankState, done: int | None = None) -> RankState:
    """Forget the command at hand."""
    return RankState(
        rank=state.rank,
        epoch=state.epoch,
        step=state.step,
        done=state.sequence if done is None else done,
        holds=state.holds,
        broken=state.broken,
        weights=state.weights,
        kv=state.kv,
        parked=state.parked,
        steps=state.steps,
    )


def status_word(state: RankState, code: StatusCode) -> StatusWord:
    """Say how far this rank is, with every vote that it has given."""
    return StatusWord(state.epoch, state.sequence, code, state.action, state.ready, state.weights, state.kv)


def tell(state: RankState, todo: Todo, code: StatusCode) -> Move:
    """Go on with `todo`, after saying how far this rank is."""
    return Move(state, todo, status=status_word(state, code))


def tell_end(moved: RankState, before: RankState, code: StatusCode) -> Move:
    """Say how the command ended for this rank, in the words of the state `before` it was forgotten."""
    return Move(moved, Todo.LOOK, status=status_word(before, code))
