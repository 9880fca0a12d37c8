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
from explorer.partitioned import explore_on
from explorer.scope import Budget, Scope, Survey, operations_of, starts_of
from explorer.search import Findings, Violation, cuts, endless, whole_graph
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
  python -m explorer --ranks 3 --commands 2 --save broken.txt
                                                  larger; keep what breaks
  python -m explorer --failures 0 --give-ups 0 --graph
                                                  prove as well that nothing goes round in circles
  python -m explorer --survey daily               what the tests run: a million worlds of many kinds
  python -m explorer --replay broken.txt          go a way that broke a rule once more
  python -m explorer --fastdeploy                 FastDeploy's loops and control requests instead
"""

#: How often each thing may happen, unless it is said otherwise: option, default, meaning.
_COUNTS = (
    ("ranks", 2, "ranks of the group"),
    ("helpers", 0, "participants without steps"),
    ("commands", 1, "commands, one after the other"),
    ("steps", 1, "steps that a rank has work for"),
    ("failures", 1, "actions that raise, deadlines"),
    ("give-ups", 1, "callers that give up"),
    ("rank-crashes", 1, "ranks that die"),
    ("controller-crashes", 1, "controllers that die"),
    ("controller-losses", 0, "controllers that die for good"),
    ("controller-stops", 0, "controllers stopped, or going on"),
    ("broken-steps", 0, "steps that raise"),
    ("hangs", 0, "processes that never look again"),
    ("stale-reads", 0, "words read late"),
)


_ALSO = ("fine", "halves", "afters", "owners", "requests", "long_plans")


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
        else:
            scopes = _scopes(asked) if asked.survey is None else Survey(asked.survey).scopes
            _explore(scopes, asked)
    except (ScopeError, ScenarioError, OSError) as error:
        parser.error(str(error))
    except RefusedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except _RuleFoundBrokenError as error:
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
    for name, default, meaning in _COUNTS:
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} ({default})"
        )
    parser.add_argument("--operations", default="clear,update,hot_update", help="what commands ask for (all)")
    parser.add_argument("--starts", default="serving,cleared", help="where the group begins; also: empty")
    parser.add_argument(
        "--fine", action="store_true", help="reading, each store and working are moves of their own"
    )
    parser.add_argument(
        "--halves", action="store_true", help="commands are also about weights, or KV cache, alone"
    )
    parser.add_argument("--afters", action="store_true", help="updates also hold the group, or end its hold")
    parser.add_argument("--owners", action="store_true", help="holds have owners, ids, and leases that stay")
    parser.add_argument("--requests", action="store_true", help="requests run, and holds set them aside")
    parser.add_argument("--long-plans", action="store_true", help="a clear has a collective action too")
    parser.add_argument("--states", type=int, metavar="LIMIT", help="stop after so many worlds")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="that search together (2)")
    parser.add_argument(
        "--graph", action="store_true", help="also look for circles; one process, small bounds"
    )
    parser.add_argument(
        "--survey", choices=[survey.value for survey in Survey], help="a set of explorations instead of one"
    )
    parser.add_argument(
        "--fastdeploy",
        action="store_true",
        help="FastDeploy's loops and control requests instead",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the way to a broken rule there")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="go the way that --save wrote")
    return parser


def _scopes(asked: argparse.Namespace) -> Sequence[Scope]:
    counts = {name.replace("-", "_"): getattr(asked, name.replace("-", "_")) for name, _, _ in _COUNTS}
    scope = Scope(
        **counts,
        operations=operations_of(asked.operations),
        starts=starts_of(asked.starts),
        fine=asked.fine,
        halves=asked.halves,
        afters=asked.afters,
        owners=asked.owners,
        requests=asked.requests,
        long_plans=asked.long_plans,
    )
    return (scope,)


def _explore(scopes: Sequence[Scope], asked: argparse.Namespace) -> None:
    total, began = 0, time.monotonic()
    for scope in scopes:
        if asked.graph:
            found = _whole_graph(scope)
        else:
            found = explore_on(asked.processes, scope, limit=asked.states, progress=_SearchProgress())
        _tell(found)
        if found.violation is not None:
            _tell_violation(found.violation, scope, asked.save)
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


def _tell(found: Findings) -> None:
    depth = f"{found.depth} deep, " if found.widths else ""
    pace = found.states / found.seconds if found.seconds else 0
    end = "nothing is left" if found.complete else "stopped at the limit"
    verdict = f"no rule is broken; {end}" if found.violation is None else "a rule is broken"
    _say(_sentence(found.scope))
    _say(f"  {found.states:,} worlds, {found.moves:,} moves, {depth}{found.resting:,} at rest")
    _say(f"  {verdict}; {found.seconds:.1f} s ({pace:,.0f}/s)")


def _sentence(scope: Scope) -> str:
    """Say how large an exploration is, in at most 80 columns a line."""
    parts = [f"ranks {scope.ranks}", *([f"helpers {scope.helpers}"] if scope.helpers else [])]
    parts += [
        f"{budget.name.lower().replace('_', ' ')} {scope.budget(budget)}"
        for budget in Budget
        if scope.budget(budget)
    ]
    parts += [name.replace("_", " ") for name in _ALSO if getattr(scope, name)]
    parts.append("/".join(operation.name.lower() for operation in scope.operations))
    parts.append("from " + "/".join(start.value for start in scope.starts))
    return textwrap.fill(", ".join(parts), 80, subsequent_indent="  ")


def _tell_violation(violation: Violation, scope: Scope, save: Path | None) -> None:
    _say(dialogue.render(violation, scope.ranks))
    if save is not None:
        dialogue.save(violation, scope, save)
    raise _broken(violation, save)


def _broken(violation: Violation, file: Path | None) -> _RuleFoundBrokenError:
    kept = "--save FILE keeps the way" if file is None else f"--replay {file} goes there again"
    return _RuleFoundBrokenError(
        f"a rule is broken after {len(violation.moves)} moves: {violation.broken}; {kept}"
    )


def _look_for_circles(scopes: Sequence[Scope], save: Path | None) -> None:
    """Look for groups that never come to rest, in what is left of some bounds when little may go wrong."""
    total, began, smaller = 0, time.monotonic(), cuts(scopes)
    for each in smaller:
        found = _whole_graph(each)
        if found.violation is not None:
            _tell(found)
            _tell_violation(found.violation, each, save)
        total += found.states
    _say(
        f"nothing goes round in circles within {len(smaller)} smaller bounds "
        f"({total:,} worlds, {time.monotonic() - began:.1f} s)"
    )


def _whole_graph(scope: Scope) -> Findings:
    began = time.monotonic()
    built = whole_graph(scope, limit=_LARGEST_GRAPH)
    found = Findings(scope, states=len(built.numbers), violation=endless(built))
    found.moves = sum(len(targets) for targets in built.onward)
    found.resting = sum(not targets for targets in built.onward)
    found.complete, found.seconds = True, time.monotonic() - began
    return found


def _replay(path: Path) -> None:
    told = dialogue.read(path.read_text(encoding="utf-8"))
    gone = dialogue.replay(told)
    _say(dialogue.render(gone, told.scope.ranks))
    if gone.broken:
        raise _broken(gone, path)


if __name__ == "__main__":
    sys.exit(main())
