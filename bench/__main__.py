"""``python -m bench [--quick]``: run every measurement, print two tables, write ``bench.json``.

``--against COMMIT`` measures only poll, step and commands, on this checkout and on that commit, and says how
they compare.

A part for which this machine lacks something is a row that says what. One that fails is a row that says why;
the rest is measured, printed and written all the same, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.acceptance import measure_acceptance
from bench.against import compare
from bench.cycle import measure_cycles
from bench.delta import measure_deltas
from bench.detection import measure_deaths, measure_stops
from bench.hot import measure_pauses
from bench.legacy import measure_cycles as measure_legacy_cycles
from bench.loading import as_plain, loading_table, measured, reasons
from bench.measure import Distribution, Unmeasured
from bench.mooncake import measure_mooncake
from bench.rank_process import STEP_S
from bench.serving import measure_serving

#: Medians to reach on a quiet machine, in the unit of the row.
AIM_TURN_NS = 250.0
AIM_ACCEPTED_US = 200.0
AIM_CYCLE_MS = 5.0
AIM_KILLED_MS = 10.0
AIM_STOPPED_MS = 50.0
AIM_HOT_PAUSE_MS = 2.0
#: The part of the bare engine's speed to reach.
AIM_OF_ENGINE = 0.9

_MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One line of the table: what, how much, and beside what."""

    what: str
    unit: str
    p50: float | None
    p99: float | None = None
    aim: float | None = None
    note: str = ""
    why: Unmeasured | None = None


def serving_rows() -> Iterator[Row]:
    """Measure turns of a serving loop."""
    costs = measure_serving()
    ratio = costs.gloo / costs.following.p50
    yield _row("an empty loop", "ns", costs.empty)
    yield _row("poll() and step()", "ns", costs.following, aim=AIM_TURN_NS)
    yield _row("the same, schedulers decide alike", "ns", costs.alike, aim=AIM_TURN_NS)
    yield Row("Gloo broadcast per turn (FastDeploy)", "ns", costs.gloo, note=f"{ratio:.0f} times ours")


def acceptance_rows(commands: int) -> Iterator[Row]:
    """Measure from the call of a command to the last rank's acceptance."""
    for mode, note in (("idle", ""), ("serving", f"steps of {STEP_S * 1e3:g} ms")):
        for ranks in (2, 4):
            found = measure_acceptance(commands, ranks=ranks, mode=mode)
            aim = AIM_ACCEPTED_US if mode == "idle" else None
            yield _row(f"call to all accepted, {ranks} {mode} ranks", "us", found, aim=aim, note=note)


def cycle_rows(cycles: int, legacy_cycles: int) -> Iterator[Row]:
    """Measure clear and update with empty actions, and FastDeploy's schedule beside it."""
    ours = measure_cycles(cycles)
    yield _row("clear and update, empty actions", "ms", ours, aim=AIM_CYCLE_MS)
    legacy = Distribution.of([seconds * 1e3 for seconds in measure_legacy_cycles(legacy_cycles)])
    ratio = legacy.p50 / ours.p50
    yield _row("the same, FastDeploy's legacy sleeps", "ms", legacy, note=f"{ratio:.0f} times ours")


def pause_rows(sizes: Sequence[tuple[int, int]]) -> Iterator[Row]:
    """Measure how long a group of two ranks stands still; sizes as (MiB of the group, updates)."""
    hot = []
    for mib, updates in sizes:
        size = f"{mib // 1024} GiB" if mib >= 1024 else f"{mib} MiB"
        found = measure_pauses(mib * _MIB, updates)
        if found is None:
            yield Row(f"pause of a hot update, {size}", "ms", None, note="no room for two")
            continue
        hot.append((size, found.hot.p50))
        note = f"{found.in_place.p50 / found.hot.p50:.0f} times hot"
        yield _row(f"pause of a hot update, {size}", "ms", found.hot, aim=AIM_HOT_PAUSE_MS)
        yield _row(f"staged before it, {size}", "ms", found.staging, note="while serving")
        yield _row(f"pause of the same in place, {size}", "ms", found.in_place, note=note)
        if mib == sizes[0][0]:
            yield _row("pause of a hold, released at once", "ms", found.held, aim=found.hot.p50)
    for size, p50 in hot[1:]:
        yield Row(f"pause, {size} to {hot[0][0]}", "x", p50 / hot[0][1])


def delta_rows(mib: int, repeats: int) -> Iterator[Row]:
    """Measure loads of changes beside loads of the whole version, into memory that holds the base."""
    for found in measure_deltas(mib * _MIB, repeats):
        note = f"{found.stored:.0%} of bytes"
        yield _row(f"delta of {found.changed:.0%}, {mib} MiB", "ms", found.load_ms, note=note)
        yield _row("the same version, whole", "ms", found.whole_ms)


def mooncake_rows(mib: int, repeats: int) -> Iterator[Row]:
    """Measure loads over Mooncake beside its bare engine."""
    found = measure_mooncake(16, mib * _MIB // 16, repeats)
    reached = f"aim {AIM_OF_ENGINE:g}{'' if found.of_bare >= AIM_OF_ENGINE else ', missed'}"
    yield _row(f"rsync over Mooncake, {mib} MiB", "ms", found.load_ms, note=f"{found.of_bare:.2f} of engine")
    yield _row("its bare engine", "ms", found.bare_ms, note=reached)


def detection_rows(samples: int) -> Iterator[Row]:
    """Measure how long it takes until a dead or a stopped rank is named; p90 beside the median."""
    killed = measure_deaths(samples)
    yield _row("rank killed to named by the controller", "ms", killed, aim=AIM_KILLED_MS)
    yield Row("the same, p90", "ms", killed.p90, note=f"{killed.samples} kills")
    stopped = measure_stops(samples)
    yield _row("deadline of a stopped rank to named", "ms", stopped, aim=AIM_STOPPED_MS)
    yield Row("the same, p90", "ms", stopped.p90, note=f"{stopped.samples} stops")


def completed(what: str, part: Iterator[Row]) -> Iterator[Row]:
    """Pass the rows of a part on; if it raises it ends with a row that says why."""
    try:
        yield from part
    except Exception as error:  # noqa: BLE001 - whatever it is becomes a row of the table
        why = Unmeasured.of(error)
        yield Row(what, "", None, note=why.verdict, why=why)


def show(rows: list[Row], console: Console) -> None:
    """Print the table; it fits 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("measured")
    for column in ("p50", "p99", ""):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        reached = ""
        if row.aim is not None and row.p50 is not None:
            reached = f"aim {row.aim:g}{'' if row.p50 < row.aim else ', missed'}"
        numbers = ("" if value is None else _short(value) for value in (row.p50, row.p99))
        table.add_row(row.what, *numbers, row.unit, row.note or reached)
    console.print(table)
    _explain({row.what: row.why for row in rows if row.why is not None}, console)


def show_comparison(commit: str, console: Console, *, quick: bool) -> None:
    """Measure this checkout beside `commit`, and print what was found; a ratio under 1 is faster."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("measured")
    for column in ("here", commit, "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in compare(commit, rounds=3 if quick else 7, commands=50 if quick else 200):
        table.add_row(row.what, _short(row.here), _short(row.there), f"{row.ratio:.2f}")
    console.print(table)


def _explain(missing: Mapping[str, Unmeasured], console: Console) -> None:
    for what, why in missing.items():
        console.print(f"{what}: {why.verdict}: {why.reason}")


def main() -> int:
    """Run the bench; return 1 if a part of it failed. What cannot run on this machine is no failure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples: two minutes instead of five")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="where the numbers go")
    parser.add_argument("--against", metavar="COMMIT", help="poll, step and commands beside that commit's")
    options = parser.parse_args()
    console = Console(highlight=False)
    if options.against is not None:
        show_comparison(options.against, console, quick=options.quick)
        return 0
    began = time.monotonic()
    load = os.getloadavg()[0]
    commands, legacy = (100, 1) if options.quick else (500, 3)
    console.print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f} before the start"
    )
    sizes = ((64, 5), (512, 3)) if options.quick else ((64, 20), (4096, 4))
    mib, repeats = (64, 3) if options.quick else (256, 7)
    parts = {
        "turns of a serving loop": serving_rows(),
        "acceptance of commands": acceptance_rows(commands),
        "clear and update": cycle_rows(commands, legacy),
        "detection of lost ranks": detection_rows(5 if options.quick else 20),
        "pauses of updates": pause_rows(sizes),
        "deltas": delta_rows(mib, repeats),
        "rsync over Mooncake": mooncake_rows(mib, repeats),
    }
    rows = [row for what, part in parts.items() for row in completed(what, part)]
    show(rows, console)
    console.print()
    loads = list(measured((64,) if options.quick else (256, 1024, 4096), repeats, console))
    console.print(loading_table(loads))
    _explain(reasons(loads), console)
    content = {
        "machine": _machine(load),
        "seconds": round(time.monotonic() - began, 1),
        "rows": [asdict(row) for row in rows],
        "loading": as_plain(loads),
    }
    options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console.print(f"numbers in {options.out}, {content['seconds']} s")
    missing = [row.why for row in rows if row.why is not None] + list(reasons(loads).values())
    return 1 if any(why.failed for why in missing) else 0


def _row(what: str, unit: str, found: Distribution, *, aim: float | None = None, note: str = "") -> Row:
    return Row(what, unit, found.p50, found.p99, aim, note)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _machine(load: float) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load_before": load,
    }


if __name__ == "__main__":
    sys.exit(main())
