"""Sides that take their time: nothing that is said gets lost, and who works is not taken for silent."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from wsm.strategies import BucketSender, IpcAsyncSource, MemoryTarget, TensorSpec, load

# Many more buckets than ZMQ holds, or may be in flight.
BUCKETS = 8000
SMALL = TensorSpec("a", "U8", (64 * BUCKETS,))


class Watch:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic_ns(self) -> int:
        return int(self.seconds * 1e9)

    wall_ns = monotonic_ns


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/buckets"


@pytest.mark.parametrize("standing_still", ["trainer", "rank"])
def test_no_word_about_many_small_buckets_is_lost_while_one_side_stands_still(
    address, threads, standing_still
):
    other_is_through = threading.Event()
    seen = [0]

    def on_trainer(done, total):
        if done == total and standing_still == "trainer":
            before = -1
            while (
                seen[0] > before and not other_is_through.is_set()
            ):  # what a full socket holds back is not lost
                before = seen[0]
                other_is_through.wait(0.5)

    def on_rank(done, total):
        if standing_still == "rank" and not seen[0]:
            other_is_through.wait(0.5)
        seen[0] = done
        if standing_still == "rank":
            return
        if done > total - 256:
            other_is_through.set()

    content = bytes(range(256)) * (SMALL.nbytes // 256)
    target = MemoryTarget([SMALL])
    with BucketSender(address, bucket_bytes=64, window_bytes=SMALL.nbytes) as sender:
        pending = threads.submit(load, IpcAsyncSource(address), target, name="ipc_async", progress=on_rank)
        sent = sender.send(1, {0: {"a": (SMALL, content)}}, progress=on_trainer, silence_s=60)
    assert pending.result().digest == sent.digests[0]
    assert bytes(target.readable("a")) == content


def test_a_trainer_whose_tensors_come_slowly_does_not_call_a_rank_silent_for_that(address, threads):
    clock = Watch()

    class FromDevice(dict):
        """Each look at a tensor takes an hour."""

        def __getitem__(self, name):
            clock.seconds += 3600
            return super().__getitem__(name)

    tensors = FromDevice({name: np.full(100, number, np.uint8) for number, name in enumerate("abcd")})
    target = MemoryTarget(TensorSpec(name, "U8", (100,)) for name in tensors)
    with BucketSender(address, bucket_bytes=128, window_bytes=128, clock=clock) as sender:
        pending = threads.submit(load, IpcAsyncSource(address), target, name="ipc_async")
        sent = sender.send(1, {0: tensors}, join_s=1e9, silence_s=10)
    assert pending.result().digest == sent.digests[0]
