"""``wsm try``: what it shows, and that nothing of it stays."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from command_line import Run, Start
from commanded_group import PATIENCE_S, wait_until

from tests.forkserver import Forked
from tests.leftovers import group_name
from wsm.shared_directory import private_directory

pytestmark = pytest.mark.processes


def left_of(name: str) -> list[str]:
    return [path.name for path in private_directory().iterdir() if name in path.name]


def ranks_of(tried: Forked) -> list[psutil.Process]:
    return psutil.Process(tried.pid).children()


def test_a_group_is_updated_loses_a_rank_and_serves_again(wsm: Run) -> None:
    name = group_name("try")
    ended = wsm("try", "--name", name)
    assert (ended.code, ended.err) == (0, "")
    parts = (
        "update",
        "--hot",
        "kill -9",
        "was killed by SIGKILL",
        "explain",
        f"{name} serves version 2 again",
    )
    places = [ended.out.index(part) for part in parts]
    assert places == sorted(places)
    assert left_of(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("line", ["serves version 1", "kill -9"])
def test_ctrl_c_leaves_no_process_and_no_file(
    start_wsm: Start, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = group_name("try")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tried = start_wsm("try", "--name", name)
    wait_until(lambda: line in tried.stdout.readline())
    ranks = ranks_of(tried)
    tried.send_signal(signal.SIGINT)
    tried.communicate(timeout=PATIENCE_S)
    assert tried.returncode == 130
    assert not any(rank.is_running() for rank in ranks)
    assert left_of(name) == []
    assert list(tmp_path.iterdir()) == []
