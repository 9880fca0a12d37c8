"""``wsm diagrams``: the committed drawings of the tables, made or compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.cli.errors import DiagramsDifferError, TablesFaultyError
from wsm.cli.printing import show
from wsm.cli.teaching_command import TeachingCommand
from wsm.states.check import check_everything
from wsm.states.diagram import compare, render_all, summarise, write, write_svg
from wsm.states.phase_drawing import phase_drawing, phase_page

#: Where a clone of wsm has the files; an installed wheel has none.
_COMMITTED = Path("diagrams")

#: An engine that has everything, so that every action appears in the drawings.
EVERYTHING = PlanOptions(
    has_graphs=True,
    has_draft_graphs=True,
    has_deepep=True,
    auxiliaries=("mtp",),
    group_kinds=tuple(GroupKind),
    shut_down_groups=True,
    rejoins=True,
    routing_replay=True,
)


def every_diagram() -> dict[str, str]:
    """Return the text of every committed file by its name, for an engine that has everything."""
    drawn = render_all(summarise(derive_plans(EVERYTHING)), beside=[phase_drawing()])
    return {**drawn, "command.md": phase_page()}


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm diagrams", "draw anew after a table or a plan was changed"),
        ("wsm diagrams --check", "what CI runs: code 1 if the committed text is not what the code draws"),
        ("wsm diagrams --svg", "pictures too, if Graphviz is installed"),
    ),
)
@click.option("--check", is_flag=True, help="Write nothing; compare, and check the tables themselves.")
@click.option("--svg", is_flag=True, help="Also draw an .svg of every .dot file with Graphviz.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=_COMMITTED,
    show_default=True,
    help="Where the files are.",
)
def diagrams(check: bool, svg: bool, directory: Path) -> None:
    """Draw the state machines, their joint states and the dialogues between processes, as text.

    Everything is made from the same tables that drive the machines: state diagrams in Mermaid (.mmd) and
    Graphviz (.dot), sequence diagrams of clear, update and hot update, and two tables for reviewers:
    transitions.md (state, event, guard, next state, plan, and what happens on failure) and command.md (what a
    rank looks for in each phase of a command, and what follows).
    """
    if check and svg:
        raise click.UsageError("--check writes nothing, and --svg writes pictures: give one of them")
    rendered = every_diagram()
    if check:
        _check_tables()
        if directory == _COMMITTED and not directory.exists():
            show(
                f"the tables are sound; there is no {_COMMITTED}/ here to compare with, which a clone of wsm "
                "has; name another directory with --directory"
            )
            return
        _compare(directory, rendered)
    else:
        _write(directory, rendered, svg=svg)


def _check_tables() -> None:
    findings = check_everything()
    if findings:
        raise TablesFaultyError(findings=[str(finding) for finding in findings])


def _compare(directory: Path, rendered: Mapping[str, str]) -> None:
    differences = compare(directory, rendered)
    for difference in differences:
        show(f"{directory / difference.name}: {difference.problem}")
    if differences:
        raise DiagramsDifferError(directory=str(directory), names=[each.name for each in differences])
    show(f"{directory}: {len(rendered)} files, all as the code draws them; the tables are sound")


def _write(directory: Path, rendered: Mapping[str, str], *, svg: bool) -> None:
    changed = write(directory, rendered)
    for name in changed:
        show(f"{directory / name}: written")
    show(f"{directory}: {len(rendered)} files, {len(changed)} of them changed")
    for difference in compare(directory, rendered):
        show(f"{directory / difference.name}: {difference.problem}; remove it")
    if svg:
        for path in write_svg(directory, rendered):
            show(f"{path}: written")
