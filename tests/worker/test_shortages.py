"""Ranks that run out of descriptors, memory or threads: an outcome of the tables, then service again.

Real limits on real processes; and, since no limit strikes at a chosen line, MemoryError at the calls of a
lone rank's ``poll()``, one call per case. More of both is in the campaign.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import lone_rank
import pytest
from lone_rank import LoneRank
from test_every_action_fails import ENGINE

import wsm
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.errors import WsmError
from wsm.states.replay import replay
from wsm.worker.errors import FlipFailedError

SOURCE = f"{Path(wsm.__path__[0])}/"

#: Their first lines lie outside of everything that could catch what they raise; a generator that is closed
#: can tell nobody.
OUTSIDE = ("poll", "_turn", "kept", "<genexpr>")


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


@pytest.mark.parametrize("hot", [False, True], ids=["in place", "hot"])
def test_an_update_that_finds_no_descriptor_keeps_what_served_and_works_afterwards(make_group, hot):
    group = make_group()
    controller = group.boot()
    group.publish(2)
    with without_descriptors(group.programs[0].pid), pytest.raises(WsmError, match="RLIMIT_NOFILE"):
        controller.update(2, hot=hot)
    assert controller.update(2, hot=hot).version == "2"


class MemoryRunsOut:
    """A trace function: MemoryError at the n-th call of a function of wsm, in this thread."""

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self.calls = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code.co_name not in OUTSIDE:
            self.calls += 1
            if self.calls == self._nth:
                self.where = f"{code.co_filename[len(SOURCE) :]}: {code.co_name}"
                raise MemoryError


def played(directory: Path, command: str, nth: int) -> MemoryRunsOut:
    """One command on a rank that runs out of memory once; then it must be able to serve again."""
    directory.mkdir()
    lone = LoneRank(
        directory,
        runner=ENGINE.InMemoryRunner(),
        load=ENGINE._load,
        shut_down_groups=True,
        journal_directory=str(directory / "journals"),
    )
    memory = MemoryRunsOut(nth)
    with contextlib.closing(lone):
        lone.update(1)
        if command == "update":
            lone.clear()
        pending = (
            lone.controller.begin_clear()
            if command == "clear"
            else lone.controller.begin_update(2, hot=command == "hot")
        )
        before = sys.gettrace()
        while not pending.over:
            sys.settrace(memory)
            try:
                turn = lone.worker.poll()
            except FlipFailedError:
                return (
                    memory  # inside the flip itself: what the rank holds is unknown, a new epoch restores it
                )
            finally:
                sys.settrace(before)
            if turn is not wsm.HOLD:
                with lone.worker.step():
                    pass
        with contextlib.suppress(RankFailedError, CommandRefusedError):
            pending.result(timeout_s=60)
        status = lone.controller.status()
        assert status.over, memory.where
        assert status.serving or status.state in ("CLEARED", "FAULTED"), memory.where
        if status.state == "FAULTED":
            lone.clear()
        assert lone.update(3).version == "3", memory.where
        weights = lone.runner.weights
        for name, spec in weights.specs().items():
            assert bytes(weights.readable(name)) == b"\3" * spec.nbytes, memory.where
        assert replay(lone.worker.journal).impossible is None, memory.where
    return memory


COMMANDS = ("clear", "update", "in place", "hot")


@pytest.mark.parametrize("command", COMMANDS)
def test_memory_that_runs_out_once_anywhere_in_a_command_ends_no_loop_and_no_service(tmp_path, command):
    sweep(tmp_path, command, stride=197)


@pytest.mark.slow
@pytest.mark.timeout(480)  # hundreds of commands, each with its own group
@pytest.mark.parametrize("command", COMMANDS)
def test_memory_that_runs_out_once_anywhere_in_a_command_in_steps_of_few_calls(tmp_path, command):
    sweep(tmp_path, command, stride=12)


def sweep(directory: Path, command: str, *, stride: int) -> None:
    calls = played(directory / "good", command, 0).calls
    for nth in range(1 + len(command), calls, stride):
        played(directory / str(nth), command, nth)


WAYS_OUT = ("kept", "dropped", "teardown fails", "hot", "epoch")


@pytest.mark.parametrize("way", WAYS_OUT)
def test_memory_that_runs_out_once_on_a_way_out_of_a_command_leaves_no_state_that_is_untrue(tmp_path, way):
    sweep_ways_out(tmp_path, way, stride=83)


@pytest.mark.slow
@pytest.mark.timeout(480)  # as above
@pytest.mark.parametrize("way", WAYS_OUT)
def test_memory_that_runs_out_once_on_a_way_out_of_a_command_in_steps_of_few_calls(tmp_path, way):
    sweep_ways_out(tmp_path, way, stride=7)


def sweep_ways_out(directory: Path, way: str, *, stride: int) -> None:
    calls = left(directory / "good", way, 0).calls
    for nth in range(1 + len(way), calls, stride):
        left(directory / str(nth), way, nth)


def left(directory: Path, way: str, nth: int) -> MemoryRunsOut:
    """A command that fails, or an epoch that ends, on a rank that runs out of memory once besides."""
    directory.mkdir()
    failures = [1]

    def load(context: Any, target: Any) -> dict[str, Any]:
        if context.version == "2" and failures:
            failures.clear()
            if way == "dropped":
                target.writable("weight")[:4] = b"\0" * 4
            raise OSError("the test wants the load to fail")
        return lone_rank.load(context, target)

    lone = LoneRank(directory, load=load)
    memory = MemoryRunsOut(nth)
    with contextlib.closing(lone):
        lone.update(1)
        release = lone.runner.weights.release

        def fails_once() -> int:
            if way == "teardown fails" and failures:
                failures.clear()
                raise OSError("the test wants the release to fail")
            return release()

        lone.runner.weights.release = fails_once
        if way == "epoch":
            begin_epoch(lone)
            watched(lone, memory, lambda: lone.worker._loop.state.epoch == 2)
            assert not list(lone.runner.weights.held()), memory.where
            return memory
        pending = (
            lone.controller.begin_clear()
            if way == "teardown fails"
            else lone.controller.begin_update(2, hot=way == "hot")
        )
        watched(lone, memory, lambda: pending.over)
        with contextlib.suppress(RankFailedError, CommandRefusedError):
            pending.result(timeout_s=60)
        status, held = lone.controller.status(), list(lone.runner.weights.held())
        assert status.state in ("NORMAL", "CLEARED", "FAULTED"), memory.where
        assert status.serving == (status.state == "NORMAL"), memory.where
        assert not held or status.state != "CLEARED", memory.where
        if status.state == "FAULTED":
            lone.clear()
        assert lone.update(3).version == "3", memory.where
        assert replay(lone.worker.journal).impossible is None, memory.where
    return memory


def watched(lone: LoneRank, memory: MemoryRunsOut, over: Callable[[], bool]) -> None:
    """Poll and step under `memory` until it is over."""
    before = sys.gettrace()
    while not over():
        sys.settrace(memory)
        try:
            turn = lone.worker.poll()
        finally:
            sys.settrace(before)
        if turn is not wsm.HOLD:
            with lone.worker.step():
                pass


def begin_epoch(lone: LoneRank) -> None:
    word = lone.segment.layout.command
    command = wsm.states.words.CommandWord.unpack(lone.segment.words[word])
    view = wsm.states.view.View(command, [], [], None)
    lone.segment.words[word] = wsm.states.epochs.next_epoch(view).pack()


@pytest.mark.parametrize("nth", range(4, 62, 4))  # the first three calls are the end of the ``with`` itself
def test_a_step_that_raised_is_broken_though_memory_runs_out_as_it_is_said(make_lone, nth):
    lone = make_lone()
    lone.update(1)
    assert lone.worker.poll() is wsm.SERVE
    memory, before = MemoryRunsOut(nth), sys.gettrace()
    with contextlib.suppress(ValueError, MemoryError), lone.worker.step():
        sys.settrace(memory)
        raise ValueError("the engine")
    sys.settrace(before)
    assert lone.worker.poll() is wsm.HOLD, memory.where
    assert lone.controller.status().ranks[0].step_kind == "broken", memory.where


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


def test_what_must_be_given_back_before_a_new_epoch_is_given_back_once_there_is_memory(
    make_lone, monkeypatch
):
    lone = make_lone()
    lone.update(1)
    lacks = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), MemoryError()]
    release = lone.runner.weights.release

    def scant() -> int:
        if lacks:
            raise lacks.pop()
        return release()

    monkeypatch.setattr(lone.runner.weights, "release", scant)
    begin_epoch(lone)
    while lone.worker._loop.state.epoch == 1:
        assert lone.worker.poll() is wsm.HOLD
    assert not lacks
    assert not list(lone.runner.weights.held())
