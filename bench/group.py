"""A measured group: rank processes, a controller, and a directory for journals; nothing stays behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.environment import quiet_environment
from bench.rank_process import LockStep
from wsm import Controller
from wsm.signals.errors import SegmentMissingError
from wsm.signals.layout import segment_path

_START_S = 120.0
_LOOK_S = 0.005


@contextmanager
def measured_group(
    name: str, ranks: int, mode: str, *, follow: bool = True, module: str = "bench.rank_process"
) -> Iterator[tuple[Controller, Path]]:
    """Start a group that serves version 1; yield its controller and the directory of its journals.

    Parameters
    ----------
    name : str
        Of the group.
    ranks : int
        How many.
    mode : str
        Handed to the ranks' program.
    follow : bool
        Whether ranks follow each other into steps.
    module : str
        The program that each rank runs.

    Raises
    ------
    TimeoutError
        If it does not come up.
    RuntimeError
        If a rank ends before it has; what it said is on the standard error output.
    """
    with tempfile.TemporaryDirectory(prefix="wsm-bench-") as directory:
        LockStep.create(Path(directory) / "lock_step", ranks)
        processes = [
            subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
                [
                    sys.executable,
                    *("-m", module, name, str(rank), str(ranks), mode, directory),
                    "follow" if follow else "alike",
                ],
                env=quiet_environment(),
            )
            for rank in range(ranks)
        ]
        try:
            with _controller(name, processes) as controller:
                controller.update(1)
                yield controller, Path(directory)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for path in segment_path(name).parent.glob(f"{segment_path(name).name}*"):
                path.unlink()


def _controller(name: str, processes: Sequence[subprocess.Popen[bytes]]) -> Controller:
    """Wait until every rank is attached."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        _expect_alive(name, processes)
        try:
            controller = Controller(name)
        except SegmentMissingError:
            time.sleep(_LOOK_S)
            continue
        while time.monotonic() < deadline:
            if controller.status().over and all(rank.life == "alive" for rank in controller.status().ranks):
                return controller
            _expect_alive(name, processes)
            time.sleep(_LOOK_S)
        controller.close()
    raise TimeoutError(f"the ranks of {name} did not attach within {_START_S:g} s")


def _expect_alive(name: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank, process in enumerate(processes):
        if process.poll() is not None:
            ended = f"rank {rank} of {name} ended with code {process.returncode} before it had attached"
            raise RuntimeError(f"{ended}; see what it wrote to the standard error output")
