"""``wsm explore``: every order of events of a small group, on the protocol and the tables of this build."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from wsm.cli.errors import RuleBrokenInExplorationError
from wsm.cli.failures import wrong_usage
from wsm.cli.printing import show_text
from wsm.cli.teaching_command import TeachingCommand
from wsm.exploration import graph, scenario, trace
from wsm.exploration.partitioned import explore_on
from wsm.exploration.scope import MAX_BUDGET, MAX_PARTICIPANTS, Budget, Scope, operations_of, starts_of
from wsm.exploration.search import Findings, Violation
from wsm.exploration.surveys import Survey

_PROGRESS_EVERY_S = 5.0

#: More worlds than this are too many to keep with every move between them.
_LARGEST_GRAPH = 1_000_000

_COUNT = click.IntRange(0, MAX_BUDGET)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm explore", "a few hundred thousand worlds, half a minute"),
        ("wsm explore --ranks 3 --commands 2 --crashes 1 --save broken.txt", "larger; keep what breaks"),
        ("wsm explore --failures 0 --give-ups 0 --graph", "prove as well that nothing goes round in circles"),
        ("wsm explore --survey daily", "what the tests run: a million worlds of many kinds"),
        ("wsm explore --replay broken.txt", "go a way that broke a rule once more"),
    ),
)
@click.option("--ranks", type=click.IntRange(1, MAX_PARTICIPANTS), default=2, show_default=True)
@click.option("--helpers", type=_COUNT, default=0, show_default=True, help="Participants without steps.")
@click.option("--commands", type=_COUNT, default=1, show_default=True, help="Commands, one after the other.")
@click.option("--steps", type=_COUNT, default=1, show_default=True, help="Steps that a rank has work for.")
@click.option("--failures", type=_COUNT, default=1, show_default=True, help="Actions that raise, deadlines.")
@click.option("--give-ups", type=_COUNT, default=1, show_default=True, help="Callers that give up.")
@click.option("--crashes", type=_COUNT, default=1, show_default=True, help="Ranks that die.")
@click.option("--controller-crashes", type=_COUNT, default=1, show_default=True)
@click.option(
    "--controller-losses", type=_COUNT, default=0, show_default=True, help="Controllers that die for good."
)
@click.option(
    "--controller-stops", type=_COUNT, default=0, show_default=True, help="Controllers stopped, or going on."
)
@click.option("--broken-steps", type=_COUNT, default=0, show_default=True, help="Steps that raise.")
@click.option("--stale-reads", type=_COUNT, default=0, show_default=True, help="Words read late.")
@click.option(
    "--operations",
    default="clear,update,hot_update",
    show_default=True,
    metavar="NAMES",
    help="What commands ask for.",
)
@click.option(
    "--starts",
    default="serving,cleared",
    show_default=True,
    metavar="NAMES",
    help="Where the group is at first; also: empty.",
)
@click.option("--fine", is_flag=True, help="Reading, each store and working are moves of their own.")
@click.option("--halves", is_flag=True, help="Commands are also about weights, or KV cache, alone.")
@click.option("--long-plans", is_flag=True, help="A clear has a collective action too.")
@click.option("--states", type=click.IntRange(min=1), metavar="LIMIT", help="Stop after so many worlds.")
@click.option("--processes", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--graph", "whole", is_flag=True, help="Also look for circles; one process, small bounds.")
@click.option(
    "--survey",
    type=click.Choice([survey.value for survey in Survey]),
    help="A set of explorations instead of one.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the way to a broken rule there.",
)
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Go the way that --save wrote.",
)
def explore(
    *,
    operations: str,
    starts: str,
    crashes: int,
    states: int | None,
    processes: int,
    whole: bool,
    survey: str | None,
    save: Path | None,
    replay: Path | None,
    **bounds: int,
) -> None:
    """Try every order of events of a small group, and check the group's rules after each.

    A controller commands ranks that look, vote, work and step, through the real protocol functions, packed
    words and transition tables; an adversary kills, breaks, delays and gives up, as often as the bounds
    allow. Rules are, among others: nobody serves unverified or mixed weights; nobody enters a step or
    a collective action that not all will enter; a decision is final; a group always comes to rest, all
    serving the committed version, or all without weights.

    Ranks that only differ by their names count as one world. Exit code 1 says that a rule is broken; the
    shortest way there is printed.
    """
    if replay is not None:
        _replay(replay)
        return
    with wrong_usage():
        scope = Scope(
            operations=operations_of(operations),
            starts=starts_of(starts),
            rank_crashes=crashes,
            **bounds,  # type: ignore[arg-type]  # click names and types every one of them
        )
    scopes = [scope] if survey is None else Survey(survey).scopes
    total, began = 0, time.monotonic()
    for each in scopes:
        found = (
            _whole_graph(each) if whole else explore_on(processes, each, limit=states, progress=_Progress())
        )
        _tell(found)
        if found.violation is not None:
            _tell_violation(found.violation, each, save)
        total += found.states
        if states is not None and total >= states:
            break
    if not whole and states is None:
        _look_for_circles(scopes, save)
    if len(scopes) > 1:
        show_text(f"{total:,} worlds in {time.monotonic() - began:.0f} s; no rule is broken")


class _Progress:
    """Shows on standard error that the search goes on."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_EVERY_S

    def __call__(self, found: Findings) -> None:
        """Say how far it is, every few seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_EVERY_S
        show_text(f"  {found.states:,} worlds, {found.depth} moves deep, {found.widths[-1]:,} wide", err=True)


def _tell(found: Findings) -> None:
    depth = f"{found.depth} deep, " if found.widths else ""
    pace = found.states / found.seconds if found.seconds else 0
    end = "nothing is left" if found.complete else "stopped at the limit"
    verdict = f"no rule is broken; {end}" if found.violation is None else "a rule is broken"
    show_text(_sentence(found.scope))
    show_text(f"  {found.states:,} worlds, {found.moves:,} moves, {depth}{found.resting:,} at rest")
    show_text(f"  {verdict}; {found.seconds:.1f} s ({pace:,.0f}/s)")


def _sentence(scope: Scope) -> str:
    """Say how large an exploration is, in at most 80 columns a line."""
    parts = [f"ranks {scope.ranks}", *([f"helpers {scope.helpers}"] if scope.helpers else [])]
    parts += [
        f"{budget.name.lower().replace('_', ' ')} {scope.budget(budget)}"
        for budget in Budget
        if scope.budget(budget)
    ]
    parts += [
        name
        for name, there in (
            ("fine", scope.fine),
            ("halves", scope.halves),
            ("long plans", scope.long_plans),
        )
        if there
    ]
    parts.append("/".join(operation.name.lower() for operation in scope.operations))
    parts.append("from " + "/".join(start.value for start in scope.starts))
    return click.wrap_text(", ".join(parts), 80, subsequent_indent="  ")


def _tell_violation(violation: Violation, scope: Scope, save: Path | None) -> None:
    show_text(trace.render(violation, scope.ranks))
    if save is not None:
        scenario.save(violation, scope, save)
    raise RuleBrokenInExplorationError(
        rule=violation.broken, moves=len(violation.moves), file=None if save is None else str(save)
    )


def _look_for_circles(scopes: Sequence[Scope], save: Path | None) -> None:
    """Look for groups that never come to rest, in what is left of some bounds when little may go wrong."""
    total, began, smaller = 0, time.monotonic(), graph.cuts(scopes)
    for each in smaller:
        found = _whole_graph(each)
        if found.violation is not None:
            _tell(found)
            _tell_violation(found.violation, each, save)
        total += found.states
    show_text(
        f"nothing goes round in circles within {len(smaller)} smaller bounds "
        f"({total:,} worlds, {time.monotonic() - began:.1f} s)"
    )


def _whole_graph(scope: Scope) -> Findings:
    began = time.monotonic()
    built = graph.whole_graph(scope, limit=_LARGEST_GRAPH)
    found = Findings(scope, states=len(built.numbers), violation=graph.violation(built))
    found.moves = sum(len(targets) for targets in built.onward)
    found.resting = sum(not targets for targets in built.onward)
    found.complete, found.seconds = True, time.monotonic() - began
    return found


def _replay(path: Path) -> None:
    with wrong_usage():
        told = scenario.read(path.read_text(encoding="utf-8"))
    gone = scenario.replay(told)
    show_text(trace.render(gone, told.scope.ranks))
    if gone.broken:
        raise RuleBrokenInExplorationError(rule=gone.broken, moves=len(gone.moves), file=str(path))
    sys.stdout.flush()
