"""The pages for reviewers: every transition, every phase, and the page that leads through all pictures.

Pure renderers of the tables, the joint rules and the phases; always the same text. Tables fit 120 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from wsm.cli.diagrams import HEADINGS, event_of, heading_of, table
from wsm.states.check import Command, Pair, beside, explore, plans_on, states_of
from wsm.states.joint import FORBIDDEN, NEEDS, NOTHING_HELD, STALE, Need, chart_of, serving
from wsm.states.phases import LOOKS, MEANINGS, OUTCOMES, LookRow, OutcomeRow, Phase, Todo, When
from wsm.states.table import CHARTS, KV_CHART, WEIGHT_CHART, Chart, Guard, Row, State
from wsm.states.vocabulary import sentence_of

_TRANSITIONS = """\
Written by `python -m drawing` from `wsm/states/table.py` and `wsm/states/joint.py`; do not edit it here.
What is not in a table is *refused*: a typed error, and nothing changes; a rank that refuses a command fails
it for the group. In brackets: the outcome of the group, which an ABORT brings with it."""

_LOST = """\
**A new epoch** (`lost`) begins with nothing held, so it has a row in CLEARED alone. A rank that lives when
its epoch ends gives everything back first, by the rows of any teardown and in the old epoch, one action per
`poll()` ([plans](plans.md#a-new-epoch)); if that fails it is FAULTED, never joins, and its process is
replaced. A process that is new starts in CLEARED."""

_BOTH = """\
Which states of the KV cache (columns) stand beside which states of the weights (rows). A rank serves where
both are NORMAL, and nowhere else."""

_COMMAND = """\
Written by `python -m drawing` from `wsm/states/phases.py` and `wsm/states/joint.py`; do not edit it here.
Whenever a rank has read the words of its group, it takes the first row of its phase whose conditions all
hold. When the thing to do is done, it takes the first row of what came of that. *Says* is the code in its
status word. Before any row: a newer epoch makes the rank give back what it holds and join, a word of the
past moves it nowhere, and a command that comes before the last one is over is an error for all to see. What
*stands beside* a phase, by the command at hand, is all that the tables lead to, and nothing else."""

_DOES = {
    Todo.SERVE: "may enter a step",
    Todo.JOIN: "must join a step",
    Todo.WAIT: "waits for a word",
    Todo.LOOK: "looks again",
    Todo.BEGIN: "reads and checks the command",
    Todo.DRAIN: "steps on, admits nothing",
    Todo.ACCEPT: "begins the transition",
    Todo.RUN: "runs the next action",
    Todo.LEAVE_VOTE: "fails: a peer never will vote",
    Todo.FINISH: "ends its plan",
    Todo.STAGE: "stages, and serves",
    Todo.COMMIT: "serves the new version",
    Todo.UNDO: "undoes what it did",
    Todo.KEEP: "keeps what it had",
    Todo.DROP: "gives everything back",
}

_INDEX = """\
Everything here is written by `python -m drawing` (`make diagrams`) from the tables that decide; `python -m
drawing --check` says where a file differs from the code. Each picture of states has a legend. Names in
capitals are states, but PREPARED is three things: a state of the weights, a phase of a command, and the code
that a rank writes once it is in both. Read them in this order."""

#: What stands on the index page: the title of a part, what is to be seen in it, and its picture.
_PARTS = (
    (
        "1. What a rank holds: the weights",
        (
            "Six states. Work is done in the yellow ones; the machine decides and never works, so what comes "
            "of the work arrives as an event. The machine of a hot update stays in NORMAL while the version "
            "is staged; it goes through UPDATING and PREPARED at once, behind the decision. `fail` in NORMAL "
            "or CLEARED is of the KV cache, whose teardown alone failed. Each transition with its meaning: "
            "[transitions.md](transitions.md)."
        ),
        "weights",
    ),
    (
        "2. What a rank holds: the KV cache",
        "The same states but two. Its teardown that fails is told by the weights: they become FAULTED.",
        "kv_cache",
    ),
    (
        "3. Whether a rank may step: admission",
        "It knows nothing of the other two, nor they of it: a held rank counts as what it has in memory.",
        "admission",
    ),
    (
        "4. A command that goes well, as a rank lives it",
        (
            "The fourth table, and the one that decides most. "
            "Row by row, with what may stand beside a phase: [command.md](command.md)."
        ),
        "command",
    ),
    (
        "5. A command that fails or is aborted, as a rank lives it",
        "The other rows of the same table: what a rank fails by, and how it takes back what it did.",
        "command_aborted",
    ),
    (
        "6. A command, as the processes of its group see it",
        (
            "The table of the other side: controller, successor, stand-in and keeper ask it what they store "
            "next. Row by row: [group.md](group.md)."
        ),
        "group",
    ),
    (
        "7. One replica of a fleet, as its callers count it",
        "STALE until proved: one event alone makes it READY, and silence takes that away.",
        "fleet",
    ),
    ("8. A clear, word by word", "", "sequence_clear"),
    ("9. An update, word by word", "", "sequence_update"),
    ("10. A hot update, word by word", "", "sequence_hot_update"),
    ("11. A rank is lost, and a new epoch begins", "", "sequence_rank_loss"),
    ("12. The new epoch restores what was served", "", "sequence_restore"),
)


def index_page(rendered: Mapping[str, str]) -> str:
    """Return the page that leads through the pictures, which it shows in place.

    Parameters
    ----------
    rendered : mapping of str to str
        The pictures, by the names of their files.
    """
    parts = ["# The tables as pictures", _INDEX]
    for title, text, name in _PARTS:
        parts += [f"## {title}", *([text] if text else []), f"```mermaid\n{rendered[f'{name}.mmd']}```"]
    parts += [
        "## 13. The plans",
        (
            "Which actions run on which edge, in which order, and what each declares: deadline, undo, probe, "
            "votes. For an engine that has everything: [plans.md](plans.md). For your own: "
            "`wsm diagrams --config wsm.yaml --runner module:name`."
        ),
    ]
    return "\n\n".join(parts) + "\n"


def transitions_page() -> str:
    """Return the table of every transition, state by state, and of what both machines allow together."""
    parts = ["# Every transition, for review", _TRANSITIONS, _LOST]
    for chart in CHARTS:
        parts.append(f"## {HEADINGS[chart.machine]}")
        for state in chart.states:
            parts += _state(chart, state)
    return "\n\n".join([*parts, *_both_together()]) + "\n"


def _state(chart: Chart, state: State) -> Iterator[str]:
    yield f"### {HEADINGS[chart.machine]} {state.name}"
    yield f"{_sentence(chart.meanings[state])} *{_kind(chart, state)}*"
    rows = [row for row in chart.rows if row.source is state]
    yield table(
        ("event", "next state", "what it means"),
        [(event_of(row), f"**{row.dest.name}**", row.note) for row in rows],
    )
    running = [row for row in rows if plans_on(row)]
    if running:
        links = (f"[{event_of(row)}](plans.md#{_anchor(heading_of(chart, row))})" for row in running)
        yield f"Plans that run: {', '.join(links)}."
    if state in chart.working:
        yield f"If the work fails: {_failure(rows)}."
    taken = {row.event for row in rows}
    refused = [event.value for event in chart.events if event not in taken]
    yield f"Refused: {', '.join(refused)}."


def _anchor(heading: str) -> str:
    return heading.lower().replace(":", "").replace(" ", "-")


def _failure(rows: Sequence[Row]) -> str:
    """Say what a failure of the work leads to; derived from the rows of the working state."""
    failing = [row for row in rows if row.event.value == "fail"]
    if failing:
        return f"fail → {failing[0].dest.name}"
    ways = " or ".join(
        f"{event_of(row)} → {row.dest.name}" for row in rows if row.event.value in ("abort", "clear")
    )
    return f"the rank stays here, its phase and its word say FAILED, and the decision leads on: {ways}"


def _kind(chart: Chart, state: State) -> str:
    if state in chart.working:
        kind = "Work is going on."
    elif state in chart.deciding:
        kind = "A decision is awaited."
    else:
        kind = "At rest."
    return f"{kind} A new process starts here." if state is chart.initial else kind


def _both_together() -> Iterator[str]:
    yield "## Both together"
    yield _BOTH
    pairs = {joint[:2] for joint in states_of(explore())}
    rows = []
    for weights in WEIGHT_CHART.states:
        cells = [f"**{weights.name}**"]
        for kv in KV_CHART.states:
            pair = next((pair for pair in pairs if pair[0] is weights and pair[1] is kv), None)
            if pair is None:
                cells.append("never")
            elif serving(*pair):
                cells.append("**serves**")
            else:
                cells.append("yes")
        rows.append(tuple(cells))
    yield table(("weights", *(state.name for state in KV_CHART.states)), rows)
    yield "What an event of the one needs of the other, and of how the rank came there:"
    yield "\n".join([*map(_need, NEEDS), *_HISTORY])
    yield "Pairs that never stand side by side:"
    yield "\n".join(
        f"* weights {weights.name}, KV cache {kv.name}: {why}" for (weights, kv), why in FORBIDDEN.items()
    )
    yield "What may stand beside which phase of a command: [command.md](command.md)."


#: What the joint rules remember besides states; kept beside the rules in :func:`wsm.states.joint.objection`.
_HISTORY = (
    f"* **Weights: prepared** needs a KV cache that is not stale: {STALE}",
    f"* **Weights: abort [{Guard.KEPT.value}]** needs an update that came from NORMAL: {NOTHING_HELD}",
)


def _need(need: Need) -> str:
    event = f"{HEADINGS[chart_of(need.event).machine]}: {need.event.value}"
    if need.guard is not None:
        event += f" [{need.guard.value}]"
    if need.source:
        event += f" from {' or '.join(_members(need.source))}"
    return f"* **{event}** needs {' or '.join(_members(need.states))}: {need.why}"


def _members(states: Iterable[State]) -> list[str]:
    """Return names in declared order: sets have none of their own."""
    wanted = {state.name for state in states}
    return list(dict.fromkeys(each.name for chart in CHARTS for each in chart.states if each.name in wanted))


def command_page() -> str:
    """Return the page of the phases."""
    parts = ["# A command, as a rank lives it", _COMMAND]
    for phase in Phase:
        parts += [f"## {phase.name}", _sentence(MEANINGS[phase]), *_phase(phase)]
    return "\n\n".join(parts) + "\n"


def _phase(phase: Phase) -> Iterator[str]:
    looks = [row for row in LOOKS if row.phase is phase]
    yield table(
        ("when it reads", "it", "next phase", "says"),
        [
            (_when(row.when) or "anything else", _thing_to_do(row), _where(row.to), _said(row))
            for row in looks
        ],
    )
    outcomes = [row for row in OUTCOMES if row.phase is phase]
    if outcomes:
        yield table(
            ("what comes of it", "if", "next phase", "says"),
            [(row.event.value, _when(row.when), _where(row.to), _said(row)) for row in outcomes],
        )
    yield "Weights beside KV cache, by the command:"
    told: dict[frozenset[Pair], set[Command]] = {}
    for command, pairs in beside(phase).items():
        told.setdefault(pairs, set()).add(command)
    yield "\n".join(sorted(f"* {_commands(commands)}{_pairs(pairs)}" for pairs, commands in told.items()))


def _pairs(pairs: frozenset[Pair]) -> str:
    """Name together the states of the weights that stand beside the same of the KV cache."""
    together: dict[str, set[State]] = {}
    for weights in {weights for weights, _ in pairs}:
        kv = {each for beside_it, each in pairs if beside_it is weights}
        together.setdefault(" or ".join(_members(kv)), set()).add(weights)
    return ", ".join(sorted(f"{' or '.join(_members(found))} beside {kv}" for kv, found in together.items()))


def _commands(commands: Iterable[Command]) -> str:
    found = [
        operation.name
        if operation.is_hot or operation.is_of_admission
        else f"{operation.name} of {sentence_of(tags) if tags else 'what cannot be read'}"
        for operation, tags in sorted(commands, key=lambda each: (each[0], sorted(map(str, each[1] or ()))))
        if tags is not None
    ]
    return f"{', '.join(found)}: " if found else ""


def _when(conditions: Iterable[When]) -> str:
    return ", ".join(condition.value for condition in conditions)


def _thing_to_do(row: LookRow) -> str:
    if row.broken:
        return f"*raises*: {row.broken}"
    return _DOES[row.todo] + ("" if row.change is None else f"; {row.change.value}")


def _where(phase: Phase | None) -> str:
    return "" if phase is None else f"**{phase.name}**"


def _said(row: LookRow | OutcomeRow) -> str:
    return "" if row.says is None else row.says.name


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
