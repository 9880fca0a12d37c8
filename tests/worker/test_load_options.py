"""What the configuration says about loads reaches them."""

from __future__ import annotations

import os
import threading

import pytest

from wsm.actions.base import ActionContext
from wsm.config import ConfigurationError, WsmConfig, config_from_mapping
from wsm.strategies import MemoryTarget, TensorSpec, publish_snapshot
from wsm.worker.loading import load_function
from wsm.worker.sources import Sources

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


def loaded(tmp_path, **options):
    publish_snapshot(tmp_path, 3, {0: {s.name: (s, bytes(s.nbytes)) for s in SPECS}}, durable=False)
    config = config_from_mapping(
        {"name": "g", "ranks": 1, "snapshot": {"directory": str(tmp_path), "device_ids": [0]}, **options}
    )
    context = ActionContext(runner=None, rank=0, world_size=1, epoch=1, sequence=1, version=3)
    return load_function(Sources(config))(context, MemoryTarget(SPECS))


def test_one_thread_is_the_calling_one(tmp_path, readers):
    assert loaded(tmp_path, load_threads=1)["tensors"] == len(SPECS)
    assert readers == {threading.current_thread()}


def test_threads_are_no_more_than_configured(tmp_path, readers):
    assert loaded(tmp_path, load_threads=3)["tensors"] == len(SPECS)
    assert 1 <= len(readers) <= 3


def test_a_negative_number_of_threads_is_refused():
    with pytest.raises(ConfigurationError, match="load_threads"):
        WsmConfig("g", ranks=1, load_threads=-1)
