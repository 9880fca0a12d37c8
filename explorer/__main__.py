"""``python -m explorer``: every order of events of a small group, on the protocol and tables of this build.

Exit status: 0 if no rule is broken, 1 if one is (the shortest way there is printed), 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from explorer import control_requests, dialogue, engine_loop
from explorer.engine_loop import Explored
from explorer.errors import ScenarioError, ScopeError
from explorer.scope import Scope, Survey
from explorer.search import Findings, cuts, endless, explore, whole_graph
from wsm.errors import RefusedError

_PROGRESS_EVERY_S = 5.0

#: More worlds than this are too many to keep with every move between them.
_LARGEST_GRAPH = 1_000_000

_DESCRIPTION = """\
Try every order of events of a small group, and check the group's rules after each.

A controller commands ranks that look, vote, work and step, through the real protocol functions, packed words
and transition tables; an adversary kills, breaks, delays and gives up, as often as the bounds allow. Rules
are, among others: no rank serves unverified or mixed weights; no rank enters a step or a collective action
that not all will enter; a decision is final; a group always comes to rest, all serving the committed version,
or all without weights. Ranks that only differ by their names count as one world.
"""

_EXAMPLES = """\
examples:
  python -m explorer                              a few hundred thousand worlds, half a minute
  python -m explorer ranks=3 commands=2 rank_crashes=1 --save broken.txt
                                                  larger; keep what breaks
  python -m explorer steps=2 --graph              prove as well that nothing goes round in circles
  python -m explorer --survey daily               what the tests run: a million worlds of many kinds
  python -m explorer --replay broken.txt          go a way that broke a rule once more
  python -m explorer --fastdeploy                 FastDeploy's loops and control requests instead
"""

_USUAL = ("failures=1", "give_ups=1", "rank_crashes=1", "controller_crashes=1")


class _RuleFoundBrokenError(Exception):
    """A way breaks a rule; it was printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore what was asked for; return the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        if asked.replay is not None:
            _replay(asked.replay)
        elif asked.fastdeploy:
            _explore_fastdeploy()
        elif asked.survey is not None:
            _explore(Survey(asked.survey).scopes, asked)
        else:
            _explore([Scope.from_text(" ".join(asked.bounds or _USUAL))], asked)
    except (ScopeError, ScenarioError, OSError) as error:
        parser.error(str(error))
    except (RefusedError, _RuleFoundBrokenError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m explorer",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "bounds",
        nargs="*",
        metavar="BOUND=VALUE",
        help=f"how large it is: some of {', '.join(Scope.__struct_fields__)} ({' '.join(_USUAL)})",
    )
    parser.add_argument("--states", type=int, metavar="LIMIT", help="stop after so many worlds")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="that search together (2)")
    parser.add_argument("--graph", action="store_true", help="look for circles; one process, small bounds")
    parser.add_argument("--survey", choices=[each.value for each in Survey], help="a set of explorations")
    parser.add_argument("--fastdeploy", action="store_true", help="FastDeploy's loops and control requests")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the way to a broken rule there")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="go the way that --save wrote")
    return parser


def _explore(scopes: Sequence[Scope], asked: argparse.Namespace) -> None:
    total, began = 0, time.monotonic()
    for scope in scopes:
        if asked.graph:
            found = _whole_graph(scope)
        else:
            progress = _SearchProgress()
            found = explore(scope, processes=asked.processes, limit=asked.states, progress=progress)
        _tell(found, asked.save)
        total += found.states
        if asked.states is not None and total >= asked.states:
            break
    if not asked.graph and asked.states is None:
        _look_for_circles(scopes, asked.save)
    if len(scopes) > 1:
        _say(f"{total:,} worlds in {time.monotonic() - began:.0f} s; no rule is broken")


def _explore_fastdeploy() -> None:
    """Explore each of FastDeploy's loops around wsm's rank 0, and its control requests."""
    for loop in engine_loop.LOOPS:
        _tell_fastdeploy(f"a loop that {loop}", engine_loop.explore(loop))
    _tell_fastdeploy("control requests", control_requests.explore())


def _tell_fastdeploy(what: str, found: Explored) -> None:
    _say(f"{what}: {found.situations} situations, {found.ways:,} ways")
    if found.broken:
        _say("\n".join(textwrap.fill(line, 80, subsequent_indent="  ") for line in found.way))
        raise _RuleFoundBrokenError(f"a rule is broken: {found.broken}")


class _SearchProgress:
    """Shows on standard error that the search goes on."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_EVERY_S

    def __call__(self, found: Findings) -> None:
        """Say how far it is, every few seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_EVERY_S
        sys.stderr.write(f"  {found.states:,} worlds, {found.depth} moves deep, {found.widths[-1]:,} wide\n")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tell(found: Findings, save: Path | None) -> None:
    """Say what was found, and the way to a rule that is broken."""
    pace = found.states / found.seconds if found.seconds else 0
    end = "nothing is left" if found.complete else "stopped at the limit"
    verdict = f"no rule is broken; {end}" if found.violation is None else "a rule is broken"
    _say(textwrap.fill(found.scope.as_text(), 80, subsequent_indent="  "))
    _say(f"  {found.states:,} worlds, {found.moves:,} moves, {found.depth} deep, {found.resting:,} at rest")
    _say(f"  {verdict}; {found.seconds:.1f} s ({pace:,.0f}/s)")
    if found.violation is None:
        return
    text = dialogue.as_text(found.violation, found.scope)
    _say(text)
    if save is not None:
        save.write_text(text, encoding="utf-8")
    kept = "--save FILE keeps the way" if save is None else f"--replay {save} goes there again"
    raise _RuleFoundBrokenError(
        f"a rule is broken after {len(found.violation.moves)} moves: {found.violation.broken}; {kept}"
    )


def _whole_graph(scope: Scope) -> Findings:
    found = whole_graph(scope, limit=_LARGEST_GRAPH)
    found.violation = endless(found)
    return found


def _look_for_circles(scopes: Sequence[Scope], save: Path | None) -> None:
    """Look for groups that never come to rest, in what is left of some bounds when little may go wrong."""
    total, began, smaller = 0, time.monotonic(), cuts(scopes)
    for scope in smaller:
        found = _whole_graph(scope)
        total += found.states
        if found.violation is not None:
            _tell(found, save)
    spent = f"{total:,} worlds, {time.monotonic() - began:.1f} s"
    _say(f"nothing goes round in circles within {len(smaller)} smaller bounds ({spent})")


def _replay(file: Path) -> None:
    told = dialogue.read(file.read_text(encoding="utf-8"))
    way = dialogue.replay(told)
    _say(dialogue.as_text(way, told.scope, told.remarks))
    if way.broken:
        raise _RuleFoundBrokenError(f"a rule is broken: {way.broken}")
    _say("no rule is broken")


if __name__ == "__main__":
    sys.exit(main())
