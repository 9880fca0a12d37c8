"""What an entry of FastDeploy's loop does: which command it gives, what the word says then, when ranks leave.

FastDeploy's event loop calls ``check_model_weights_status`` on every rank in the same turn, after a broadcast
and a barrier of its own. Rank 0 of the group decides by these tables what the entry is for, answers the word
by compare-exchange, and says when all leave; no other rank looks at a level. Tables and pure functions.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from wsm.states.vocabulary import WeightState

NORMAL, UPDATING = int(WeightState.NORMAL), int(WeightState.UPDATING)
CLEARING, CLEARED = int(WeightState.CLEARING), int(WeightState.CLEARED)

#: What a weights word can ask.
ASKS = (CLEARING, UPDATING)


class Given(enum.Enum):
    """What rank 0 does about what the word asks."""

    CLEAR = "clear"
    UPDATE = "update"
    NOTHING = "nothing to do"


class Entry(NamedTuple):
    """How FastDeploy's loop came in.

    Parameters
    ----------
    asked : int
        The weights word, as rank 0 found it.
    block : bool
        Whether the ranks stay inside while the weights are away.
    """

    asked: int
    block: bool

    @property
    def sleeps(self) -> bool:
        """Whether FastDeploy's own loop sleeps behind this entry until the word says UPDATING."""
        return self.asked == CLEARING and not self.block


#: What the word asks, and what all ranks hold (None: different things, or a teardown failed): what is given.
#: Over weights that serve, an engine asks for what lies there now; where the word says UPDATING only because
#: wsm woke the loop by it, there is nothing to do.
GIVES: dict[tuple[int, int | None], Given] = {
    (CLEARING, NORMAL): Given.CLEAR,
    (CLEARING, CLEARED): Given.NOTHING,
    (CLEARING, None): Given.CLEAR,
    (UPDATING, NORMAL): Given.UPDATE,
    (UPDATING, CLEARED): Given.UPDATE,
    (UPDATING, None): Given.CLEAR,
}

#: What the word asked, and what all ranks hold once it was given: what the word says. None: it asks still,
#: and it is given again. A clear that kept the weights is answered NORMAL, where no loop would sleep upon it.
ANSWERS: dict[tuple[int, int | None], int | None] = {
    (CLEARING, NORMAL): NORMAL,
    (CLEARING, CLEARED): CLEARED,
    (CLEARING, None): None,
    (UPDATING, NORMAL): NORMAL,
    (UPDATING, CLEARED): CLEARED,
    (UPDATING, None): None,
}

#: What a process that holds KV cache is asked by its own word: what that says before, and is answered.
OF_CACHE_PROCESS = {CLEARING: (NORMAL, CLEARED), UPDATING: (CLEARED, NORMAL)}

#: How the word goes from what a command of wsm's own made of it to NORMAL; each change only from just that,
#: and only while the word is wsm's own: what an engine has stored is a wish.
BACK_TO_NORMAL = ((CLEARING, CLEARED), (CLEARED, UPDATING), (UPDATING, NORMAL))


def given(word: int, held: int | None, *, woken: bool) -> Given:
    """Say what is done about a word that asks.

    Parameters
    ----------
    word : int
        What it asks: one of :data:`ASKS`.
    held : int or None
        NORMAL or CLEARED, if that is what every rank is.
    woken : bool
        Whether the word says UPDATING only to wake FastDeploy's loop, or until a hold is released.
    """
    if woken and word == UPDATING and held is not None:
        return Given.NOTHING
    return GIVES[word, held]


def answer(entry: Entry, word: int, held: int | None, *, gave: Given, hold: bool = False) -> int | None:
    """Say what a word that asked is to say now; None while it is to be asked again.

    Parameters
    ----------
    entry : Entry
        The entry at hand.
    word : int
        What it asked.
    held : int or None
        As for :func:`given`, once that is done.
    gave : Given
        What was done.
    hold : bool
        Whether another process holds the group: FastDeploy's loop would step on NORMAL, so a word over
        weights that are there says UPDATING until the hold is released.
    """
    if word == UPDATING and gave is Given.CLEAR:
        return None  # ranks that held different things hold nothing now, and the update is still to come
    if hold and held == NORMAL:
        return UPDATING
    if (word, held) == (CLEARING, NORMAL) and entry.sleeps:
        return UPDATING
    return ANSWERS[word, held]


def sleeps_behind(left: int) -> bool:
    """Whether FastDeploy's loop sleeps behind an entry that all left on this word, until it says UPDATING."""
    return left != NORMAL


def leaves(entry: Entry, word: int) -> bool:
    """Whether all ranks leave the entry, now that the word says or is answered this.

    Behind an entry that sleeps, FastDeploy's loop wakes at UPDATING and at nothing else, and comes in for it:
    so an update is never done inside such an entry, and NORMAL never lets it out.
    """
    return word in (CLEARED, UPDATING) if entry.sleeps else word == NORMAL
