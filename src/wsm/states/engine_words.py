"""FastDeploy's words: what a weights word asks, what is done about it, what it says then, when ranks leave.

FastDeploy's event loop calls ``check_model_weights_status`` on every rank in the same turn, after a broadcast
and a barrier of its own; an engine without wsm in its loop stores its wish and waits. In both cases one
process (rank 0 of the group, or the bridge) reads :data:`ROWS` by one reader,
:class:`wsm.controller.engine_bridge.EngineWishes`, and answers by compare-exchange. NORMAL says that the
newest wish is fulfilled. Tables and pure functions.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
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


class Held(enum.Enum):
    """What all ranks hold, as far as FastDeploy's words tell it apart."""

    WHOLE = "weights and KV cache"
    ON_HOLD = "weights and KV cache, and another process holds the group: no rank may step"
    NOTHING = "nothing, or not all that a step needs"
    DIFFERENT = "different things, or a teardown failed"


class WishRow(NamedTuple):
    """What follows from a wish; each cell but the first and the last lists the values that it is for.

    Parameters
    ----------
    wish : int
        What the word asks.
    held : sequence of Held
        What all ranks hold now.
    failed : sequence of bool or None
        How the wish's own command ended; None: it was not given yet.
    sleeps : sequence of bool or None
        Whether the engine's own loop sleeps behind this entry until the word says UPDATING; None: no loop
        looks at the word, and a release of wsm's takes it from CLEARED.
    then : Given or int
        The command that is given, or what the word says.
    """

    wish: int
    held: Sequence[Held]
    failed: Sequence[bool | None]
    sleeps: Sequence[bool | None]
    then: Given | int


_NOT_YET, _DONE, _FAILED, _TRIED, _ANY = (None,), (False,), (True,), (False, True), (None, False, True)
_LOOP, _NO_LOOP, _STAYS, _SLEEPS = (False, True), (None,), (False,), (True,)
_THERE = (Held.WHOLE, Held.ON_HOLD)

#: The wish of an engine, what is resident, how its command went, the loop: what is done, or said.
#: Each case stands in one row. An engine asks for what lies there now, whatever its version is called: each
#: update for it is forced. FastDeploy's loop would step on NORMAL, so a word over weights that are there says
#: UPDATING until a hold is released. An update that failed over weights that are there is given again; a
#: clear that kept them is answered NORMAL, from which a client asks again.
ROWS: Sequence[WishRow] = (
    WishRow(CLEARING, (Held.NOTHING,), _ANY, _ANY, CLEARED),
    WishRow(CLEARING, (Held.DIFFERENT,), _ANY, _ANY, Given.CLEAR),
    WishRow(CLEARING, _THERE, _NOT_YET, _ANY, Given.CLEAR),
    WishRow(CLEARING, (Held.WHOLE,), _TRIED, (*_NO_LOOP, *_STAYS), NORMAL),
    WishRow(CLEARING, (Held.WHOLE,), _TRIED, _SLEEPS, UPDATING),
    WishRow(CLEARING, (Held.ON_HOLD,), _TRIED, _NO_LOOP, Given.CLEAR),
    WishRow(CLEARING, (Held.ON_HOLD,), _TRIED, _LOOP, UPDATING),
    WishRow(UPDATING, (Held.DIFFERENT,), _ANY, _ANY, Given.CLEAR),
    WishRow(UPDATING, (*_THERE, Held.NOTHING), _NOT_YET, _ANY, Given.UPDATE),
    WishRow(UPDATING, (Held.NOTHING,), _TRIED, _ANY, CLEARED),
    WishRow(UPDATING, _THERE, _FAILED, _ANY, Given.UPDATE),
    WishRow(UPDATING, (Held.WHOLE,), _DONE, _ANY, NORMAL),
    WishRow(UPDATING, (Held.ON_HOLD,), _DONE, _NO_LOOP, CLEARED),
    WishRow(UPDATING, (Held.ON_HOLD,), _DONE, _LOOP, UPDATING),
)

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


def follows(wish: int, held: Held, *, failed: bool | None, sleeps: bool | None) -> Given | int:
    """Say what follows from a wish, by its one row: the command that is given, or what the word says."""
    return next(
        row.then
        for row in ROWS
        if wish == row.wish and held in row.held and failed in row.failed and sleeps in row.sleeps
    )


def outcome_of(wish: int, gave: Given, *, failed: bool) -> bool | None:
    """Say how the wish's own command ended; None where another one was given: ranks that differ go first."""
    return failed if gave is (Given.CLEAR if wish == CLEARING else Given.UPDATE) else None


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
