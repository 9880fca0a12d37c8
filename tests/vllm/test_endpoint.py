"""The gate before an app, around workers and an engine that stand in for vLLM's."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.raising import raising
from tests.vllm.fake_workers import FakeEngine, write_checkpoint
from wsm.fleet import Replica, update_async
from wsm.http import AsyncClient
from wsm.shared_directory import private_directory
from wsm.states.fleet import next_target
from wsm.strategies import AdoptSettings, adopt
from wsm.strategies.snapshot.store import content_of
from wsm.strategies.trainer.targets import newest_target, set_target
from wsm.vllm.endpoint import EndpointPlugin
from wsm.vllm.engine import register
from wsm.vllm.fanout import UpdateEnd
from wsm.vllm.updates import Preparation


class FakeClient:
    """vLLM's engine client, as far as the plugin uses it."""

    def __init__(self, model, transfers=None, servers=1):
        self.engine = FakeEngine(model)
        self.paused, self.cleared, self.version = False, True, None
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(model=str(model)),
            parallel_config=SimpleNamespace(world_size=2, _api_process_count=servers, _api_process_rank=0),
            weight_transfer_config=transfers and SimpleNamespace(backend=transfers),
        )

    async def collective_rpc(self, method, args):
        assert method == "wsm_answer"
        return await self.engine.call(*args)

    async def is_paused(self):
        return self.paused

    async def pause_generation(self, *, mode, clear_cache):
        self.paused, self.mode, self.cleared = True, mode, clear_cache

    async def resume_generation(self):
        self.paused = False

    async def update_weight_version(self, version):
        assert self.cleared
        self.version = version


def arguments(**changes):
    usual = {
        "additional_config": {},
        "api_key": None,
        "worker_extension_cls": "wsm.vllm.Worker",
        "data_parallel_size": 1,
    }
    return SimpleNamespace(**{**usual, **changes})


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """Of vLLM itself only the version is asked for."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


def attach(plugin, app):
    """As vLLM does, which builds its app before it starts its engine."""
    plugin.attach_router(app)
    app.middleware_stack = app.build_middleware_stack()


def played(model, play, transfers=None, **changes):
    """Let `play` send requests to an app behind the gate."""

    async def plays():
        plugin, client = EndpointPlugin(), FakeClient(model, transfers)
        app = Starlette(routes=[Route("/v1/completions", _complete, methods=["POST"])])
        attach(plugin, app)
        await plugin.init_state(client, None, arguments(**changes))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://vllm") as http:
            await play(SimpleNamespace(plugin=plugin, client=client, http=http, app=app))

    asyncio.run(plays())


async def _nothing(*_message):
    """The app's life, told and heard."""


async def _complete(_request):
    return JSONResponse({"text": "tokens"})


def test_a_closed_gate_lets_nothing_through_that_asks_for_tokens_or_resumes(one, two):
    async def play(at):
        at.client.engine.workers[1].fails = [1, 1]
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert (answer.status_code, answer.json()["outcome"]) == (500, "closed")
        assert at.client.paused
        answer = await at.http.post("/v1/completions")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await at.http.post("/resume")).status_code == 409
        sent = []

        async def send(message):
            sent.append(message)

        await at.app({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)
        assert sent == [{"type": "websocket.close", "code": 1013}]
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert answer.json()["serves"] == at.client.version == "two"
        assert not at.client.paused
        assert (await at.http.post("/v1/completions")).status_code == 200

    played(one, play)


def played_by_two(model, play, **changes):
    """Let `play` send requests to two API servers of one engine; only the first has a gate of its own."""

    async def plays():
        client, fronts = FakeClient(model, servers=2), []
        for rank in (0, 1):
            plugin, app = (
                EndpointPlugin(),
                Starlette(routes=[Route("/v1/completions", _complete, methods=["POST"])]),
            )
            attach(plugin, app)
            client.vllm_config.parallel_config._api_process_rank = rank
            await plugin.init_state(client, None, arguments(**changes))
            transport = httpx.ASGITransport(app)
            fronts.append(httpx.AsyncClient(transport=transport, base_url=f"http://vllm{rank}"))
        await play(client, *fronts)
        for front in fronts:
            await front.aclose()
        await plugin.first({"type": "lifespan"}, _nothing, _nothing)

    asyncio.run(plays())


def test_several_api_servers_have_one_gate_and_one_set_of_receipts(one, two):
    async def play(client, first, other):
        client.engine.workers[1].fails = [1, 1]
        answer = await other.post("/wsm/v1/update", json={"path": str(two)})
        assert (answer.status_code, answer.json()["outcome"]) == (500, "closed")
        for front in (first, other):
            answer = await front.post("/v1/completions")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert (await front.post("/resume")).status_code == 409
        assert client.paused
        answer = await first.post("/wsm/v1/update", json={"path": str(two)})
        assert answer.json()["serves"] == "two"
        for front in (first, other):
            assert (await front.post("/v1/completions")).status_code == 200
            receipts = (await front.get("/wsm/v1/receipts")).json()["receipts"]
            assert [each["outcome"] for each in receipts] == ["closed", "committed"]

    played_by_two(one, play)


def test_the_first_api_server_removes_what_one_of_another_vllm_has_left(one):
    left = [private_directory() / f"vllm-api-killed{suffix}" for suffix in ("", ".open", ".lock")]
    for path in left:
        path.touch()

    async def play(_client, _first, other):
        assert (await other.post("/v1/completions")).status_code == 200
        assert not any(path.exists() for path in left)

    played_by_two(one, play)


def test_what_one_api_server_prepares_another_commits_and_no_one_updates_meanwhile(one, two):
    async def play(client, first, other):
        body, named = {"path": str(two)}, {"idempotency-key": "step"}
        assert (await other.post("/wsm/v1/prepare", json=body, headers=named)).json()["outcome"] == "prepared"
        for front in (first, other):
            answer = await front.post("/wsm/v1/update", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "update-in-progress")
        decision = {"request_id": "step"}
        receipts = [(await front.post("/wsm/v1/commit", json=decision)).json() for front in (first, other)]
        assert receipts[0]["serves"] == client.version == "two"
        assert receipts[0] == receipts[1]

    played_by_two(one, play)


def test_another_api_server_asks_for_the_key_and_lets_nothing_behind_wsm(one, two):
    async def play(client, first, other):
        del client, first
        assert (await other.post("/wsm/v1/update", json={"path": str(two)})).status_code == 401
        assert (await other.post("/collective_rpc")).status_code == 401
        key = {"authorization": "Bearer key"}
        answer = await other.post("/collective_rpc", headers=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "held-by-wsm")
        assert (await other.post("/v1/completions")).status_code == 200

    played_by_two(one, play, api_key=["key"])


def samples(text):
    """The samples of a scrape by name and labels."""
    found = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def test_a_scrape_says_what_serves_and_counts_updates_by_how_they_ended(one, two):
    async def play(at):
        assert (await at.http.post("/wsm/v1/update", json={"path": str(two)})).status_code == 200
        answer = await at.http.get("/wsm/v1/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        said = samples(answer.text)
        assert said['wsm_serving{group="vllm"}'] == said['wsm_version_info{group="vllm",version="two"}'] == 1
        assert said['wsm_finding_info{finding="serving",group="vllm"}'] == 1
        assert said['wsm_pause_seconds_count{group="vllm",operation="update"}'] == 1
        at.client.engine.workers[1].fails = [1, 1]
        await at.http.post("/wsm/v1/update", json={"path": str(one)})
        answer = await at.http.get("/wsm/v1/metrics")
        said = samples(answer.text)
        assert said['wsm_serving{group="vllm"}'] == 0
        assert said['wsm_hold_closed{group="vllm"}'] == 1
        counts = {
            outcome: said[f'wsm_command_seconds_count{{group="vllm",operation="update",outcome="{outcome}"}}']
            for outcome in ("committed", "closed")
        }
        assert counts == {"committed": 1, "closed": 1}
        assert said['wsm_command_errors_total{error="RuntimeError",group="vllm",operation="update"}'] == 1

    played(one, play)


async def events_of(at):
    """What a listener is told from the oldest on, until a command is over."""
    told, heard = [], asyncio.Event()

    async def send(message):
        told.append(message.get("body", b"").decode())
        heard.set()

    async def receive():
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/wsm/v1/events", "query_string": b"from=oldest"}
    listening = asyncio.ensure_future(at.app({**scope, "headers": []}, receive, send))
    while "command_over" not in "".join(told):
        await heard.wait()
        heard.clear()
    listening.cancel()
    return [each for each in told if each.startswith("event: ")]


def test_events_tell_of_each_update_that_begins_and_how_it_ends(one, two):
    async def play(at):
        receipt = (await at.http.post("/wsm/v1/update", json={"path": str(two)})).json()["receipt"]
        events = await events_of(at)
        assert [each.splitlines()[0] for each in events] == ["event: command_issued", "event: command_over"]
        for each in events:
            entry = json.loads(each.splitlines()[1].removeprefix("data: "))
            assert (entry["epoch"], entry["sequence"]) == (receipt["epoch"], receipt["sequence"])

    played(one, play)


def test_what_there_is_is_listed_and_answers_another_method_with_those_that_it_takes(one):
    async def play(at):
        paths = (await at.http.get("/wsm/v1/openapi.json")).json()["paths"]
        assert {"/wsm/v1/update", "/wsm/v1/commands/{request_id}", "/areal_update_weights"} <= {*paths}
        for path, methods in paths.items():
            [method] = methods
            if not path.startswith("/wsm/v1/"):
                continue
            other = "GET" if method == "post" else "DELETE"
            answer = await at.http.request(other, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, method.upper())
            assert answer.json()["error"]["code"] == "method-not-allowed"
        answer = await at.http.get("/wsm/v1/nothing")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not-found")

    played(one, play)


def test_what_an_error_knows_is_told_as_values_and_never_as_their_text(one, tmp_path):
    lacking = write_checkpoint(tmp_path / "lacking", 2.0, {"embed.weight": (8, 4), "more": (2,)})
    shard = write_checkpoint(tmp_path / "shard", 2.0)
    (shard / "model.safetensors").rename(shard / "model-00001-of-00002.safetensors")

    async def play(at):
        async def error_of(path):
            answer = await at.http.post("/wsm/v1/update", json={"path": str(path)})
            return answer.json()["error"]

        error = await error_of(lacking)
        assert sorted(error["missing"]) == ["layer.0.weight", "layer.1.weight", "norm.weight"]
        assert error["unknown"] == ["more"]
        assert error["rank"] in (0, 1)
        assert (await error_of(shard))["retryable"] is True
        assert (await error_of(tmp_path.parent))["roots"] == [str(tmp_path)]

    played(one, play)


def test_what_is_refused_is_explained_until_another_update_has_succeeded(one, two, tmp_path):
    async def play(at):
        await at.http.post("/wsm/v1/update", json={"path": str(tmp_path / "nowhere")})
        told = (await at.http.get("/wsm/v1/explain")).json()
        assert told["open"]
        assert "The last update, to nowhere, was refused: there is nothing at" in told["text"]
        assert (await at.http.post("/wsm/v1/update", json={"path": str(two)})).status_code == 200
        assert "refused" not in (await at.http.get("/wsm/v1/explain")).json()["text"]

    played(one, play)


def test_the_key_is_asked_for_from_the_environment_too(one, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "key")

    async def play(at):
        assert (await at.http.get("/wsm/v1/status")).status_code == 401
        told = await at.http.get("/wsm/v1/status", headers={"Authorization": "Bearer key"})
        assert told.json()["version"] == "one"
        assert (await at.http.post("/v1/completions")).status_code == 200  # vLLM guards its own

    played(one, play)


def test_a_snapshot_in_a_cache_of_hugging_face_can_be_loaded_again(tmp_path):
    written = write_checkpoint(tmp_path / "models--x" / "blobs", 1.0) / "model.safetensors"
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(written)

    async def play(at):
        assert (await at.http.get("/wsm/v1/status")).json()["restorable"]

    played(snapshot, play, additional_config={"wsm": {"version": "step-0"}})


def test_what_vllm_was_started_with_may_be_no_directory_and_then_it_cannot_be_loaded_again(tmp_path, two):
    async def play(at):
        status = (await at.http.get("/wsm/v1/status")).json()
        assert (status["open"], status["restorable"], status["version"]) == (True, False, "name")
        at.client.engine.workers[0].fails = [1]
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert answer.json()["outcome"] == "closed"
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert answer.json()["outcome"] == "committed"

    roots = {"wsm": {"roots": [str(tmp_path)]}}
    played(tmp_path / "owner" / "name", play, additional_config=roots)


def prepared(where, **more):
    """What asks for a version under a request id."""
    return {"json": {"path": str(where), **more}, "headers": {"Idempotency-Key": where.name}}


def test_what_is_prepared_is_held_while_vllm_serves_until_its_caller_commits_it(one, two):
    async def play(at):
        for _ in range(2):
            answer = await at.http.post("/wsm/v1/prepare", **prepared(two, lease_s=60))
            assert (answer.status_code, answer.json()["outcome"]) == (200, "prepared")
        assert at.client.engine.fills == [1.0, 1.0]
        assert (await at.http.post("/v1/completions")).status_code == 200
        status = (await at.http.get("/wsm/v1/status")).json()
        assert (status["version"], status["request_id"], status["paused"]) == ("one", "two", False)
        assert 0 < status["decision_left_s"] <= 60
        refused = await at.http.post("/wsm/v1/update", json={"path": str(one)})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["retryable"]) == (409, "update-in-progress", True)
        assert error["context"]["request_id"] == "two"
        assert 0 < error["context"]["left_s"] <= 60
        assert "request two" in error["message"]
        refused = await at.http.post("/wsm/v1/commit", json={"request_id": "another"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not-prepared")
        for _ in range(2):
            answer = await at.http.post("/wsm/v1/commit", json={"request_id": "two"})
            assert (answer.status_code, answer.json()["outcome"]) == (200, "committed")
        assert at.client.engine.fills == [2.0, 2.0]
        assert (at.client.version, at.client.paused) == ("two", False)
        assert (await at.http.get("/wsm/v1/status")).json()["decision_left_s"] is None
        assert len((await at.http.get("/wsm/v1/receipts")).json()["receipts"]) == 2
        assert (await at.http.post("/wsm/v1/update", json={"path": str(one)})).status_code == 200
        answer = await at.http.post("/wsm/v1/commit", json={"request_id": "two"})
        assert answer.json()["outcome"] == "committed", "as it was answered before"

    played(one, play)


@pytest.mark.parametrize("first", ["update", "prepare"])
@pytest.mark.parametrize("then", ["update", "prepare"])
def test_a_request_id_names_one_request_whatever_became_of_it(one, two, tmp_path, first, then):
    key = {"idempotency-key": "step"}

    async def play(at):
        body = {"path": str(two)}
        assert (await at.http.post(f"/wsm/v1/{first}", json=body, headers=key)).status_code == 200
        for other in ({"path": str(one)}, {"path": str(two), "version": "another"}):
            answer = await at.http.post(f"/wsm/v1/{then}", json=other, headers=key)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "request-id-used")
        if first == "prepare":
            assert (await at.http.post("/wsm/v1/commit", json={"request_id": "step"})).status_code == 200
        again = await at.http.post(f"/wsm/v1/{then}", json={**body, "deadline_s": 30}, headers=key)
        assert (again.status_code, again.json()["outcome"]) == (200, "committed")
        assert at.client.engine.fills == [2.0, 2.0]

    played(one, play)


def test_a_request_id_whose_update_was_refused_names_that_update_still(one, two, tmp_path):
    async def play(at):
        key, missing = {"idempotency-key": "step"}, {"path": str(tmp_path / "nowhere")}
        for _ in range(2):
            answer = await at.http.post("/wsm/v1/update", json=missing, headers=key)
            assert (answer.status_code, answer.json()["outcome"]) == (409, "refused")
        answer = await at.http.post("/update_weights", json={"update_info": {"path": str(two)}}, headers=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "request-id-used")

    played(one, play)


@pytest.mark.parametrize("named", [True, False])
def test_what_is_prepared_and_taken_back_was_never_loaded(one, two, named):
    async def play(at):
        digest = (await at.http.get("/wsm/v1/status")).json()["manifest_digest"]
        assert (await at.http.post("/wsm/v1/prepare", **prepared(two))).status_code == 200
        for _ in range(2):
            answer = await at.http.post("/wsm/v1/abort", json={"request_id": "two"} if named else {})
            assert (answer.status_code, answer.json()["outcome"], answer.json()["serves"]) == (
                200,
                "aborted",
                "one",
            )
            receipt = answer.json()
            assert (receipt["version"], receipt["digest"]) == ("two", receipt["votes"][0]["digest"])
            native = receipt["receipt"]
            assert (native["version"], native["manifest_digest"]) == ("one", digest)
        event = json.loads((await events_of(at))[-1].splitlines()[1].removeprefix("data: "))
        assert (event["facts"]["ended"], event["facts"]["outcome"]) == ("aborted", "version one serves")
        refused = await at.http.post("/wsm/v1/commit", json={"request_id": "two"})
        assert refused.json()["error"]["code"] == "decided-otherwise"
        assert at.client.engine.pauses == 0
        assert [worker.reloads for worker in at.client.engine.workers] == [0, 0]
        assert (await at.http.post("/wsm/v1/update", json={"path": str(two)})).status_code == 200

    played(one, play)


def test_what_nobody_commits_in_its_lease_is_taken_back(one, two):
    async def play(at):
        assert (await at.http.post("/wsm/v1/prepare", **prepared(two, lease_s=0.01))).status_code == 200
        for _ in range(1000):
            if not (await at.http.get("/wsm/v1/status")).json()["updating"]:
                break
            await asyncio.sleep(0.01)
        refused = await at.http.post("/wsm/v1/commit", json={"request_id": "two"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "lease-over")
        assert at.client.engine.fills == [1.0, 1.0]
        assert (await at.http.post("/v1/completions")).status_code == 200

    played(one, play)


def test_what_cannot_be_prepared_is_refused_at_once(one, tmp_path):
    async def play(at):
        answer = await at.http.post("/wsm/v1/prepare", **prepared(tmp_path / "nowhere"))
        assert (answer.status_code, answer.json()["outcome"]) == (409, "refused")
        for asked, status in (({"request_id": "nowhere"}, 409), ({}, 400)):
            answer = await at.http.post("/wsm/v1/commit", json=asked)
            assert answer.status_code == status
        answer = await at.http.post("/wsm/v1/commit", json={"request_id": "nowhere"})
        error = answer.json()["error"]
        assert (error["code"], error["context"]["refused"]) == ("not-prepared", "checkpoint-missing")
        assert "was refused" in error["message"]
        refused = await at.http.post("/wsm/v1/abort", json={})
        assert (refused.status_code, refused.json()["outcome"]) == (409, "refused")
        assert (
            await at.http.post("/wsm/v1/prepare", json={"path": str(one), "hot": False})
        ).status_code == 400

    played(one, play)


def test_what_another_pauses_while_a_version_is_prepared_stays_paused_behind_the_commit(one, two):
    async def play(at):
        assert (await at.http.post("/wsm/v1/prepare", **prepared(two))).status_code == 200
        assert (await at.http.post("/pause")).status_code == 200
        assert at.client.paused
        answer = await at.http.post("/wsm/v1/commit", json={"request_id": "two"})
        assert answer.json()["outcome"] == "committed"
        assert at.client.paused

    played(one, play)


def test_a_replica_of_a_fleet_takes_text_for_what_its_target_allows_and_no_update_to_anything_else(
    one, two, tmp_path, monkeypatch
):
    store = tmp_path / "store"
    for where in (one, two):
        adopt(where, AdoptSettings(store, [tmp_path], durable=False), version=where.name)
    monkeypatch.setenv("WSM_FLEET", str(store))

    def allow(label):
        content = content_of(store, label)
        assert set_target(store, next_target(newest_target(store), content, strict=True))

    async def play(at):
        async def is_stale():
            said = (await at.http.get("/wsm/v1/status")).json()
            answer = await at.http.post("/v1/completions")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "fleet-stale")
            assert (await at.http.get("/wsm/v1/ready")).status_code == 503
            assert (said["open"], said["fleet"]["state"], said["fleet"]["admits"]) == (False, "stale", False)
            return True

        async def updated(label, **more):
            return await at.http.post("/wsm/v1/update", json={"version": label, **more})

        async def is_refused(label, **more):
            answer = await updated(label, **more)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (409, "not-the-fleets")
            assert "None" not in error["message"]
            return not at.client.paused

        assert await is_stale(), "nothing is proved without a target"
        assert await is_refused("one", path=str(one))
        allow("two")
        assert await is_refused("one", path=str(one))
        assert await is_refused("two", path=str(one)), "its label alone is the target's"
        assert await is_stale()
        assert (await updated("two")).json()["outcome"] == "committed"
        assert (await at.http.post("/v1/completions")).status_code == 200
        ready = await at.http.get("/wsm/v1/ready")
        assert (ready.status_code, ready.json()["serving"]) == (200, True)
        assert (await at.http.get("/wsm/v1/status")).json()["fleet"]["state"] == "ready"
        allow("one")
        assert await is_stale()

    played(one, play)


def test_what_its_fleet_does_not_allow_any_more_no_api_server_lets_in(one, tmp_path, monkeypatch):
    store = tmp_path / "store"
    for label in ("one", "later"):
        adopt(one, AdoptSettings(store, [tmp_path], durable=False), version=label)
    assert set_target(store, next_target(None, content_of(store, "one")))
    monkeypatch.setenv("WSM_FLEET", str(store))

    async def play(_client, first, other):
        assert (await other.post("/v1/completions")).status_code == 200
        assert set_target(store, next_target(newest_target(store), content_of(store, "later"), strict=True))
        for front in (first, other):
            answer = await front.post("/v1/completions")
            while answer.status_code == 200:
                await asyncio.sleep(0.01)
                answer = await front.post("/v1/completions")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "fleet-stale")

    played_by_two(one, play)


def test_a_fleet_s_caller_prepares_it_and_commits_it_in_its_turn_and_once(one, two, tmp_path):
    store = tmp_path / "store"
    for where in (one, two):
        adopt(where, AdoptSettings(store, [tmp_path], durable=False), version=where.name)

    async def play(at):
        def client(group):
            transport = httpx.ASGITransport(at.app)
            return AsyncClient("http://vllm", transport=transport, group=group)

        async def brought(version, group="vllm"):
            replicas = [Replica("http://vllm", group=group)]
            return await update_async(store, version, replicas, connect=lambda each: client(each.group))

        for version in ("two", "two", "one"):
            report = await brought(version)
            [row] = report.rows
            assert (report.exit_code, row.state.value, row.version) == (0, "ready", version), row
            assert row.digest == content_of(store, version).digest
        assert at.client.mode == "keep"
        receipts = (await at.http.get("/wsm/v1/receipts")).json()["receipts"]
        done = [(each["version"], each["outcome"]) for each in receipts]
        assert done == [(name, outcome) for name in ("two", "one") for outcome in ("prepared", "committed")]
        [request_id] = {each["request_id"] for each in receipts if each["version"] == "one"}
        asked = await client(None).command("update", request_id, version="one", deadline_s=30.0)
        assert asked.manifest_digest == content_of(store, "one").digest
        assert len((await at.http.get("/wsm/v1/receipts")).json()["receipts"]) == 4, "it is done once"
        assert (await client(None).request(request_id))["state"] == "succeeded"
        with raising("request-unknown"):
            await client(None).request("another")
        [row] = (await brought("two", group="another")).rows
        assert row.code == "wrong-group"

    played(one, play, additional_config={"wsm": {"store": str(store)}})


def test_a_replica_that_holds_what_is_allowed_when_it_starts_takes_text_at_once(one, tmp_path, monkeypatch):
    store = tmp_path / "store"
    adopt(one, AdoptSettings(store, [tmp_path], durable=False), version="one")
    assert set_target(store, next_target(None, content_of(store, "one")))
    monkeypatch.setenv("WSM_FLEET", str(store))

    async def play(at):
        assert (await at.http.post("/v1/completions")).status_code == 200

    played(one, play)


def test_what_was_committed_serves_when_vllm_is_started_again(one, two, tmp_path):
    async def updates(at):
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert (answer.json()["serves"], answer.json()["warning"]) == ("two", None)

    async def is_restored(at):
        assert at.client.engine.fills == [2.0, 2.0]
        assert at.client.version == "two"
        assert not at.client.paused
        assert (await at.http.post("/v1/completions")).status_code == 200
        [receipt] = (await at.http.get("/wsm/v1/receipts")).json()["receipts"]
        assert (receipt["request_id"], receipt["outcome"]) == ("start", "committed")
        assert (await at.http.post("/wsm/v1/update", json={"path": str(one)})).status_code == 200

    async def is_as_started(at):
        assert at.client.engine.fills == [1.0, 1.0]
        assert (await at.http.get("/wsm/v1/receipts")).json()["receipts"] == []

    async def is_moved(at):
        moved = two.rename(tmp_path / "moved")
        answer = await at.http.post("/wsm/v1/update", json={"path": str(moved), "version": "two"})
        assert (answer.json()["serves"], answer.json()["warning"]) == ("two", None)

    told = {"wsm": {"committed": str(tmp_path / "committed.json")}}
    for play in (updates, is_restored, is_as_started, updates, is_moved, is_restored):
        played(one, play, additional_config=told)


def test_where_what_was_committed_is_gone_nothing_is_served_until_an_update_succeeds(one, two, tmp_path):
    async def updates(at):
        assert (await at.http.post("/wsm/v1/update", json={"path": str(two)})).status_code == 200

    async def is_closed(at):
        assert at.client.engine.fills == [1.0, 1.0]
        answer = await at.http.post("/v1/completions")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await at.http.get("/wsm/v1/ready")).status_code == 503
        assert (await at.http.post("/resume")).status_code == 409
        said = (await at.http.get("/wsm/v1/explain")).json()
        assert "Version two was committed before this start, and is not brought" in said["text"]
        assert str(two) in said["text"]
        status = (await at.http.get("/wsm/v1/status")).json()
        assert (status["open"], status["version"], status["manifest_digest"]) == (False, None, None)
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert answer.json()["outcome"] == "closed"
        answer = await at.http.post("/wsm/v1/update", json={"path": str(one)})
        assert (answer.status_code, answer.json()["serves"]) == (200, "one")
        assert (await at.http.post("/v1/completions")).status_code == 200

    told = {"wsm": {"committed": str(tmp_path / "committed.json")}}
    played(one, updates, additional_config=told)
    shutil.rmtree(two)
    played(one, is_closed, additional_config=told)


@pytest.mark.parametrize("said", ["{", "{}", '{"versoin": "two"}'])
def test_a_file_that_does_not_say_what_was_committed_ends_the_start(one, tmp_path, said):
    file = tmp_path / "committed.json"
    file.write_text(said)
    with raising("bad-record", match=str(file)):
        played(one, None, additional_config={"wsm": {"committed": str(file)}})


def test_a_version_that_could_not_be_recorded_serves_and_its_receipt_warns(one, two, tmp_path):
    async def play(at):
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert answer.json()["serves"] == "two"
        assert "a restart brings another version" in answer.json()["warning"]

    played(one, play, additional_config={"wsm": {"committed": str(tmp_path / "nowhere" / "file")}})


def test_a_replica_of_a_fleet_brings_what_its_target_allows_before_it_listens(
    one, two, tmp_path, monkeypatch
):
    store = tmp_path / "store"
    adopt(two, AdoptSettings(store, [tmp_path], durable=False), version="two")
    assert set_target(store, next_target(None, content_of(store, "two")))
    monkeypatch.setenv("WSM_FLEET", str(store))

    async def play(at):
        assert at.client.engine.fills == [2.0, 2.0]
        assert (await at.http.post("/v1/completions")).status_code == 200
        assert (await at.http.get("/wsm/v1/status")).json()["fleet"]["state"] == "ready"

    played(one, play)


@pytest.mark.parametrize("deadline_s", [0, -1])
def test_an_update_without_time_is_refused_as_its_body(one, two, deadline_s):
    async def play(at):
        answer = await at.http.post("/wsm/v1/update", json={"path": str(two), "deadline_s": deadline_s})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad-body")

    played(one, play)


def test_what_fails_stands_in_vllm_s_log(one, tmp_path, caplog):
    async def play(at):
        await at.http.post("/wsm/v1/update", json={"path": str(tmp_path / "nowhere")})
        [said] = [each.getMessage() for each in caplog.records if each.name == "vllm.wsm"]
        assert "outcome=refused serves=one" in said
        assert "code=checkpoint-missing" in said

    played(one, play)


UNKNOWN = {
    "--worker-extension-cls": {"worker_extension_cls": ""},
    "--data-parallel-size": {"data_parallel_size": 2},
    "--grpc": {"grpc": True},
}


@pytest.mark.parametrize("flag", UNKNOWN)
def test_a_command_line_that_wsm_cannot_keep_whole_is_refused_by_name(one, flag):
    with raising("unsupported-vllm", match=flag):
        played(one, None, **UNKNOWN[flag])


def test_an_option_that_wsm_does_not_know_is_named_beside_those_that_it_knows(one):
    with raising("bad-vllm-option", match="rootz.* it takes answer_s, committed"):
        played(one, None, additional_config={"wsm": {"rootz": []}})


EXTENSION = "--worker-extension-cls wsm.vllm.Worker"
WORDS = {
    "model": ("unsupported-vllm", "--worker-extension-cls"),
    f"model {EXTENSION} --grpc": ("unsupported-vllm", "--grpc"),
    f"model {EXTENSION} -dp 2": ("unsupported-vllm", "--data-parallel-size"),
    f'model {EXTENSION} --additional_config={{"wsm":{{"rootz":1}}}}': ("bad-vllm-option", "rootz"),
    f'model {EXTENSION} --additional-config {{"wsm":{{"answer_s":"x"}}}}': ("bad-vllm-option", "answer_s"),
}
GOOD = [f"model {EXTENSION}", "model --config file", "--help", f"model {EXTENSION} --additional-config {{"]


def registered(words, monkeypatch, plugins="wsm"):
    factory = SimpleNamespace(WeightTransferEngineFactory=SimpleNamespace(_registry={"nccl": "load"}))
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer", factory)
    monkeypatch.setenv("VLLM_PLUGINS", plugins)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", *words.split()])
    register()
    assert factory.WeightTransferEngineFactory._registry["wsm+nccl"] == "load"


@pytest.mark.parametrize("words", WORDS)
def test_words_that_wsm_cannot_keep_end_the_start_as_soon_as_plugins_are_loaded(words, monkeypatch):
    code, named = WORDS[words]
    with raising(code, match=named):
        registered(words, monkeypatch)


@pytest.mark.parametrize("words", GOOD)
def test_words_that_say_enough_or_that_vllm_refuses_itself_are_left_to_it(words, monkeypatch):
    registered(words, monkeypatch)


def test_where_wsm_serves_nothing_its_words_are_not_asked_for(monkeypatch):
    registered("model", monkeypatch, plugins="another")


def test_another_release_of_vllm_is_refused_by_name(one, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.30.2"))
    with raising("unsupported-vllm", match=r"vLLM is 0\.30\.2, and wsm knows 0\.31\.\*, 0\.32\.\*"):
        played(one, None)


def test_a_commit_behind_the_lease_is_told_so_while_the_ranks_still_drop_what_was_staged():
    async def play():
        prepared = Preparation("one", lease_s=0.0)
        assert not await prepared.await_commit(UpdateEnd())
        with raising("lease-over"):
            await prepared.decide(commit=True)

    asyncio.run(play())
