"""Tests here have twins: ``[gpu]`` for a machine with one, and ``[cpu]``, which proves the body everywhere.

On the CPU all is real but the captured graph; what can exist on a GPU alone has no twin, and says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parent.parent.parent

#: A program of this directory: what it is called, its arguments, and further variables of its environment.
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Where the test runs, in use; the device before it is in use again afterwards."""
    import paddle  # noqa: PLC0415 - a second of import time, for this test alone

    from tests.gpu.devices import device_named  # noqa: PLC0415 - needs paddle first

    before = paddle.device.get_device()
    yield device_named(request.param)
    paddle.device.set_device(before)


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(program, *arguments, **environment)``: a process that does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        paths = [str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        quiet = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "GLOG_minloglevel": "1"}
        command = [
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).with_name(program)),
            *map(str, arguments),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | quiet | environment,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
