"""``python -m campaign``: play faults on real processes and print what came of them.

Exit status: 0 if every case came out as it must, 1 if one did not, 2 for wrong usage; 129, 130 or 143 if a
signal ended it, which leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from campaign import endurance
from campaign.case import KINDS, Case
from campaign.conductor import Batches, list_cases, play_all
from campaign.families import FAMILIES, sample
from campaign.result import Result
from campaign.table import show, show_failure
from wsm.ending import Ending

_LOOK_S = 0.2

#: Per slice, the groups, what their cases are about, and how many are played; None: all.
SLICES: dict[str, dict[tuple[str, int, str], int | None]] = {
    "ci": {
        ("memory", 2, "commands"): 38,
        ("memory", 2, "holds"): 8,
        ("memory", 2, "prepares"): 10,
        ("cache", 2, "holds"): 3,
        ("gloo", 2, "holds"): 3,
        ("memory", 2, "abandoned"): 8,
        ("memory", 4, "commands"): 6,
        ("cache", 2, "halves"): 8,
        ("gloo", 2, "commands"): 8,
        ("memory", 2, "signals"): 7,
        ("memory", 2, "floods"): 5,
    },
    "short": {
        ("memory", 2, "commands"): 240,
        ("memory", 2, "halves"): 120,
        ("memory", 2, "holds"): 120,
        ("memory", 2, "prepares"): 120,
        ("gloo", 2, "prepares"): 20,
        ("memory", 4, "holds"): 30,
        ("cache", 2, "holds"): 40,
        ("gloo", 2, "holds"): 30,
        ("memory", 2, "havoc"): 80,
        ("memory", 2, "abandoned"): 60,
        ("gloo", 2, "abandoned"): 16,
        ("memory", 4, "commands"): 60,
        ("cache", 2, "commands"): 60,
        ("cache", 2, "halves"): 40,
        ("gloo", 2, "commands"): 60,
        ("gloo", 2, "halves"): 40,
        ("gloo", 4, "commands"): 12,
        ("memory", 2, "signals"): 28,
        ("memory", 2, "floods"): None,
    },
    "full": {
        ("memory", 2, "commands"): None,
        ("memory", 2, "halves"): None,
        ("memory", 2, "holds"): None,
        ("memory", 2, "prepares"): None,
        ("gloo", 2, "prepares"): 200,
        ("memory", 4, "holds"): 200,
        ("cache", 2, "holds"): None,
        ("gloo", 2, "holds"): None,
        ("gloo", 4, "holds"): 60,
        ("memory", 2, "havoc"): None,
        ("memory", 2, "abandoned"): None,
        ("cache", 2, "abandoned"): 40,
        ("gloo", 2, "abandoned"): 60,
        ("memory", 4, "commands"): 600,
        ("cache", 2, "commands"): None,
        ("cache", 2, "halves"): 700,
        ("cache", 2, "havoc"): 100,
        ("gloo", 2, "commands"): 600,
        ("gloo", 2, "halves"): 200,
        ("gloo", 4, "commands"): 120,
        ("memory", 2, "signals"): None,
        ("memory", 2, "floods"): None,
        ("memory", 4, "floods"): None,
    },
}


def run(arguments: Sequence[str]) -> int:
    """Run what was asked for; return the exit status."""
    if arguments[:1] == ["endurance"]:
        return endurance.main(arguments[1:])
    asked = _parser().parse_args(arguments)
    ending, batches = Ending(), Batches()
    # In a thread of its own, so that this one hears signals; it ends with the batches.
    with (
        ending.heeded(),
        ending.hastened_by(batches.kill),
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="campaign") as thread,
    ):
        played = thread.submit(_play, asked, batches)
        while not played.done() and not ending.wait(_LOOK_S):
            pass
        if ending.number is None:
            return played.result()
        batches.end()
    return ending.exit_code


def _play(asked: argparse.Namespace, batches: Batches) -> int:
    console = Console(highlight=False, soft_wrap=False)
    began = time.monotonic()
    try:
        cases = _chosen(asked, batches)
    except ValueError as error:
        console.print(str(error))
        return 2
    if asked.list:
        for case in cases:
            sys.stdout.write(f"{case}\n")
        return 0
    console.print(f"{len(cases)} cases, {asked.jobs} at once")
    results = play_all(
        cases,
        jobs=asked.jobs,
        tell=lambda result: _tell(result, console, asked.verbose),
        batches=batches,
    )
    show(results, console)
    console.print(f"{time.monotonic() - began:.0f} s")
    if asked.json:
        asked.json.write_text(
            json.dumps([asdict(result) for result in results], indent=1) + "\n", encoding="utf-8"
        )
    return 0 if all(result.good for result in results) else 1


def _chosen(asked: argparse.Namespace, batches: Batches) -> list[Case]:
    if asked.case:
        return [Case.parse(name) for name in asked.case]
    chosen: list[Case] = []
    for (kind, ranks, family), size in SLICES[asked.slice].items():
        if asked.kind in (None, kind) and asked.ranks in (None, ranks) and asked.family in (None, family):
            listed = list_cases(kind, ranks, family, batches=batches)
            cases = [case for case in listed if asked.only in str(case)]
            chosen += cases if size is None else sample(cases, size)
    return chosen


def _tell(result: Result, console: Console, verbose: bool) -> None:
    if not result.good:
        show_failure(result, console)
    elif verbose:
        line = f"{result.seconds:5.1f} s  {result.case}: {result.outcome} {result.error}"
        console.print(line, soft_wrap=True, markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m campaign", description=__doc__, epilog="'python -m campaign endurance' runs cycles"
    )
    parser.add_argument("--slice", choices=SLICES, default="full", help="how many cases (default: full)")
    parser.add_argument("--case", action="append", help="play this case; may be given several times")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain this")
    parser.add_argument("--kind", choices=KINDS, help="one kind of group")
    parser.add_argument("--family", choices=FAMILIES, help="one family of cases")
    parser.add_argument("--ranks", type=int, choices=(2, 4), help="one size of group")
    parser.add_argument("--jobs", type=int, default=2, help="groups at once (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result there")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and play none")
    parser.add_argument("--verbose", action="store_true", help="print good cases as well")
    return parser
