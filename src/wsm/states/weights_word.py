"""FastDeploy's weights word: what it asks, which command is given, what it says then, when ranks leave.

FastDeploy's event loop calls ``check_model_weights_status`` on every rank in the same turn, after a broadcast
and a barrier of its own; an engine without wsm in its loop stores its wish and waits. In both cases one
process decides by these tables (rank 0 of the group, or the bridge) and answers by compare-exchange. NORMAL
says that the newest wish is fulfilled. Tables and pure functions.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from wsm.states.epochs import Backoff
from wsm.states.vocabulary import WeightState

NORMAL, UPDATING = int(WeightState.NORMAL), int(WeightState.UPDATING)
CLEARING, CLEARED = int(WeightState.CLEARING), int(WeightState.CLEARED)

#: What a weights word can ask.
ASKS = (CLEARING, UPDATING)

#: How long a wish waits whose command failed, and that is asked for still.
AGAIN = Backoff(1.0, 60.0)


class Given(enum.Enum):
    """What is done about what the word asks."""

    CLEAR = "clear"
    UPDATE = "update"
    NOTHING = "nothing to do"

    @property
    def request_id(self) -> str:
        """What the command of an engine's word is called."""
        return f"engine-{self.value}"


class Entry(NamedTuple):
    """How FastDeploy's loop came in; `block`: whether the ranks stay inside while the weights are away."""

    asked: int
    block: bool

    @property
    def sleeps(self) -> bool:
        """Whether FastDeploy's own loop sleeps behind this entry until the word says UPDATING."""
        return self.asked == CLEARING and not self.block


#: What the word asks, and what all ranks hold (None: different things, or a teardown failed): what is given.
#: An engine asks for what lies there now, whatever its version is called: each update for it is forced.
GIVES: dict[tuple[int, int | None], Given] = {
    (CLEARING, NORMAL): Given.CLEAR,
    (CLEARING, CLEARED): Given.NOTHING,
    (CLEARING, None): Given.CLEAR,
    (UPDATING, NORMAL): Given.UPDATE,
    (UPDATING, CLEARED): Given.UPDATE,
    (UPDATING, None): Given.CLEAR,
}

#: What the deciding weights word says, and what the word of another data-parallel part says: what that is to
#: say. What is not named stays: it is that part's next wish, and waits for the deciding word.
MIRRORS: dict[tuple[int, int], int] = {
    (CLEARING, NORMAL): CLEARING,
    (CLEARED, NORMAL): CLEARED,
    (CLEARED, CLEARING): CLEARED,
    (UPDATING, NORMAL): UPDATING,
    (UPDATING, CLEARED): UPDATING,
    (UPDATING, CLEARING): UPDATING,
    (NORMAL, CLEARED): NORMAL,
    (NORMAL, UPDATING): NORMAL,
}

#: What a word asks: what it said before, and what it says once that is done.
BEFORE_AND_DONE = {CLEARING: (NORMAL, CLEARED), UPDATING: (CLEARED, NORMAL)}

#: How the word goes from what a command of wsm's own made of it to NORMAL; each change only from just that,
#: and only while the word is wsm's own: what an engine has stored is a wish.
BACK_TO_NORMAL = ((CLEARING, CLEARED), (CLEARED, UPDATING), (UPDATING, NORMAL))


def given(word: int, held: int | None, *, own: bool) -> Given:
    """Say what is done about a word that asks.

    `held`: NORMAL or CLEARED, if that is what every rank is. `own`: whether UPDATING there is no wish: wsm
    has stored it to wake FastDeploy's loop, or until a hold is released, or another command has ended the
    wish. Nothing is loaded for it.
    """
    if own and word == UPDATING and held is not None:
        return Given.NOTHING
    return GIVES[word, held]


def answer(
    entry: Entry | None,
    word: int,
    held: int | None,
    *,
    gave: Given,
    failed: bool = False,
    hold: bool = False,
) -> int | None:
    """Say what a word that asked is to say now: what all ranks hold. None while it is to be asked again.

    A clear that kept the weights is answered NORMAL, from which a client asks again.

    `entry`: the entry at hand; None where no loop looks at the word, and a release of wsm's takes it from
    CLEARED. `held`: as for :func:`given`, once that is done. `gave`: what was done. `failed`: whether that
    failed. An update that failed and left the old weights is still to come. `hold`: whether another process
    holds the group: FastDeploy's loop would step on NORMAL, so a word over weights that are there says
    UPDATING until the hold is released.
    """
    if word == UPDATING and (gave is Given.CLEAR or (failed and held == NORMAL)):
        return None
    if hold and held == NORMAL:
        if entry is not None:
            return UPDATING
        return CLEARED if word == UPDATING else None
    if (word, held) == (CLEARING, NORMAL) and entry is not None and entry.sleeps:
        return UPDATING
    return held


def mirrored(deciding: int, own: int, *, together: bool = False) -> int:
    """Say what the word of another data-parallel part is to say.

    `deciding`: what the deciding word says, or is answered. `own`: what that part's word says. `together`:
    whether both asked the same, and this is the answer to both.
    """
    return deciding if together and deciding not in ASKS else MIRRORS.get((deciding, own), own)


class FailedWish(NamedTuple):
    """The wish whose command failed last and that is asked for still; by default there is none.

    `failures`: how often in a row. `again_at`: when it is tried again, in seconds of the clock that is handed
    in as `now`. `sequence`: the command of that try; the last one before it, if it was refused. A newer one
    is another process's. `cause`: why the last try failed, without what differs from try to try.
    """

    word: int = NORMAL
    failures: int = 0
    again_at: float = 0.0
    sequence: int = 0
    cause: str = ""

    def again(self, word: int, cause: str, *, sequence: int, now: float) -> FailedWish:
        """Return it after one more failure."""
        failures = self.failures + 1 if word == self.word else 1
        return FailedWish(word, failures, now + AGAIN.after(failures), sequence, _UNNAMED.sub("", cause))

    def waits(self, word: int, now: float) -> bool:
        """Whether the next try is still to come."""
        return word == self.word and now < self.again_at


#: A label that is drawn anew for each try.
_UNNAMED = re.compile(r"unnamed-[\w.+=@:-]+")


def sleeps_behind(left: int) -> bool:
    """Whether FastDeploy's loop sleeps behind an entry that all left on this word, until it says UPDATING."""
    return left != NORMAL


def leaves(entry: Entry, word: int) -> bool:
    """Whether all ranks leave the entry, now that the word says or is answered this.

    Behind an entry that sleeps, FastDeploy's loop wakes at UPDATING and at nothing else, and comes in for it:
    so an update is never done inside such an entry, and NORMAL never lets it out.
    """
    if entry.sleeps:
        return word in (CLEARED, UPDATING)
    return word == NORMAL or (word == entry.asked == CLEARED and not entry.block)
