"""Plays one case, whatever it is about: times it, and turns a hang into a result and an ended group."""

from __future__ import annotations

import time
from collections.abc import Callable

from campaign.asking import HangError
from campaign.case import Case
from campaign.group import GroupUnderFault
from campaign.result import Result

Play = Callable[[Case, GroupUnderFault, Result], None]


def played(case: Case, group: GroupUnderFault, play: Play) -> Result:
    """Return what became of the case; the group is ended where something hung."""
    result = Result(str(case))
    began = time.monotonic()
    try:
        play(case, group, result)
    except HangError as hang:
        result.problems.append(f"hang: {hang}")
        result.outcome = result.outcome or "hang"
        result.leftovers += group.stop()
    result.seconds = time.monotonic() - began
    return result
