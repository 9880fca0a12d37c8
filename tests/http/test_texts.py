"""Text over HTTP from a real group of two ranks, while it is held, updated and asked to end requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "strategies" / "shared"))

from written_checkpoint import write_checkpoint

from examples.rollout import command as rollout
from examples.rollout.config import rollout_config_from_mapping
from examples.rollout.model.sharding import full_specs, initial_state, placed
from examples.rollout.supervisor import RolloutSupervisor
from examples.rollout.text_requests import EngineRequests
from examples.rollout.text_routes import with_text
from tests.leftovers import group_name
from wsm.http import Commands, InHold, Origin, create_app
from wsm.http._serving import Listening
from wsm.http.surfaces import SURFACES, SurfaceOptions, adopting
from wsm.states.vocabulary import ALL_TAGS, InFlightPolicy
from wsm.strategies import AdoptSettings

pytestmark = [pytest.mark.paddle, pytest.mark.processes, pytest.mark.slow]

MODEL = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 2048}


class Texts:
    """A group of the reference engine and the app before it."""

    def __init__(self, supervisor: RolloutSupervisor, config: Any, receipts: Path) -> None:
        self.supervisor = supervisor
        self.config = config
        self.controller = supervisor.controller
        self.commands = Commands(config.group.name, receipts=receipts)
        self.requests = EngineRequests(config.group.name)

    def play(
        self,
        scene: Callable[[httpx.AsyncClient], Awaitable[Any]],
        in_hold: InHold = InHold.WAIT,
        surface: str = "sglang",
        **options: Any,
    ) -> Any:
        """Play a scene in one event loop."""

        async def played() -> Any:
            said = SurfaceOptions(requests=self.requests, **options)
            verbs = replace(SURFACES[surface](said), in_hold=in_hold)
            app = create_app(self.commands, surfaces=with_text([verbs], self.requests))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                try:
                    return await asyncio.wait_for(scene(client), 60)
                finally:
                    self.requests.close()

        return asyncio.run(played())

    async def counted(self, wanted: Callable[[int, int], bool]) -> None:
        """Wait until so many requests run and wait."""
        while not wanted(*await self.requests.count()):  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Texts]:
    group = {"name": group_name("texts"), "ranks": 2}
    config = rollout_config_from_mapping({"group": group, "model": MODEL})
    with RolloutSupervisor(config) as supervisor:
        made = Texts(supervisor, config, tmp_path_factory.mktemp("kept") / "http.sqlite")
        yield made
        made.commands.close()


def asked(count: int, **more: Any) -> dict[str, Any]:
    """A request of SGLang's for so many tokens."""
    parameters = {"max_new_tokens": count, "temperature": 0.7, "sampling_seed": 3}
    return {"input_ids": [1, 2, 3], "sampling_params": parameters, "return_logprob": True, **more}


def test_both_routes_say_the_same_tokens_with_log_probabilities_and_versions(texts: Texts) -> None:
    completion = {"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0.7, "seed": 3, "logprobs": 0}

    async def scene(client: httpx.AsyncClient) -> tuple[Any, ...]:
        told = await asyncio.gather(
            client.post("/generate", json=asked(8, rid="own-name")),
            client.post("/v1/completions", json=completion),
            client.post("/generate", json=asked(8, stream=True)),
            client.post("/v1/completions", json={**completion, "stream": True}),
            client.post("/generate", json=asked(2, input_ids=[[1], [2]])),
            client.post("/generate", json=asked(8, input_ids=[1, 99])),
        )
        assert [each.status_code for each in told] == [200] * 5 + [400]
        assert told[-1].json()["error"]["code"] == "bad-request"
        return told

    generated, completed, stream, parts, batch, _ = texts.play(scene)
    meta, choice = generated.json()["meta_info"], completed.json()["choices"][0]
    tokens = [token for _, token, _ in meta["output_token_logprobs"]]
    assert len(tokens) == 8
    assert tokens == generated.json()["output_ids"] == choice["token_ids"]
    logprobs = [logprob for logprob, *_ in meta["output_token_logprobs"]]
    assert logprobs == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-5)  # another batch
    assert meta["token_versions"] == choice["token_versions"] == ["1"] * 8
    assert (meta["id"], meta["weight_version"], choice["weight_version"]) == ("own-name", "1", "1")
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert completed.json()["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert len(batch.json()) == 2
    *events, end = [line.removeprefix("data: ") for line in stream.text.split("\n\n") if line]
    assert end == "[DONE]"
    assert json.loads(events[-1])["output_ids"] == tokens
    assert len(json.loads(events[-1])["meta_info"]["output_token_logprobs"]) == 8
    *events, end = [line.removeprefix("data: ") for line in parts.text.split("\n\n") if line]
    choices = [json.loads(event)["choices"][0] for event in events]
    assert [token for each in choices for token in each["token_ids"]] == tokens
    assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + ["length"]


def test_a_request_in_a_hold_waits_or_fails_as_its_surface_says_and_is_ended_by_its_name(
    texts: Texts,
) -> None:
    origin = Origin("sglang")

    async def waits(client: httpx.AsyncClient) -> None:
        running = asyncio.create_task(client.post("/generate", json=asked(1500, rid="running")))
        await texts.counted(lambda running, _: running == 1)
        await texts.commands.hold(origin, in_flight=InFlightPolicy.KEEP)
        waiting = [asyncio.create_task(client.post("/generate", json=asked(4, rid=name))) for name in "ab"]
        await texts.counted(lambda _, waiting: waiting >= 2)
        for name in ("a", "running"):
            assert (await client.post("/abort_request", json={"rid": name})).status_code == 200
        ended, cut = (await waiting[0]).json(), (await running).json()
        assert (
            ended["meta_info"]["finish_reason"]["type"]
            == cut["meta_info"]["finish_reason"]["type"]
            == "abort"
        )
        assert ended["meta_info"]["output_token_logprobs"] == []
        assert ended["meta_info"]["weight_version"] == "1"
        assert 0 < len(cut["meta_info"]["output_token_logprobs"]) < 1500
        assert not waiting[1].done()
        await texts.commands.release(origin)
        assert len((await waiting[1]).json()["output_ids"]) == 4
        assert await texts.requests.abort(None) == []

    async def fails(client: httpx.AsyncClient) -> None:
        await texts.commands.hold(origin)
        answers = [
            await client.post("/generate", json=asked(4)),
            await client.post("/generate", json=asked(4, stream=True)),
        ]
        await texts.commands.release(origin)
        assert answers[0].status_code == 503
        assert "admission-closed" in answers[1].text

    texts.play(waits)
    texts.play(fails, InHold.FAIL)


def test_a_caller_that_leaves_takes_its_request_back(texts: Texts) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        for body in (asked(1900), asked(1900, stream=True)):
            leaving = asyncio.create_task(client.post("/generate", json=body))
            await texts.counted(lambda running, _: running == 1)
            leaving.cancel()
            await texts.counted(lambda running, waiting: running == waiting == 0)

    texts.play(scene)


def test_a_trainers_directory_is_adopted_deleted_and_served_and_requests_are_cut_short_for_it(
    texts: Texts, tmp_path: Path
) -> None:
    shape = texts.config.engine.shape
    full, specs = initial_state(shape, 7), full_specs(shape)
    state = {name: (spec, np.ascontiguousarray(full[name]).tobytes()) for name, spec in specs.items()}
    settings = AdoptSettings(texts.config.group.snapshot.directory, [tmp_path], ranks=2, placements=placed)

    async def scene(client: httpx.AsyncClient) -> None:
        # The first version of any trainer: the group's own first weights are called so, too.
        for step, label in (("1", "1.reused-"), ("2", "2")):
            running = asyncio.create_task(client.post("/generate", json=asked(1900)))
            await texts.counted(lambda running, _: running == 1)
            before = {"1": None, "2": "1"}[step], (await texts.commands.status()).version
            written = write_checkpoint(tmp_path / f"weight_v{step:>06}", state)
            load = {"model_path": str(written), "weight_version": step, "abort_all_requests": True}
            loaded = await client.post("/update_weights_from_disk", json=load)
            shutil.rmtree(written)
            assert loaded.json()["success"]
            assert loaded.json()["wsm"]["version"].startswith(label)
            cut = (await running).json()["meta_info"]
            assert (cut["finish_reason"]["type"], set(cut["token_versions"])) == ("abort", {before[0]})
            assert (cut["weight_version"], cut["wsm_version"]) == before, "which 1 it is, its trainer sees"
            own = {"weight_version": step, "wsm_version": loaded.json()["wsm"]["version"]}
            for path in ("/get_weight_version", "/model_info", "/server_info"):
                told = (await client.get(path)).json()
                assert {name: told[name] for name in own} == own, path
            named = await client.post("/update_weight_version", json={"new_version": step})
            assert named.status_code == 200
            after = (await client.post("/generate", json=asked(8))).json()["meta_info"]
            assert {name: after[name] for name in own} == own
            assert after["token_versions"] == [step] * 8
            choice = (await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 2})).json()
            assert {name: choice["choices"][0][name] for name in own} == own

        # What was pulled is loaded though its trainer deleted it; two that count from 1 come one by one.
        others = {}
        for seed in (8, 9, 10):
            full = initial_state(shape, seed)
            other = {name: (spec, np.ascontiguousarray(full[name]).tobytes()) for name, spec in specs.items()}
            others[seed] = write_checkpoint(tmp_path / str(seed) / "weight_v000001", other)
        local = str(tmp_path / "local")
        pulled = {"source_dir": str(tmp_path / "8"), "target_version": 1, "local_checkpoint_dir": local}
        assert (await client.post("/pull_weights", json=pulled)).json()["success"]
        shutil.rmtree(others[8])
        named = {"model_path": local, "weight_version": "1"}
        assert (await client.post("/update_weights_from_disk", json=named)).json()["success"]
        loads = [{"model_path": str(others[seed]), "weight_version": "1"} for seed in (9, 10)]
        both = await asyncio.gather(*(client.post("/update_weights_from_disk", json=each) for each in loads))
        assert {each.status_code for each in both} == {200}, [each.text for each in both]
        brought = {each.json()["wsm"]["version"] for each in both}
        assert len(brought) == 2
        assert (await texts.commands.status()).version in brought

    texts.play(scene, adopt=adopting(settings))


def test_rounds_of_fastdeploys_clear_and_update_end_with_text_each(texts: Texts) -> None:
    """FastDeploy's own endurance test; it looks at a GPU's memory, this one at what the ranks hold."""
    completion = {"prompt": [1, 2, 3], "max_tokens": 8}

    async def scene(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            assert (await client.get("/clear_load_weight")).status_code == 200
            ranks = (await texts.commands.status()).ranks
            assert {frozenset(rank.resident.missing) for rank in ranks} == {ALL_TAGS}
            assert (await client.get("/health")).status_code == 304
            assert (await client.post("/v1/completions", json=completion)).status_code == 503
            assert (await client.get("/update_model_weight")).status_code == 200
            assert (await client.get("/health")).status_code == 200
            told = await asyncio.gather(*(client.post("/v1/completions", json=completion) for _ in range(4)))
            assert [len(each.json()["choices"][0]["token_ids"]) for each in told] == [8] * 4

    texts.play(scene, InHold.FAIL, surface="fastdeploy")


def test_requests_outlive_the_rank_that_had_taken_them(texts: Texts) -> None:
    """Nothing was told of them yet, so they are asked again once the rank is replaced."""

    async def scene(client: httpx.AsyncClient) -> None:
        running = asyncio.create_task(client.post("/generate", json=asked(1900)))
        others = [asyncio.create_task(client.post("/generate", json=asked(4))) for _ in range(20)]
        await texts.counted(lambda running, _: running > 0)
        os.kill(texts.supervisor.pids()[0], signal.SIGKILL)
        answers = await asyncio.gather(running, *others)
        assert {answer.status_code for answer in answers} == {200}
        assert [len(answer.json()["output_ids"]) for answer in answers] == [1900, *[4] * 20]

    texts.play(scene)


def test_no_more_requests_wait_in_a_hold_than_the_group_takes_behind_it(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = {"name": texts.config.group.name, "ranks": 2}
    config = rollout_config_from_mapping({"group": group, "model": MODEL, "engine": {"max_waiting": 2}})
    requests = EngineRequests(config.group.name)
    surfaces = with_text([SURFACES["sglang"](SurfaceOptions(requests=requests))], requests)
    told: list[str] = []
    monkeypatch.setattr(rollout, "tell", told.append)
    texts.controller.hold(owner="o")
    try:
        with (
            rollout._served(SimpleNamespace(config=config), Listening(), surfaces),
            ThreadPoolExecutor(6) as pool,
        ):
            url = f"{told[0].rpartition(' ')[2]}/generate"
            asking = [pool.submit(httpx.post, url, json=asked(2), timeout=60) for _ in range(6)]
            refused = list(itertools.islice(as_completed(asking), 4))
            assert {each.result().status_code for each in refused} == {503}, "at once, and not behind it"
            texts.controller.release(owner="o")
            assert [each.result().status_code for each in asking if each not in refused] == [200, 200]
    finally:
        texts.controller.release(force=True)
