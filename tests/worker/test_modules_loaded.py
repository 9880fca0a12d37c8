"""What a process imports: nothing that is not named, and nothing while it serves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import group_name
from wsm import Controller
from wsm.config import config_from_mapping
from wsm.group_segment import own_group
from wsm.strategies import TensorSpec, publish_snapshot

SPEC = TensorSpec("weight", "F32", (64, 8))

RANK = """
import json, select, sys
from wsm import HOLD, Worker
from wsm.config import config_from_mapping
from wsm.strategies import TensorSpec
from wsm.testing import InMemoryRunner

runner = InMemoryRunner([TensorSpec("weight", "F32", (64, 8))])
runner.requests.submit(10**9)
waiting = select.poll()
waiting.register(sys.stdin, select.POLLIN | select.POLLHUP)
with Worker(config_from_mapping(json.loads(sys.argv[1])), runner, rank=0) as worker:
    before = set(sys.modules)
    print("up", flush=True)
    while not waiting.poll(0):
        if worker.poll() is HOLD:
            continue
        with worker.step():
            runner.requests.advance()
        worker.wait(0.0005)
    print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name.partition(".")[0] == "wsm"}


def test_a_program_that_embeds_a_worker_loads_no_strategy_before_it_makes_one() -> None:
    loaded = modules_after("import wsm; wsm.Worker")
    assert len(loaded) < 110
    ways = ("adopt", "applier", "buckets", "delta", "ipc", "messages", "mooncake", "snapshot", "transports")
    assert not [name for name in loaded if name.startswith(tuple(f"wsm.strategies.{way}" for way in ways))]


def test_a_configuration_loads_the_strategy_that_it_names_and_no_other() -> None:
    loaded = modules_after("import wsm; wsm.WsmConfig('g', 1, strategy='ipc').strategy_sections()")
    assert "wsm.strategies.ipc.strategy" in loaded
    others = ("buckets.ipc_async", "delta", "mooncake", "transports.by_version", "snapshot.ipc_snapshot")
    assert not loaded & {f"wsm.strategies.{name}" for name in others}


def test_the_version_is_told_without_numpy_and_without_the_library() -> None:
    program = "import sys; from wsm.cli.main import run; run(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "yaml", "structlog", "wsm.worker", "wsm.controller", "wsm.strategies"}


@pytest.mark.slow_but
@pytest.mark.processes
@pytest.mark.parametrize("hot", [False, True], ids=["in place", "hot"])
def test_the_first_updates_of_a_rank_import_nothing(tmp_path: Path, hot: bool) -> None:
    for version in (1, 2):
        shard = {"weight": (SPEC, bytes([version]) * SPEC.nbytes)}
        publish_snapshot(tmp_path / "models", version, {0: shard}, durable=False)
    said = {
        "name": group_name("modules"),
        "ranks": 1,
        "snapshot": {"directory": str(tmp_path / "models"), "shared_directory": str(tmp_path)},
    }
    segment = own_group(config_from_mapping(said))
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, json.dumps(said)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "up\n"
        with Controller(segment.name) as controller:
            assert controller.update(1).version == "1"
            assert controller.update(2, hot=hot).version == "2"
        out, _ = rank.communicate(timeout=60)
        assert json.loads(out) == []
    finally:
        rank.kill()
        rank.communicate()
        segment.unlink()
        segment.close()
