"""Tests that are marked ``gpu`` run when they are asked for by name, and say by name what they lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import machine

REPOSITORY = Path(__file__).parent.parent.parent
NO_DEVICE = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.gpu
@pytest.mark.paddle
def test_paddle_sees_the_gpus_that_the_driver_sees() -> None:
    """And what the tests below ask for, and do not get."""
    import paddle  # noqa: PLC0415 - the others do without it

    assert paddle.device.cuda.device_count() == machine.gpus() > 0


def pytest_of_this_file(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments, __file__]
    return subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | NO_DEVICE, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("asked", [(), ("-m", "not slow")], ids=["no mark", "make test"])
def test_nothing_that_needs_a_gpu_is_chosen_unless_it_is_asked_for(asked: tuple[str, ...]) -> None:
    done = pytest_of_this_file("--collect-only", *asked)
    assert done.returncode == 0, done.stdout
    assert "test_paddle_sees" not in done.stdout
    assert "1 deselected" in done.stdout


@pytest.mark.slow
def test_asked_for_without_a_gpu_they_are_refused_and_none_passes_for_skipped() -> None:
    done = pytest_of_this_file("-m", "gpu")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "1 of the tests that were asked for need a GPU, and cannot run here: no " in done.stderr
    assert "passed" not in done.stdout
    assert "skipped" not in done.stdout


def test_the_program_that_is_asked_before_anything_is_installed_names_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tests" / "gpu" / "machine.py"],
        env=os.environ | NO_DEVICE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the GPU tests cannot run here: no " in done.stderr


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DRIVER", "libcuda-that-is-not-installed.so")
    assert machine.gpus() == 0
    assert "libcuda-that-is-not-installed.so" in str(machine.missing_for_gpu_tests("paddle"))
