"""The trainer as a real process: what it answers, what it publishes, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from examples.demo.settings import CopyTask
from examples.demo.trainer_process import TrainerProcess
from examples.rollout.model.shape import ModelShape
from tests.raising import raising
from wsm.strategies.files.version_file import read_version

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

SHAPE = ModelShape(vocabulary=8, width=16, heads=2, hidden=32, layers=1)
TASK = CopyTask()


@pytest.mark.slow
def test_it_learns_publishes_every_rank_and_leaves_with_its_asker(tmp_path: Path) -> None:
    prompts, answers = TASK.prompts(8, seed=0), TASK.prompts(8, seed=1)
    with TrainerProcess(SHAPE, ranks=2, directory=tmp_path) as trainer:
        process = psutil.Process(trainer.pid)
        first = trainer.publish(1)
        learned = trainer.improve(prompts, answers, TASK.rewards(prompts, answers))
        second = trainer.publish(2)
        with raising("trainer-failed", match=r"publish.*bad-version"):
            trainer.publish(-1)
        again = trainer.publish(3)
    assert not process.is_running()
    assert read_version(tmp_path) == "3"
    assert set(second.facts["digests"]) == {"0", "1"}
    assert first.facts["digests"] != second.facts["digests"] == again.facts["digests"]
    assert len(learned.facts["log_probability"]) == 8
    assert first.started_ns < first.finished_ns <= learned.started_ns


@pytest.mark.slow
def test_a_trainer_that_was_killed_is_named_and_not_waited_for(tmp_path: Path) -> None:
    with TrainerProcess(SHAPE, ranks=1, directory=tmp_path) as trainer:
        trainer.publish(1)
        os.kill(trainer.pid, signal.SIGKILL)
        with raising("trainer-failed", match="while it was to publish"):
            trainer.publish(2)


@pytest.mark.slow
def test_a_trainer_that_hangs_is_reported_after_the_deadline_and_killed(tmp_path: Path) -> None:
    with TrainerProcess(SHAPE, ranks=1, directory=tmp_path) as trainer:
        trainer.publish(1)
        process = psutil.Process(trainer.pid)
        process.suspend()
        with raising("trainer-failed", match=r"gave no answer for 0\.2 s"):
            trainer.publish(2, timeout_s=0.2)
        process.resume()
    assert not process.is_running()
