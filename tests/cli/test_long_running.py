"""The commands that start a whole group: ``wsm rollout`` and ``wsm demo``."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from command_line import Run, Start
from commanded_group import PATIENCE_S

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a place for our files: the place that is checked


@pytest.mark.parametrize("command", [["rollout", "--name", "policy"], ["demo"]])
def test_a_command_that_computes_says_at_once_that_paddle_is_missing(
    wsm: Run, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    ended = wsm(*command)
    assert ended.code == 1
    assert "pip install 'wsm[cpu]'" in ended.err
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.paddle
@pytest.mark.processes
def test_a_rollout_is_driven_from_outside_until_ctrl_c(start_wsm: Start, wsm: Run, tmp_path: Path) -> None:
    name = f"cli-rollout-{os.getpid()}"
    file = tmp_path / "rollout.yaml"
    file.write_text(json.dumps({"model": {"vocabulary": 8, "layers": 1}, "load": {"concurrency": 4}}))
    rollout = start_wsm("--log-format", "json", "rollout", "--name", name, "--ranks", 2, "--config", file)
    assert rollout.stdout.readline().startswith(f"{name} serves version 1 on 2 ranks (processes ")

    assert wsm("update", name, "--force").code == 0
    assert "cleared" in wsm("clear", name, "--in-flight", "keep").out
    assert json.loads(wsm("status", name, "--json").out)["state"] == "CLEARED"
    assert "serves version 1" in wsm("update", name, "--config", file).out
    ranks = [rank["pid"] for rank in json.loads(wsm("status", name, "--json").out)["ranks"]]

    again = wsm("rollout", "--name", name)
    assert again.code == 1
    assert str(rollout.pid) in again.err

    rollout.send_signal(signal.SIGINT)
    _, err = rollout.communicate(timeout=PATIENCE_S)
    assert rollout.returncode == 130
    assert {"group.started", "group.stopped"} <= {json.loads(line)["event"] for line in err.splitlines()}
    assert not any(psutil.pid_exists(pid) for pid in ranks)
    assert [path.name for path in SHARED_MEMORY.iterdir() if name in path.name] == []
