"""Every family of cases: who names them, who plays them, and what one is played on."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import xxhash

from campaign import (
    abandoned,
    controller_faults,
    file_damage,
    floods,
    havoc,
    holds_midway,
    mooncake_floods,
    prepares,
    prepares_midway,
    random_faults,
    rank_faults,
    segment_damage,
    signalled,
    storage,
    supervisor_faults,
    unversioned,
)
from campaign.asking import HangError
from campaign.case import Case
from campaign.catalogue import every_case, every_other_case, hear_points
from campaign.group import GroupUnderFault
from campaign.operations import COMMANDS, HALVES, HOLDS, POLICIES, PREPARES
from campaign.result import Result

_Play = Callable[[Case, GroupUnderFault, Result], None]

#: Who plays which operation; all others are faults of ranks.
_PLAYERS: dict[str, _Play] = {
    "boot": rank_faults.play_boot,
    "files": file_damage.play,
    "segment": segment_damage.play,
    "random": random_faults.play,
    "havoc": havoc.play,
    holds_midway.OPERATION: holds_midway.play,
    "supervisor": supervisor_faults.play,
    "signals": signalled.play,
    "floods": floods.play,
    prepares_midway.OPERATION: prepares_midway.play,
    "mooncake": mooncake_floods.play,
    unversioned.OPERATION: unversioned.play,
}


#: Which cases there are, by what they are about: everything at once; weights and KV cache one by one, and the
#: policies for KV blocks; holds, releases and commands under a hold; updates whose caller decides; several
#: faults, or faults at any line; controllers that never come back; signals to the commands themselves; peers
#: that flood or lie while versions are streamed, or read over Mooncake.
FAMILIES = ("commands", "halves", "holds", "prepares", "havoc", "abandoned", "signals", "floods")


#: Whose cases are named without a group that runs.
_NAMED: dict[str, tuple[Callable[[str, int], list[Case]], ...]] = {
    "abandoned": (abandoned.cases,),
    "havoc": (havoc.cases, supervisor_faults.cases),
    "signals": (signalled.cases,),
    "floods": (floods.cases, mooncake_floods.cases),
}


def all_cases(kind: str, ranks: int, family: str = "commands") -> list[Case]:
    """Name all cases of one family on one kind of group; runs one, to hear which points are passed."""
    if family in _NAMED:
        return [case for name in _NAMED[family] for case in name(kind, ranks)]
    with GroupUnderFault(kind, ranks) as group:
        played = {
            "halves": (*HALVES, *POLICIES),
            "holds": tuple(HOLDS),
            "prepares": tuple(PREPARES),
        }.get(family, tuple(COMMANDS))
        heard = hear_points(group, played)
        of_ranks, others = group.victims[:ranks], group.victims[ranks:]
        cases = list(every_case(group, heard, others))
        # Beside a KV-cache process, and with halves, ranks do what they do elsewhere, too.
        every = every_case if family == "commands" and not others else every_other_case
        cases += every(group, heard, of_ranks)
        if family == "prepares":
            return cases + prepares.cases(kind, ranks) + prepares_midway.cases(kind, ranks)
        if family == "holds":
            cases += holds_midway.cases(kind, ranks)
        if family in ("halves", "holds"):
            return cases + controller_faults.cases(kind, ranks, played)
    cases += controller_faults.cases(kind, ranks, COMMANDS)
    cases += random_faults.cases(kind, ranks)
    if kind == "cache":  # what it shares with other groups is damaged there
        return cases
    cases += file_damage.cases(kind, ranks)
    cases += segment_damage.cases(kind, ranks)
    cases += storage.cases(kind, ranks)
    cases += unversioned.cases(kind, ranks)
    return cases


def play(case: Case, group: GroupUnderFault) -> Result:
    """Return what became of a case; a hang is a problem of its result, and ends the case's group."""
    if case.operation == "storage":
        return storage.play(case)
    if _kills_owner(case):
        group = GroupUnderFault(case.kind, case.ranks)
    result, began = Result(str(case)), time.monotonic()
    try:
        _player(case)(case, group, result)
    except HangError as hang:
        result.problems.append(f"hang: {hang}")
        result.outcome = result.outcome or "hang"
        result.leftovers += group.stop()
    result.seconds = time.monotonic() - began
    return result


def _kills_owner(case: Case) -> bool:
    """Whether the victim owns the group, so that the case has a group of its own beside the given one."""
    if case.operation == prepares_midway.OPERATION:
        return case.what.startswith("owner:")
    return case.operation in (holds_midway.OPERATION, "supervisor")


def _player(case: Case) -> _Play:
    if case.what.startswith(abandoned.WHAT):
        return abandoned.play
    if case.operation in PREPARES and case.what.startswith(("controller/", prepares.LATE)):
        return prepares.play
    if case.what.startswith("controller/"):
        return controller_faults.play
    return _PLAYERS.get(case.operation, rank_faults.play)


def sample(cases: Sequence[Case], size: int) -> list[Case]:
    """Choose `size` cases, the same ones every time, spread over operations and kinds of faults."""
    strata: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        strata[_stratum(case)].append(case)
    for stratum in strata.values():
        stratum.sort(key=lambda case: xxhash.xxh3_64_intdigest(str(case).encode()))
    chosen: list[Case] = []
    while len(chosen) < min(size, len(cases)):
        for key in sorted(strata, key=lambda key: xxhash.xxh3_64_intdigest(key.encode())):
            chosen += strata[key][-1:]
            del strata[key][-1:]
    wanted = set(chosen[:size])
    return [case for case in cases if case in wanted]


def _stratum(case: Case) -> str:
    """Say what a case is an example of: the act and the operation, not the rank, the point or the seed."""
    if "@" in case.what:
        fault = case.fault
        return f"{case.operation}/{fault.victim.rstrip('0123456789')}/{fault.act.value}"
    what = case.what.split(":")
    act = what[1] if case.operation == "files" or what[0] == abandoned.WHAT else ""
    return f"{case.operation}/{what[0]}/{act}"
