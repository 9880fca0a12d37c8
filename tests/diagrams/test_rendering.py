"""The texts: complete, the same every time, and marked as a reader expects."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import wsm
from wsm.states.diagram import PlanSummary, StepSummary, render_all, summarise
from wsm.states.diagram.dot import digraph
from wsm.states.diagram.mermaid import state_diagram
from wsm.states.diagram.model import Arrow, Drawing, Node, NodeKind
from wsm.states.errors import PlanSummaryError
from wsm.states.table import CHARTS, KV_CHART, WEIGHT_CHART
from wsm.states.vocabulary import WHOLE_PLANS, PlanName

FILES = {
    "weights.mmd",
    "weights.dot",
    "kv_cache.mmd",
    "kv_cache.dot",
    "joint.mmd",
    "command.dot",
    "command.md",
    "command.mmd",
    "joint.dot",
    "transitions.md",
    "sequence_clear.mmd",
    "sequence_update.mmd",
    "sequence_hot_update.mmd",
}

PROGRAM = """
import sys
from wsm.cli.diagrams import every_diagram
from wsm.states.vocabulary import PlanName, WHOLE_PLANS
for name, text in every_diagram().items():
    sys.stdout.write(name + "\\n" + text)
"""


def lines_of_the_review_table(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|") and line.count(" | ") == 6
    ]


def test_every_file_is_drawn(rendered: dict[str, str]) -> None:
    assert set(rendered) == FILES
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in rendered.values())


def test_the_text_is_the_same_with_every_hash_seed() -> None:
    texts = set()
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(wsm.__path__[0]).parent)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert len(texts.pop()) > 10_000


def test_the_review_table_has_a_line_for_every_state_and_event_refused_ones_too(
    rendered: dict[str, str],
) -> None:
    heading = ["state", "event", "guard", "next state", "plan", "what it means", "on failure"]
    lines = lines_of_the_review_table(rendered["transitions.md"])
    begins = [index for index, line in enumerate(lines) if line == heading]
    assert len(begins) == len(CHARTS)
    for chart, begin, end in zip(CHARTS, begins, [*begins[1:], len(lines)], strict=True):
        table = lines[begin + 2 : end]
        expected = [
            (state.name, event.value, row and row.guard and row.guard.value, row and row.dest.name)
            for state in chart.states
            for event in chart.events
            for row in (chart.rows_for(state, event) or (None,))
        ]
        found = [
            (state, event, guard or None, None if next_state == "*refused*" else next_state.strip("*"))
            for state, event, guard, next_state, *_ in table
        ]
        assert found == expected


def test_every_line_of_the_review_table_says_what_happens_on_failure(rendered: dict[str, str]) -> None:
    weights = rendered["transitions.md"].split("## KV cache")[0]
    table = [line for line in lines_of_the_review_table(weights) if line[0].isupper()]
    on_failure = {(line[0], line[1], line[2]): line[6] for line in table}
    assert all(on_failure.values())
    assert on_failure["NORMAL", "clear", ""] == "fail → FAULTED"
    assert on_failure["NORMAL", "update", ""] == (
        "the rank stays and says FAILED; then abort [kept] → NORMAL or abort [dropped] → CLEARING"
    )
    # An update of nothing has nothing to keep.
    assert (
        on_failure["CLEARED", "update", ""]
        == "the rank stays and says FAILED; then abort [dropped] → CLEARING"
    )
    assert on_failure["UPDATING", "prepared", ""].startswith("nothing is left that can fail")
    assert on_failure["NORMAL", "commit", ""] == "nothing changes; legal here: clear, update, fail, lost"


def test_every_step_of_every_plan_is_shown(rendered: dict[str, str], plans: tuple[PlanSummary, ...]) -> None:
    assert {plan.name for plan in plans} == {name.value for name in PlanName}
    review, drawn = rendered["transitions.md"], rendered["weights.mmd"] + rendered["kv_cache.mmd"]
    for plan in plans:
        assert f"### {plan.name}\n" in review
        part = review.split(f"### {plan.name}\n")[1].split("###")[0]
        assert [line.split("`")[1] for line in part.splitlines() if "`" in line] == [
            step.name for step in plan.steps
        ]
        star = {True: " *", False: ""}
        shown = "\n".join(f"        · {step.name}{star[step.collective]}" for step in plan.steps)
        with_steps = f"        plan {plan.name}\n{shown}\n" in drawn
        assert with_steps or PlanName(plan.name) not in WHOLE_PLANS
        assert with_steps or f"        · {plan.name}\n" in drawn.split("plans for one half", 1)[1]


def test_no_drawing_names_a_plan_as_if_it_had_no_steps(rendered: dict[str, str]) -> None:
    for name in ("weights", "kv_cache"):
        lines = [line.strip() for line in rendered[f"{name}.mmd"].splitlines()]
        alone = [
            line for line, after in pairwise(lines) if line.startswith("plan ") and not after.startswith("· ")
        ]
        assert not alone


def test_without_plans_their_names_are_drawn() -> None:
    rendered = render_all()
    assert set(rendered) < FILES
    assert "(no steps were given)" in rendered["transitions.md"]
    assert "        plan clear\n        plan discard\n" in rendered["weights.mmd"]
    assert "Note over R0,R1: plan update\n" in rendered["sequence_update.mmd"]


def test_a_plan_that_is_missing_unknown_or_repeated_is_refused(plans: tuple[PlanSummary, ...]) -> None:
    with pytest.raises(PlanSummaryError) as missing:
        render_all(plans[1:])
    assert missing.value.context == {"missing": (plans[0].name,), "unexpected": ()}
    with pytest.raises(PlanSummaryError) as unknown:
        render_all((*plans, replace(plans[0], name="polish"), plans[1]))
    assert unknown.value.context == {"missing": (), "unexpected": ("polish", plans[1].name)}


def test_a_summary_is_read_off_anything_shaped_like_a_plan() -> None:
    class Step:
        name, collective, touches_weights, purpose = "load", False, True, "bring weights"

    class Plan:
        name = "update"
        actions = (Step(),)
        staged = 0

    assert summarise([Plan()]) == (
        PlanSummary("update", (StepSummary("load", False, True, "bring weights"),)),
    )


def test_the_initial_state_the_working_ones_and_the_final_ones_are_marked(rendered: dict[str, str]) -> None:
    for name in ("weights", "kv_cache"):
        assert rendered[f"{name}.mmd"].count("    [*] --> CLEARED\n") == 1
        assert "    class CLEARING,UPDATING working\n" in rendered[f"{name}.mmd"]
        assert rendered[f"{name}.dot"].count("start_CLEARED -> CLEARED") == 1
        assert rendered[f"{name}.dot"].count("dashed") == len(WEIGHT_CHART.working) == len(KV_CHART.working)
    drawing = Drawing(
        "small",
        'A title with "quotes" & <more>',
        (
            Node("ON", "ON", NodeKind.RESTING, initial=True),
            Node("OFF", "OFF", NodeKind.RESTING, meaning='"never" left', final=True),
        ),
        (Arrow("ON", "switch", "OFF"),),
    )
    assert "    OFF --> [*]\n" in state_diagram(drawing)
    assert "peripheries=2" in digraph(drawing)
    assert r"\"never\" left" in digraph(drawing)
    assert "&quot;quotes&quot; &amp; &lt;more&gt;" in digraph(drawing)


def test_no_state_is_drawn_as_the_active_one(rendered: dict[str, str]) -> None:
    assert all("active" not in text for name, text in rendered.items() if not name.endswith(".md"))
