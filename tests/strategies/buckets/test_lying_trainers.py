"""A peer that lies about the memory of its stream: a typed error, and every file is where it was."""

from __future__ import annotations

import secrets
from contextlib import closing

import msgspec
import pytest

from tests.raising import matches
from wsm.private_directory import private_directory
from wsm.strategies import IpcAsyncSource, MemoryTarget, TensorSpec, load
from wsm.strategies.buckets import wire
from wsm.strategies.buckets.channel import TrainerSocket
from wsm.strategies.conversation import Abort, frame_of
from wsm.strategies.ipc.shared_segment import OwnedSegment
from wsm.strategies.tensor import BEGIN_IN_PAGE

SPEC = TensorSpec("a", "U8", (3,))
NBYTES = BEGIN_IN_PAGE + 128


@pytest.fixture
def load_from_liar(tmp_path, threads):
    """Load from a peer that names the memory `name` in its Init; the rank's error."""

    def lie(name: str) -> Exception:
        with closing(TrainerSocket(f"ipc://{tmp_path}/liar")) as liar:
            pending = threads.submit(
                load, IpcAsyncSource(f"ipc://{tmp_path}/liar"), MemoryTarget([SPEC]), name="ipc_async"
            )
            rank, _ = liar.receive(60)
            offer = wire.Init(
                "1", 0, 1, "p", f"{wire.SEGMENT_PREFIX}{'0' * 16}", 64, 2, False, (("a", "U8", (3,)),)
            )
            liar.send(rank, frame_of(msgspec.structs.replace(offer, segment=name)))
            liar.receive(0.5)  # a rank that believes it says Ready, and is told that this was all
            liar.send(rank, frame_of(Abort("failed", "Liar", "goodbye")))
            return pending.exception(60)

    return lie


@pytest.fixture
def victim():
    """A file of this user in shared memory that is large enough for a window."""
    path = private_directory() / f"wsm-test-victim.{secrets.token_hex(4)}"
    path.write_bytes(bytes(NBYTES))
    yield path
    path.unlink(missing_ok=True)


def test_a_file_that_is_called_like_the_memory_of_a_stream_is_not_taken_for_one(load_from_liar, victim):
    called = victim.rename(victim.with_name(f"{wire.SEGMENT_PREFIX}{secrets.token_hex(8)}"))
    try:
        error = load_from_liar(called.name)
        assert matches(error, "foreign-segment")
        assert "it was not made for this stream" in str(error)
        assert called.exists()
    finally:
        called.unlink()


def test_the_memory_of_another_stream_is_neither_written_nor_removed(load_from_liar):
    with closing(OwnedSegment(wire.SEGMENT_PREFIX, NBYTES)) as other:
        assert matches(load_from_liar(other.name), "foreign-segment")
        assert (private_directory() / other.name).exists()
        assert bytes(other.memory) == bytes(other.nbytes)
        assert not other.leased()
