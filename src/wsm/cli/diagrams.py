"""``wsm diagrams``: the states, the phases and the plans of an engine as text, and their checks.

Everything is read off the tables and the plans: a picture has exactly the edges of its table.
"""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import cast

import click

from wsm.actions.base import Action, Plan, Plans
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner, Runner, completed
from wsm.cli._base import (
    DIRECTORY,
    FILE,
    WRONG_USAGE,
    CommandEndedError,
    command,
    named_object,
    show,
    wrong_usage,
)
from wsm.cli._groups import read_config
from wsm.errors import InternalError
from wsm.states.check import check_everything, plans_on
from wsm.states.fleet import FLEET_MEANINGS, FLEET_TABLE, FleetState
from wsm.states.phases import LOOKS, MEANINGS, OUTCOMES, LookRow, OutcomeRow, Phase, When
from wsm.states.plan_key import DISCARD, HOLD, HOLD_WITHOUT_KV_CACHE, REJOIN, RELEASE, Repair
from wsm.states.table import CHARTS, Chart, MachineName, Row
from wsm.states.vocabulary import WeightState


@command
@click.option("--check", is_flag=True, help="Write nothing; check the tables, and the plans of --runner.")
@click.option(
    "--runner",
    metavar="MODULE:NAME",
    help="The engine: a runner, or what makes one when it is called without arguments.",
)
@click.option(
    "--config", "config_file", type=FILE, help="A configuration whose deadlines and process groups count."
)
@click.option("--directory", type=DIRECTORY, default=Path("diagrams"), help="Where the files go.")
@click.option("--svg", is_flag=True, help="Draw the states as pictures, too; Graphviz draws them.")
def diagrams(check: bool, runner: str | None, config_file: Path | None, directory: Path, svg: bool) -> None:
    """Draw the state machines, the phases of a command and the plans of an engine, as Mermaid in Markdown.

    Everything is made from the tables that drive the machines and from the plans that a worker would run:
    weights.mmd, kv_cache.mmd and admission.mmd (what a rank holds, and whether it may step), command.mmd and
    command_aborted.mmd (the phases of a command that goes well, and of one that does not), fleet.mmd (a
    replica of a fleet), and plans.md with every plan beside the edge that runs it and what each action
    declares; with --svg weights.svg and so on as well. Without --runner it is an engine with weights and a
    KV cache and nothing else.

    Examples
    --------
      wsm diagrams --runner my_engine:Runner --config wsm.yaml
          the plans of your own engine, in diagrams/
      wsm diagrams --check
          whether the tables are sound; code 1 if not
      wsm diagrams --check --runner my_engine:Runner
          whether the plans of your engine are, too
    """
    findings = check_everything()
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise InternalError(
            f"the transition tables are faulty: {findings[0]}{more}; correct wsm.states.table",
            code="tables-faulty",
            findings=tuple(map(str, findings)),
        )
    with wrong_usage():
        options = PlanOptions() if runner is None else PlanOptions.from_runner(_runner(runner))
        if config_file is not None:
            config = read_config(config_file)
            options = options.configured(
                shut_down_groups=config.shut_down_groups,
                deadlines=config.deadlines.action_s,
                releases_cache=config.releases_cache,
            )
        plans = derive_plans(options)
    of = "an engine with weights and a KV cache" if runner is None else runner
    count = len({action.name for plan in plans for action in plan})
    sound = f"the tables are sound; so are the {len(list(plans))} plans of {of}, with {count} actions"
    if check:
        show(sound)
        return
    texts = drawn(plans, of=of)
    if svg:
        texts |= {f"{name}.svg": _svg(picture.graphviz()) for name, picture in pictures().items()}
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
        show(f"{directory / name}: written")
    show(sound)


def _runner(where: str) -> Runner:
    try:
        found = named_object(where)
        made = found() if inspect.isclass(found) or inspect.isroutine(found) else found
    except Exception as error:  # whatever that module raises
        cause = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise CommandEndedError(
            f"there is no runner at {where!r} ({cause}); name it as MODULE:NAME, where Python finds the "
            "module from here",
            exit_code=WRONG_USAGE,
        ) from error
    return completed(cast("BareRunner", made))


# -- states and phases ----------------------------------------------------------------------------

#: The names of the machines in headings.
HEADINGS = {MachineName.WEIGHTS: "Weights", MachineName.KV: "KV cache", MachineName.ADMISSION: "Admission"}

#: Phases in which a rank waits for the words of others.
_WAITING = frozenset({Phase.PARKING, Phase.VOTING, Phase.PREPARED, Phase.STAGED, Phase.STOPPED})

#: Phases of a command that does not go well; they have a picture of their own.
_ABORTED = frozenset({Phase.FAILED, Phase.STOPPING, Phase.STOPPED, Phase.SETTLING})

#: Colours of areas and lines, and what they mean.
_COLOURS = {
    "working": ("#fff3d6", "#b7791f", "yellow: works"),
    "deciding": ("#e6e4fb", "#5a4fcf", "violet: waits for others or a decision"),
    "serving": ("#dff3e3", "#2f855a", "green: may serve"),
    "faulted": ("#fbe0de", "#c53030", "red: has failed"),
}
_INK = "#1d2329"

#: Stands before a plan at an arrow; its blank ends no line.
PLAN_MARK = "▸\N{NO-BREAK SPACE}"

#: At Mermaid's own distances labels lie over each other.
_APART = "config: {themeVariables: {fontSize: 13px}, state: {nodeSpacing: 150, rankSpacing: 60}}"

_GRAPHVIZ = f"""\
digraph {{
graph [fontname="Helvetica" labelloc=t nodesep=0.5 ranksep=0.6]
node [fontname="Helvetica" fontsize=11 fontcolor="{_INK}" shape=box style="rounded,filled"]
edge [fontname="Helvetica" fontsize=9 fontcolor="{_INK}" color="{_INK}"]
start [shape=circle label="" width=0.15 fillcolor="{_INK}"]"""


@dataclass(frozen=True)
class StateDiagram:
    """States, and what leads from one to another.

    Parameters
    ----------
    title : str
        Its heading.
    meanings : mapping of str to str
        The states, the one in which a new process starts first.
    arrows : sequence of (str, str, str)
        Source, destination and label; labels between the same two states are drawn at one arrow.
    kind_of : callable
        Returns how a state is marked: a key of the colours, or an empty text.
    labelled : sequence of str
        What the marks in the labels mean; the legend says it, before what the colours mean.
    """

    title: str
    meanings: Mapping[str, str]
    arrows: Sequence[tuple[str, str, str]]
    kind_of: Callable[[str], str]
    labelled: Sequence[str] = ()

    @property
    def legend(self) -> list[str]:
        """The lines that say how the picture is read."""
        kinds = {self.kind_of(state) for state in self.meanings}
        colours = "; ".join(says for kind, (_, _, says) in _COLOURS.items() if kind in kinds)
        return [*self.labelled, colours]

    def mermaid(self) -> str:
        """Return it as a ``stateDiagram-v2``, which code hosts render in place."""
        lines = ["---", f"title: {self.title}", _APART, "---", "stateDiagram-v2", "    direction TB"]
        lines += [f'    state "{state}<br/>{meaning}" as {state}' for state, meaning in self.meanings.items()]
        legend = "<br/>".join(self.legend)
        lines += [f'    state "{legend}" as LEGEND', "    classDef legend fill:none"]
        lines += ["    class LEGEND legend"]
        lines += [f"    [*] --> {next(iter(self.meanings))}"]
        lines += [
            f"    {source} --> {dest} : {'<br/>'.join(labels)}"
            for (source, dest), labels in self._together().items()
        ]
        for kind, (area, line, _) in _COLOURS.items():
            if states := [state for state in self.meanings if self.kind_of(state) == kind]:
                lines += [f"    classDef {kind} fill:{area},stroke:{line},color:{_INK}"]
                lines += [f"    class {','.join(states)} {kind}"]
        return "\n".join(lines) + "\n"

    def graphviz(self) -> str:
        """Return it in Graphviz' language, whose pictures keep labels apart."""
        lines = [_GRAPHVIZ, f"label={_quoted([self.title, *self.legend], 'n')}"]
        for state, meaning in self.meanings.items():
            area, line, _ = _COLOURS.get(self.kind_of(state), ("#ffffff", _INK, ""))
            text = _quoted([state, *wrap(meaning, 30)], "n")
            lines.append(f'{state} [label={text} fillcolor="{area}" color="{line}"]')
        lines.append(f"start -> {next(iter(self.meanings))}")
        for (source, dest), labels in self._together().items():
            text = _quoted("<br/>".join(labels).split("<br/>"), "l")  # aligned at the left
            lines.append(f"{source} -> {dest} [label={text}]")
        return "\n".join([*lines, "}"]) + "\n"

    def _together(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], dict[str, None]] = {}
        for source, dest, label in self.arrows:
            found.setdefault((source, dest), {})[label] = None
        return {ends: list(labels) for ends, labels in found.items()}


def _quoted(lines: Iterable[str], end: str) -> str:
    """Return lines as one text of Graphviz' language; what ends them aligns them."""
    return '"' + "".join(line.replace('"', r"\"") + f"\\{end}" for line in lines) + '"'


def _svg(picture: str) -> str:
    try:
        done = subprocess.run(["dot", "-Tsvg"], input=picture, capture_output=True, text=True, check=True)  # noqa: S607 - whichever the user has
    except FileNotFoundError as error:
        raise CommandEndedError(
            "--svg needs Graphviz, whose program dot is not on PATH; install it (Debian: graphviz)",
            exit_code=WRONG_USAGE,
        ) from error
    return done.stdout


def pictures() -> dict[str, StateDiagram]:
    """Return the diagrams of states by name."""
    machines = {HEADINGS[chart.machine].lower().replace(" ", "_"): _machine(chart) for chart in CHARTS}
    return {**machines, **_command(), "fleet": _fleet()}


def drawn(plans: Plans, *, of: str) -> dict[str, str]:
    """Return the text of every file by its name, with the plans of one engine, whose name is `of`."""
    texts = {f"{name}.mmd": picture.mermaid() for name, picture in pictures().items()}
    return {**texts, "plans.md": plans_page(plans, of=of)}


def _machine(chart: Chart) -> StateDiagram:
    def kind_of(name: str) -> str:
        if name == WeightState.FAULTED.name:
            return "faulted"
        kinds = ((chart.working, "working"), (chart.deciding, "deciding"))
        resting = "serving" if name in ("NORMAL", "OPEN") else ""
        return next((kind for states, kind in kinds if name in [each.name for each in states]), resting)

    return StateDiagram(
        f"{HEADINGS[chart.machine]} of one rank",
        {
            state.name: chart.meanings[state]
            for state in sorted(chart.states, key=lambda each: each is not chart.initial)
        },
        [(row.source.name, row.dest.name, _with_plans(row)) for row in chart.rows],
        kind_of,
        _marks_of(chart),
    )


def _marks_of(chart: Chart) -> list[str]:
    """Say what is marked in the labels of a machine."""
    marks = []
    if any(row.guard is not None for row in chart.rows):
        marks.append("event [whether the group keeps what it had, or drops it, as its ABORT says]")
    if any(map(plans_on, chart.rows)):
        marks.append(f"{PLAN_MARK}a plan that runs on this edge, as what is asked and held says")
    return marks


def _with_plans(row: Row) -> str:
    return "<br/>".join((event_of(row), *(f"{PLAN_MARK}{plan}" for plan in plans_on(row))))


def event_of(row: Row) -> str:
    """Return the event of a row, with its guard in brackets."""
    return row.event.value if row.guard is None else f"{row.event.value} [{row.guard.value}]"


def _command() -> dict[str, StateDiagram]:
    """Draw the phases, without looks that stay in one and without a new epoch, which ends every phase.

    What leads to a failure or an abort, and on from there, is a picture of its own.
    """
    told: list[tuple[LookRow | OutcomeRow, str, Sequence[When]]] = []
    for look in LOOKS:
        conditions = [each for each in look.when if each is not When.NEW]
        told.append((look, conditions[0].value if conditions else When.NEW.value, conditions[1:]))
    told += [(outcome, outcome.event.value, outcome.when) for outcome in OUTCOMES]
    going_well: list[tuple[str, str, str]] = []
    aborted: list[tuple[str, str, str]] = []
    for row, event, rest in told:
        if row.to is not None:
            says = "" if row.says is None else f" / {row.says.name}"
            also = f" [{', '.join(each.value for each in rest)}]" if rest else ""
            arrows = aborted if _ABORTED & {row.phase, row.to} else going_well
            arrows.append((row.phase.name, row.to.name, f"{event}{says}{also}"))

    def picture(title: str, arrows: Sequence[tuple[str, str, str]]) -> StateDiagram:
        ends = {end for source, dest, _ in arrows for end in (source, dest)}
        return StateDiagram(
            title,
            {phase.name: MEANINGS[phase] for phase in Phase if phase.name in ends},
            arrows,
            _kind_of_phase,
            ("what the rank reads, or what comes of its work / the code that it writes [what holds too]",),
        )

    return {
        "command": picture("A command that goes well, as a rank lives it", going_well),
        "command_aborted": picture("A command that fails or is aborted, as a rank lives it", aborted),
    }


def _kind_of_phase(name: str) -> str:
    if name == Phase.IDLE.name:
        return ""
    if name == Phase.FAILED.name:
        return "faulted"
    return "deciding" if Phase[name] in _WAITING else "working"


def _fleet() -> StateDiagram:
    """Draw what a replica of a fleet counts as."""
    kinds = {FleetState.STAGED: "working", FleetState.READY: "serving", FleetState.FAILED: "faulted"}
    return StateDiagram(
        "One replica of a fleet",
        {state.name: FLEET_MEANINGS[state] for state in FleetState},
        [(state.name, dest.name, event.value) for (state, event), dest in FLEET_TABLE.items()],
        lambda name: kinds.get(FleetState[name], ""),
    )


# -- plans ----------------------------------------------------------------------------------------

_PLANS_PREFACE = """\
Each plan stands beside the edge of the tables that runs it. `*`: collective, entered after a vote of all
ranks. An action (`x`) runs in one `poll()`; what an engine lacks is absent from its plans, not skipped.
`seen`: it runs when the command is seen; `beside`: beside the serving loop; `early`: before the rank parks,
while it still steps; `behind`: behind the decision."""

_HELD = """\
They move nothing in memory, and admission alone. What a hold forgets of the KV cache it forgets behind the
decision, so that a hold that fails leaves the cache as it was. While a group is held no plan of another
command, and no undo, admits requests again; an update that is to serve does, behind its decision."""

_NEW_EPOCH = """\
A rank that lives when the epoch ends stays in the old one until it holds nothing: it runs `rejoin`, which
lets go alone of what broke with a peer, then `discard`, one action per `poll()`, and only then takes `lost`
and writes a word of the new epoch. If that fails the rank is FAULTED, never joins, and its process is
replaced."""

_ACTIONS = """\
*Declares*: `v` a vote of all ranks comes before it; `t` it touches the weights, so that an aborted command
ends in CLEARED on all ranks; `u` it is undone where the group keeps what it had; `p` it measures that it is
done; `m` it says how much memory it takes. Past its deadline the command is aborted."""


def plans_page(plans: Plans, *, of: str) -> str:
    """Return every plan beside the edge that runs it, and every action with what it declares, in Markdown."""
    parts = [f"# Plans of {of}", _PLANS_PREFACE]
    for chart in CHARTS:
        for row in chart.rows:
            if keys := plans_on(row):
                parts += [f"## {heading_of(chart, row)}", f"{row.note[0].upper()}{row.note[1:]}."]
                parts += _compared([plans.named(key) for key in keys])
    held = [plans.named(key) for key in (HOLD, HOLD_WITHOUT_KV_CACHE, RELEASE)]
    parts += ["## Hold and release", _HELD, *_compared(held)]
    parts += ["## A new epoch", _NEW_EPOCH, *_compared([plans.named(REJOIN), plans.named(DISCARD)])]
    actions = {action.name: action for plan in plans for action in plan}
    rows = [
        (f"`{name}`", f"{action.deadline_s:g} s", _declared(action), action.purpose)
        for name, action in sorted(actions.items())
    ]
    parts += ["## Actions", _ACTIONS, table(("action", "deadline", "declares", "purpose"), rows)]
    return "\n\n".join(parts) + "\n"


def heading_of(chart: Chart, row: Row) -> str:
    """Return the heading under which the plans of an edge stand."""
    guard = "" if row.guard is None else f" {row.guard.value}"
    return f"{HEADINGS[chart.machine]}: {row.source.name} {row.event.value}{guard}"


def _compared(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield what several plans are for, and which action is in which of them, in an order that all have."""
    yield "\n".join(f"{number}. {_meaning(plan)}" for number, plan in enumerate(plans, start=1))
    order: list[str] = []
    actions: dict[str, Action] = {}
    for plan in plans:
        at = 0
        for action, _ in _timed(plan):
            actions[action.name] = action
            if action.name not in order:
                order.insert(at, action.name)
            at = max(at, order.index(action.name) + 1)
    when = [{action.name: mark for action, mark in _timed(plan)} for plan in plans]
    yield table(
        ("action", *map(str, range(1, len(plans) + 1))),
        [
            (f"`{name}`{' *' if actions[name].collective else ''}", *(marks.get(name, "") for marks in when))
            for name in order
        ],
    )


def _meaning(plan: Plan) -> str:
    halves = {} if plan.key is None else plan.key.halves
    return f"`{plan.name}`: " + "; ".join(
        f"{tag.value} {half.value.removeprefix('is ')}" for tag, half in halves.items()
    )


def _timed(plan: Plan) -> Iterator[tuple[Action, str]]:
    """Yield every action of a plan in its order, with the mark of when it runs."""
    yield from ((action, "seen") for action in plan.admission)
    yield from ((action, "beside") for action in plan.staging)
    if plan.key is not None and not isinstance(plan.key.operation, Repair):  # else no rank steps then
        yield from ((action, "early") for action in plan.before_parking)
    yield from ((action, "x") for action in plan.flip)
    yield from ((action, "behind") for action in plan.commit)


def _declared(action: Action) -> str:
    said = (
        ("v", action.collective),
        ("t", action.touches_weights),
        ("u", _overrides(action, "undo")),
        ("p", _overrides(action, "probe")),
        ("m", _overrides(action, "bytes_needed")),
    )
    return " ".join(letter if holds else "-" for letter, holds in said)


def _overrides(action: Action, method: str) -> bool:
    return getattr(type(action), method) is not getattr(Action, method)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with columns of even width, so that the text can be reviewed as text."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (heading, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    )
