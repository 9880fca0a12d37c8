"""Metrics and traces over HTTP: a scrape of the app, and the trace of a request in the journal."""

from __future__ import annotations

import asyncio
import json

import httpx
from living_group import LivingGroup
from starlette.applications import Starlette

from wsm.http.surfaces import SURFACES, SurfaceOptions

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


def test_a_scrape_counts_requests_by_route_and_status_and_texts_that_wait(living, make_front) -> None:
    front = make_front(surfaces=[SURFACES["vllm"](SurfaceOptions())], rest=Starlette())
    for path in ("/wsm/v1/status", "/wsm/v1/commands/a", "/wsm/v1/commands/b", "/nothing/here"):
        front.ask("GET", path)
    front.post("/pause")

    async def scene() -> str:
        transport = httpx.ASGITransport(front.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            asked = asyncio.create_task(client.post("/v1/completions", json={}))
            told = ""
            while "wsm_http_texts_waiting 1.0" not in told:
                told = (await client.get("/wsm/v1/metrics")).text
            assert (await client.post("/resume")).status_code == 200
            await asked
            return told

    told = asyncio.run(scene())
    count = "wsm_http_request_seconds_count"
    assert f'{count}{{method="GET",route="/wsm/v1/commands/{{request_id:path}}",status="404"}} 2.0' in told
    assert f'{count}{{method="GET",route="/wsm/v1/status",status="200"}} 1.0' in told
    assert f'{count}{{method="GET",route="other",status="404"}} 1.0' in told
    assert f'wsm_hold_closed{{group="{living.name}"}} 0.0' in told


def test_a_damaged_file_of_requests_is_told_by_explain_and_by_a_metric(front) -> None:
    front.post("/wsm/v1/hold")
    front.commands.receipts_path.write_bytes(b"no database" * 1000)
    front.post("/wsm/v1/release")
    said = [each for each in front.ask("GET", "/wsm/v1/explain").json()["sentences"] if "set aside" in each]
    assert len(said) == 1
    assert "wsm_http_requests_file_faults_total 1.0" in front.ask("GET", "/metrics").text


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
