"""What a killed demo left in shared memory goes when the next one starts; what lives stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.loop import remove_leftovers
from tests.forkserver import WITHOUT_PADDLE, Forked

pytestmark = pytest.mark.processes

DEMO = """
import os, socket, sys, time
from pathlib import Path
from wsm.signals.segment import Segment
from examples.rollout.request_socket import request_socket_path
from examples.rollout.run_directory import make_run_directory, run_directory_path
name, where = f"demo-{os.getpid()}", sys.argv[1]
segment = Segment.create_or_adopt(name, world_size=2, run_id="", configuration_digest=7, directory=where)
make_run_directory(run_directory_path(name, where), {})
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(request_socket_path(name, where)))
print("stands", flush=True)
time.sleep(60)
"""


def started(directory: Path) -> Forked:
    demo = WITHOUT_PADDLE.start("-c", DEMO, directory, stderr=None)
    assert demo.stdout.readline() == b"stands\n"
    return demo


def test_what_a_killed_demo_left_is_removed_and_what_a_living_one_uses_is_not(tmp_path: Path) -> None:
    dead, living = started(tmp_path), started(tmp_path)
    try:
        dead.close()
        assert len(list(tmp_path.iterdir())) == 8
        (tmp_path / "wsm.demo-of-mine").touch()
        (tmp_path / "wsm.demo-1.lock").touch()
        assert remove_leftovers(tmp_path) == ["demo-1", f"demo-{dead.pid}"]
        left = {path.name for path in tmp_path.iterdir()}
        mine = {f"wsm.demo-{living.pid}{end}" for end in ("", ".lock", ".run", ".requests")}
        assert left == {*mine, "wsm.demo-of-mine"}
        assert remove_leftovers(tmp_path) == []
    finally:
        living.close()
