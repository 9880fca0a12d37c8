"""A rollout group with a KV-cache process: it takes part in every command, and is replaced when it dies."""

from __future__ import annotations

import os
import signal
import time

import pytest

from examples.rollout.config import rollout_config_from_mapping
from examples.rollout.run_directory import run_directory_path
from examples.rollout.supervisor import RolloutSupervisor
from tests.leftovers import group_name

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.needs("libatomic"),
]

MODEL = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 64}
PATIENCE_S = 90.0
CACHE = 2


def until(condition, group: RolloutSupervisor) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        group.check()
        time.sleep(0.002)


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def group(told):
    section = {
        "name": group_name("cache"),
        "kv_cache_process": True,
        "engine_words": {"suffixes": [30_000 + os.getpid() % 10_000], "answers": ["weights", "kv_cache"]},
    }
    recovery = {"restarts": 1000, "delay_s": 0.01}
    config = rollout_config_from_mapping({"group": section, "model": MODEL, "recovery": recovery})
    with RolloutSupervisor(config, tell=told.append) as running:
        yield running


def kill_the_cache_process(group: RolloutSupervisor) -> int:
    pid, before = group.pids()[CACHE], group.recoveries
    os.kill(pid, signal.SIGKILL)
    until(lambda: group.recoveries > before, group)
    return pid


def test_one_that_dies_is_replaced_and_the_group_serves_again(group, told):
    version = group.controller.status().version
    pid = kill_the_cache_process(group)
    assert f"the KV-cache process (process {pid}) was killed by SIGKILL" in told[-2]
    assert f"serves version {version} again" in told[-1]
    assert group.pids()[CACHE] != pid
    with group.client() as client:
        assert len(client.generate([[1]], 2, timeout_s=PATIENCE_S)[0].tokens) == 2
    logs = {path.name for path in run_directory_path(group.config.group.name).glob("kv-cache*.log")}
    assert "kv-cache.log" in logs
    assert any(name.startswith("kv-cache.before-epoch") for name in logs)
