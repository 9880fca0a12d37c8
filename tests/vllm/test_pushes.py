"""Weights that a trainer pushes, by vLLM's own verbs; workers and an engine stand in for vLLM's."""

from __future__ import annotations

import asyncio

import pytest

from tests.vllm.fake_workers import SHAPES, write_checkpoint
from tests.vllm.test_endpoint import played, vllm  # noqa: F401 - of each test here, too

NAMES = sorted(SHAPES)
INIT, START, UPDATE, FINISH = (
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
)
PUSHES = {"transfers": "wsm+fake"}


def sent(fill, names=NAMES):
    return {"update_info": {"fill": fill, "names": list(names)}}


async def pushed(at, fill, version=None, chunks=(NAMES[:2], NAMES[2:])):
    """Push a version as vLLM's own clients do; return the last answer, or the first of a failure."""
    verbs = [(START, None), *((UPDATE, sent(fill, names)) for names in chunks)]
    for path, body in [*verbs, (FINISH, {"weight_version": version})]:
        answer = await at.http.post(path, json=body)
        if answer.status_code != 200:
            break
    return answer


def fails(at, rank, where):
    at.client.engine.workers[rank].transfer_fails = [where]


async def is_open(at):
    return (await at.http.post("/v1/completions")).status_code == 200


def test_a_pushed_version_serves_with_the_digest_that_its_files_would_have(one, two):
    async def play(at):
        answer = await at.http.post(INIT, json={"init_info": {"port": 1}})
        assert (answer.status_code, at.client.engine.workers[1].peer) == (200, {"port": 1})
        answer = await pushed(at, 2.0, "two")
        receipt = answer.json()["wsm"]
        assert answer.json()["message"] == "Weight update finished"
        assert (receipt["outcome"], receipt["serves"]) == ("committed", "two")
        assert receipt["proof"].startswith("pushed, witnessed")
        assert [(vote["rank"], vote["tensors"]) for vote in receipt["votes"]] == [(0, 4), (1, 4)]
        assert at.client.engine.fills == [2.0, 2.0]
        assert (at.client.version, at.client.paused) == ("two", False)
        assert await is_open(at)
        assert (await at.http.get("/weight_info")).json() == {"weight_version": "two"}
        again = await at.http.post("/wsm/v1/update", json={"path": str(two)})
        assert again.json()["digest"] == receipt["digest"]
        told = (await at.http.get("/wsm/v1/receipts")).json()["receipts"]
        assert [each["receipt"]["sequence"] for each in told] == [1, 2]

    played(one, play, **PUSHES)


def test_a_push_without_a_name_gets_one_of_its_own(one):
    async def play(at):
        names = {(await pushed(at, fill)).json()["wsm"]["serves"] for fill in (2.0, 3.0)}
        assert len(names) == 2
        assert all(name.startswith("unnamed-") for name in names)

    played(one, play, **PUSHES)


@pytest.mark.slow_but
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("where", ["start", NAMES[0], NAMES[2], "finish"])
def test_a_push_that_fails_anywhere_on_one_rank_ends_with_the_version_before(one, rank, where):
    async def play(at):
        fails(at, rank, where)
        answer = await pushed(at, 2.0, "two")
        assert (answer.status_code, answer.json()["outcome"]) == (409, "rolled-back")
        assert [(each["rank"], each["code"]) for each in answer.json()["errors"]] == [(rank, "RuntimeError")]
        assert at.client.engine.fills == [1.0, 1.0]
        assert await is_open(at)
        assert (await at.http.post(UPDATE, json=sent(2.0))).json()["error"]["code"] == "no-push"
        assert (await at.http.post(FINISH)).json()["error"]["code"] == "no-push"
        assert (await pushed(at, 2.0, "two")).json()["wsm"]["serves"] == "two"

    played(one, play, **PUSHES)


def test_a_trainer_that_cannot_be_reached_is_said_and_nothing_changes(one):
    async def play(at):
        fails(at, 0, "init")
        answer = await at.http.post(INIT, json={"init_info": {}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "RuntimeError")
        assert "rank 0" in answer.json()["error"]["message"]
        assert await is_open(at)
        assert (await at.http.post(INIT, json={"init_info": {}})).status_code == 200

    played(one, play, **PUSHES)


def test_a_push_is_no_whole_version_before_all_tensors_have_come_alike_on_all_ranks(one):
    async def play(at):
        answer = await pushed(at, 2.0, "two", chunks=[NAMES[1:]])
        assert {each["code"] for each in answer.json()["errors"]} == {"half-pushed"}
        assert answer.json()["errors"][0]["tensor"] == NAMES[0]
        assert at.client.engine.fills == [1.0, 1.0]
        at.client.engine.workers[1].differs = 0.5
        answer = await pushed(at, 2.0, "two")
        assert (answer.status_code, answer.json()["outcome"]) == (409, "rolled-back")
        assert {each["code"] for each in answer.json()["errors"]} == {"votes-differ"}
        assert at.client.engine.fills == [1.0, 1.0]
        assert await is_open(at)

    played(one, play, **PUSHES)


def test_a_trainer_that_counts_anew_goes_on_and_its_other_content_has_labels_of_its_own(one):
    async def play(at):
        served, names = [], ["1", "2", "1", "2", "1", "1", "one"]
        for fill, version in zip((2.0, 3.0, 4.0, 5.0, 4.0, 2.0, 6.0), names, strict=True):
            receipt = (await pushed(at, fill, version)).json()["wsm"]
            assert at.client.engine.fills == [fill, fill]
            said = {receipt["version"], at.client.version, receipt["votes"][1]["version"]}
            assert said == {receipt["serves"]}
            relabelled = await at.http.post("/update_weight_version", json={"new_version": version})
            assert relabelled.status_code == 200
            served.append(receipt["serves"])
        assert served[:2] == ["1", "2"]
        assert [name.partition(".reused-")[0] for name in served] == names
        assert served[4] == served[2]
        assert served[5] == "1"
        assert len(set(served)) == 5, "a label means one content"
        assert await is_open(at)

    played(one, play, **PUSHES)


def test_a_trainer_that_does_not_finish_leaves_the_version_before(one):
    async def play(at):
        for path, body in ((START, None), (UPDATE, sent(2.0))):
            assert (await at.http.post(path, json=body)).status_code == 200
        assert at.client.paused
        for path in (START, "/resume", "/wsm/v1/update", INIT):
            answer = await at.http.post(path, json={"path": str(one)} if "wsm" in path else {})
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "update-in-progress")
        while not at.plugin.updates.journal.receipts:  # noqa: ASYNC110 - the deadline ends it
            await asyncio.sleep(0.01)
        [receipt] = at.plugin.updates.journal.receipts
        assert (receipt["outcome"], receipt["errors"][0]["code"]) == ("rolled-back", "deadline")
        assert at.client.engine.fills == [1.0, 1.0]
        assert await is_open(at)
        assert not at.client.paused

    played(one, play, additional_config={"wsm": {"push_s": 0.3}}, **PUSHES)


def test_where_what_was_pushed_before_cannot_come_back_only_a_whole_version_opens_the_gate(one):
    async def play(at):
        assert (await pushed(at, 2.0, "two")).status_code == 200
        assert not (await at.http.get("/wsm/v1/status")).json()["restorable"]
        fails(at, 1, NAMES[2])
        answer = await pushed(at, 3.0, "three")
        assert (answer.status_code, answer.json()["outcome"]) == (500, "closed")
        assert (await at.http.post("/v1/completions")).status_code == 503
        assert (await at.http.post("/resume")).status_code == 409
        assert (await pushed(at, 3.0, "three", chunks=[NAMES[1:]])).json()["outcome"] == "closed"
        assert (await pushed(at, 3.0, "three")).json()["wsm"]["serves"] == "three"
        assert at.client.engine.fills == [3.0, 3.0]
        assert await is_open(at)

    played(one, play, **PUSHES)


def test_a_partial_push_changes_a_whole_version_and_opens_no_gate(one):
    async def play(at):
        digests = []
        for fill in (2.0, 2.0, 3.0):
            receipt = (await pushed(at, fill, chunks=[NAMES[1:]])).json()["wsm"]
            assert (receipt["outcome"], receipt["votes"][0]["tensors"]) == ("committed", 3)
            digests.append(receipt["digest"])
        assert len(set(digests)) == 3, "of what was there, too"
        fails(at, 1, NAMES[2])
        assert (await pushed(at, 2.0, chunks=[NAMES[1:]])).json()["outcome"] == "closed"
        answer = await pushed(at, 2.0)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "weights-not-whole")

    played(one, play, additional_config={"wsm": {"partial_pushes": True}}, **PUSHES)


def test_without_one_of_its_engines_nothing_is_pushed(one):
    async def play(at):
        answer = await at.http.post(INIT, json={"init_info": {"master_port": 1}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "push-unverifiable")
        answer = await at.http.post(UPDATE, json=sent(2.0))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "push-unverifiable")
        assert '{"backend": "wsm+nccl"}' in answer.json()["message"]
        assert at.client.engine.fills == [1.0, 1.0]

    played(one, play, transfers="nccl")


def test_a_pause_that_a_trainer_has_given_is_its_own_to_end(one):
    async def play(at):
        assert (await at.http.post("/pause?mode=abort")).json() == {"status": "paused"}
        assert (await pushed(at, 2.0, "two")).status_code == 200
        assert (await at.http.get("/is_paused")).json() == {"is_paused": True}
        assert (await at.http.post("/resume")).json() == {"status": "resumed"}
        assert not at.client.paused

    played(one, play, **PUSHES)


def test_the_verbs_of_prime_rl_and_areal_are_updates_of_directories(one, two):
    async def prime_rl(at, path):
        yield await at.http.post("/pause", params={"mode": "keep", "clear_cache": "false"})
        yield await at.http.post("/update_weights", json={"weight_dir": path})
        yield await at.http.post("/resume")

    async def areal(at, path):
        yield await at.http.post("/areal_pause_generation", json={})
        yield await at.http.post("/areal_update_weights", json={"model_path": path})
        yield await at.http.post("/areal_continue_generation", json={})

    async def own(at, path):
        yield await at.http.post("/pause?mode=wait")
        yield await at.http.post("/init_weight_transfer_engine", json={"init_info": {}})
        yield await at.http.post("/start_weight_update")
        yield await at.http.post("/update_weights", json={"update_info": {"path": path}})
        yield await at.http.post("/finish_weight_update", json={"weight_version": path.rpartition("/")[2]})
        yield await at.http.post("/resume")

    async def play(at):
        assert (await at.http.get("/liveness")).json() == {"status": "ok"}
        for steps in (prime_rl, areal, own):
            for where, fill in ((two, 2.0), (one, 1.0)):
                async for answer in steps(at, str(where)):
                    assert answer.status_code == 200, answer.text
                assert at.client.engine.fills == [fill, fill]
                assert (at.client.version, at.client.paused) == (where.name, False)
            answer = await at.http.post("/update_weights", json={"weight_dir": str(two / "none")})
            assert (answer.status_code, answer.json()["outcome"]) == (409, "refused")
        answer = await at.http.post("/update_weight_version", json={"new_version": "two"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "label-differs")
        answer = await at.http.post("/update_weight_version", json={"new_version": "one"})
        assert answer.json() == {"success": True, "new_version": "one"}

    played(one, play)


def test_other_content_in_a_directory_of_the_same_name_is_served_under_a_name_of_its_own(one, two):
    async def brought(at, fill):
        write_checkpoint(two, fill)
        for _ in range(2):
            answer = await at.http.post("/areal_update_weights", json={"model_path": str(two)})
            assert answer.status_code == 200, answer.text
            assert at.client.engine.fills == [fill, fill]
        assert (await at.http.post("/update_weight_version", json={"new_version": "two"})).status_code == 200
        return at.client.version

    async def play(at):
        names = [await brought(at, fill) for fill in (2.0, 3.0, 4.0, 3.0, 2.0)]
        assert names[0] == names[4] == "two"
        assert names[1] == names[3] != names[2]
        assert all(name.startswith("two.reused-") for name in names[1:4])
        answer = await at.http.post("/wsm/v1/update", json={"path": str(write_checkpoint(two, 5.0))})
        assert answer.json()["errors"][0]["code"] == "digest-mismatch", "a name means one content"
        assert answer.json()["proof"] is None

    played(one, play)
