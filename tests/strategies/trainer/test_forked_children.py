"""A trainer forks children (readers of its data, for one): they keep no lock of it, and end nothing of it."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.another_user import fork
from tests.forkserver import WITHOUT_PADDLE
from tests.raising import raising
from wsm.own_descriptor import forked_child
from wsm.shared_directory import private_directory
from wsm.strategies import (
    BucketSender,
    IpcAsyncSource,
    IpcSource,
    MemoryTarget,
    SharedTensors,
    SnapshotPublisher,
    TensorSpec,
    load,
    publish_snapshot,
)
from wsm.strategies.files.snapshot_directory import VersionPins
from wsm.strategies.ipc.shared_segment import AttachedSegment, OwnedSegment

pytestmark = pytest.mark.processes

SPEC = TensorSpec("w", "U8", (4096,))
STATE = {"w": (SPEC, bytes(4096))}


@contextlib.contextmanager
def forked(work=lambda: None):
    """A child of this process that does `work` and lives, with all that it has, until the ``with`` ends."""
    done, tell_done = os.pipe()
    end, tell_end = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.close(tell_end)
            work()
            os.write(tell_done, b"+")
            os.read(end, 1)
        finally:
            os._exit(0)
    os.close(tell_done)
    os.close(end)
    try:
        assert os.read(done, 1) == b"+", "the child failed"
        yield child
    finally:
        for descriptor in (done, tell_end):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_the_next_publication_goes_on_while_a_child_of_the_last_one_lives(tmp_path):
    weights = {0: {"w": np.zeros(4, "float32")}}
    with contextlib.ExitStack() as children:
        with SnapshotPublisher(tmp_path, durable=False).version(1):
            children.enter_context(forked())
        publish_snapshot(tmp_path, 2, weights, durable=False)
        shared = SharedTensors(tmp_path)
        children.enter_context(forked())
        shared.close()
        SharedTensors(tmp_path).close()
        for address in (f"ipc://{tmp_path}/buckets", "tcp://127.0.0.1:*"):
            sender = BucketSender(address)
            children.enter_context(forked())
            sender.close()
            BucketSender(sender.address).close()


def test_a_child_keeps_no_lease_of_its_parent(tmp_path):
    weights = {0: {"w": np.zeros(4, "float32")}}
    pins = VersionPins(tmp_path)
    publish_snapshot(tmp_path, 1, weights, durable=False)
    assert pins.add(1)
    segment = OwnedSegment("wsm-test.", 64)
    reader = AttachedSegment(segment.name, 64, prefixes=("wsm-test.",), referrer="the test")
    kept = reader.memory(0, 64)
    with forked():
        reader.close()
        assert segment.leased()
        del kept
        assert not segment.leased()
        pins.close()
        for version in (2, 3):
            publish_snapshot(tmp_path, version, weights, durable=False)
        assert not (tmp_path / "versions" / "1").exists()
    segment.close()


def test_a_child_ends_nothing_that_is_its_parents(tmp_path):
    shared, staged = SharedTensors(tmp_path), SnapshotPublisher(tmp_path, durable=False).version(1)
    shared.publish(1, {0: STATE})
    segment = OwnedSegment("wsm-test.", 64)
    sender = BucketSender(f"ipc://{tmp_path}/buckets")

    def receive():
        return load(IpcAsyncSource(sender.address), MemoryTarget([SPEC]), name="ipc_async").version

    def end_all():
        with raising(forked_child):
            sender.send(1, {0: STATE})
        with raising(forked_child):
            segment.leased()
        for close in (shared.close, staged.discard, segment.close, sender.close):
            close()

    try:
        with ThreadPoolExecutor(1) as ranks:
            received = ranks.submit(receive)
            sender.send(1, {0: STATE})  # so that it has memory, and libzmq's threads
            assert received.result() == "1"
        with forked(end_all):
            assert load(IpcSource(tmp_path, 0, device_id=0), MemoryTarget([SPEC]), name="ipc").version == "1"
            assert staged.path.exists()
            assert (private_directory() / segment.name).exists()
            attached = AttachedSegment(segment.name, 64, prefixes=("wsm-test.",), referrer="the test")
            assert attached.owned()
            attached.close()
            with ThreadPoolExecutor(1) as ranks:
                received = ranks.submit(receive)
                sender.send(1, {0: STATE})
                assert received.result() == "1"
    finally:
        for close in (shared.close, staged.discard, segment.close, sender.close):
            close()


# A trainer with a child that outlives it.
_TRAINER = """
import os, sys, time
from wsm.strategies import SharedTensors, TensorSpec
shared = SharedTensors(sys.argv[1])
shared.publish(1, {0: {"w": (TensorSpec("w", "U8", (4096,)), bytes(4096))}})
if os.fork() == 0:
    print(os.getpid(), flush=True)  # behind what a fork lets go of
time.sleep(600)
"""


def test_a_trainer_that_was_killed_is_dead_though_a_child_of_it_lives(tmp_path):
    with WITHOUT_PADDLE.start("-c", _TRAINER, tmp_path, stderr=None, text=True) as trainer:
        child = int(trainer.stdout.readline())
        try:
            source = IpcSource(tmp_path, 0, device_id=0, orphans="refuse")
            assert load(source, MemoryTarget([SPEC]), name="ipc").version == "1"
            trainer.kill()
            trainer.wait()
            os.kill(child, 0)
            with raising("owner-died"):
                load(source, MemoryTarget([SPEC]), name="ipc")
        finally:
            trainer.kill()
            os.kill(child, signal.SIGKILL)
    with SharedTensors(tmp_path) as successor:
        successor.publish(2, {0: STATE})  # which sweeps what the dead one left
