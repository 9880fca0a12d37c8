"""A process that dies while it attaches is replaced in the same epoch, unless a word says that it joined."""

from __future__ import annotations

from pathlib import Path

import pytest

import wsm
from tests.forkserver import WITHOUT_PADDLE
from wsm.states.errors import EpochUsedError
from wsm.testing import InMemoryRunner

#: Rank 1 attaches and is killed where it would store its words: never, or behind the first of them.
PROGRAM = """
import dataclasses, os, signal, sys
import wsm
from wsm.testing import InMemoryRunner
from wsm.worker._group_words import GroupWords

real = GroupWords.write

def write(words, move):
    if sys.argv[2] == "step":
        real(words, dataclasses.replace(move, status=None))
    os.kill(os.getpid(), signal.SIGKILL)

GroupWords.write = write
wsm.Worker(wsm.WsmConfig("joining", 2), InMemoryRunner([]), rank=1, directory=sys.argv[1])
"""


def die_while_joining(directory: Path, after: str) -> None:
    with WITHOUT_PADDLE.start("-c", PROGRAM, directory, after, stderr=None) as dying:
        assert dying.wait() == -9


@pytest.fixture
def owner(tmp_path: Path):
    with wsm.Worker(wsm.WsmConfig("joining", 2), InMemoryRunner([]), rank=0, directory=tmp_path) as worker:
        yield worker


def join(directory: Path) -> wsm.Worker:
    return wsm.Worker(wsm.WsmConfig("joining", 2), InMemoryRunner([]), rank=1, directory=directory)


def test_before_its_first_word_it_is_replaced_by_a_process_that_reports_anew(owner, tmp_path):
    """What it has plans for stands in its slot; nobody has read it, the next process writes its own."""
    for _ in range(2):
        die_while_joining(tmp_path, "nothing")
    with join(tmp_path), wsm.Controller("joining", directory=tmp_path) as controller:
        assert [rank.code for rank in controller.status().ranks] == ["ATTACHED"] * 2


def test_behind_its_first_word_the_epoch_is_used(owner, tmp_path):
    die_while_joining(tmp_path, "step")
    with pytest.raises(EpochUsedError):
        join(tmp_path)
