"""Incidents in which shared memory was unlinked, taken over or written by somebody it did not belong to."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

import wsm
from tests.leftovers import group_name
from tests.raising import raising
from wsm.config import WsmConfig, config_from_mapping
from wsm.group_segment import own_group
from wsm.signals.errors import SegmentOwnedError, SlotTakenError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner

pytestmark = pytest.mark.processes

WEIGHTS = EngineWordKind.WEIGHTS

ATTACH_AND_EXIT = """
import sys, wsm
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
word = EngineWord(EngineWordKind.WEIGHTS, sys.argv[1])
controller = wsm.Controller(sys.argv[1])
"""

ATTACH_AS_FASTDEPLOY = """
import sys
from multiprocessing.shared_memory import SharedMemory
SharedMemory(name="model_weights_status." + sys.argv[1])
"""


def run(code: str, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # The pipe ends with the resource tracker, which outlives the process a little.
    subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True, capture_output=True)


@pytest.fixture
def name() -> str:
    """A suffix in /dev/shm that nobody else uses."""
    return group_name("words")


@pytest.fixture
def word(name: str) -> Iterator[EngineWord]:
    with EngineWord.create(WEIGHTS, name) as word:
        try:
            yield word
        finally:
            word.unlink()


def test_fastdeploy_c2_16_and_7951_whoever_attaches_and_exits_unlinks_nothing(word, name):
    with contextlib.ExitStack() as undo:
        segment = undo.enter_context(own_group(WsmConfig(name=name, ranks=1)))
        undo.callback(segment.unlink)
        run(ATTACH_AND_EXIT, name)
        assert word.path.exists()
        assert not segment.inode_changed()


def test_fastdeploy_c2_16_the_control_pythons_own_way_of_attaching_does_unlink(word, name):
    run(ATTACH_AS_FASTDEPLOY, name)
    assert not word.path.exists()


def test_peers_4_8_8_a_second_engine_of_the_same_name_does_not_take_the_words_of_the_first(word, name):
    with raising("engine-word-exists"):
        EngineWord.create(WEIGHTS, name)
    assert not word.is_replaced()


def test_peers_4_8_8_a_second_group_of_the_same_name_does_not_take_the_segment_of_the_first(served):
    config = config_from_mapping(served.group.config)
    with pytest.raises(SegmentOwnedError):
        own_group(config, directory=served.group.directory)
    served.group.await_steps(5)


def test_peers_4_8_8_a_rank_that_is_there_already_is_not_taken_by_another_process(served):
    config = config_from_mapping({**served.group.config, "journal_directory": None})
    runner = InMemoryRunner([TensorSpec("weight", "F32", (4,))])
    with pytest.raises(SlotTakenError, match=str(served.rank(1).pid)):
        wsm.Worker(config, runner, rank=1, directory=served.group.directory)
    served.group.await_steps(5)


def test_fastdeploy_c2_24_nobody_but_the_user_of_the_group_can_command_it(served):
    segment = served.group.directory / f"wsm.{served.group.name}"
    assert stat.S_IMODE(segment.stat().st_mode) == 0o600
