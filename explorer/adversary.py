"""What strikes from outside: deaths of ranks and of the controller, and words that are read late.

Failing actions, expired deadlines and broken steps are where they happen, in :mod:`.rank_moves`. Each strike
spends a budget.
"""

from __future__ import annotations

from explorer.desk import Desk
from explorer.participant import (
    COMMAND_WORD,
    Participant,
    Pending,
    Place,
    Seen,
    status_word,
    step_word,
)
from explorer.work import BOTH
from wsm.states.joint import START
from wsm.states.rank_state import RankState

#: The kernel's lock makes this false; a seeded fault lets a successor believe a timeout instead.
takes_over_from_the_living = False

#: Nor is a decision written in the place of a stopped controller while a next command can be; a seeded fault
#: lets it come late.
stands_in_without_waiting = False


def killed(me: Participant) -> Participant:
    """Return what is left of a participant whose process died: its words, and where others met it."""
    state = me.state
    return Participant(
        me.step,
        me.status,
        alive=False,
        place=Place.FREE,
        state=RankState(rank=state.rank, epoch=state.epoch, step=state.step, steps=state.steps),
        joint=START,
        loaded=me.loaded,
        step_version=me.step_version,
        ran=me.ran,
        entered_action=me.entered_action,
        pending=Pending(),
        seen=Seen(),
    )


def controller_killed(desk: Desk) -> Desk:
    """Return what is left of a desk whose process died: the words, and what the owner remembers."""
    return desk._replace(
        alive=False,
        driving=False,
        gives_up=False,
        recovering=False,
        pending=0,
        pending_version=0,
        pending_before=False,
        pending_restores=False,
        pending_tags=BOTH,
        ending=False,
        frozen=False,
        seen=Seen(),
    )


def controller_stopped(desk: Desk) -> Desk:
    """Return a desk whose process was only stopped, and is taken for dead."""
    return controller_killed(desk)._replace(stopped=desk.pending)


def changed_words(index: int, before: Participant, after: Participant) -> tuple[tuple[int, int], ...]:
    """Return which words a participant stored, with what stood there."""
    found = []
    if before.step != after.step:
        found.append((step_word(index), before.step))
    if before.status != after.status:
        found.append((status_word(index), before.status))
    return tuple(found)


def changed_command(before: Desk, after: Desk) -> tuple[tuple[int, int], ...]:
    """Return whether the command word was stored, with what stood there."""
    return ((COMMAND_WORD, before.command),) if before.command != after.command else ()


def word_name(word: int) -> str:
    """Say which word a number means."""
    if word == COMMAND_WORD:
        return "the command word"
    participant, kind = divmod(word - step_word(0), 2)
    return f"{'status' if kind else 'step'} word {participant}"
