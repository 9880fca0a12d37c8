"""The example of a fleet on Ray: real actors, one of which is killed and started again by Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from wsm.strategies import publish_snapshot

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)  # Ray takes its time on cores that are busy
def test_an_actor_that_ray_starts_again_answers_nothing_until_it_holds_what_the_target_allows(tmp_path):
    store = tmp_path / "store"
    for version in (1, 2):
        table = np.arange(16, dtype=np.float32) + 100 * version
        publish_snapshot(store, version, {0: {"table": table}}, durable=False)
    with tempfile.TemporaryDirectory(prefix="ray-") as own:  # the paths of Ray's sockets must be short
        environment = {**os.environ, "RAY_TMPDIR": own, "HOME": own, "RAY_AUTH_MODE": "disabled"}
        environment["WSM_DIRECTORY"] = own  # Ray ends actors without a word: their segments stay
        done = subprocess.run(
            [sys.executable, "-m", "tests.fleet.on_ray", str(store)],
            cwd=REPOSITORY,
            env={**environment, "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["first"] == [["ready", "1"]] * 2
    assert set(said["while it came back"]) <= {"1", "fleet-stale"}
    assert said["elsewhere"]
    assert said["second"] == [["ready", "2"]] * 2
    assert said["answers"] == [["2", 203.0]] * 2
