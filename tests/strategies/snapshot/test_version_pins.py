"""What is pinned is not retired; what is let go is, with the next publication."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_of_processes import open_descriptors

from wsm.strategies import publish_snapshot
from wsm.strategies.files.snapshot_directory import VersionPins


@pytest.fixture
def publish(tmp_path):
    """`publish(version)`: publish it, and return which versions are there then."""

    def publish(version: int, **options) -> list[str]:
        weights = {"weight": np.full(4, version, "float32")}
        publish_snapshot(tmp_path, version, {0: weights}, durable=False, **options)
        return sorted(
            path.name for path in (tmp_path / "versions").iterdir() if not path.name.startswith(".")
        )

    return publish


@pytest.fixture
def pins(tmp_path):
    made = VersionPins(tmp_path)
    yield made
    made.close()


def test_a_pinned_version_stays_until_it_is_let_go(publish, pins):
    publish(1)
    assert pins.add("1")
    publish(2)
    publish(3)
    assert publish(4) == ["1", "3", "4"]
    pins.keep({"3", None})
    assert publish(5) == ["4", "5"]
    assert pins.held == frozenset()


def test_a_version_that_is_not_there_is_not_pinned_and_not_an_error(publish, pins, tmp_path):
    assert not pins.add("7")
    publish(1)
    assert not pins.add("7")
    (tmp_path / "versions" / "9").write_text("a file")
    assert not pins.add("9")
    assert pins.held == frozenset()


def test_a_version_that_is_published_again_is_pinned_as_it_is_now(publish, pins, tmp_path):
    publish(1)
    assert pins.add("1")
    weights = {"weight": np.zeros(4, "float32")}
    publish_snapshot(tmp_path, 1, {0: weights}, durable=False, replace=True)
    assert pins.add("1")
    publish(2)
    assert publish(3) == ["1", "2", "3"]


def test_pins_cost_two_descriptors_each_however_often_they_are_asked_for(publish, pins):
    publish(1)
    before = open_descriptors()
    for _ in range(10):
        assert pins.add("1")
    assert open_descriptors() == before + 2
    pins.close()
    pins.close()
    assert open_descriptors() == before


def test_pins_of_nothing_hold_nothing():
    pins = VersionPins(None)
    assert not pins.add("1")
    pins.keep(())
    assert pins.held == frozenset()


def test_a_directory_that_leads_outside_is_left_alone(publish, pins, tmp_path, tmp_path_factory):
    publish(1)
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    (tmp_path / "versions" / "8").symlink_to(elsewhere)
    assert not pins.add("8")
