"""The campaign's results as a table of 80 columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from campaign.case import Case
from campaign.result import Result


def show(results: Sequence[Result], console: Console) -> None:
    """Print one row per kind of group, operation and kind of fault."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("group", no_wrap=True)
    table.add_column("during", no_wrap=True)
    table.add_column("fault", no_wrap=True)
    for column in ("cases", "bad"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("outcomes")
    for column in ("p50", "p90 ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for (group, operation, fault), members in _rows(results):
        outcomes = Counter(result.outcome for result in members)
        times = sorted(result.detected_ms for result in members if result.detected_ms is not None)
        table.add_row(
            *(group, operation, fault, str(len(members))),
            str(sum(not result.good for result in members) or ""),
            ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()),
            _percentile(times, 50),
            _percentile(times, 90),
        )
    console.print(table)
    recoveries = sorted(result.recovered_s for result in results if result.recovered_s is not None)
    if recoveries:
        console.print(
            f"{len(recoveries)} groups lost a rank and were whole again after "
            f"{_percentile(recoveries, 50)} s (median), {_percentile(recoveries, 90)} s (90 %)"
        )
    _say_detection(results, console)
    left = [result for result in results if result.leftovers]
    checked = sum(result.checked for result in results)
    console.print(
        f"{len(results)} cases, {sum(not result.good for result in results)} bad; {len(left)} left something "
        f"behind; {checked} steps and tokens held against their versions"
    )


def _say_detection(results: Sequence[Result], console: Console) -> None:
    """Say how soon the caller, or the terminal, was told of a rank that was killed."""
    times = sorted(
        result.detected_ms
        for result in results
        if result.detected_ms is not None and "/rank" in result.case and "/kill@" in result.case
    )
    if times:
        console.print(
            f"{len(times)} killed ranks were named after {_percentile(times, 50)} ms (median), "
            f"{_percentile(times, 90)} ms (90 %)"
        )


def show_failure(result: Result, console: Console) -> None:
    """Print what is wrong with one case, and how to play it again."""
    _line(console, f"BAD {result.case}: {result.outcome} {result.error}")
    for problem in result.problems:
        _line(console, f"    {problem}")
    for leftover in result.leftovers:
        _line(console, f"    left behind: {leftover}")
    if result.said:
        _line(console, f"    said: {result.said}")
    _line(console, f"    again: python -m campaign --case '{result.case}'")


def _line(console: Console, text: str) -> None:
    """Print a line as it is, so that a name can be copied from it."""
    console.print(text, soft_wrap=True, markup=False)


def _rows(results: Iterable[Result]) -> list[tuple[tuple[str, str, str], list[Result]]]:
    rows: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.case.endswith("/end") and result.good:
            continue
        rows[_row(result.case)].append(result)
    return sorted(rows.items())


def _row(name: str) -> tuple[str, str, str]:
    if name.endswith("/end"):
        return (name, "", "")
    case = Case.parse(name)
    group = f"{case.kind} {case.ranks}"
    if "@" in case.what:
        fault = case.fault
        victim = fault.victim.rstrip("0123456789")
        return (group, case.operation, f"{victim}: {fault.act.value}")
    return (group, case.operation, case.what.split(":")[0])


def _percentile(ordered: Sequence[float], percent: int) -> str:
    """Nearest rank; empty without samples."""
    if not ordered:
        return ""
    value = ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
