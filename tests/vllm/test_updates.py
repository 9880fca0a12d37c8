"""Whole updates over answers: the server's side and two ranks, with workers that stand in for vLLM's."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.raising import raising
from tests.vllm.fake_workers import SHAPES, FakeEngine, FakeWorker, ProcessEngine, place, write_checkpoint
from wsm.errors import GroupError
from wsm.states.words import CommandWord, CommittedWord, Operation
from wsm.strategies import AdoptSettings, TensorSpec, adopt, publish_snapshot
from wsm.strategies.snapshot.placement import split
from wsm.strategies.snapshot.store import content_of
from wsm.vllm.fanout import EngineRanks
from wsm.vllm.versions import VersionPlace


def played(first, play, **memory):
    """Let `play` use an engine that serves `first`."""

    async def plays():
        engine = await FakeEngine(first, **memory).begin()
        await play(engine)

    asyncio.run(plays())
    gc.collect()  # ranks in the middle of an update end with what they have staged


def codes(end):
    return {(error.get("rank"), error["code"]) for error in end.errors}


def kinds(end):
    """The codes alone: a rank that is late in finding the same may be told of the end before."""
    return {error["code"] for error in end.errors}


def test_a_version_serves_once_all_ranks_have_read_it_alike_and_the_engine_is_paused(one, two):
    async def play(engine):
        assert engine.ranks.serving()
        engine.at_pause = lambda: seen.append(engine.fills)
        for where, fill in ((two, 2.0), (one, 1.0)):
            end = await engine.update(place(where))
            assert end.committed
            assert not end.errors
            assert engine.ranks.serving()
            assert engine.ranks.version == where.name
            assert engine.fills == [fill, fill]
            assert len({vote["digest"] for vote in end.votes}) == 1
        assert seen == [[1.0, 1.0], [2.0, 2.0]]
        assert [worker.forgot for worker in engine.workers] == [0, 0], "nothing was half"

    seen = []
    played(one, play)


def test_a_digest_that_differs_on_one_rank_is_refused_and_nothing_is_paused(one, two):
    async def play(engine):
        def lies(answers):
            if answers[1].get("staged"):
                answers[1]["staged"]["digest"] = "0" * 32
            return answers

        engine.answers = lies
        end = await engine.update(place(two))
        assert not end.committed
        assert engine.workers[0].reloads == 0
        assert codes(end) == {(None, "votes-differ")}
        assert engine.pauses == 0
        assert engine.ranks.serving()
        assert engine.fills == [1.0, 1.0]

    played(one, play)


@pytest.mark.slow_but
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("after", [0, 2, 3])
def test_a_reload_that_fails_on_one_rank_ends_with_the_version_before_on_all(one, two, rank, after):
    async def play(engine):
        engine.workers[rank].fails = [after]
        end = await engine.update(place(two))
        assert (end.committed, end.restored) == (False, True)
        assert codes(end) == {(rank, "RuntimeError")}
        assert end.errors[0].get("tensor") == ([*sorted(SHAPES)][after] if end.errors else None)
        assert engine.pauses == 1
        assert engine.ranks.serving()
        assert engine.ranks.version == "one"
        assert engine.fills == [1.0, 1.0]
        assert (await engine.update(place(two))).committed
        assert engine.fills == [2.0, 2.0]

    played(one, play)


def test_where_the_version_before_cannot_be_loaded_either_nothing_serves_until_a_whole_update(one, two):
    async def play(engine):
        engine.workers[1].fails = [2, 2, 2]
        end = await engine.update(place(two))
        assert (end.committed, end.restored) == (False, False)
        assert not engine.ranks.serving()
        await engine.ranks.look()
        assert not engine.ranks.serving()
        end = await engine.update(place(two, "two-again"))  # brings back what is owed first, which fails, too
        assert end.committed
        assert engine.ranks.serving()
        assert engine.fills == [2.0, 2.0]

    played(one, play)


def test_parameters_that_a_reload_leaves_without_memory_fail_it(one, two):
    async def play(engine):
        engine.workers[0].meta = ["layer.1.weight"]
        end = await engine.update(place(two))
        assert kinds(end) == {"not-reloaded"}
        assert end.errors[0]["tensor"] == "layer.1.weight"
        assert not engine.ranks.serving()

    played(one, play)


def test_a_version_that_makes_other_parameters_than_at_its_first_load_is_no_version(one, two):
    async def play(engine):
        first = await engine.update(place(two))
        assert len(set(first.fingerprints)) == 2, "each rank has its own part"
        assert (await engine.update(place(one))).committed
        engine.workers[1].loads_as = 2.5
        end = await engine.update(place(two))
        assert codes(end) == {(1, "other-parameters")}
        assert end.errors[0]["version"] == "two"
        assert not engine.ranks.serving(), "it loads the version before as something else, too"
        engine.workers[1].loads_as = None
        assert (await engine.update(place(two))).fingerprints == first.fingerprints
        assert engine.ranks.serving()

    played(one, play, fingerprints=True)


@pytest.mark.slow_but
@pytest.mark.parametrize("packs", [True, False])
def test_packed_parameters_have_no_fingerprint(one, two, packs):
    async def play(engine):
        for worker in engine.workers:
            worker.packed = packs
        end = await engine.update(place(two))
        assert end.committed
        assert [each is None for each in end.fingerprints] == [packs] * 2

    played(one, play, fingerprints=True)


def test_the_version_before_is_loaded_again_although_its_trainer_has_deleted_it(one, two):
    async def play(engine):
        shutil.rmtree(one)
        engine.workers[0].fails = [1]
        assert (await engine.update(place(two))).restored
        assert engine.fills == [1.0, 1.0]

    played(one, play)


def test_a_version_that_is_written_in_place_once_it_was_read_is_found_as_it_is_loaded(one, two):
    async def play(engine):
        def damage():
            file = two / "model.safetensors"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            with file.open("r+b") as opened:
                opened.write(content)

        engine.at_pause = damage
        end = await engine.update(place(two))
        assert kinds(end) == {"digest-mismatch"}
        assert {error["rank"] for error in end.errors} == {0, 1}
        assert end.restored
        assert engine.fills == [1.0, 1.0]

    played(one, play, memory_bytes=0)


DAMAGES = {
    "missing": ({name: shape for name, shape in SHAPES.items() if name != "norm.weight"}, "norm.weight"),
    "unknown": ({**SHAPES, "other.weight": (2,)}, "other.weight"),
    "shape": ({**SHAPES, "norm.weight": (8,)}, "norm.weight"),
}


@pytest.mark.slow_but
@pytest.mark.parametrize("words", DAMAGES)
def test_a_version_of_other_tensors_is_refused_by_every_rank_before_anything_is_paused(one, tmp_path, words):
    shapes, name = DAMAGES[words]
    other = write_checkpoint(tmp_path / "other", 2.0, shapes)

    async def play(engine):
        end = await engine.update(place(other))
        assert kinds(end) == {"shape-mismatch" if words == "shape" else "not-covered"}
        assert all(words in error["message"] and name in error["message"] for error in end.errors)
        assert words == "shape" or all("vLLM was started with" in error["message"] for error in end.errors)
        assert engine.pauses == 0
        assert engine.ranks.serving()

    played(one, play)


def test_a_version_that_is_missing_incomplete_or_elsewhere_is_refused(one, tmp_path):
    shard = write_checkpoint(tmp_path / "shard", 2.0)
    (shard / "model.safetensors").rename(shard / "model-00001-of-00002.safetensors")
    wanted = {
        "checkpoint-missing": place(tmp_path / "nowhere"),
        "incomplete-checkpoint": place(shard),
        "outside-roots": VersionPlace("one", str(one), [str(shard)]),
        "no-place": VersionPlace("nowhere"),
    }
    file = VersionPlace("file", str(one / "model.safetensors"), [str(tmp_path)])

    async def play(engine):
        for code, where in wanted.items():
            end = await engine.update(where)
            assert kinds(end) == {code}
            assert engine.ranks.serving()
        end = await engine.update(file)
        assert kinds(end) == {"checkpoint-missing"}
        assert all("name the directory" in error["message"] for error in end.errors), "and never: remove it"

    played(one, play)


def test_a_version_means_one_content(one, two, tmp_path):
    async def play(engine):
        end = await engine.update(place(two, "one"))
        assert kinds(end) == {"digest-mismatch"}
        assert engine.workers[0].reloads == 0
        assert (await engine.update(place(two))).committed
        assert (await engine.update(place(one))).committed

    played(one, play)


def test_a_published_version_is_held_against_what_its_publisher_promised(one, tmp_path):
    store = tmp_path / "store"
    tensors = {name: np.full(shape, 3.0, np.float32) for name, shape in SHAPES.items()}
    publish_snapshot(store, "three", {0: tensors}, durable=False)
    publish_snapshot(store, "four", {0: tensors}, durable=False)
    [part] = (store / "versions" / "four").glob("*.pdparams")
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)

    async def play(engine):
        assert (await engine.update(VersionPlace("three", store=str(store)))).committed
        assert engine.fills == [3.0, 3.0]
        end = await engine.update(VersionPlace("four", store=str(store)))
        assert kinds(end) == {"digest-mismatch"}
        assert engine.ranks.version == "three"
        assert engine.pauses == 1

    played(one, play)


def test_a_version_has_one_digest_in_a_store_and_in_the_directory_that_was_adopted(one, two, tmp_path):
    store = tmp_path / "store"
    for where in (one, two):
        adopt(where, AdoptSettings(store, [tmp_path], durable=False), version=where.name)
    digests = {where.name: content_of(store, where.name).digest for where in (one, two)}

    async def play(engine):
        assert engine.ranks.digests == {"one": digests["one"]}
        for where in (VersionPlace("two", store=str(store)), place(one), place(two)):
            votes = (await engine.update(where)).votes
            assert [vote["digest"] for vote in votes] == [digests[where.version]] * 2

    played(one, play)


def test_a_version_that_is_cut_for_ranks_is_refused_by_name(one, tmp_path):
    store = tmp_path / "store"
    cut = TensorSpec("embed.weight", "F32", (4, 4))
    shard = {cut.name: (cut, bytes(cut.nbytes))}
    placed = {cut.name: split((8, 4), 0)}
    publish_snapshot(store, "cut", dict.fromkeys(range(2), shard), placements=placed, durable=False)

    async def play(engine):
        assert kinds(await engine.update(VersionPlace("cut", store=str(store)))) == {"not-whole"}

    played(one, play)


def test_a_deadline_that_passes_while_ranks_read_leaves_the_old_version(one, two):
    async def play(engine):
        end = await engine.update(place(two), deadline_s=-1)
        assert not end.committed
        assert kinds(end) == {"deadline"}
        assert engine.workers[0].reloads == 0
        assert engine.ranks.serving()
        assert engine.pauses == 0

    played(one, play)


def test_answers_of_another_question_are_never_believed_again(one, two):
    async def play(engine):
        async def late(question):
            answers = await FakeEngine.call(engine, question)
            return [answers[0], *behind[-2:-1]] if behind.append(answers[1]) or behind[1:] else answers

        behind = []
        engine.ranks._call = late
        with raising("out-of-step"):
            await engine.update(place(two))
        assert not engine.ranks.serving()
        engine.ranks._call = engine.call
        with raising("out-of-step"):
            await engine.ranks.look()
        assert engine.fills == [1.0, 1.0]

    played(one, play)


def test_an_engine_that_is_dead_serves_nothing(one, two):
    async def play(engine):
        async def dead(_question):
            raise RuntimeError("EngineCore encountered an issue")

        engine.ranks._call = dead
        with raising("engine-lost"):
            await engine.update(place(two))
        assert not engine.ranks.serving()

    played(one, play)


@pytest.mark.slow
def test_ranks_that_do_not_answer_in_time_serve_nothing_until_they_do(one, two):
    async def play(engine):
        answered = asyncio.Event()

        async def slow(question):
            answers = await FakeEngine.call(engine, question)
            if question.get("load"):
                await answered.wait()
            return answers

        engine.ranks._call, engine.ranks._answer_s = slow, 0.05
        with raising("unanswered"):
            await engine.update(place(two), deadline_s=0.5)
        assert not engine.ranks.serving()
        with raising("unanswered"):
            await engine.ranks.look()
        answered.set()
        await engine.ranks.look()
        assert not engine.ranks.serving()
        end = await engine.update(place(one))  # all had prepared the first one: it is committed before
        assert end.committed
        assert engine.ranks.serving()
        assert engine.fills == [1.0, 1.0]

    played(one, play)


class HeardEngine(ProcessEngine):
    """Ranks that are processes, and are waited for beside everything else."""

    async def call(self, question):
        return await asyncio.to_thread(asyncio.run, super().call(question))


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_where_all_are_waited_for(one):
    engine = HeardEngine(one)
    stopped = engine.workers[1].process.pid
    engine.ranks = EngineRanks(engine.call, 2, "impatient", answer_s=5.0)

    async def play():
        assert [worker.fill for worker in engine.workers] == [None, None], "both are there"
        await engine.begin()
        os.kill(stopped, signal.SIGSTOP)
        try:
            with raising("unanswered", match="rank 1 is stopped") as caught:
                await engine.ranks.look()
            assert caught.value.context["rank"] == 1
            assert engine.ranks.stopped == [1]
        finally:
            os.kill(stopped, signal.SIGCONT)
        while engine.ranks.fault is not None:
            with suppress(GroupError):
                await engine.ranks.look()
        assert engine.ranks.serving()

    try:
        asyncio.run(play())
    finally:
        engine.close()


def test_a_commit_whose_end_is_not_heard_serves_under_its_own_name_once_an_update_has_settled_it(one, two):
    async def play(engine):
        answered = asyncio.Event()

        async def slow(question):
            answers = await FakeEngine.call(engine, question)
            if question["do"] == "tell" and CommandWord.unpack(question["words"][0]).operation.is_commit:
                await answered.wait()
            return answers

        engine.ranks._call, engine.ranks._answer_s = slow, 0.05
        with raising("unanswered"):
            await engine.update(place(two))
        answered.set()
        await engine.ranks.look()
        assert not engine.ranks.serving()
        assert engine.fills == [2.0, 2.0]
        assert engine.ranks.version == "two"
        end = await engine.update(place(one.parent / "nowhere"))
        assert kinds(end) == {"checkpoint-missing"}
        assert engine.ranks.serving()
        assert engine.ranks.version == "two"

    played(one, play)


def question(**more):
    command = CommandWord(1, 1, Operation.UPDATE).pack()
    return {
        "token": "t",
        "do": "tell",
        "server": "server",
        "words": [command, CommittedWord(0, None).pack()],
        "place": {"version": "two"},
        "restores": False,
        "load": False,
        "touched": None,
        **more,
    }


def test_a_worker_to_which_no_server_has_said_hello_prepares_nothing():
    worker = FakeWorker(1)
    answer = worker.wsm_answer(question())
    assert answer["error"]["code"] == "no-hello"
    assert (answer["token"], answer["rank"]) == ("t", 1)
    assert worker.reloads == 0


@pytest.mark.parametrize("asked", [None, 3, {}, {"token": "t", "do": "hello"}, question(words="x")])
def test_a_worker_answers_whatever_it_is_asked(asked):
    answer = FakeWorker(0).wsm_answer(asked)
    assert answer["error"]["message"]
    assert answer["token"] == (asked.get("token") if isinstance(asked, dict) else None)


def test_a_name_that_two_files_hold_is_no_version(one, tmp_path):
    twice = write_checkpoint(tmp_path / "twice", 2.0)
    save_file({"norm.weight": np.full((4,), 3.0, np.float32)}, twice / "more.safetensors")

    async def play(engine):
        end = await engine.update(place(twice))
        assert kinds(end) == {"not-covered"}

    played(one, play)
