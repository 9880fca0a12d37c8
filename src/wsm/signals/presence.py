"""What a participant is doing right now, and since when: words beside its heartbeat, for status and errors.

The protocol does not depend on them, and nothing waits for them: they name the action that a rank is in,
and give waits their beginning, on a dead group too. Times are the writer's monotonic clock in ns, which all
processes of one boot of a host share. Several words are not read as one: a reader may see the time of one
action beside the name of the next, for the microsecond in which both are stored.

==========  ==================================================================================
word        says
==========  ==================================================================================
heartbeat   a counter that grows with every turn that is not the quiet path
+1          when it grew last
+2          when the status word was stored last
+3          :class:`Doing`: the plan at hand, and the action that it is inside of
+4          since when
==========  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wsm.states.words import MAX_ACTION

_BEAT_AT = 1
_TOLD_AT = 2
_DOING = 3
_SINCE = 4

_MAX_PLAN = 254


class Doing(NamedTuple):
    """The plan that a participant works through, and the action of it that it is inside of.

    ``plan`` is a place in the list of its plans; ``action`` a place in all actions of that plan, those
    before parking and those of the commit included. None: none.
    """

    plan: int | None = None
    action: int | None = None

    def pack(self) -> int:
        """Return the word; places that do not fit are left out, for they only inform."""
        plan, action = self
        plans = 0 if plan is None or plan >= _MAX_PLAN else plan + 1
        return plans << 8 | (0 if action is None or action >= MAX_ACTION else action + 1)

    @classmethod
    def unpack(cls, word: int) -> Doing:
        """Read the word; bits that this build does not know are ignored."""
        return cls(
            ((word >> 8) & 0xFF) - 1 if word & 0xFF00 else None, (word & 0xFF) - 1 if word & 0xFF else None
        )


class Presence(NamedTuple):
    """All of it, as it was read; a time of 0 was never stored."""

    heartbeat: int
    beat_at_ns: int
    told_at_ns: int
    doing: Doing
    since_ns: int


def read_presence(words: memoryview[int], heartbeat: int) -> Presence:
    """Read what stands beside the heartbeat at index `heartbeat`."""
    counter, beat_at, told_at, doing, since = words[heartbeat : heartbeat + _SINCE + 1].tolist()
    return Presence(counter, beat_at, told_at, Doing.unpack(doing), since)


class PresenceWords:
    """The words of one participant, in the hands of that participant.

    Parameters
    ----------
    words : memoryview
        Of the segment.
    heartbeat : int
        Index of its heartbeat.

    Attributes
    ----------
    beside : callable or None
        Called with every beat.
    """

    def __init__(self, words: memoryview[int], heartbeat: int) -> None:
        self.beside: Callable[[], None] | None = None
        self._words = words
        self._heartbeat = heartbeat

    def beat(self, now_ns: int) -> None:
        """Show progress."""
        self._words[self._heartbeat + _BEAT_AT] = now_ns
        self._words[self._heartbeat] += 1
        if self.beside is not None:
            self.beside()

    def told(self, now_ns: int) -> None:
        """Say that the status word was stored just now."""
        self._words[self._heartbeat + _TOLD_AT] = now_ns

    def does(self, doing: Doing, now_ns: int) -> None:
        """Say what begins now."""
        self._words[self._heartbeat + _SINCE] = now_ns
        self._words[self._heartbeat + _DOING] = doing.pack()
