"""A trainer that ends before it has offered anything, with a rank that waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsm.errors import WsmError
from wsm.strategies import BucketSender, IpcAsyncSource, LoadReport, MemoryTarget, TensorSpec, load
from wsm.strategies.peer_errors import PeerDiedError, PeerSilentError

SPEC = TensorSpec("a", "U8", (3,))

# A trainer that listens, says whom it hears, and never offers anything.
_BUSY_TRAINER = """
import sys
from wsm.strategies.buckets.channel import TrainerSocket
heard = TrainerSocket(sys.argv[1])
print(heard.address, flush=True)
while True:
    if heard.receive(3600) is not None:
        print("asked", flush=True)
"""

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


@pytest.fixture
def busy_trainer():
    """Start a trainer at an address; its process, and where it really listens."""
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: BucketSender("tcp://127.0.0.1:*").close())  # sweeps what killed ones left

        def start(address):
            command = [sys.executable, "-c", _BUSY_TRAINER, address]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            return process, process.stdout.readline().strip()

        yield start


@pytest.fixture(params=["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def address(request, tmp_path):
    return "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/buckets"


@pytest.fixture
def loading():
    """Load in a thread; what became of it."""
    with ThreadPoolExecutor(1) as pool:

        def start(address, **deadlines):
            source = IpcAsyncSource(address, **deadlines)
            return pool.submit(load, source, MemoryTarget([SPEC]), name="ipc_async", version=1)

        yield start


def outcome(pending) -> LoadReport | WsmError:
    try:
        return pending.result()
    except WsmError as error:
        return error


def end(process) -> None:
    process.kill()
    process.wait()


def test_a_trainer_that_dies_before_its_offer_is_named_before_the_time_to_connect_is_over(
    address, busy_trainer, loading
):
    process, address = busy_trainer(address)
    pending = loading(address, connect_s=20.0, silence_s=0.2)
    assert process.stdout.readline() == "asked\n"
    end(process)
    error = outcome(pending)
    assert isinstance(error, PeerDiedError)
    assert address in str(error)
    assert "no process took its place for 0.2" in str(error)
    assert not error.touched


def test_a_trainer_that_comes_back_is_asked_again(address, busy_trainer, loading):
    process, address = busy_trainer(address)
    pending = loading(address)
    assert process.stdout.readline() == "asked\n"
    end(process)
    with BucketSender(address) as sender:
        sent = sender.send(1, {0: {"a": (SPEC, b"new")}})
        assert outcome(pending).manifest_digest == sent.manifest_digest


def test_a_trainer_that_died_before_it_was_asked_is_told_by_the_socket_it_left(
    tmp_path, busy_trainer, loading
):
    process, address = busy_trainer(f"ipc://{tmp_path}/buckets")
    end(process)
    error = outcome(loading(address, connect_s=20.0, silence_s=0.2))
    assert isinstance(error, PeerDiedError)
    assert error.absent_s < 20.0


def test_where_nobody_ever_was_the_error_says_so_and_after_what_time(tmp_path, loading):
    error = outcome(loading(f"ipc://{tmp_path}/buckets", connect_s=0.3, silence_s=0.1))
    assert isinstance(error, PeerSilentError)
    assert not error.met
    assert "no process answered for the sender" in str(error)
    assert error.waited_s > 0.3


def test_a_trainer_that_listens_and_offers_nothing_is_not_called_absent(address, busy_trainer, loading):
    process, address = busy_trainer(address)
    pending = loading(address, connect_s=2.0, silence_s=0.1)
    assert process.stdout.readline() == "asked\n"
    error = outcome(pending)
    assert isinstance(error, PeerSilentError)
    assert error.met


@pytest.mark.processes
def test_a_trainer_that_is_stopped_in_the_middle_is_silent_and_hears_so_when_it_goes_on(tmp_path):
    address = f"ipc://{tmp_path}/buckets"
    command = [sys.executable, "-c", _STOPPING_TRAINER, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "listening\n"
            target = MemoryTarget([TensorSpec("a", "U8", (3 << 20,))])
            with pytest.raises(PeerSilentError, match=r"bucket \d was due") as caught:
                load(IpcAsyncSource(address, silence_s=0.5), target, name="ipc_async")
            assert caught.value.met
            os.waitpid(process.pid, os.WUNTRACED)
            process.send_signal(signal.SIGCONT)
            assert process.stdout.read() == "PeerFailedError peer-silent\n"
        finally:
            process.kill()
