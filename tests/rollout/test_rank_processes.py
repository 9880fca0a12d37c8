"""What the processes of a group leave in memory while they live."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from examples.rollout import rank_processes
from examples.rollout.rank_processes import RankProcesses
from examples.rollout.run_directory import LOG_BYTES, log_path, log_tail

pytestmark = pytest.mark.processes


def test_a_log_keeps_its_newer_lines_however_much_a_rank_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(rank_processes, "_LOGS_S", 0.01)
    processes = RankProcesses("talkative", tmp_path, "talkative_rank")
    try:
        processes.start(0, epoch=1)
        log, deadline = log_path(tmp_path, 0), time.monotonic() + 60
        while "the last line" not in log_tail(tmp_path, 0) or log.stat().st_size > LOG_BYTES:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        processes.end_all()
    lines = log.read_text().splitlines()
    assert "(older lines were dropped here)" in lines
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line ") and len(line) > 60]
    assert max(numbers) > 10_000  # lines are lost that are written while the log is cut
    assert len(numbers) > 1000
