"""Ranks that run out of descriptors or threads: a command that fails, then service again."""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Iterator

import pytest

from wsm.controller.errors import RankFailedError
from wsm.errors import WsmError


@contextlib.contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """What is open stays open; nothing more can be opened."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_rank_without_a_descriptor_gives_its_memory_back_and_serves_again(make_group):
    group = make_group(measures=True)
    controller = group.boot()
    group.publish(2)
    with without_descriptors(group.programs[0].pid):
        receipt = controller.clear()
        assert "free memory not measured on rank 0" in receipt.sentence()
        assert "RLIMIT_NOFILE" in receipt.ranks[0].facts["not_measured"]
        assert receipt.ranks[1].facts["resident_bytes_after"] > 0
        with pytest.raises(RankFailedError, match=r"load_weights.*RLIMIT_NOFILE"):
            controller.update(2)
        assert controller.status().state == "CLEARED"
    assert controller.update(2).version == "2"


@pytest.mark.slow_but("hot")
@pytest.mark.parametrize("hot", [False, True], ids=["in place", "hot"])
def test_an_update_that_finds_no_descriptor_keeps_what_served_and_works_afterwards(make_group, hot):
    group = make_group()
    controller = group.boot()
    group.publish(2)
    with without_descriptors(group.programs[0].pid), pytest.raises(WsmError, match="RLIMIT_NOFILE"):
        controller.update(2, hot=hot)
    assert controller.update(2, hot=hot).version == "2"


def test_a_thread_that_the_kernel_does_not_grant_fails_the_hot_update_and_nothing_else(
    make_lone, monkeypatch
):
    lone = make_lone()
    lone.update(1)

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("wsm-stager"):
            raise RuntimeError("can't start new thread")
        start(thread)

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RankFailedError, match="RLIMIT_NPROC"):
        lone.update(2, hot=True)
    assert (lone.worker.version, lone.controller.status().state) == ("1", "NORMAL")
    monkeypatch.undo()
    assert lone.update(3, hot=True).version == "3"


def test_a_caller_that_is_granted_no_thread_drives_its_command_itself(make_lone, monkeypatch):
    lone = make_lone()
    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            lone.worker.poll()

    rank = threading.Thread(target=loop)
    rank.start()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    try:
        assert lone.controller.update(1).version == "1"
        assert lone.controller.status().controller_pid is None
    finally:
        done.set()
        rank.join()
