"""What the dashboard and the alert rules ask for is what the exporter tells: names, and labels."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.status.situations import SITUATIONS
from wsm.metrics.families import families
from wsm.metrics.history import JournalCounts
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, JournalEntry

FILES = Path(__file__).parents[2] / "dashboards"
#: Words of PromQL, and of Grafana, that are no metric; labels stand in braces or behind "by".
METRIC = re.compile(r"\bwsm_\w+")
LABELS = re.compile(r"\bby \(([^)]*)\)|\{([^}]*)\}")


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
    known = told()
    metrics = set(METRIC.findall(re.sub(r"\b(wsm_state|wsm_rank_life)(?==)|by \([^)]*\)", "", query)))
    assert metrics, where
    assert metrics <= known.keys(), where
    labels = {"le"}.union(*(known[name] for name in metrics))
    for by, braces in LABELS.findall(query):
        asked = by.split(",") if by else [re.split("[=!]", part)[0] for part in braces.split(",")]
        assert {name.strip() for name in asked} <= labels, where
