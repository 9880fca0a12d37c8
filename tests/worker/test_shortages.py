"""Ranks that run out of descriptors, memory or threads: an outcome of the tables, then service again."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """What is open stays open; nothing more can be opened."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_rank_without_a_descriptor_gives_its_memory_back_and_serves_again(make_group):
    group = make_group(measures=True)
    controller = group.boot()
    with without_descriptors(group.programs[0].pid):
        receipt = controller.clear()
    assert "free memory not measured on rank 0" in receipt.sentence()
    assert "RLIMIT_NOFILE" in receipt.ranks[0].facts["not_measured"]
    assert receipt.ranks[1].facts["resident_bytes_after"] > 0
    assert controller.status().state == "CLEARED"
    group.publish(2)
    assert controller.update(2).version == 2
