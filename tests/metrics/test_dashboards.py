"""What dashboard and alert rules ask for is told by the exporter, and all that it tells is documented."""

from __future__ import annotations

import ast
import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import promql_parser
import pytest
import yaml

from tests.status.situations import SITUATIONS
from wsm.metrics.families import families
from wsm.metrics.history import JournalCounts
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, JournalEntry

FILES = Path(__file__).parents[2] / "dashboards"


class Seen:
    """What an expression asks for, as the parser walks it."""

    def __init__(self) -> None:
        self.selectors: list[tuple[str, set[str]]] = []
        self.grouped: set[str] = set()

    def __call__(self, node: object) -> bool:
        node = getattr(node, "vector_selector", node)
        if isinstance(node, promql_parser.VectorSelector):
            self.selectors.append((node.name, {one.name for one in node.matchers.matchers}))
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
    rules = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    return {**asked, **{rule["alert"]: rule["expr"] for rule in rules}}


@functools.cache
def told() -> dict[str, set[str]]:
    """Every sample that there can be, with its labels."""
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
    history.take(JournalEntry(kinds.SHORTAGE_MET, 1, 1, 0, 1, 1, {"error": "x"}))
    found: dict[str, set[str]] = {}
    open_group = SITUATIONS["a hot update that failed"]
    held = replace(open_group.committed, hold={"owner": "trainer"})
    for facts in (*SITUATIONS.values(), replace(open_group, committed=held, lease_left_s=1.0)):
        for family in families([(facts, history)], now_ns=5, started_s=0.0):
            for one in family.samples:
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
    assert seen.grouped <= {"le"}.union(*(known[name] for name, _ in seen.selectors)), where


def test_every_metric_has_its_place_in_the_page_about_operating() -> None:
    page = (FILES.parent / "docs" / "operating.md").read_text()
    exposed = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in told()}
    assert {name for name in exposed if f"`{name}`" not in page} == set()


def test_every_finding_and_every_alert_has_its_entry_in_the_runbook() -> None:
    page = (FILES.parent / "docs" / "operating.md").read_text()
    entries = set(re.findall(r"^### ([a-z-]+)$", page, re.MULTILINE))
    rules = (FILES.parent / "src" / "wsm" / "status").glob("*.py")
    found = {
        one.args[0].value
        for path in rules
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "Finding"
    }
    alerts = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    named = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in alerts}
    assert dict(re.findall(r"^\| `(Wsm\w+)` \| \[[a-z-]+\]\((#[a-z-]+)\) \|$", page, re.MULTILINE)) == {
        alert: url.removeprefix("docs/operating.md") for alert, url in named.items()
    }
    assert {"rank-lost", "serving", "unknown"} <= found
    assert entries == found | {url.partition("#")[2] for url in named.values()}
