"""A trainer that ends before it has offered anything, with a rank that waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from memory_of_processes import peak_bytes

from campaign import flooding_peer
from tests.forkserver import WITHOUT_PADDLE
from wsm.errors import WsmError
from wsm.strategies import (
    BucketSender,
    IpcAsyncSource,
    MemoryTarget,
    MooncakePublisher,
    MooncakeTransport,
    RsyncSource,
    TensorSpec,
    load,
)
from wsm.strategies.peer_errors import PeerDiedError, PeerFailedError, PeerSilentError

pytestmark = pytest.mark.processes

SPEC = TensorSpec("a", "U8", (3,))


class Buckets:
    """A trainer that listens, says whom it hears, and never offers anything."""

    strategy, any_port, called = "ipc_async", "*", "sender"
    program = """
import sys
from wsm.strategies.buckets.channel import TrainerSocket
heard = TrainerSocket(sys.argv[1])
print(heard.address, flush=True)
while True:
    if heard.receive(3600) is not None:
        print("asked", flush=True)
"""

    def source(self, address, **deadlines):
        return contextlib.nullcontext(IpcAsyncSource(address, **deadlines))

    def wait_until_asked(self, process, looks):
        assert process.stdout.readline() == "asked\n"

    @contextlib.contextmanager
    def successor(self, address):
        """Another one at the address, which offers version 1; what its load is to report."""
        with BucketSender(address) as sender, sender.sending(1, {0: {"a": (SPEC, b"new")}}) as sending:
            yield lambda: sending.result().manifest_digest


class Mooncake:
    """A publisher that has nothing to grant, and says so."""

    strategy, any_port, called = "rsync", "0", "publisher"
    program = """
import sys
from wsm.strategies import MooncakePublisher
with MooncakePublisher(sys.argv[1]) as publisher:
    print(publisher.address, flush=True)
    sys.stdin.read()
"""

    @contextlib.contextmanager
    def source(self, address, **deadlines):
        with contextlib.closing(MooncakeTransport(address, **deadlines)) as transport:
            yield RsyncSource(transport)

    def wait_until_asked(self, process, looks):
        for _ in range(20):  # a rank looks for a cancellation after it was told that there is nothing
            assert looks.acquire(timeout=60)

    @contextlib.contextmanager
    def successor(self, address):
        with MooncakePublisher(address) as publisher:
            published = publisher.publish(1, {0: {"a": (SPEC, b"new")}})
            yield lambda: published.manifest_digest


MOONCAKE = pytest.param(Mooncake(), marks=pytest.mark.needs("mooncake"), id="mooncake")


@pytest.fixture(params=[pytest.param(Buckets(), id="buckets"), MOONCAKE])
def kind(request):
    return request.param


@pytest.fixture(params=["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def address(request, tmp_path, kind):
    return f"tcp://127.0.0.1:{kind.any_port}" if request.param == "tcp" else f"ipc://{tmp_path}/p"


@pytest.fixture
def start(kind):
    """Start a trainer of the kind at an address; its process, and where it really listens."""
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: BucketSender("tcp://127.0.0.1:*").close())  # sweeps what killed ones left

        def run(address):
            process = WITHOUT_PADDLE.start("-c", kind.program, address, stderr=None, text=True)
            stack.enter_context(process)
            return process, process.stdout.readline().strip()

        yield run


class Loading:
    """A load of version 1 in a thread; what became of it."""

    def __init__(self, pool, kind, address, **deadlines):
        self.looks = threading.Semaphore(0)
        self._pending = pool.submit(self._load, kind, address, deadlines)

    def outcome(self):
        try:
            return self._pending.result()
        except WsmError as error:
            return error

    def _load(self, kind, address, deadlines):
        with kind.source(address, **deadlines) as source:
            target = MemoryTarget([SPEC])
            return load(source, target, name=kind.strategy, version=1, cancelled=self._look)

    def _look(self):
        self.looks.release()
        return False


@pytest.fixture
def loading(kind):
    with ThreadPoolExecutor(1) as pool:
        yield lambda address, **deadlines: Loading(pool, kind, address, **deadlines)


def end(process):
    process.kill()
    process.wait()


@pytest.mark.slow_but
def test_a_trainer_that_dies_before_its_offer_is_named_before_the_time_to_connect_is_over(
    address, kind, start, loading
):
    process, address = start(address)
    pending = loading(address, connect_s=20.0, silence_s=0.2)
    kind.wait_until_asked(process, pending.looks)
    end(process)
    error = pending.outcome()
    assert isinstance(error, PeerDiedError)
    assert address in str(error)
    assert "no process took its place for 0." in str(error)
    assert error.absent_s < 20.0
    assert not error.touched


@pytest.mark.slow_but
def test_a_trainer_that_comes_back_is_asked_again(address, kind, start, loading):
    process, address = start(address)
    pending = loading(address)
    kind.wait_until_asked(process, pending.looks)
    end(process)
    with kind.successor(address) as digest:
        assert pending.outcome().manifest_digest == digest()


@pytest.mark.slow_but
def test_a_trainer_that_died_before_it_was_asked_is_told_by_the_socket_it_left(tmp_path, start, loading):
    process, address = start(f"ipc://{tmp_path}/p")
    end(process)
    error = loading(address, connect_s=20.0, silence_s=0.2).outcome()
    assert isinstance(error, PeerDiedError)
    assert error.absent_s < 20.0


# -- what only one kind can have ----------------------------------------------------------------------------

# A trainer that stops in the middle of its version, and says how that ended once it goes on.
_STOPPING_TRAINER = """
import os, signal, sys
from wsm.strategies import BucketSender, TensorSpec
def stop(done, total):
    if done > 1 << 20 and total not in stopped:
        stopped.add(total)
        os.kill(os.getpid(), signal.SIGSTOP)
stopped = set()
with BucketSender(sys.argv[1], window_bytes=1 << 18) as sender:
    print("listening", flush=True)
    try:
        sender.send(1, {0: {"a": (TensorSpec("a", "U8", (3 << 20,)), bytes(3 << 20))}}, progress=stop)
    except Exception as error:
        print(type(error).__name__, error.error)
"""


@pytest.mark.slow
def test_a_trainer_that_is_stopped_in_the_middle_is_silent_and_hears_so_when_it_goes_on(tmp_path):
    address = f"ipc://{tmp_path}/buckets"
    with WITHOUT_PADDLE.start("-c", _STOPPING_TRAINER, address, stderr=None, text=True) as process:
        assert process.stdout.readline() == "listening\n"
        target = MemoryTarget([TensorSpec("a", "U8", (3 << 20,))])
        with pytest.raises(PeerSilentError, match=r"bucket \d was due") as caught:
            load(IpcAsyncSource(address, silence_s=0.5), target, name="ipc_async")
        assert caught.value.met
        os.waitpid(process.pid, os.WUNTRACED)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == "PeerFailedError peer-silent\n"


@pytest.mark.parametrize("kind", [MOONCAKE], indirect=True)
def test_a_rank_that_meets_itself_at_its_publisher_s_port_goes_on_waiting(loading):
    """A port that the kernel gives to who connects may be that very port."""
    met = 0
    real = socket.socket.connect_ex

    def connect_from_there(made, place):
        nonlocal met
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            made.bind(place)  # as the kernel would, once in thousands of times
        failed = real(made, place)
        met += failed == 0 and made.getsockname() == made.getpeername()
        return failed

    with pytest.MonkeyPatch.context() as patched, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        patched.setattr(socket.socket, "connect_ex", connect_from_there)
        error = loading(address, connect_s=0.3).outcome()
    assert met
    assert isinstance(error, PeerSilentError)
    assert not error.met
    with MooncakePublisher(address):  # the port is free for it
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MOONCAKE], indirect=True)
def test_who_floods_a_publisher_keeps_it_from_nobody_and_fills_nothing(start):
    """All that is not what ranks say, while it has nothing to give; then somebody asks."""
    process, address = start("tcp://127.0.0.1:0")
    before = peak_bytes(process.pid)
    flooding = (flooding_peer.__file__, "--mooncake", address)
    with WITHOUT_PADDLE.start(*flooding, stderr=None, text=True) as flood:
        assert flood.stdout.readline() == "flooding\n"
        transport = MooncakeTransport(address, connect_s=10.0)
        with pytest.raises(PeerFailedError, match="no version is published"):
            load(RsyncSource(transport), MemoryTarget([SPEC]), name="rsync", version=1)
    assert peak_bytes(process.pid) < before + (200 << 20)
    process.stdin.close()
    assert process.wait(60) == 0
