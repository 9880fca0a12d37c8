"""What is drawn is what the live machines do: the text is read back and held against `transitions` itself."""

from __future__ import annotations

import re

import pytest

from wsm.states.check import EPOCH_EVENTS, explore, reachable_without_a_new_epoch
from wsm.states.joint import FORBIDDEN, START
from wsm.states.machine import LifeCycle
from wsm.states.table import CHARTS, KV_CHART, WEIGHT_CHART
from wsm.states.vocabulary import KVEvent

Edges = set[tuple[str, str, str, "str | None"]]


def read_mermaid(text: str) -> Edges:
    found = re.findall(r"^    (\w+) --> (\w+) : (.+)$", text, flags=re.MULTILINE)
    return {
        (source, *split(label), dest) for source, dest, labels in found for label in labels.split("<br/>")
    }


def read_dot(text: str) -> Edges:
    found = re.findall(r'^    (\w+) -> (\w+) \[label=" (.+?) "', text, flags=re.MULTILINE)
    return {(source, *split(label), dest) for source, dest, labels in found for label in labels.split(r"\n")}


def split(label: str) -> tuple[str, str | None]:
    matched = re.fullmatch(r"(.+?)(?: \[(\w+)\])?", label)
    assert matched is not None
    return matched[1], matched[2]


def live(machine: str) -> Edges:
    return {(edge.source, edge.event, edge.guard, edge.dest) for edge in LifeCycle().edges()[machine]}


READERS = [pytest.param(".mmd", read_mermaid, id="mermaid"), pytest.param(".dot", read_dot, id="dot")]


@pytest.mark.parametrize(("suffix", "read"), READERS)
@pytest.mark.parametrize(("name", "machine"), [("weights", "weights"), ("kv_cache", "kv")])
def test_the_drawn_edges_are_exactly_those_of_the_live_machine(
    rendered: dict[str, str], name: str, machine: str, suffix: str, read: object
) -> None:
    drawn = read(rendered[name + suffix])  # type: ignore[operator] - a parametrized function
    assert drawn == live(machine)
    rows = (WEIGHT_CHART if machine == "weights" else KV_CHART).rows
    assert len(drawn) == len(rows), "two rows became one edge"


@pytest.mark.parametrize(("suffix", "read"), READERS)
def test_the_joint_drawing_has_every_ordinary_edge_and_no_forbidden_pair(
    rendered: dict[str, str], suffix: str, read: object
) -> None:
    drawn = read(rendered["joint" + suffix])  # type: ignore[operator] - a parametrized function
    within = reachable_without_a_new_epoch(explore(), START)
    expected = {
        (
            f"{edge.source.weights.name}__{edge.source.kv.name}",
            ("kv " if isinstance(edge.row.event, KVEvent) else "") + edge.row.event.value,
            None if edge.row.guard is None else edge.row.guard.value,
            f"{edge.dest.weights.name}__{edge.dest.kv.name}",
        )
        for edge in explore()
        if edge.source in within and edge.row.event not in EPOCH_EVENTS and edge.source[:2] != edge.dest[:2]
    }
    assert drawn == expected
    forbidden = {f"{weights.name}__{kv.name}" for weights, kv in FORBIDDEN}
    assert not forbidden & {end for source, _, _, dest in drawn for end in (source, dest)}


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.region.value)
def test_every_state_is_drawn_once_with_its_meaning(rendered: dict[str, str], chart: object) -> None:
    assert chart in CHARTS
    name = "weights" if chart is WEIGHT_CHART else "kv_cache"
    for state in chart.states:  # type: ignore[attr-defined] - a chart, see above
        meaning = chart.meanings[state]  # type: ignore[attr-defined] - a chart, see above
        assert rendered[f"{name}.mmd"].count(f'state "{state.name}<br/>{meaning}" as {state.name}\n') == 1
        assert rendered[f"{name}.dot"].count(rf'    {state.name} [label="{state.name}\n{meaning}"') == 1
