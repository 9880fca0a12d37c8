"""What a hold means to callers over HTTP, and what makes it another: the one table of it. Pure.

A hold is closed where a blind release would let weights serve that its trainer believes replaced. Everything
in this package that depends on a hold asks this table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from wsm.states.holding import ClosedBy, Hold

#: What the owners of holds over HTTP begin with.
OWNERS: Final = "http:"


class HoldState(enum.Enum):
    """What the group stands under. The last three are closed holds, by the names of what closes them."""

    OPEN = "open"
    FOREIGN = "held by a controller that is no surface"
    HELD = "held"
    DELAYED = "closed by an update that failed, and may pass when it is asked for again"
    FAILED = "closed by an update that failed"
    REFUSED = "closed by a verb that is never honoured"


class HoldEvent(enum.Enum):
    """What happens to the hold of a surface. Another version that commits makes a closed hold an open one."""

    REFUSED = "a verb of any surface was refused"
    FAILED = "an update of this surface failed"
    DELAYED = "an update of this surface failed, and is to be asked for again"
    FAILED_ELSEWHERE = "an update of another surface failed"
    UPDATED = "an update of this surface succeeded"
    UPDATED_ELSEWHERE = "an update of another surface succeeded"
    SENT = "an update succeeded whose caller sent the weights, by their path"


class Text(enum.Enum):
    """What becomes of requests for text."""

    PASSES = "passes"
    WAITS = "waits"
    FAILS = "fails"


class Meaning(NamedTuple):
    """What a hold is behind an event, what becomes of text, and whether a blind release may end it."""

    state: HoldState
    text: Text
    may_release: bool


_MEANINGS: Final[Mapping[HoldState, Meaning]] = {
    row.state: row
    for row in (
        Meaning(HoldState.OPEN, Text.PASSES, may_release=True),
        Meaning(HoldState.FOREIGN, Text.WAITS, may_release=True),
        Meaning(HoldState.HELD, Text.WAITS, may_release=True),
        Meaning(HoldState.DELAYED, Text.WAITS, may_release=False),
        Meaning(HoldState.FAILED, Text.FAILS, may_release=False),
        Meaning(HoldState.REFUSED, Text.FAILS, may_release=False),
    )
}

_CLOSES: Final = {
    HoldEvent.REFUSED: HoldState.REFUSED,
    HoldEvent.FAILED: HoldState.FAILED,
    HoldEvent.DELAYED: HoldState.DELAYED,
}
_OPENS: Final = {HoldEvent.UPDATED: HoldState.HELD, HoldEvent.SENT: HoldState.HELD}

#: What an event makes of a state; a pair that is not there leaves it.
_NEXT: Final[Mapping[HoldState, Mapping[HoldEvent, HoldState]]] = {
    HoldState.HELD: _CLOSES,
    HoldState.DELAYED: {**_CLOSES, **_OPENS},
    HoldState.FAILED: {**_CLOSES, **_OPENS},
    HoldState.REFUSED: {HoldEvent.SENT: HoldState.HELD},  # a failure makes no refusal open more easily
}


def meaning(state: HoldState, event: HoldEvent | None = None) -> Meaning:
    """Return what a hold means, behind an event if there was one."""
    return _MEANINGS[state if event is None else _NEXT.get(state, {}).get(event, state)]


def state_of(hold: Hold | None) -> HoldState:
    """Return the state of a hold of a group; None: the group stands under none."""
    if hold is None:
        return HoldState.OPEN
    if hold.closed is not None:
        return HoldState[hold.closed.by.name]
    return HoldState.HELD if hold.owner.startswith(OWNERS) else HoldState.FOREIGN


def failure(by: ClosedBy, hold: Hold | None, surface: str) -> HoldEvent:
    """Return the event that a verb of `surface` makes which was refused, or failed."""
    if by is ClosedBy.REFUSED:
        return HoldEvent.REFUSED
    if hold is not None and hold.owner != f"{OWNERS}{surface}":
        return HoldEvent.FAILED_ELSEWHERE
    return HoldEvent.DELAYED if by is ClosedBy.DELAYED else HoldEvent.FAILED


def success(hold: Hold | None, surface: str, *, sent: bool) -> HoldEvent:
    """Return the event that an update of `surface` makes; `sent`: its caller sent the weights, by path."""
    if sent:
        return HoldEvent.SENT
    closed = None if hold is None else hold.closed
    return (
        HoldEvent.UPDATED_ELSEWHERE if closed is not None and closed.surface != surface else HoldEvent.UPDATED
    )
