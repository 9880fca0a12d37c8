"""``python -m models``: check every model and every seeded fault, and print a table.

Exit status: 0 if everything came out as it must, 1 if something did not, 2 if a tool is missing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from models.catalogue import CHECKS, MUTANTS, Check
from models.checker import Verdict, missing_tools, run, spin_version
from models.recording import record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit status."""
    asked = _parser().parse_args(arguments)
    missing = missing_tools()
    if missing:
        _say(f"the models cannot be checked here: not found: {', '.join(missing)}")
        return 2
    wanted = [check for check in (*CHECKS, *MUTANTS) if check.small or not asked.small]
    if asked.only:
        wanted = [check for check in wanted if re.search(asked.only, check.title)]
    _say(f"spin {spin_version()}; {len(wanted)} checks, {asked.jobs} at once, {asked.limit:g} s each at most")
    try:
        verdicts = _run_all(wanted, asked.jobs, asked.limit)
    except subprocess.CalledProcessError as error:
        _say(f"{error.cmd} failed:\n{error.output}")
        return 1
    if asked.record:
        record(verdicts, spin_version())
    bad = [verdict for verdict in verdicts if not verdict.good]
    caught = sum(verdict.good for verdict in verdicts if verdict.check in MUTANTS)
    seeded = sum(verdict.check in MUTANTS for verdict in verdicts)
    _say(
        f"{len(verdicts) - len(bad)} of {len(verdicts)} as they must be; {caught} of {seeded} mutants caught"
    )
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models", description=main.__doc__)
    parser.add_argument("--small", action="store_true", help="what the test suite runs")
    parser.add_argument("--only", metavar="REGEX", help="checks whose title matches")
    parser.add_argument("--jobs", type=int, default=2, help="searches at once (each may take 6 GiB)")
    parser.add_argument("--limit", type=float, default=900.0, metavar="SECONDS", help="for one search")
    parser.add_argument("--record", action="store_true", help="write the state counts into the models")
    return parser


def _run_all(checks: Iterable[Check], jobs: int, limit_s: float) -> list[Verdict]:
    """Run the checks, `jobs` at once; print each verdict in the order of the catalogue."""
    verdicts = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for verdict in pool.map(lambda check: run(check, limit_s=limit_s), checks):
            _say(_row(verdict))
            verdicts.append(verdict)
    return verdicts


def _row(verdict: Verdict) -> str:
    mark = "ok " if verdict.good else "BAD"
    found = f"{verdict.states:>12,} states {verdict.seconds:>6.1f} s"
    return f"{mark} {verdict.check.title:<58} {found}  {verdict.sentence[:50]:<50}  {verdict.check.what}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
