"""A peer that lies about the memory of its stream: a typed error, and every file is where it was."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

import pytest

from tests.raising import matches
from wsm.signals.segment import Segment
from wsm.strategies import IpcAsyncSource, MemoryTarget, TensorSpec, load
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets._bucket_plan import SEGMENT_PREFIX, segment_bytes
from wsm.strategies.buckets._bucket_socket import listen
from wsm.strategies.ipc import errors as ipc_errors
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY, OwnedSegment

SPEC = TensorSpec("a", "U8", (3,))


@pytest.fixture
def load_from_liar(tmp_path, threads):
    """Load from a peer that names the memory `name` in its Init; the rank's error."""

    def lie(name: str) -> Exception:
        with closing(listen(f"ipc://{tmp_path}/liar")) as liar:
            pending = threads.submit(
                load, IpcAsyncSource(f"ipc://{tmp_path}/liar"), MemoryTarget([SPEC]), name="ipc_async"
            )
            while (heard := liar.receive()) is None:
                assert liar.poll(60)
            identity, data = heard
            session, _ = say.from_bytes(data, peer="the rank")
            init = say.Init("1", 0, 1, "p", name, 128, 64, (SPEC,))
            liar.send(identity, say.to_bytes(init, session))
            if liar.poll(0.5):  # a rank that believes it says Ready, and is told that this was all
                liar.send(identity, say.to_bytes(say.Abort("failed", "Liar", "goodbye"), session))
            return pending.exception(60)

    return lie


@pytest.fixture
def victim():
    """A file of this user in shared memory that is large enough for a window."""
    path = Path(MEMORY_DIRECTORY) / f"wsm-test-victim.{secrets.token_hex(4)}"
    path.write_bytes(bytes(segment_bytes(128)))
    yield path
    path.unlink(missing_ok=True)


def test_a_peer_cannot_have_the_segment_of_another_group_removed(load_from_liar):
    name = f"test-{secrets.token_hex(4)}"
    with Segment.create(name, world_size=2, run_id="", configuration_digest=0) as group:
        error = load_from_liar(f"wsm.{name}")
        assert matches(error, ipc_errors.foreign_segment)
        assert f"wsm.{name}" in str(error)
        assert str(error).endswith("look who wrote or sent that")
        assert not group.inode_changed()
        group.unlink()


def test_a_peer_cannot_have_any_other_file_removed(load_from_liar, victim):
    assert matches(load_from_liar(victim.name), ipc_errors.foreign_segment)
    assert victim.exists()


def test_a_file_that_is_called_like_the_memory_of_a_stream_is_not_taken_for_one(load_from_liar, victim):
    called = victim.rename(victim.with_name(f"{SEGMENT_PREFIX}{secrets.token_hex(8)}"))
    try:
        error = load_from_liar(called.name)
        assert matches(error, ipc_errors.foreign_segment)
        assert "it was not made for this stream" in str(error)
        assert called.exists()
    finally:
        called.unlink()


def test_the_memory_of_another_stream_is_neither_written_nor_removed(load_from_liar):
    with closing(OwnedSegment(SEGMENT_PREFIX, segment_bytes(128))) as other:
        assert matches(load_from_liar(other.name), ipc_errors.foreign_segment)
        assert (Path(MEMORY_DIRECTORY) / other.name).exists()
        assert bytes(other.memory) == bytes(other.nbytes)
        assert not other.leased()
