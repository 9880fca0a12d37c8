"""Publishers in a process that may open no file: a typed error names the limit, and nothing is kept."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_state import make_state
from written_checkpoint import write_checkpoint

from tests.descriptors import open_before, open_descriptors
from wsm import WsmError
from wsm.shared_directory import private_directory
from wsm.strategies import AdoptSettings, BucketSender, SharedTensors, adopt, publish_delta, publish_snapshot
from wsm.strategies.trainer.publications import published_last


@contextlib.contextmanager
def only(free: int) -> Iterator[None]:
    """Leave this process so many descriptors that it may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd"))) + 16  # noqa: PTH208 - names are all that is wanted
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def lying() -> set[str]:
    return {path.name for path in private_directory().iterdir()}


def snapshot(root: Path) -> None:
    publish_snapshot(root, 2, {0: make_state()}, durable=False)


def delta(root: Path) -> None:
    publish_delta(root, 2, 1, {0: make_state(seed=1)}, base={0: make_state()}, durable=False)


def adoption(root: Path) -> None:
    adopt(root / "step_2", AdoptSettings(root, [root], durable=False))


def sharing(root: Path) -> None:
    with SharedTensors(root) as trainer:
        trainer.publish(2, {0: make_state()})


def sender(root: Path) -> None:
    BucketSender(f"ipc://{root}/buckets").close()


@pytest.mark.slow
@pytest.mark.parametrize("publish", [snapshot, delta, adoption, sharing, sender])
def test_a_publisher_without_descriptors_names_their_limit_and_keeps_nothing_open(
    tmp_path: Path, publish: Callable[[Path], None]
) -> None:
    publish_snapshot(tmp_path, 1, {0: make_state()}, durable=False)
    write_checkpoint(tmp_path / "step_2", make_state(seed=2))
    refused: list[WsmError] = []
    open_before()
    for free in range(9):
        before, lay = open_descriptors(), lying()
        with only(free):
            try:
                publish(tmp_path)
            except WsmError as error:
                refused.append(error)  # kept, with the frames of its traceback
        assert open_descriptors() <= before, free  # what earlier tests left may go meanwhile
        assert lying() == lay, free
    assert refused
    assert [str(error) for error in refused if "RLIMIT_NOFILE" not in str(error)] == []
    publish(tmp_path)


@pytest.mark.parametrize("free", range(6))
def test_a_version_that_is_published_with_few_descriptors_left_is_not_taken_for_an_old_one(
    tmp_path: Path, free: int
) -> None:
    for version in (1, 2, 3):
        publish_snapshot(tmp_path, version, {0: make_state()}, durable=False)
    published = "3"
    with only(free), contextlib.suppress(WsmError):
        published = publish_snapshot(tmp_path, 4, {0: make_state()}, durable=False).version
    assert published_last(tmp_path) == published
