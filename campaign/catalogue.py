"""Which faults there are: every line of a good run's journals, and every action, for every participant.

The points are not listed here but heard: a group runs each operation once without a fault, and each process
that takes part writes down what it passes. So a new action or a new journal line has its cases by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from campaign.case import Case
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import COMMANDS, operation_of
from campaign.rank_faults import prepare
from campaign.result import Result
from wsm.status.facts import GroupStatus

#: Which points a participant passes in an operation, by both names.
Heard = dict[str, dict[str, list[str]]]

_BUSY = frozenset({"write", "step"})
_ENDS = (Act.KILL, Act.STOP, Act.FREEZE, Act.HANG)


def hear_points(group: GroupUnderFault, names: Iterable[str] = COMMANDS) -> Heard:
    """Run each operation once; return which points each participant passes in it, in order.

    Raises
    ------
    RuntimeError
        If an operation fails without any fault.
    """
    heard: Heard = {}
    trial = Result("")
    group.ensure_running()
    group.await_service(group.published)
    for name in names:
        prepare(name, group, trial)
        for victim in group.victims:
            group.orders.listen(victim)
        answer = group.command(name, group.publish() if operation_of(name).brings_weights else None)
        if answer.receipt is None:
            raise RuntimeError(f"{name} without any fault failed: {answer.said}")
        # The answer is there before the last lines are written.
        last = _last_line(name, group.status())
        group.until(partial(_all_heard, group, last), f"the end of {name}")
        heard[name] = {victim: group.orders.heard(victim) for victim in group.victims}
    return heard


def _last_line(name: str, status: GroupStatus) -> str:
    """Name the last line of each rank's journal about an operation."""
    if operation_of(name).decision == "abort":
        return "word:DONE_KEPT" if status.serving else "word:DONE_CLEARED"
    if operation_of(name).command == "clear":
        return "word:DONE_CLEARED"
    return "served_version" if status.serving else "word:DONE_COMMITTED"


def _all_heard(group: GroupUnderFault, point: str) -> bool:
    return all(point in group.orders.heard_so_far(f"rank{rank}") for rank in range(group.ranks))


def every_case(group: GroupUnderFault, heard: Heard, victims: Sequence[str]) -> Iterator[Case]:
    """Name the cases of faults in `victims` at every point, operation by operation; a boot is an update."""
    boot = {"boot": heard["update"]} if "update" in heard else {}
    for operation, points in {**heard, **boot}.items():
        for victim in victims:
            for fault in _faults(victim, points[victim], operation):
                yield Case(group.kind, group.ranks, operation, str(fault))
    for victim in victims:
        if victim.startswith("rank") and boot:
            for act in (*_ENDS, Act.RAISE):
                yield Case(group.kind, group.ranks, "serving", str(Fault(victim, "step", act, 25)))


def every_other_case(group: GroupUnderFault, heard: Heard, victims: Sequence[str]) -> Iterator[Case]:
    """Name the same cases with one of `victims` at each point, in turn."""
    for operation, points in heard.items():
        for index, victim in enumerate(victims):
            mine = _in_turn(points, index, victims)
            for fault in _faults(victim, points[victim], operation):
                if (fault.point, fault.nth) in mine:
                    yield Case(group.kind, group.ranks, operation, str(fault))


def _in_turn(points: Mapping[str, Sequence[str]], index: int, victims: Sequence[str]) -> set[tuple[str, int]]:
    """Return the passages that are one victim's: all points of an action go to the same."""
    passages: Counter[str] = Counter()
    mine = set()
    for point in points[victims[index]]:
        passages[point] += 1
        subject = point.partition(":")[2] or point
        if (sum(subject.encode()) + passages[point]) % len(victims) == index:
            mine.add((point, passages[point]))
    return mine


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
        if kind == "begin" and operation != "boot":  # that serves before a group could be fed again
            yield Fault(victim, point, Act.STARVE, nth)
        if kind == "begin":
            continue  # nothing lies between it and the line of the journal before it
        for act in _ENDS:
            if _is_asked_for(operation, act, kind, nth):
                yield Fault(victim, point, act, nth)
    if busy["write"]:
        yield Fault(victim, "write", Act.RAISE, max(busy["write"] // 2, 1))


def _is_asked_for(operation: str, act: Act, kind: str, nth: int) -> bool:
    """Whether an end at a point of that kind tells something that others do not; some cases take seconds."""
    thin = operation not in (*COMMANDS, "boot")
    if act is Act.HANG and (thin or operation == "boot"):
        return False  # the supervisor's own first update waits for minutes before it gives a rank up
    if act is Act.HANG:
        return kind == "started" or (kind == "write" and nth > 1)
    if thin and act is Act.STOP:
        return kind in ("finished", "word")
    return act is not Act.FREEZE or kind in ("started", "word")


def _failures(victim: str, point: str, nth: int) -> Iterator[Fault]:
    if point.startswith("begin:"):
        yield Fault(victim, point, Act.RAISE, nth)
        yield Fault(victim, point, Act.LIE, nth)
    else:
        yield Fault(victim, point, Act.RAISE, nth)
        yield Fault(victim, point, Act.DENY, nth)
