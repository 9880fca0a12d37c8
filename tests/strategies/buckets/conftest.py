"""A sender, and ranks for it in threads and processes."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from bucket_ranks import BUCKET, PROGRAM, WINDOW

from tests.forkserver import WITHOUT_PADDLE
from wsm.strategies import BucketSender


@pytest.fixture
def over_ipc(tmp_path):
    with BucketSender(f"ipc://{tmp_path}/buckets", bucket_bytes=BUCKET, window_bytes=WINDOW) as made:
        yield made


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def launch(over_ipc):
    """Start a rank's process and wait until it has come to a point."""
    with contextlib.ExitStack() as stack:

        def start(rank, version, point):
            process = WITHOUT_PADDLE.start(PROGRAM, over_ipc.address, rank, version, point, stderr=None)
            stack.enter_context(process)
            return process

        yield start
