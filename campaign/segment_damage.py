"""Plays cases of bits that flip in a living group's shared memory.

Words carry no checksum, so a group may well stop over one. What must hold: no caller and no end of a group
hangs or fails in a way that has no type, no step is mixed or made with other bytes than its version's, and
the group works again, by itself or after a start.
"""

from __future__ import annotations

import mmap
import random

from campaign.asking import HangError
from campaign.case import Case
from campaign.group import GroupUnderFault
from campaign.rank_faults import finish, good_update, prepare
from campaign.result import Result, named_ranks
from wsm.errors import WsmError
from wsm.signals.layout import HEADER_BYTES, SLOT_BYTES, WORD_BYTES, Layout, segment_path

SEEDS = 8
_DEADLINE_S = 2.0
_SELF_S = 15.0
_NAMED = ("command", "committed", "owner", "header", "arguments")
_PER_RANK = ("status", "step", "heartbeat", "occupant", "report", "error")


#: Every place, to be formatted with ``rank``.
PLACES = (*_NAMED, *(f"{place}{{rank}}" for place in _PER_RANK))


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    places = [*_NAMED, *(f"{place}{rank}" for place in _PER_RANK for rank in range(ranks))]
    return [Case(kind, ranks, "segment", f"flip:{place}:{seed}") for place in places for seed in range(SEEDS)]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    _, place, seed = case.what.split(":")
    prepare("in_place", group, result)
    version = group.publish()
    flip(group, place, random.Random(f"{place} {seed}"))  # noqa: S311 - a case must be the same every time
    answer = group.command("update", version, deadline_s=_DEADLINE_S)
    result.said = answer.said[:300]
    if answer.error is not None:
        result.error, result.named = type(answer.error).__name__, named_ranks(answer.error)
    checked, problems = group.audit()
    result.outcome = "by itself" if answer.receipt is None else "new version"
    try:
        group.until(group.is_whole, "the group is whole again", _SELF_S)
        trial = Result("")
        good_update(group, trial)
        problems += [problem for problem in trial.problems if "good update" not in problem]
        works = not trial.problems
    except (HangError, WsmError):
        works = False  # a damaged word may well need a start of the group; it is not hidden
    if not works:
        result.outcome = "restarted"
        result.leftovers += group.stop()
        group.start()
    result.checked += checked
    result.problems += problems
    finish(group, result)


def flip(group: GroupUnderFault, place: str, chance: random.Random) -> None:
    """Flip one to three bits of a place in the segment."""
    group.damaged = True
    layout = Layout(group.ranks, len(group.victims) - group.ranks)
    name, rank = place.rstrip("0123456789"), int(place.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
    if name == "header":
        offset, length = 0, HEADER_BYTES
    elif name in ("arguments", "report", "error"):
        offset, length = getattr(layout, name)[rank], min(SLOT_BYTES, 512)
    else:
        index = getattr(layout, name)
        offset, length = (index[rank] if isinstance(index, tuple) else index) * WORD_BYTES, WORD_BYTES
    with segment_path(group.config.group.name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for _ in range(chance.choice((1, 1, 2, 3))):
            bit = chance.randrange(length * 8)
            memory[offset + bit // 8] ^= 1 << bit % 8
