"""What a server says of itself wherever vLLM answers no text: four answers that agree."""

from __future__ import annotations

import asyncio

import pytest

from tests.vllm.test_endpoint import played, samples, vllm  # noqa: F401 - of each test here, too


async def said(at):
    """What status, explain, ready and a scrape say together; `text`: in words."""
    status, explained, ready, scraped = [
        await at.http.get(f"/wsm/v1/{what}") for what in ("status", "explain", "ready", "metrics")
    ]
    sampled = samples(scraped.text)
    each = {
        status.json()["serving"],
        explained.json()["serving"],
        ready.json()["serving"],
        ready.status_code == 200,
        sampled['wsm_serving{group="vllm"}'] == 1,
        sampled.get('wsm_finding_info{finding="serving",group="vllm"}') == 1,
    }
    assert len(each) == 1, (status.json(), explained.json(), ready.json(), sampled)
    assert ready.json()["headline"] == explained.json()["text"]
    return {
        "serving": each.pop(),
        "paused": status.json()["paused"],
        "owners": [name for name in sampled if name.startswith("wsm_hold_info")],
        "text": explained.json()["text"],
    }


async def pause(at):
    assert (await at.http.post("/pause")).status_code == 200


async def sleep(at):
    at.client.paused = True  # as vLLM's own /sleep, which wsm does not answer


async def hold(at):
    assert (await at.http.post("/wsm/v1/hold", json={"surface": "operator"})).status_code == 200


async def push(at):
    assert (await at.http.post("/start_weight_update")).status_code == 200


STOPS = {
    pause: ("/resume", "http:vllm"),
    sleep: ("/wake_up", "http:vllm"),
    hold: ("operator", "http:operator"),
    push: ("loads", None),
}


@pytest.mark.parametrize("stop", STOPS)
def test_where_vllm_answers_no_text_nothing_says_that_it_serves(one, stop):
    words, owner = STOPS[stop]

    async def play(at):
        assert (await said(at))["serving"]
        await stop(at)
        found = await said(at)
        assert (found["serving"], found["paused"]) == (False, True)
        assert words in found["text"]
        assert "Version one" in found["text"]
        assert [owner in name for name in found["owners"]] == ([True] if owner else [])
        if stop is not push:
            await at.http.post("/wsm/v1/release", json={"surface": "operator", "force": True})
            assert (await said(at))["serving"]

    played(one, play, transfers="wsm+nccl")


@pytest.mark.slow
def test_an_engine_that_does_not_say_whether_it_is_paused_keeps_nobody_waiting(one):
    async def play(at):
        assert (await said(at))["serving"]
        asked = 0

        async def silent():
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        at.client.is_paused = silent
        assert (await said(at))["serving"], "as it said last"
        assert asked == 1, "no question is asked behind one that is not answered"

    played(one, play)


def test_a_dead_engine_is_seen_by_whoever_asks_whether_it_serves(one):
    async def play(at):
        async def raises():
            raise RuntimeError("EngineDeadError")

        at.client.is_paused = raises
        found = await said(at)
        assert not found["serving"]
        assert "restart vLLM" in found["text"]

    played(one, play)


def test_a_receipt_under_another_s_pause_does_not_say_that_it_serves(one, two):
    async def play(at):
        await pause(at)
        receipt = (await at.http.post("/wsm/v1/update", json={"path": str(two)})).json()
        assert (receipt["outcome"], receipt["receipt"]["serving"]) == ("committed", False)
        assert not (await said(at))["serving"]

    played(one, play)
