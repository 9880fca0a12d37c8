"""Sides that take their time: nothing that is said gets lost, and who works is not taken for silent."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest

from wsm.strategies import BucketSender, IpcAsyncSource, MemoryTarget, TensorSpec, load
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets._bucket_plan import SEGMENT_PREFIX, Marks, segment_bytes
from wsm.strategies.buckets._bucket_socket import listen
from wsm.strategies.buckets._conversation import Conversation
from wsm.strategies.digest import digest_of
from wsm.strategies.ipc.shared_segment import OwnedSegment
from wsm.strategies.messages.errors import PeerMessageError, PeerSilentError
from wsm.strategies.observer import UNOBSERVED

# As many buckets as ZMQ would not hold by itself, all of them in flight at once.
BUCKETS = 8000
SMALL = TensorSpec("a", "U8", (64 * BUCKETS,))


class Watch:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic_ns(self) -> int:
        return int(self.seconds * 1e9)


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/buckets"


@pytest.mark.parametrize("standing_still", ["trainer", "rank"])
def test_no_word_about_many_small_buckets_is_lost_while_one_side_stands_still(
    address, threads, standing_still
):
    other_is_through = threading.Event()

    def on_trainer(done, total):
        if done == total and standing_still == "trainer":
            other_is_through.wait(60)
        elif done == total:
            other_is_through.set()

    def on_rank(done, total):
        if standing_still == "rank":
            other_is_through.wait(60)
        elif done > total - 256:
            other_is_through.set()

    content = bytes(range(256)) * (SMALL.nbytes // 256)
    target = MemoryTarget([SMALL])
    with BucketSender(address, bucket_bytes=64, window_bytes=SMALL.nbytes) as sender:
        pending = threads.submit(load, IpcAsyncSource(address), target, name="ipc_async", progress=on_rank)
        sent = sender.send(1, {0: {"a": (SMALL, content)}}, progress=on_trainer, silence_s=60)
    assert pending.result().digest == sent.digests[0]
    assert target.readable("a") == content


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


def conversation(address, clock):
    return closing(Conversation(IpcAsyncSource(address, silence_s=10), UNOBSERVED, clock))


def test_a_trainer_that_works_on_what_a_rank_leaves_out_is_not_called_silent(address):
    clock = Watch()

    def nine_seconds_later():
        clock.seconds += 9
        return clock.seconds

    with conversation(address, clock) as rank:
        rank.follow(lambda: True, nine_seconds_later)
        rank.until(900, lambda: None, "bucket 1")
    assert clock.seconds >= 900


def test_a_trainer_that_gets_nowhere_is(address):
    clock = Watch()

    def where_it_was():
        clock.seconds += 4
        return 7

    with conversation(address, clock) as rank:
        rank.follow(lambda: True, where_it_was)
        with pytest.raises(PeerSilentError, match="bucket 1 was due"):
            rank.until(8, lambda: None, "bucket 1")


def test_a_trainer_that_ends_a_stream_whose_bytes_are_missing_is_heard(address, threads):
    spec = TensorSpec("a", "U8", (128,))
    segment = OwnedSegment(SEGMENT_PREFIX, segment_bytes(256))
    trainer = listen(address)

    def hear():
        while (heard := trainer.receive()) is None:
            assert trainer.poll(60)
        identity, data = heard
        return identity, *say.from_bytes(data, peer="the rank")

    with closing(segment), closing(trainer):
        pending = threads.submit(
            load, IpcAsyncSource(address, silence_s=600), MemoryTarget([spec]), name="ipc_async"
        )
        identity, session, _ = hear()
        Marks(segment, session).offer(0)
        init = say.Init("1", 0, 1, "p", segment.name, 256, 128, (spec,))
        trainer.send(identity, say.to_bytes(init, session))
        assert hear()[2] == say.Ready()
        Marks(segment, session).set_written(64)
        for message in (say.Bucket(0, (digest_of(bytes(128)),)), say.End(1, digest_of(b""))):
            trainer.send(identity, say.to_bytes(message, session))
        with pytest.raises(PeerMessageError, match="it is a End, bucket 1 was due"):
            pending.result()
