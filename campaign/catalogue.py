"""Which faults there are: every line of a good run's journals, and every action, for every rank.

The points are not listed here but heard: a group runs each operation once without a fault, and each of its
ranks writes down what it passes. So a new action or a new journal line has its cases by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from campaign.case import Case
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault

#: Operations that a rank's journal tells of; ``boot`` is the first update of a group.
COMMANDS = ("clear", "update", "in_place", "hot")

#: The last line of a rank's journal about each.
_LAST = {
    "clear": "word:DONE_CLEARED",
    "update": "served_version",
    "in_place": "served_version",
    "hot": "served_version",
}

_BUSY = frozenset({"write", "step"})
_ENDS = (Act.KILL, Act.STOP, Act.FREEZE, Act.HANG)


def command_of(operation: str) -> str:
    """Return what a controller is asked for in an operation; groups serve before, or are cleared."""
    return operation if operation in ("clear", "hot") else "update"


def hear_points(group: GroupUnderFault) -> dict[str, dict[int, list[str]]]:
    """Run each operation once; return which points each rank passes in it, in order."""
    heard: dict[str, dict[int, list[str]]] = {}
    group.ensure_running()
    group.await_service(group.published)
    for operation in COMMANDS:
        for rank in range(group.ranks):
            group.orders.listen(f"rank{rank}")
        version = None if operation == "clear" else group.publish()
        answer = group.command(command_of(operation), version)
        if answer.receipt is None:
            raise RuntimeError(f"{operation} without any fault failed: {answer.said}")
        # The answer is there before the last lines are written.
        group.until(partial(_all_heard, group, _LAST[operation]), f"the end of {operation}")
        heard[operation] = {rank: group.orders.heard(f"rank{rank}") for rank in range(group.ranks)}
    heard["boot"] = heard["update"]
    return heard


def _all_heard(group: GroupUnderFault, point: str) -> bool:
    return all(point in group.orders.heard_so_far(f"rank{rank}") for rank in range(group.ranks))


def rank_cases(
    group: GroupUnderFault, heard: dict[str, dict[int, list[str]]], ranks: Sequence[int]
) -> Iterator[Case]:
    """Name the cases of faults in the ranks `ranks`, operation by operation."""
    for operation, points in heard.items():
        for rank in ranks:
            for fault in _faults(f"rank{rank}", points[rank], operation):
                yield Case(group.kind, group.ranks, operation, str(fault))
    for rank in ranks:
        for act in (*_ENDS, Act.RAISE):
            yield Case(group.kind, group.ranks, "serving", str(Fault(f"rank{rank}", "step", act, 25)))


def _faults(victim: str, points: Sequence[str], operation: str) -> Iterator[Fault]:
    passages: Counter[str] = Counter()
    busy = Counter(point for point in points if point in _BUSY)
    for point in points:
        passages[point] += 1
        nth = passages[point]
        if point in _BUSY and (point == "step" or nth not in {1, busy[point] // 2, busy[point]}):
            continue
        kind = point.partition(":")[0]
        if kind in ("begin", "done"):
            yield from _failures(victim, point, nth)
        if kind == "begin":
            continue  # nothing lies between it and the line of the journal before it
        for act in _ENDS:
            if _is_asked_for(operation, act, kind, nth):
                yield Fault(victim, point, act, nth)
    if operation != "clear":
        yield Fault(victim, "write", Act.RAISE, max(busy["write"] // 2, 1))


def _is_asked_for(operation: str, act: Act, kind: str, nth: int) -> bool:
    """Whether an end at a point of that kind tells something that others do not; some cases take seconds."""
    if act is Act.HANG and operation == "boot":
        return False  # the supervisor's own first update waits for minutes before it gives a rank up
    if act is Act.HANG:
        return kind == "started" or (kind == "write" and nth > 1)
    return act is not Act.FREEZE or kind in ("started", "word")


def _failures(victim: str, point: str, nth: int) -> Iterator[Fault]:
    if point.startswith("begin:"):
        yield Fault(victim, point, Act.RAISE, nth)
        yield Fault(victim, point, Act.LIE, nth)
    else:
        yield Fault(victim, point, Act.RAISE, nth)
        yield Fault(victim, point, Act.DENY, nth)
