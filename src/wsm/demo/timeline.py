"""Spans of time on named tracks: what the trace and the picture are drawn from.

A track is a process of the run (``rank 0``, ``controller``, ``trainer``), a lane is one aspect of it
(``weights``, ``actions``), and a span is what that aspect was between two readings of the monotonic clock.
Pure: spans come from journals and from the loop, the drawing knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TimelineSpan:
    """Something that lasted.

    Parameters
    ----------
    track, lane : str
        Where it is drawn.
    name : str
        What it was: a state, an action, a command.
    start_ns, end_ns : int
        Monotonic clock of the host, the same for all processes.
    facts : mapping
        What else is known about it, as plain values.
    """

    track: str
    lane: str
    name: str
    start_ns: int
    end_ns: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        """Length in ns."""
        return self.end_ns - self.start_ns


def tracks(spans: Iterable[TimelineSpan]) -> list[str]:
    """Return every track once: controller, trainer, then the ranks in numerical order."""
    return sorted({span.track for span in spans}, key=_track_order)


def lanes(spans: Iterable[TimelineSpan], track: str) -> list[str]:
    """Return the lanes of one track, in the order in which they first appear."""
    return list(dict.fromkeys(span.lane for span in spans if span.track == track))


def within(spans: Iterable[TimelineSpan], start_ns: int, end_ns: int) -> list[TimelineSpan]:
    """Return the spans that overlap an interval."""
    return [span for span in spans if span.end_ns > start_ns and span.start_ns < end_ns]


def extent(spans: Sequence[TimelineSpan]) -> tuple[int, int]:
    """Return the first start and the last end; (0, 1) where there is nothing."""
    if not spans:
        return 0, 1
    return min(span.start_ns for span in spans), max(span.end_ns for span in spans)


def _track_order(track: str) -> tuple[int, int, str]:
    kind, _, number = track.partition(" ")
    place = {"controller": 0, "trainer": 1}.get(kind, 2)
    return place, int(number) if number.isdigit() else 0, track
