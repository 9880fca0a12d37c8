"""What FastDeploy's users look at first: memory and seconds in the log, and the heartbeat of the engine."""

from __future__ import annotations

import errno
import struct
import time
from unittest.mock import Mock

import pytest

from tests.incident import incident
from wsm import log
from wsm.actions.backends.memory import DeviceMemory, HostMemory
from wsm.signals import fastdeploy
from wsm.signals.fastdeploy import LiveSignal
from wsm.strategies import TensorSpec
from wsm.testing import InMemoryRunner


class FakeCuda:
    """The calls of an allocator, for a build without one."""

    def __init__(self):
        now = {"memory_allocated": 1, "memory_reserved": 2}
        self.figures = {**now, "max_memory_allocated": 3, "max_memory_reserved": 4}

    def __getattr__(self, name):
        return lambda: self.figures[name] << 30

    def empty_cache(self):
        pass


def test_each_clear_and_update_writes_one_line_of_memory_and_each_phase_its_seconds(make_lone, caplog):
    caplog.set_level("INFO")
    lone = make_lone()
    lone.runner.memory = DeviceMemory(FakeCuda())
    lone.update(1)
    lines = [line for line in caplog.messages if line.startswith(log.MEMORY_MEASURED)]
    assert len(lines) == 1
    assert "after=update" in lines[0]
    for figure in ("allocated_gib=1", "reserved_gib=2", "peak_allocated_gib=3", "peak_reserved_gib=4"):
        assert f" {figure}" in lines[0]
    seconds = [line for line in caplog.messages if line.startswith("action.finished")]
    assert any("action=load_weights" in line and "seconds=" in line for line in seconds)
    caplog.clear()
    lone.runner.memory = HostMemory()
    lone.update(2)
    (line,) = [line for line in caplog.messages if line.startswith(log.MEMORY_MEASURED)]
    assert "resident_gib=" in line
    assert "peak_resident_gib=" in line


@pytest.fixture
def signal(tmp_path):
    path = tmp_path / "worker_healthy_live_signal.8002"
    path.write_bytes(bytes(8))
    path.chmod(0o600)
    return path


def times(path):
    return struct.unpack("2i", path.read_bytes())


@incident("FastDeploy C2-4")
def test_the_engines_heartbeat_is_written_where_the_rank_shows_progress(make_lone, signal, tmp_path):
    runner = InMemoryRunner([TensorSpec("weight", "U8", (256,)), TensorSpec("bias", "U8", (32,))])
    live = LiveSignal(8002, 1, directory=tmp_path)
    beats = []
    runner.progressed = lambda: (beats.append(1), live.beat())
    begun = int(time.time())
    lone = make_lone(runner=runner)
    lone.update(1)
    during = len(beats)
    assert during > 2  # polls and actions
    first, second = times(signal)
    assert (first, second >= begun) == (0, True)
    lone.worker.beat()
    assert len(beats) == during + 1
    lone.clear()
    cleared = len(beats)
    lone.worker.poll()
    assert len(beats) > cleared  # a cleared rank lives, too
    live.close()


def test_a_signal_that_is_not_there_or_is_made_anew_is_taken_when_it_is(signal, tmp_path, monkeypatch):
    now = 1_000
    monkeypatch.setattr(time, "time", lambda: now)
    absent = LiveSignal(9999, 0, directory=tmp_path)
    absent.beat()
    live = LiveSignal("8002", 8, directory=tmp_path)
    live.beat()
    assert times(signal) == (1_000, 0)
    signal.unlink()
    signal.write_bytes(bytes(8))
    signal.chmod(0o600)
    now = 1_001
    live.beat()
    assert times(signal) == (1_001, 0)
    live.close()
    live.close()
    absent.close()


def test_a_signal_that_cannot_be_mapped_stops_no_rank(signal, tmp_path, monkeypatch):
    monkeypatch.setattr(fastdeploy, "SharedFile", Mock(side_effect=OSError(errno.ENOMEM, "no memory")))
    LiveSignal("8002", 0, directory=tmp_path).beat()
    assert times(signal) == (0, 0)
    monkeypatch.undo()
    signal.write_bytes(b"abc")  # less than one time
    LiveSignal("8002", 0, directory=tmp_path).beat()
    assert signal.read_bytes() == b"abc"


def test_when_a_rank_was_last_at_work_stands_in_its_own_place(signal, tmp_path):
    signal.write_bytes(struct.pack("2i", 1_000, 0))
    for suffix, rank, second in ((8002, 0, 1_000), (8002, 1, None), (8002, 8, 1_000), (9999, 0, None)):
        live = LiveSignal(suffix, rank, directory=tmp_path)
        assert live.seen() == second
        live.close()
