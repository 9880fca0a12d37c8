"""What the configuration says about loads reaches them."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from wsm.actions.base import ActionContext
from wsm.config import config_from_mapping
from wsm.strategies import MemoryTarget, TensorSpec, publish_snapshot
from wsm.worker.loading import Sources

SPECS = [TensorSpec(f"w{index}", "U8", (1 << 20,)) for index in range(8)]


@pytest.fixture
def readers(monkeypatch):
    """The threads that read from snapshot files."""
    found = set()
    original = os.preadv

    def preadv(*arguments):
        found.add(threading.current_thread())
        return original(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    return found


def loaded(tmp_path, memory=None, target=None, **options):
    publish_snapshot(tmp_path, 3, {0: {s.name: (s, bytes(s.nbytes)) for s in SPECS}}, durable=False)
    config = config_from_mapping(
        {"name": "g", "ranks": 1, "snapshot": {"directory": str(tmp_path), "device_ids": [0]}, **options}
    )
    runner = SimpleNamespace(memory=memory)
    context = ActionContext(runner=runner, rank=0, world_size=1, epoch=1, sequence=1, version=3)
    return Sources(config).load(context, target or MemoryTarget(SPECS)).facts()


def test_one_thread_is_the_calling_one(tmp_path, readers):
    assert loaded(tmp_path, load_threads=1)["tensors"] == len(SPECS)
    assert readers == {threading.current_thread()}


def test_threads_are_no_more_than_configured(tmp_path, readers):
    assert loaded(tmp_path, load_threads=3)["tensors"] == len(SPECS)
    assert 1 <= len(readers) <= 3


@pytest.mark.parametrize(("ranks", "threads"), [(1, 6), (2, 3), (8, 1)])
def test_without_a_number_the_ranks_of_the_group_share_the_cores(tmp_path, monkeypatch, ranks, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    config = config_from_mapping({"name": "g", "ranks": ranks, "snapshot": {"directory": str(tmp_path)}})
    assert Sources(config).threads == threads
