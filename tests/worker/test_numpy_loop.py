"""The engine that docs/embedding.md prints: a real process, real files, updates in place and hot."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wsm
from wsm.strategies import publish_snapshot

REPOSITORY = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0


@pytest.fixture
def loop(tmp_path):
    for version in (1, 2):
        table = np.arange(16, dtype=np.float32) + 100 * version
        publish_snapshot(tmp_path / "snapshots", version, {0: {"table": table}}, durable=False)
    (tmp_path / "wsm.yaml").write_text(
        f"name: numpy-loop\nranks: 1\nsnapshot: {{directory: {tmp_path / 'snapshots'}}}\n"
        f"journal_directory: {tmp_path / 'journals'}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.numpy_loop", str(tmp_path / "wsm.yaml")],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    yield process
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_S)
    process.stdin.close()
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.processes
def test_it_waits_for_its_first_version_and_answers_by_the_one_that_it_was_given(loop):
    loop.stdin.write("3\n")
    with wsm.Controller("numpy-loop", wait_s=PATIENCE_S) as controller:
        assert controller.status().version is None
        controller.update("1")
        assert loop.stdout.readline() == "1 103.0\n"
        assert controller.update("2", hot=True).hot
        loop.stdin.write("4\n")
        assert loop.stdout.readline() == "2 204.0\n"
    loop.stdin.close()
    assert loop.wait(PATIENCE_S) == 0


def test_the_page_prints_the_engine_that_runs_here():
    engine = (REPOSITORY / "examples" / "numpy_loop.py").read_text().strip()
    assert engine in (REPOSITORY / "docs" / "embedding.md").read_text()
