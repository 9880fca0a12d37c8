"""Every family of cases: who names them and who plays them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import xxhash

from campaign import controller_faults, file_damage, random_faults, rank_faults, segment_damage, storage
from campaign.case import Case
from campaign.catalogue import hear_points, rank_cases
from campaign.group import GroupUnderFault
from campaign.result import Result

#: Who plays which operation; all others are faults of ranks.
_PLAYERS: dict[str, Callable[[Case, GroupUnderFault], Result]] = {
    "files": file_damage.play,
    "segment": segment_damage.play,
    "storage": storage.play,
    "random": random_faults.play,
}


def all_cases(kind: str, ranks: int) -> list[Case]:
    """Name all cases of one kind of group; runs one, to hear which points its ranks pass."""
    with GroupUnderFault(kind, ranks) as group:
        cases = list(rank_cases(group, hear_points(group), range(ranks)))
    cases += controller_faults.cases(kind, ranks)
    cases += file_damage.cases(kind, ranks)
    cases += segment_damage.cases(kind, ranks)
    cases += storage.cases(kind, ranks)
    cases += random_faults.cases(kind, ranks)
    return cases


def play(case: Case, group: GroupUnderFault) -> Result:
    """Play one case."""
    if case.what.startswith("controller/"):
        return controller_faults.play(case, group)
    return _PLAYERS.get(case.operation, rank_faults.play)(case, group)


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
    return f"{case.operation}/{what[0]}/{what[1] if case.operation == 'files' else ''}"
