"""The explorations that are run again and again: by every run of the tests, and by ``make explore``.

Each line of bounds is there for what it mixes; together they are as large as their time allows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from explorer.scope import Scope


def _scopes(*texts: str) -> tuple[Scope, ...]:
    return tuple(Scope.from_text(text) for text in texts)


class Survey(enum.Enum):
    """Sets of explorations."""

    DAILY = "daily"  # a million worlds, in every run of the tests
    DEEP = "deep"  # ten million

    @property
    def scopes(self) -> Sequence[Scope]:
        """Return the bounds of each exploration."""
        return _SCOPES[self]


_DAILY = _scopes(
    "commands=2 steps=2 failures=1 give_ups=1 rank_crashes=1",
    "commands=2 rank_crashes=1 controller_crashes=1",
    "fine=True rank_crashes=1 controller_crashes=1",
    "stale_reads=1 rank_crashes=1 give_ups=1",
    "ranks=3 failures=1 rank_crashes=1",
    "rank_crashes=2 failures=1 starts=empty,serving",
    "broken_steps=1 rank_crashes=1 failures=1 long_plans=True",
    "helpers=1 rank_crashes=1 give_ups=1",
    "commands=2 steps=0 halves=True failures=1 rank_crashes=1 operations=clear,update",
    "helpers=1 halves=True steps=0 failures=1 operations=clear,update",
    "rank_crashes=1 failures=2 give_ups=1 steps=0 operations=clear,update starts=serving",
    "controller_losses=1 controller_stops=2 failures=1",
    "controller_losses=1 controller_crashes=1 controller_stops=2 fine=True steps=0",
)

_DEEP = (
    *_DAILY,
    *_scopes(
        "commands=2 steps=2 failures=2 give_ups=1 rank_crashes=1",
        "commands=2 failures=1 give_ups=1 rank_crashes=1 controller_crashes=1",
        "commands=2 stale_reads=1 rank_crashes=1 controller_crashes=1",
        "commands=1 stale_reads=2 rank_crashes=1 failures=1",
        "fine=True stale_reads=1 rank_crashes=1 give_ups=1",
        "fine=True failures=1 rank_crashes=1 controller_crashes=1 give_ups=1",
        "ranks=3 stale_reads=1 rank_crashes=1",
        "ranks=3 failures=1 give_ups=1 rank_crashes=1 controller_crashes=1",
        "commands=2 rank_crashes=3 failures=1",
        "helpers=1 failures=1 give_ups=1 stale_reads=1",
        "ranks=3 helpers=1 failures=1 rank_crashes=1",
        "commands=3 halves=True failures=1 give_ups=1",
        "controller_losses=1 controller_crashes=1 rank_crashes=1 failures=1 commands=2",
        "controller_losses=1 controller_stops=2 stale_reads=1 failures=1",
        "ranks=3 controller_losses=1 controller_stops=2 failures=1",
        "helpers=1 controller_losses=1 controller_stops=2 fine=True steps=0 failures=1",
    ),
)

_SCOPES = {Survey.DAILY: _DAILY, Survey.DEEP: _DEEP}
