"""The examples that start a whole group, and where ``wsm rollout`` and ``wsm demo`` say that they are."""

from __future__ import annotations

import importlib.util
import json
import shlex
import signal
from pathlib import Path

import psutil
import pytest
from command_line import Run, Start
from commanded_group import PATIENCE_S

from tests.leftovers import group_name
from wsm.shared_directory import private_directory


@pytest.mark.parametrize(
    ("command", "missing", "extras"),
    [
        (["rollout", "--name", "a policy"], "paddle", "cpu"),
        (["demo"], "paddle", "cpu"),
    ],
)
def test_a_command_that_computes_says_at_once_what_is_missing(
    *,
    wsm: Run,
    example: Run,
    command: list[str],
    missing: str,
    extras: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    ended = example(*command)
    assert ended.code == 1
    assert f"needs {missing}, " in ended.err
    assert f"pip install -e '.[{extras}]'" in ended.err
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    told = wsm(*command)
    assert (told.code, told.out) == (2, "")
    assert f"run: {shlex.join(['python', '-m', f'examples.{command[0]}', *command[1:]])} (" in told.err


@pytest.mark.slow
@pytest.mark.paddle
@pytest.mark.processes
def test_a_rollout_is_driven_from_outside_until_ctrl_c(
    start_wsm: Start, wsm: Run, example: Run, tmp_path: Path
) -> None:
    name = group_name("rollout")
    file = tmp_path / "rollout.yaml"
    journals = tmp_path / "journals"
    content = {"model": {"vocabulary": 8, "layers": 1}, "load": {"concurrency": 4}}
    file.write_text(json.dumps({"group": {"journal_directory": str(journals)}, **content}))
    rollout = start_wsm(
        "--log-format", "json", "rollout", "--name", name, "--ranks", 2, "--config", file, program="examples"
    )
    line = next(line for line in rollout.stdout if "has waited" not in line)  # a slow machine says so first
    assert line.startswith(f"{name} serves version 1 on 2 ranks (processes ")

    assert wsm("update", name, "--force").code == 0
    assert "cleared" in wsm("clear", name, "--in-flight", "keep").out
    assert json.loads(wsm("status", name, "--json").out)["state"] == "CLEARED"
    assert "serves version 1" in wsm("update", name, "--config", file).out  # which has neither name nor ranks
    assert wsm("journal", journals, "--check").code == 0
    ranks = [rank["pid"] for rank in json.loads(wsm("status", name, "--json").out)["ranks"]]

    again = example("rollout", "--name", name)
    assert again.code == 1
    assert str(rollout.pid) in again.err

    rollout.send_signal(signal.SIGINT)
    _, err = rollout.communicate(timeout=PATIENCE_S)
    assert rollout.returncode == 130
    assert {"group.started", "group.stopped"} <= {json.loads(line)["event"] for line in err.splitlines()}
    assert not any(psutil.pid_exists(pid) for pid in ranks)
    assert [path.name for path in private_directory().iterdir() if name in path.name] == []
