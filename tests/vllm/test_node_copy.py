"""A version once per node: who reads it, what killed ranks leave, and what can be rolled back to."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from tests.raising import raising
from tests.vllm.fake_workers import SHAPES, FakeEngine, ProcessEngine, place, write_checkpoint
from wsm.shared_directory import private_directory
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import TensorSpec
from wsm.vllm.node_copy import NodeCopy

LARGE = {**SHAPES, "embed.weight": (1 << 19, 4)}
NBYTES = sum(4 * int(np.prod(shape)) for shape in LARGE.values())


def copies():
    """Names in the shared memory of this user."""
    return sorted(path.name for path in private_directory().glob("vllm-*"))


def tensors(nbytes=1 << 20, read_into=None):
    def zeros(_offset, destination):
        destination[:] = bytes(len(destination))

    return [OfferedTensor(TensorSpec("a", "U8", (nbytes,)), "a file", read_into or zeros)]


def overwrite(directory):
    """Write other weights into the very file."""
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)


@pytest.fixture
def large(tmp_path):
    return [write_checkpoint(tmp_path / name, fill, LARGE) for name, fill in (("one", 1.0), ("two", 2.0))]


@pytest.mark.slow
@pytest.mark.processes
def test_the_ranks_of_a_node_read_a_version_once(large):
    one, two = large
    engine = ProcessEngine(one, ranks=3)

    async def play():
        await engine.begin()
        for where, fill in ((two, 2.0), (one, 1.0)):
            before = [worker.read_bytes for worker in engine.workers]
            end = await engine.update(place(where))
            assert end.committed, end.errors
            assert [worker.fill for worker in engine.workers] == [fill] * 3
            read = [worker.read_bytes - was for worker, was in zip(engine.workers, before, strict=True)]
            assert NBYTES <= sum(read) < 1.1 * NBYTES, "one rank reads it, once"
            assert sorted(vote["read_bytes"] for vote in end.votes) == [0, 0, NBYTES]
            assert copies() == []

    try:
        asyncio.run(play())
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("at", ["prepare", "load"])
def test_what_killed_ranks_have_left_in_shared_memory_goes_with_the_next_read(large, at):
    one, two = large

    async def killed(engine):
        await engine.begin()
        assert copies() == [], "what serves is kept, and has no name"

        def kill():
            left.append(copies())
            for worker in engine.workers:
                worker.kill()
            return []

        def at_vote(answers):
            return kill() if any(each["staged"] for each in answers) else answers

        engine.at_pause = kill
        if at == "prepare":
            engine.answers = at_vote
        with raising("out-of-step" if at == "prepare" else "engine-lost"):
            await engine.update(place(two))

    async def read(engine):
        await engine.begin()

    left = []
    for play in (killed, read):
        engine = ProcessEngine(one, keep_previous=True)
        try:
            asyncio.run(play(engine))
        finally:
            engine.close()
    assert len(left[0]) == 1
    assert copies() == []


def test_another_rank_reads_where_the_reader_has_ended_in_the_middle(tmp_path):
    begun, ends = threading.Event(), threading.Event()

    def breaks(_offset, _destination):
        begun.set()
        ends.wait()
        raise OSError("the reader ends")

    first, second = NodeCopy("name", tensors(read_into=breaks)), NodeCopy("name", tensors())
    filled = []

    def fails():
        with pytest.raises(OSError, match="the reader ends"):
            first.fill(1 << 30, lambda: False)

    threads = [
        threading.Thread(target=fails),
        threading.Thread(target=lambda: filled.append(second.fill(1 << 30, lambda: False))),
    ]
    threads[0].start()
    begun.wait()
    threads[1].start()
    time.sleep(0.05)
    assert not filled
    ends.set()
    for thread in threads:
        thread.join()
    assert filled == [True]
    assert second.is_reader
    second.close()
    assert copies() == []


def test_a_file_that_cannot_be_read_ends_the_threads_that_read_others(monkeypatch):
    monkeypatch.setattr("wsm.vllm.node_copy.default_threads", lambda: 2)
    begun, failing, read = threading.Event(), [], []

    def breaks(_offset, _destination):
        failing.append(threading.current_thread())
        begun.wait()
        raise OSError("the link is lost")

    def goes_on(offset, _destination):
        read.append(offset)
        while not failing:
            time.sleep(0.001)
        begun.set()
        failing[0].join()

    copy = NodeCopy("name", [*tensors(1 << 24, goes_on), *tensors(read_into=breaks)])
    with pytest.raises(OSError, match="the link is lost"):
        copy.fill(1 << 30, lambda: False)
    assert read == [0], "none of its other pieces"
    assert copies() == []


def test_who_waits_for_a_reader_gives_up_with_its_update():
    begun, ends = threading.Event(), threading.Event()

    def waits(_offset, _destination):
        begun.set()
        ends.wait()

    first = NodeCopy("name", tensors(read_into=waits))
    reads = threading.Thread(target=first.fill, args=[1 << 30, lambda: False])
    reads.start()
    begun.wait()
    with raising("dropped"):
        NodeCopy("name", tensors()).fill(1 << 30, lambda: True)
    ends.set()
    reads.join()
    first.close()


def test_what_a_loader_writes_into_its_tensors_no_other_rank_sees():
    one, two = NodeCopy("name", tensors()), NodeCopy("name", tensors())
    for each in (one, two):
        assert each.fill(1 << 30, lambda: False)
    assert (one.is_reader, two.is_reader) == (True, False)
    assert one.digests == two.digests
    one.tensor(0)[:4] = b"\1\1\1\1"
    assert bytes(two.tensor(0)[:4]) == bytes(4)
    one.close()
    assert bytes(two.tensor(0)[:4]) == bytes(4)
    two.close()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_version_that_was_written_over_is_rolled_back_to_where_it_was_kept_in_memory(one, two, keeps):
    async def play():
        engine = await FakeEngine(one, keep_previous=keeps).begin()
        overwrite(one)
        engine.workers[1].fails = [2]
        end = await engine.update(place(two))
        assert (end.committed, end.restored) == (False, keeps)
        assert engine.ranks.serving() is keeps
        assert [vote["kept_bytes"] > 0 for vote in end.votes] == [keeps] * 2
        if keeps:
            assert engine.fills == [1.0, 1.0]
            assert (await engine.update(place(two))).committed
            engine.workers[0].fails = [1]
            overwrite(two)
            assert (await engine.update(place(one, "one-again"))).restored
            assert engine.fills == [2.0, 2.0]

    asyncio.run(play())


@pytest.mark.parametrize("room", [0, 300])
def test_what_has_no_room_in_memory_is_read_from_its_files(one, two, room):
    async def play():
        engine = await FakeEngine(one, memory_bytes=room, keep_previous=True).begin()
        engine.at_pause = lambda: overwrite(two)
        end = await engine.update(place(two))
        assert {error["code"] for error in end.errors} == {"digest-mismatch"}
        assert end.restored
        assert {vote["memory_bytes"] + vote["kept_bytes"] for vote in end.votes} == {0}
        assert engine.fills == [1.0, 1.0]
        assert copies() == []

    asyncio.run(play())
