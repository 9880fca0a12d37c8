"""Metrics and traces over HTTP: a scrape of the app, and the trace of a request in the journal."""

from __future__ import annotations

import json

from living_group import LivingGroup
from starlette.applications import Starlette

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_app_answers_a_scrape_and_leaves_an_engine_its_own(living: LivingGroup, make_front) -> None:
    front = make_front()
    scraped = front.ask("GET", "/metrics")
    assert scraped.status_code == 200
    assert f'wsm_serving{{group="{living.name}"}} 1.0' in scraped.text
    odd = {"Accept": f"application/openmetrics-text; version={'9' * 5000}"}
    assert front.ask("GET", "/metrics", headers=odd).status_code == 200
    mounted = make_front(rest=Starlette())
    assert mounted.ask("GET", "/metrics").status_code == 404, "that is the engine's"
    assert "wsm_serving" in mounted.ask("GET", "/wsm/v1/metrics").text


def test_the_trace_of_a_request_is_carried_to_the_group_s_journal(living: LivingGroup, front) -> None:
    answered = front.ask(
        "POST", "/wsm/v1/hold", json={}, headers={"traceparent": HEADER, "Idempotency-Key": "traced"}
    )
    assert answered.status_code == 200, answered.text
    front.post("/wsm/v1/release")
    journal = living.directory / "journals" / "controller.ndjson"
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    issued = {one["facts"]["request_id"]: one["facts"] for one in entries if one["kind"] == "command_issued"}
    assert issued["traced"]["traceparent"] == HEADER
    assert [name for name, facts in issued.items() if "traceparent" in facts] == ["traced"]
