"""What dashboard and alert rules ask for is told by the exporter, and all that it tells is documented."""

from __future__ import annotations

import ast
import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from msgspec import structs

from tests.sources import syntax_of
from tests.status.situations import SITUATIONS
from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry
from wsm.metrics.families import families
from wsm.metrics.history import JournalCounts, ServerCounts
from wsm.states.holding import Hold

FILES = Path(__file__).parents[2] / "dashboards"


class Seen:
    """What an expression asks for, as the parser walks it."""

    def __init__(self) -> None:
        self.selectors: list[tuple[str, set[str]]] = []
        self.wanted: list[tuple[str, str]] = []
        self.grouped: set[str] = set()

    def __call__(self, node: object) -> bool:
        node = getattr(node, "vector_selector", node)
        if isinstance(node, promql_parser.VectorSelector):
            self.selectors.append((node.name, {one.name for one in node.matchers.matchers}))
            self.wanted += [(one.name, one.value) for one in node.matchers.matchers if "Equal" in str(one.op)]
        modifier = getattr(node, "modifier", None)
        for labels in (
            getattr(modifier, "labels", None),
            getattr(getattr(modifier, "matching", None), "labels", None),
        ):
            self.grouped |= set(labels or ())
        return True


def queries() -> dict[str, str]:
    dashboard = json.loads((FILES / "wsm.json").read_text())
    asked = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    asked["variable"] = dashboard["templating"]["list"][1]["definition"]
    return {**asked, **{rule["alert"]: rule["expr"] for rule in rules()}}


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for each in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
        for rule in each["rules"]
    ]


def labels_that_texts_name() -> dict[str, tuple[str, set[str]]]:
    """The expression and the labels that its legend, or the words of its alert, name."""
    named = {}
    for panel in json.loads((FILES / "wsm.json").read_text())["panels"]:
        for target in panel["targets"]:
            found = set(re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"]))
            named[f"{panel['title']} {target['refId']}"] = (target["expr"], found)
    for rule in rules():
        found = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        named[rule["alert"]] = (rule["expr"], found)
    return named


@functools.cache
def samples() -> list[Any]:
    """Every sample that there can be."""
    history = JournalCounts()
    for sequence, ended in enumerate(
        ({"ended": "updated", "pause_s": 1.0, "staging_s": 1.0}, {"error": "x"})
    ):
        history.take(
            JournalEntry(kinds.COMMAND_ISSUED, 1, 1, CONTROLLER, 1, sequence, {"operation": "UPDATE"})
        )
        history.take(JournalEntry(kinds.COMMAND_OVER, 2, 2, CONTROLLER, 1, sequence, ended))
    history.take(JournalEntry(kinds.COMMAND_ISSUED, 3, 3, CONTROLLER, 1, 9, {"operation": "CLEAR"}))
    history.take(JournalEntry(kinds.RANK_LOST, 1, 1, CONTROLLER, 1, 1, {"lost": 0}))
    for kind in (kinds.ACTION_FINISHED, kinds.ACTION_FAILED, kinds.STEP_BROKEN, kinds.WAIT_EXPIRED):
        history.take(JournalEntry(kind, 1, 1, 0, 1, 1, {"name": "load", "seconds": 1.0, "version": "1"}))
    server = ServerCounts()
    server.requests.took(1.0, "/pause", "POST", 200)
    server.unsupported.add("sglang", "/update_weights_from_tensor")
    open_group = SITUATIONS["a hot update that failed"]
    held = structs.replace(open_group.committed, hold=Hold("h", "trainer"))
    every = (*SITUATIONS.values(), replace(open_group, committed=held, lease_left_s=1.0))
    return [
        one
        for facts in every
        for family in families([(facts, history)], now_ns=5, started_s=0.0, server=server)
        for one in family.samples
    ]


@functools.cache
def told() -> dict[str, set[str]]:
    """The labels of every sample that there can be."""
    found: dict[str, set[str]] = {}
    for one in samples():
        found.setdefault(one.name, set()).update(one.labels)
    return found


@pytest.mark.parametrize(("where", "query"), queries().items(), ids=lambda text: text[:30])
def test_what_is_asked_for_is_told(where: str, query: str) -> None:
    """Prometheus' grammar takes it, and each metric and label in it is one that the exporter writes."""
    for name, value in {"$__rate_interval": "5m", "$group": "policy"}.items():
        query = query.replace(name, value)
    known, seen = told(), Seen()
    query = re.sub(r"^label_values\((\w+), (\w+)\)$", r"sum by (\2) (\1)", query)
    promql_parser.walk(promql_parser.parse(query), seen)
    assert seen.selectors, where
    for name, labels in seen.selectors:
        assert name in known, where
        assert labels <= known[name], where
    values = {name: {one.labels.get(name) for one in samples()} for name, _ in seen.wanted}
    assert all(value in values[name] for name, value in seen.wanted if name != "group"), where
    assert seen.grouped <= {"le"}.union(*(known[name] for name, _ in seen.selectors)), where


@pytest.mark.parametrize(
    ("expression", "named"), labels_that_texts_name().values(), ids=labels_that_texts_name()
)
def test_a_legend_and_the_words_of_an_alert_name_labels_that_their_expression_leaves(
    expression, named
) -> None:
    """Else they are shown empty."""
    kept = re.search(r"^(?:topk\(\d+, |histogram_quantile\([\d.]+, )?(?:sum|max) by \(([^)]*)\)", expression)
    first = re.search(r"wsm_\w+", expression)
    assert first is not None
    left = set(re.split(r",\s*", kept[1])) if kept else told()[first[0]]
    assert named <= left


def test_the_dashboard_has_what_grafana_asks_of_one() -> None:
    """By its JSON model of schema 39: ids, places, sources and variables."""
    made = json.loads((FILES / "wsm.json").read_text())
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time", "annotations"} <= made.keys()
    assert made.get("id") is None
    assert len(made["uid"]) <= 40
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken), "two panels lie on each other"
    assert all(x < 24 for x, _ in taken)
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert {variable["name"] for variable in made["templating"]["list"]} == {"datasource", "group"}
    for panel in panels:
        assert panel["type"] in ("stat", "state-timeline", "timeseries")
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_every_metric_has_its_place_in_the_page_about_operating() -> None:
    page = (FILES.parent / "docs" / "operating.md").read_text()
    exposed = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in told()}
    assert {name for name in exposed if f"`{name}`" not in page} == set()


def test_every_finding_and_every_alert_has_its_entry_in_the_runbook() -> None:
    page = (FILES.parent / "docs" / "operating.md").read_text()
    entries = set(re.findall(r"^### ([a-z-]+)$", page, re.MULTILINE))
    sources = (FILES.parent / "src" / "wsm" / "status").glob("*.py")
    found = {
        code.value
        for path in sources
        for one in ast.walk(syntax_of(path))
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "Finding"
        for code in ast.walk(one.args[0])
        if isinstance(code, ast.Constant)
    }
    named = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules()}
    assert dict(re.findall(r"^\| `(Wsm\w+)` \| \[[a-z-]+\]\((#[a-z-]+)\) \|$", page, re.MULTILINE)) == {
        alert: url.removeprefix("docs/operating.md") for alert, url in named.items()
    }
    assert {"rank-lost", "serving", "unknown"} <= found
    assert entries == found | {url.partition("#")[2] for url in named.values()}
