"""Targets beside the versions: numbered once, whole, and what they name is not retired."""

from __future__ import annotations

import json
import threading

import pytest

from tests.raising import raising
from wsm.states.fleet import NamedContent, next_target
from wsm.strategies import publish_snapshot
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer import targets
from wsm.strategies.trainer.publications import listed_versions
from wsm.strategies.trainer.targets import labels_named, newest_target, set_target

ONE, TWO = (NamedContent(label, f"digest-{label}") for label in ("1", "2"))


def publish(store, version: int) -> None:
    spec = TensorSpec("w", "U8", (4,))
    publish_snapshot(store, version, {0: {"w": (spec, bytes([version] * 4))}}, durable=False)


def test_the_highest_number_counts_and_is_given_once(tmp_path) -> None:
    assert newest_target(tmp_path) is None
    first = next_target(None, ONE)
    assert set_target(tmp_path, first)
    second = next_target(first, TWO)
    won: list[bool] = []
    together = threading.Barrier(4)

    def sets() -> None:
        together.wait(10)
        won.append(set_target(tmp_path, second))

    setting = [threading.Thread(target=sets) for _ in range(4)]
    for each in setting:
        each.start()
    for each in setting:
        each.join()
    assert sorted(won) == [False, False, False, True]
    assert newest_target(tmp_path) == second
    assert not set_target(tmp_path, first), "a number that was passed is not free"
    assert json.loads((tmp_path / "target.json").read_text())["generation"] == 2
    assert sorted(path.name for path in (tmp_path / "targets").iterdir()) == [
        "000000000001.json",
        "000000000002.json",
    ]


@pytest.mark.parametrize("content", [b"", b"{", b'{"generation": 7}'])
def test_a_damaged_target_is_an_error_and_none_of_an_older_number(tmp_path, content) -> None:
    set_target(tmp_path, next_target(None, ONE))
    (tmp_path / "targets" / "000000000002.json").write_bytes(content)
    with raising(targets.bad_target):
        newest_target(tmp_path)
    assert labels_named(tmp_path) == {"1"}


def test_no_version_goes_that_the_newest_two_targets_name(tmp_path) -> None:
    for version in (1, 2):
        publish(tmp_path, version)
    target = next_target(next_target(None, ONE), TWO)
    set_target(tmp_path, next_target(None, ONE))
    set_target(tmp_path, target)
    for version in (3, 4, 5):
        publish(tmp_path, version)
    assert sorted(each.label for each in listed_versions(tmp_path / "versions")) == ["1", "2", "4", "5"]
