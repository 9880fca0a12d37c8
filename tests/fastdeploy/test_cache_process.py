"""Ranks beside processes that hold KV cache, which look at their own word ten times a second."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from living_group import Program, eventually

from tests.forkserver import WITHOUT_PADDLE
from wsm.fastdeploy import _part_words
from wsm.fastdeploy._part_words import TransferProcess
from wsm.signals.fastdeploy import EngineWord, EngineWordKind

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2
PROGRAM = Path(__file__).with_name("cache_transfer.py")


class Beside:
    """A job with a process that holds KV cache beside each rank."""

    def __init__(self, job, generation: str) -> None:
        self.job, self._writes_both = job, generation == "2025"
        directory, port = job.directory, job.ports[0]
        self.word = EngineWord.create(EngineWordKind.KV_CACHE, port, NORMAL, directory=directory)
        self.ready = directory / f"cache_ready_signal.{port}"
        self.swap = directory / f"swap_space_ready_signal.{port}"
        for path in (self.ready, self.swap):
            np.zeros(job.ranks, dtype=np.int32).tofile(path)
        self.programs = [
            Program(PROGRAM, json.dumps(job.settings), str(rank), server=WITHOUT_PADDLE)
            for rank in range(job.ranks)
        ]
        job.start()
        for program in self.programs:  # one that comes to its start later than the first wish never ends it
            program.says("started")

    def asks(self, value: int) -> None:
        """As the engine of a generation does: that of 2025 writes both words, the loop of 2026 the second."""
        self.job.asks(value)
        if self._writes_both:
            self.word.store(value)

    def holds(self) -> list[int]:
        """What the KV word says, and how many processes have their mapping and their blocks."""
        counts = [int(np.fromfile(path, dtype=np.int32).sum()) for path in (self.ready, self.swap)]
        return [self.word.read(), *counts]

    def close(self) -> None:
        (self.job.directory / "end").touch()
        for program in self.programs:
            program.close()
        self.word.unlink()
        self.word.close()


@pytest.fixture
def make_beside(make_job):
    made = []

    def make(generation: str, **settings) -> Beside:
        made.append(Beside(make_job(generation, starts=False, **settings), generation))
        return made[-1]

    yield make
    for each in made:
        each.close()


#: Generations, whether an entry for CLEARING stays inside until the update, and whose cache it is.
WAYS = [
    ("2026", False, "makes"),
    ("2026", True, "maps"),
    *(
        pytest.param(*way, marks=pytest.mark.slow)
        for way in (
            ("2026", False, "maps"),
            ("2026", True, "makes"),
            ("2025", True, "makes"),
            ("2025", True, "maps"),
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "block", "cache_process"), WAYS)
def test_the_weights_are_answered_once_the_cache_process_has_answered(
    make_beside, generation, block, cache_process
):
    beside = make_beside(generation, block=block, cache_process=cache_process)
    for _ in "ab":
        beside.asks(CLEARING)
        beside.job.answers(CLEARED)
        assert beside.holds() == [CLEARED, 0, 0]
        beside.asks(UPDATING)
        beside.job.answers(NORMAL)
        assert beside.holds() == [NORMAL, 2, 2]
    beside.job.each_says("stepped")
    beside.job.end()


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "block", "cache_process"), WAYS)
def test_an_update_that_fails_before_there_is_a_cache_to_map_is_answered_and_the_next_one_serves(
    make_beside, generation, block, cache_process
):
    """Where the cache process was asked beside the ranks, it waits for a cache of theirs."""
    beside = make_beside(generation, block=block, cache_process=cache_process, cache_answers_s=2)
    beside.asks(CLEARING)
    beside.job.answers(CLEARED)
    beside.job.order(1, "write")
    beside.asks(UPDATING)
    beside.job.answers(CLEARED)
    assert beside.job.controller().status().state == "CLEARED"
    beside.asks(UPDATING)
    beside.job.answers(NORMAL)
    assert beside.holds() == [NORMAL, 2, 2]
    beside.job.end()


@pytest.mark.slow
def test_an_update_that_is_tried_again_over_weights_that_serve_asks_the_cache_process_once(make_beside):
    """FastDeploy's loop asks it itself as it comes in."""
    beside = make_beside("2026", block=True, cache_process="maps")
    job, said = beside.job, []
    (source := job.model / "versions").rename(away := job.directory / "away")
    with EngineWord.create(
        EngineWordKind.PREFIX_TREE, job.ports[0], CLEARED, directory=job.directory
    ) as tree:
        beside.asks(UPDATING)
        first = job.controller().status().sequence
        eventually(lambda: beside.word.read() == NORMAL and job.controller().status().sequence > first)

        def tried_again() -> bool:
            said.append(beside.word.read())
            return job.controller().status().sequence >= first + 3

        eventually(tried_again)
        assert (set(said), tree.read(), job.reads()) == ({NORMAL}, CLEARED, [UPDATING])
        away.rename(source)
        job.answers(NORMAL)
        assert (beside.holds(), tree.read()) == ([NORMAL, 2, 2], CLEARED)
        tree.unlink()
    job.end()


@pytest.mark.slow
def test_a_trainers_command_asks_the_cache_process_too(make_beside):
    beside = make_beside("2026", polls=True, cache_process="maps")
    beside.job.each_says("stepped")
    trainer = beside.job.controller()
    trainer.clear()
    assert beside.holds() == [CLEARED, 0, 0]
    trainer.update(1)
    assert beside.holds() == [NORMAL, 2, 2]
    beside.job.end()


@pytest.mark.slow
def test_a_cache_process_that_does_not_answer_is_named_and_waited_for(make_beside):
    beside = make_beside("2026", cache_process="makes", cache_answers_s=0.5)
    for program in beside.programs:
        program.freeze()
    beside.asks(CLEARING)
    trainer = beside.job.controller()
    eventually(lambda: "failed on rank 0 in release_kv_cache" in trainer.status().because)
    assert beside.job.reads() == [CLEARING]
    for program in beside.programs:
        program.thaw()
    beside.job.answers(CLEARED)
    beside.asks(UPDATING)
    beside.job.answers(NORMAL)
    beside.job.end()


@pytest.mark.slow_but
@pytest.mark.parametrize(("wish", "answer"), [(CLEARING, CLEARED), (UPDATING, NORMAL)])
def test_the_late_answer_of_a_slower_process_does_not_take_the_next_wish(tmp_path, monkeypatch, wish, answer):
    """Each rank's process writes the answer of all: one can write that of the wish before over the next."""
    monkeypatch.setattr(_part_words, "ANSWERS_S", 2.0)
    before = {CLEARED: NORMAL, NORMAL: CLEARED}[answer]
    word = EngineWord.create(EngineWordKind.KV_CACHE, 7, before, directory=tmp_path)
    process = TransferProcess("7", tmp_path)

    def answers_late() -> None:
        word.store(before)
        answering.start()

    def answers() -> None:
        eventually(lambda: word.read() in (CLEARING, UPDATING))
        word.store(answer)

    answering = threading.Thread(target=answers, daemon=True)
    process.asks(wish, answers_late)
    assert word.read() == answer
    process.close()
    word.unlink()
    word.close()
