"""What a load from CheckpointTransfer is said to take beside the model is what it takes, and bounded."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_transfer.sender import FakeSender
from memory_of_processes import memory_bytes, peak_bytes

from wsm.strategies import TensorSpec, with_manifest
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.transports._foreign import BATCH_BYTES
from wsm.strategies.transports.checkpoint_transfer import CheckpointTransferOptions
from wsm.strategies.transports.stream_manifest import StreamManifest

pytestmark = pytest.mark.processes

MIB = 1 << 20
BUCKET = 16 * MIB
#: Six of them fill a bucket, and twelve of those the model.
SIZE = BUCKET // 6 // 64 * 64
COUNT = 72
#: What the allocator and the interpreter take besides, in pages that nobody asked for by name.
NOISE = 12 * MIB
WITH_STANDINS = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

# A rank that has loaded something small by the same transport and holds the model's memory, to be measured.
_RANK = """
import json, sys
from wsm.strategies import MemoryTarget, RsyncSource, TensorSpec, load
from wsm.strategies.transports.checkpoint_transfer import CheckpointTransferTransport
from wsm.strategies.transports.checkpoint_transfer import CheckpointTransferOptions
config, size, count = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
options = CheckpointTransferOptions.of(config)
source = RsyncSource(CheckpointTransferTransport(options), 0, 1, whole=options.check == "whole")
load(source, MemoryTarget([TensorSpec("0", "U8", (64,))]), name="rsync", version=1)
target = MemoryTarget([TensorSpec(str(index), "U8", (size,)) for index in range(count)])
for name in target.specs():
    target.writable(name)[:] = b"x" * size
print("small", flush=True)
sys.stdin.readline()
report = load(source, target, name="rsync", version=2)
print(report.peak_extra_bytes, flush=True)
sys.stdin.readline()
source.transport.close()
"""


@pytest.fixture
def sender():
    made = FakeSender(bucket_bytes=BUCKET)
    yield made
    made.close()


@pytest.fixture
def measured(sender):
    """Load a model by the settings that are given; what was announced, and what the kernel saw."""

    def measure(**settings):
        config = {"redis_host": "127.0.0.1", "redis_port": sender.port, **settings}
        command = [sys.executable, "-c", _RANK, json.dumps(config), str(SIZE), str(COUNT)]
        small = {"0": np.zeros(64, np.uint8)}
        large = {str(index): np.full(SIZE, index, np.uint8) for index in range(COUNT)}
        sender.send(with_manifest(small, version=1, rank=0, world_size=1), step_id="1")
        with contextlib.ExitStack() as stack:
            rank = subprocess.Popen(
                command, env=WITH_STANDINS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(rank)
            stack.callback(rank.kill)
            assert rank.stdout.readline() == "small\n"
            sender.send(with_manifest(large, version=2, rank=0, world_size=1), step_id="2")
            Path(f"/proc/{rank.pid}/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
            before = memory_bytes(rank.pid, "VmRSS")
            rank.stdin.write("\n")
            rank.stdin.flush()
            announced = int(rank.stdout.readline())
            return announced, peak_bytes(rank.pid) - before

    return measure


@pytest.mark.slow
def test_what_the_settings_say_is_announced_and_is_no_less_than_what_is_taken(measured):
    announced, taken = measured(bucket_size_mb=16, num_buffers=2, materialize_tensors=False)
    assert announced == 2 * BUCKET + BATCH_BYTES
    assert BUCKET < taken < announced + NOISE


@pytest.mark.slow
def test_what_is_collected_before_the_model_is_touched_is_announced_too(measured):
    announced, taken = measured(bucket_size_mb=16, num_buffers=2, materialize_tensors=False, check="whole")
    assert announced == 2 * BUCKET + BATCH_BYTES + COUNT * SIZE
    assert COUNT * SIZE < taken < announced + NOISE


@pytest.mark.slow
def test_where_no_setting_says_how_much_no_more_is_announced_than_the_stream_brings(measured):
    announced, taken = measured()
    assert announced == COUNT * SIZE + BATCH_BYTES
    assert taken < announced


def manifest(*sizes):
    specs = [TensorSpec(str(index), "U8", (size,)) for index, size in enumerate(sizes)]
    tensors = [PromisedTensor(spec, "0" * 32) for spec in specs]
    return StreamManifest.with_tensors(tensors, version="1", rank=0, world_size=1, publication="")


def test_a_tensor_that_is_larger_than_a_buffer_counts_as_one():
    options = CheckpointTransferOptions({}, num_buffers=2, bucket_size_mb=100)
    small, large = 60 * MIB, 500 * MIB
    assert options.peak_extra_bytes(manifest(*[small] * 9, large), keep=True) == 2 * large
    assert options.peak_extra_bytes(manifest(small, large), keep=True) == small + large
    assert options.peak_extra_bytes(manifest(*[small] * 9), keep=False) == 200 * MIB + BATCH_BYTES
    assert options.peak_extra_bytes(None, keep=True) == 200 * MIB


def test_what_nobody_says_is_what_fastdeploy_has():
    assert CheckpointTransferOptions.of({}).peak_extra_bytes(None, keep=True) == 2 * 512 * MIB
    said = CheckpointTransferOptions.of({"num_buffers": 3, "bucket_size_mb": 8})
    assert said.peak_extra_bytes(None, keep=True) == 3 * 8 * MIB
