"""Peers that say too much, too large, too often or what is not theirs to say: real processes, both sides."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from bucket_ranks import receive, shards
from receiving_rank import SPECS

from campaign import flooding_peer
from campaign.flooding_peer import KINDS, OPENING, frame
from wsm.errors import WsmError
from wsm.strategies import IpcAsyncSource, MemoryTarget, TensorSpec, load
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets._bucket_socket import connect, listen
from wsm.strategies.messages import errors as stream_errors

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
            process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process, process.stdout.readline().strip()

        yield run


@pytest.fixture(params=["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def address(request, tmp_path):
    return "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/buckets"


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


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


def test_who_says_that_it_is_a_rank_and_gives_up_ends_nothing(over_ipc, threads):
    """With ZMQ's own socket, which is understood, too."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as liar:
        liar.connect(over_ipc.address)
        with over_ipc.sending(1, shards(1)):
            for message in (
                say.Hello(0, 2, "1", look=False),
                say.Ready(),
                say.Abort("failed", "OSError", "no memory today"),
            ):
                liar.send(say.to_bytes(message, 5))
            for expected in (say.Init, say.Abort):
                assert liar.poll(60_000)
                assert isinstance(say.from_bytes(liar.recv(), peer="the sender")[1], expected)
            loads = [threads.submit(receive, over_ipc, rank, 1) for rank in range(2)]
            assert all(pending.result() for pending in loads)


def test_a_rank_that_cannot_begin_is_named_with_its_reason_when_its_time_is_over(over_ipc, threads):
    source = IpcAsyncSource(over_ipc.address, memory_directory="/nowhere")
    pending = threads.submit(load, source, MemoryTarget(SPECS), name="ipc_async")
    with pytest.raises(stream_errors.PeerFailedError, match="rank 0 gave up: shared-memory-gone"):
        over_ipc.send(1, {0: shards(1)[0]}, join_s=0.5)
    with pytest.raises(WsmError):
        pending.result()


def slowly() -> Iterator[bytes]:
    for byte in OPENING + frame(bytes(1000)):
        threading.Event().wait(0.02)
        yield bytes([byte])


@pytest.mark.parametrize(
    ("said", "error", "problem"),
    [
        (KINDS["endless parts"], stream_errors.PeerMessageError, "it has more than one part"),
        (lambda: [frame(b"")[:1] + b"\xff" * 8], stream_errors.PeerMessageError, "67108900 at most"),
        (KINDS["no ZMQ"], stream_errors.PeerMessageError, "as no ZMQ socket does"),
        (slowly, stream_errors.PeerSilentError, "its offer was due"),
    ],
    ids=["endless parts", "more than there is", "no ZMQ", "slowly"],
)
def test_who_floods_a_rank_is_refused_at_once_and_who_drips_at_its_deadline(
    tmp_path, threads, said, error, problem
):
    path = str(tmp_path / "buckets")

    def trainer():
        connected, _ = listening.accept()
        with connected, contextlib.suppress(OSError):
            if said not in (KINDS["no ZMQ"], slowly):
                connected.sendall(OPENING)
            for data in said():
                connected.sendall(data)
            connected.recv(1 << 16)
            connected.recv(1 << 16)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        liar = threads.submit(trainer)
        source = IpcAsyncSource(f"ipc://{path}", connect_s=0.5)
        with pytest.raises(error, match=problem):
            load(source, MemoryTarget([SPEC]), name="ipc_async")
        liar.result()


def test_a_listener_without_descriptors_waits_for_them_and_not_in_vain(tmp_path):
    """Accepting fails, and who waits to be taken is seen again at once."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(f"ipc://{tmp_path}/buckets")))
        caller = stack.enter_context(contextlib.closing(connect(listener.address)))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        os.close(next_one := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
        begun_s = time.process_time()
        assert not listener.poll(1.0)
        assert time.process_time() - begun_s < 0.5
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        caller.send(b"here")
        while (heard := listener.receive()) is None:
            assert listener.poll(60)
        assert heard[1] == b"here"
