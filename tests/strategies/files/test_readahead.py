"""The window that goes ahead of a load: every byte asked for once, before it is read, and never too early."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.page_cache import drop_page_cache
from wsm.config import ConfigurationError, config_from_mapping
from wsm.strategies import load
from wsm.strategies.files.safetensors import Readahead
from wsm.worker.loading import Sources


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_every_byte_is_asked_for_once_and_before_it_is_read_and_within_the_window(sizes, window, chunk):
    asked: list[tuple[int, int]] = []
    ahead = Readahead(
        sizes,
        window,
        lambda file, offset, length: asked.extend((file, byte) for byte in range(offset, offset + length)),
    )
    order = [(file, byte) for file, size in enumerate(sizes) for byte in range(size)]
    for at in range(0, len(order), chunk):
        ahead.reached(*order[at])
        assert order[at] in asked
        assert len(asked) <= at + window
    assert asked == sorted(set(asked))
    assert set(asked) <= set(order)
    if window >= 2 * chunk:
        assert asked == order


def test_reading_out_of_order_asks_for_nothing_twice():
    asked = []
    ahead = Readahead([100], 40, lambda file, offset, length: asked.append((offset, length)))
    for offset in (0, 80, 10, 90, 50):
        ahead.reached(0, offset)
    assert asked == [(0, 40), (80, 20)]


def test_a_load_asks_the_kernel_for_all_its_parts(snapshot, held, bytes_of, monkeypatch):
    snapshot.publish(1)
    drop_page_cache(snapshot.root)
    asked = {}

    def advise(descriptor, offset, length, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        asked[path] = asked.get(path, 0) + length

    monkeypatch.setattr(os, "posix_fadvise", advise)
    target = snapshot.target()
    report = load(snapshot.source(readahead_bytes=1 << 30), target)
    assert held(target) == bytes_of()
    assert sorted(asked) == sorted(report.files)
    assert sum(asked.values()) <= sum(Path(file).stat().st_size for file in report.files)

    asked.clear()
    load(snapshot.source(), target)
    assert asked == {}


def test_a_file_system_without_advice_is_read_all_the_same(snapshot, held, bytes_of, monkeypatch):
    def refuse(*_):
        raise OSError(95, "not supported")

    snapshot.publish(1)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    target = snapshot.target()
    load(snapshot.source(readahead_bytes=1 << 20), target)
    assert held(target) == bytes_of()


def test_the_configuration_says_how_far_ahead():
    group = {"name": "g", "ranks": 1, "snapshot": {"readahead_bytes": 1 << 26}}
    assert Sources(config_from_mapping(group)).of(0).readahead_bytes == 1 << 26
    group["snapshot"]["readahead_bytes"] = -1
    with pytest.raises(ConfigurationError, match="readahead_bytes"):
        config_from_mapping(group)
