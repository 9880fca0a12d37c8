"""A publisher that ends before it has granted anything, with a rank that waits for it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from campaign import flooding_peer
from wsm.errors import WsmError
from wsm.strategies import MemoryTarget, MooncakePublisher, MooncakeTransport, RsyncSource, TensorSpec, load
from wsm.strategies.peer_errors import PeerDiedError, PeerFailedError, PeerSilentError

pytestmark = [pytest.mark.processes, pytest.mark.needs("mooncake")]

SPEC = TensorSpec("a", "U8", (3,))

# A trainer that has nothing published.
_IDLE_PUBLISHER = """
import sys
from wsm.strategies import MooncakePublisher
with MooncakePublisher(sys.argv[1]) as publisher:
    print(publisher.address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def idle_publisher():
    """Start a publisher at an address; its process, and where it really listens."""
    with contextlib.ExitStack() as stack:

        def start(address):
            command = [sys.executable, "-c", _IDLE_PUBLISHER, address]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process, process.stdout.readline().strip()

        yield start


@pytest.fixture(params=["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def address(request, tmp_path):
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/p"


class Loading:
    """A load in a thread."""

    def __init__(self, pool, address, **deadlines):
        self.target = MemoryTarget([SPEC])
        self._looks = threading.Semaphore(0)
        self._transport = MooncakeTransport(address, **deadlines)
        self._pending = pool.submit(
            load, RsyncSource(self._transport), self.target, name="rsync", version=1, cancelled=self._look
        )

    def wait_until_refused(self):
        """Wait until it has been told that there is nothing, as it looks for a cancellation after that."""
        for _ in range(20):
            assert self._looks.acquire(timeout=60)

    def outcome(self):
        try:
            return self._pending.result()
        except WsmError as error:
            return error
        finally:
            self._transport.close()

    def _look(self):
        self._looks.release()
        return False


@pytest.fixture
def loading():
    with ThreadPoolExecutor(1) as pool:
        yield lambda address, **deadlines: Loading(pool, address, **deadlines)


def end(process):
    process.kill()
    process.wait()


def test_a_publisher_that_dies_before_its_grant_is_named_before_the_time_to_connect_is_over(
    address, idle_publisher, loading
):
    process, address = idle_publisher(address)
    pending = loading(address, connect_s=20.0, silence_s=0.2)
    pending.wait_until_refused()
    end(process)
    error = pending.outcome()
    assert isinstance(error, PeerDiedError)
    assert "no process took its place for 0." in str(error)
    assert error.absent_s < 20.0
    assert not error.touched


def test_a_publisher_that_comes_back_is_asked_again(address, idle_publisher, loading):
    process, address = idle_publisher(address)
    pending = loading(address)
    pending.wait_until_refused()
    end(process)
    with MooncakePublisher(address) as publisher:
        published = publisher.publish(1, {0: {"a": (SPEC, b"new")}})
        assert pending.outcome().manifest_digest == published.manifest_digest


def test_a_publisher_that_died_before_it_was_asked_is_told_by_the_socket_it_left(
    tmp_path, idle_publisher, loading
):
    process, address = idle_publisher(f"ipc://{tmp_path}/p")
    end(process)
    error = loading(address, connect_s=20.0, silence_s=0.2).outcome()
    assert isinstance(error, PeerDiedError)
    assert error.absent_s < 20.0


def test_where_nobody_ever_was_the_error_says_so_and_after_what_time(tmp_path, loading):
    error = loading(f"ipc://{tmp_path}/p", connect_s=0.3, silence_s=0.1).outcome()
    assert isinstance(error, PeerSilentError)
    assert not error.met
    assert "no process answered for the publisher" in str(error)


def test_a_publisher_that_has_nothing_is_not_called_absent(address, idle_publisher, loading):
    _, address = idle_publisher(address)
    error = loading(address, connect_s=1.0, silence_s=0.1).outcome()
    assert isinstance(error, PeerFailedError)
    assert "no version is published" in str(error)


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


def test_who_floods_a_publisher_keeps_it_from_nobody_and_fills_nothing(idle_publisher):
    """All that is not what ranks say, while it has nothing to give; then somebody asks."""
    process, address = idle_publisher("tcp://127.0.0.1:0")
    before = peak_bytes(process.pid)
    flooding = [sys.executable, flooding_peer.__file__, "--mooncake", address]
    with subprocess.Popen(flooding, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flood:
        try:
            assert flood.stdout.readline() == "flooding\n"
            transport = MooncakeTransport(address, connect_s=10.0)
            with pytest.raises(PeerFailedError, match="no version is published"):
                load(RsyncSource(transport), MemoryTarget([SPEC]), name="rsync", version=1)
        finally:
            flood.kill()
    assert peak_bytes(process.pid) < before + (200 << 20)
    process.stdin.close()
    assert process.wait(60) == 0


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
