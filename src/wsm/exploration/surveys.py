"""The explorations that are run again and again: by the tests, and by ``make explore``.

Each line of bounds is there for what it mixes; together they are as large as their time allows.
"""

from __future__ import annotations

from typing import Final

from wsm.exploration.scope import Scope

#: At least a million worlds: run by every run of the tests.
DAILY: Final = tuple(
    Scope.from_text(text)
    for text in (
        "commands=2 steps=2 failures=1 give_ups=1 rank_crashes=1",
        "commands=2 controller_crashes=1 rank_crashes=1 failures=1",
        "fine=True rank_crashes=1 controller_crashes=1 give_ups=1",
        "stale_reads=1 rank_crashes=1 give_ups=1",
        "ranks=3 failures=1 give_ups=1 rank_crashes=1",
        "rank_crashes=2 failures=1 starts=empty,serving",
        "broken_steps=1 rank_crashes=1 failures=1 long_plans=True",
    )
)
