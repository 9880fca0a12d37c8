"""What is drawn is what the live machines do: the text is read back and held against `transitions` itself."""

from __future__ import annotations

import re

import pytest

from wsm.cli.diagrams import PLAN_MARK
from wsm.states.check import plans_on
from wsm.states.machine import LifeCycle
from wsm.states.phases import LOOKS, OUTCOMES
from wsm.states.table import CHARTS, KV_CHART, WEIGHT_CHART, Chart

Edges = set[tuple[str, str, str, "str | None"]]


def read_mermaid(text: str) -> Edges:
    found = re.findall(r"^    (\w+) --> (\w+) : (.+)$", text, flags=re.MULTILINE)
    return {
        (source, *split(label), dest)
        for source, dest, labels in found
        for label in labels.split("<br/>")
        if not label.startswith("▸")
    }


def split(label: str) -> tuple[str, str | None]:
    matched = re.fullmatch(r"(.+?)(?: \[(.+)\])?", label)
    assert matched is not None
    return matched[1], matched[2]


def live(machine: str) -> Edges:
    return {(edge.source, edge.event, edge.guard, edge.dest) for edge in LifeCycle().edges()[machine]}


@pytest.mark.parametrize(("name", "machine"), [("weights", "weights"), ("kv_cache", "kv")])
def test_the_drawn_edges_are_exactly_those_of_the_live_machine(
    rendered: dict[str, str], name: str, machine: str
) -> None:
    drawn = read_mermaid(rendered[f"{name}.mmd"])
    assert drawn == live(machine)
    rows = (WEIGHT_CHART if machine == "weights" else KV_CHART).rows
    assert len(drawn) == len(rows), "two rows became one edge"


def test_the_drawn_phases_are_joined_by_every_row_that_leads_from_one_to_another(
    rendered: dict[str, str],
) -> None:
    well, aborted = (
        {(source, dest) for source, *_, dest in read_mermaid(rendered[f"{name}.mmd"])}
        for name in ("command", "command_aborted")
    )
    assert not well & aborted
    rows = (*LOOKS, *OUTCOMES)
    assert well | aborted == {(row.phase.name, row.to.name) for row in rows if row.to is not None}


def test_a_plan_is_drawn_at_every_edge_that_runs_it(rendered: dict[str, str]) -> None:
    for chart, name in ((WEIGHT_CHART, "weights"), (KV_CHART, "kv_cache")):
        for row in chart.rows:
            edges = re.findall(
                rf"^    {row.source.name} --> {row.dest.name} : (.+)$", rendered[f"{name}.mmd"], re.MULTILINE
            )
            for plan in plans_on(row):
                assert any(f"{PLAN_MARK}{plan}" in edge.split("<br/>") for edge in edges), (row, plan)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.machine.value)
def test_every_state_is_drawn_once_with_its_meaning(rendered: dict[str, str], chart: Chart) -> None:
    name = "kv_cache" if chart is KV_CHART else chart.machine.value
    for state in chart.states:
        meaning = chart.meanings[state]
        assert rendered[f"{name}.mmd"].count(f'state "{state.name}<br/>{meaning}" as {state.name}\n') == 1
