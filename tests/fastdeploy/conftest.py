"""Jobs of FastDeploy's shape, ended after each test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The program of a rank is both run as a process and read by tests, and pytest finds neither by itself.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "worker"))
from loop_job import LoopJob


@pytest.fixture
def make_job(tmp_path: Path):
    """`make_job(generation, ...)`: a job whose ranks have booted version 1 and turn in their loop."""
    jobs = []

    def make(generation: str = "2026", *, starts: bool = True, **settings) -> LoopJob:
        directory = tmp_path / f"job{len(jobs)}"
        directory.mkdir()
        jobs.append(LoopJob(directory, generation, **settings))
        if starts:
            jobs[-1].start()
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
