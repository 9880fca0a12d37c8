"""Peers that say too much, too large, too often or what is not theirs to say: real processes, both sides."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
import zmq
from bucket_ranks import receive, shards
from memory_of_processes import peak_bytes
from receiving_rank import SPECS

from campaign import flooding_peer
from tests.another_user import acting, shared_place
from tests.forkserver import WITHOUT_PADDLE
from wsm.errors import WsmError
from wsm.shared_directory import ForeignPathError
from wsm.strategies import IpcAsyncSource, MemoryTarget, TensorSpec, load
from wsm.strategies import peer_errors as stream_errors
from wsm.strategies.buckets import wire
from wsm.strategies.buckets.channel import RankSocket, TrainerSocket
from wsm.strategies.conversation import Abort, frame_of

pytestmark = pytest.mark.processes

SPEC = TensorSpec("a", "U8", (3,))
#: Far above what is promised (16 MiB), far below what a second of a flood brings.
MOST_MORE = 200 << 20

# A trainer of rank 0 that sends when it is told to, and says how that ended.
_TRAINER = """
import sys
from wsm.errors import WsmError
from wsm.strategies import BucketSender, TensorSpec
tensors = {"a": (TensorSpec("a", "U8", (3,)), b"new")}
with BucketSender(sys.argv[1]) as sender:
    print(sender.address, flush=True)
    for line in sys.stdin:
        try:
            print(type(sender.send(1, {0: tensors, 1: tensors}, join_s=float(line))).__name__, flush=True)
        except WsmError as error:
            print(type(error).__name__, flush=True)
"""


@pytest.fixture
def start():
    """Start a program of Python's; its process, and the first line that it says."""
    with contextlib.ExitStack() as stack:

        def run(*arguments):
            process = WITHOUT_PADDLE.start(*arguments, stderr=None, text=True)
            stack.enter_context(process)
            return process, process.stdout.readline().strip()

        yield run


@pytest.fixture(params=["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def address(request, tmp_path):
    return "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/buckets"


@pytest.mark.slow
def test_floods_of_every_kind_keep_no_sender_from_its_deadline_its_ranks_or_its_size(address, start, threads):
    trainer, address = start("-c", _TRAINER, address)
    before = peak_bytes(trainer.pid)

    def send(join_s: float) -> str:
        trainer.stdin.write(f"{join_s}\n")
        trainer.stdin.flush()
        return trainer.stdout.readline().strip()

    start(flooding_peer.__file__, address)
    threading.Event().wait(0.5)  # the trainer does nothing
    assert send(1.0) in ("PeerSilentError", "PeerFailedError")
    loads = [
        threads.submit(load, IpcAsyncSource(address, rank), MemoryTarget([SPEC]), name="ipc_async")
        for rank in range(2)
    ]
    assert send(60.0) == "SendReport"
    assert all(pending.result().verified for pending in loads)
    assert peak_bytes(trainer.pid) < before + MOST_MORE
    trainer.stdin.close()  # the trainer closes its sender: a killed one leaves its windows to the next sender
    assert trainer.wait(60) == 0


def test_who_says_that_it_is_a_rank_and_gives_up_ends_nothing(over_ipc, threads):
    with contextlib.closing(RankSocket(over_ipc.address)) as liar:
        assert liar.look()
        with over_ipc.sending(1, shards(1)):
            for message in (
                wire.Hello(0, 2, "1", look=False),
                wire.Ready(),
                Abort("failed", "OSError", "no memory today"),
            ):
                liar.send(frame_of(message))
            offered, told = (wire.from_trainer(liar.receive(60), "the sender") for _ in range(2))
            assert isinstance(offered, wire.Init)
            assert told.reason == "busy"
            loads = [threads.submit(receive, over_ipc, rank, 1) for rank in range(2)]
            assert all(pending.result() for pending in loads)


def test_who_does_not_know_the_key_reaches_nobody(over_ipc, threads):
    """With ZMQ's own socket: its connection is ended in the handshake."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(over_ipc.address)
        with over_ipc.sending(1, shards(1)):
            with contextlib.suppress(zmq.Again):  # the handshake may have failed by now
                stranger.send(frame_of(wire.Hello(0, 2, "1", look=False)), zmq.NOBLOCK)
            loads = [threads.submit(receive, over_ipc, rank, 1) for rank in range(2)]
            assert all(pending.result() for pending in loads)
        assert not stranger.poll(0)


@pytest.mark.parametrize("make", ["open to its group", "as /tmp", "a link"])
def test_a_socket_lies_in_a_directory_that_is_closed_to_others_or_is_refused_on_both_sides(tmp_path, make):
    place, real = tmp_path / "place", tmp_path / "real"
    real.mkdir(0o700)
    place.symlink_to(real)
    address = f"ipc://{place}/buckets"
    if make != "a link":
        place.unlink()
        place.mkdir()
        place.chmod(0o710 if make == "open to its group" else 0o1777)
    with pytest.raises(ForeignPathError, match="place is not used"):
        TrainerSocket(address)
    assert list(real.iterdir()) == []
    with contextlib.closing(TrainerSocket(f"ipc://{real}/buckets")):
        if make != "a link":
            place.rmdir()
            real.chmod(0o710)
        with pytest.raises(ForeignPathError, match="is not used"):
            RankSocket(f"ipc://{place if make == 'a link' else real}/buckets").look()


@pytest.mark.needs("root")
def test_a_process_of_another_user_reaches_nobody_though_it_knows_the_key():
    def ask() -> zmq.Socket:
        stranger = zmq.Context().socket(zmq.DEALER)
        public, secret = zmq.curve_keypair()
        stranger.curve_serverkey, stranger.curve_publickey, stranger.curve_secretkey = key, public, secret
        stranger.connect(f"ipc://{place}/buckets")
        with contextlib.suppress(zmq.Again):
            stranger.send(frame_of(wire.Hello(0, 2, "1", look=False)), zmq.NOBLOCK)
        return stranger

    with shared_place() as shared:
        place = shared / "own"
        place.mkdir(0o700)
        with contextlib.closing(TrainerSocket(f"ipc://{place}/buckets")) as trainer:
            key = (place / "buckets.lock").read_bytes()[:40]
            place.chmod(0o711)
            (place / "buckets").chmod(0o666)  # neither of which a user does
            with acting(ask):
                assert trainer.receive(0.5) is None
            own = ask()
            assert trainer.receive(60) is not None
            own.context.destroy(linger=0)


def test_a_rank_that_cannot_begin_is_named_with_its_reason_when_its_time_is_over(over_ipc, threads):
    source = IpcAsyncSource(over_ipc.address, memory_directory="/nowhere")
    pending = threads.submit(load, source, MemoryTarget(SPECS), name="ipc_async")
    with pytest.raises(stream_errors.PeerFailedError, match="rank 0 gave up: shared-memory-gone"):
        over_ipc.send(1, {0: shards(1)[0]}, join_s=0.5)
    with pytest.raises(WsmError):
        pending.result()


@pytest.mark.slow
@pytest.mark.parametrize("said", ["endless parts", "large messages", "no ZMQ"])
def test_who_floods_a_rank_in_a_trainer_s_place_is_named_at_the_deadline(tmp_path, said, start):
    """Whoever has taken the path of a living trainer."""
    address = f"ipc://{tmp_path}/buckets"
    with contextlib.closing(TrainerSocket(address)):
        (tmp_path / "buckets").unlink()
        start(flooding_peer.__file__, "--listen", address, said)
        before = peak_bytes(os.getpid())
        with pytest.raises(stream_errors.PeerSilentError, match="its offer was due"):
            load(IpcAsyncSource(address, connect_s=1.0), MemoryTarget([SPEC]), name="ipc_async")
        assert peak_bytes(os.getpid()) < before + MOST_MORE
