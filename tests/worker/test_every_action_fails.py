"""Each action of each plan that a command runs fails in each way; what comes of it is named, and is repaired.

Real workers, words and a real controller around an engine that has every surface. Hangs and deaths of whole
processes are in ``tests/controller`` and in the campaign.
"""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from lone_rank import SPECS

from tests.in_memory_work import InMemoryWork
from tests.incident import incident
from tests.strict_engine import StrictEngine
from wsm.controller.errors import ActionOverdueError, RankFailedError
from wsm.testing import Fault, InMemoryRequests, InMemoryRunner, LocalGroup, RunnerContract, load_bytes


@pytest.mark.slow_but("*-release_weights", "*-load_weights", "*-flip_weights", "abort")
class TestAnEngineThatHasEverySurface(InMemoryWork, RunnerContract):
    plans = ("clear", "update", "update_in_place", "hot")
    ways = ("raises", "is not done", "lacks something")
    configuration: ClassVar = {"shut_down_groups": True}

    def make_runner(self, rank):
        engine = StrictEngine()
        engine.requests = InMemoryRequests()
        return engine


@pytest.fixture
def group(tmp_path):
    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, ranks=1) as made:
        yield made


@incident("FastDeploy#6761", "FastDeploy C2-2")
@pytest.mark.parametrize(
    ("way", "cause", "source"),
    [
        ("raises", "load_weights was to fail", "around"),
        ("is not done", "work that is done", "around"),
        ("lacks something", "limit", "around"),
        ("outlasts its deadline", "its deadline is 600 s", ""),
    ],
)
def test_the_error_has_the_cause_and_the_remote_traceback(group, way, cause, source) -> None:
    with pytest.raises(RankFailedError) as caught:
        group.update(1, fault=Fault("update", "load_weights", way))
    error = caught.value
    assert isinstance(error, ActionOverdueError) or cause in error.cause
    assert source in error.remote_traceback


def test_ranks_and_controller_take_turns_in_the_thread_that_gives_the_command(tmp_path) -> None:
    threads = set()

    def load(context, target):
        threads.update(thread.name for thread in threading.enumerate())
        threads.add(threading.current_thread().name)
        return load_bytes(context, target)

    before = {thread.name for thread in threading.enumerate()}
    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, load=load) as group:
        assert group.update(1).version == "1"
    assert threads - before <= {"wsm-death-watch"}
