"""Versions in a publisher's memory: read while it changes, ends, or belongs to somebody who is gone."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.forkserver import WITHOUT_PADDLE, Forked
from tests.raising import raising
from wsm.strategies import (
    EngineSettings,
    LoadReport,
    MemoryTarget,
    MooncakePublisher,
    MooncakeTransport,
    RsyncSource,
    TensorSpec,
    errors,
    inspect,
    load,
)
from wsm.strategies import peer_errors as stream_errors
from wsm.strategies.mooncake import mooncake_transport
from wsm.strategies.mooncake import transfer_engine as mooncake_engine
from wsm.strategies.mooncake.transfer_engine import Engine, address_of

pytestmark = [pytest.mark.processes, pytest.mark.needs("mooncake")]

SIZES = {"norm": 64, "large": 3 << 20, "nothing": 0, "bias": 4096, "larger": 5 << 20}
SPECS = [TensorSpec(name, "U8", (nbytes,)) for name, nbytes in SIZES.items()]
TOTAL = sum(SIZES.values())
#: Most of a version is on the other side while the first tensors are applied.
SMALL = {"span_bytes": 1 << 16, "buffers": 2}

# A trainer in a process of its own; says its address and waits to be told to end.
_TRAINER = """
import sys
import numpy as np
from wsm.strategies import MooncakePublisher
from wsm.strategies.digest import digest_of
sizes = eval(sys.argv[2])
with MooncakePublisher(sys.argv[1]) as publisher:
    publisher.publish(1, {0: {name: np.full(n, 7, np.uint8) for name, n in sizes.items()}})
    print("published", flush=True)
    sys.stdin.read()
"""

# A rank that dies while it reads; says so before.
_DYING_RANK = """
import os, signal, sys
from wsm.strategies import MemoryTarget, MooncakeTransport, RsyncSource, TensorSpec, load
def die(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
specs = [TensorSpec(name, "U8", (n,)) for name, n in eval(sys.argv[2]).items()]
source = RsyncSource(MooncakeTransport(sys.argv[1], span_bytes=1 << 16, buffers=2))
load(source, MemoryTarget(specs), name="rsync", progress=die)
"""


def make_state(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 256, nbytes, np.uint8) for name, nbytes in SIZES.items()}


class Rank:
    """Rank 0, with a transport that it keeps."""

    def __init__(self, address: str, **options: object) -> None:
        self.transport = MooncakeTransport(address, **options)
        self.target = MemoryTarget(SPECS)

    def load(self, version: int | None = None, **options: object) -> LoadReport:
        return load(RsyncSource(self.transport), self.target, name="rsync", version=version, **options)

    def require(self, publisher: MooncakePublisher, version: int, state: dict[str, np.ndarray]) -> None:
        """Have a version published, and see that a load brings it."""
        publisher.publish(version, {0: state})
        self.load(version)
        assert self.holds(state)

    def holds(self, state: dict[str, np.ndarray]) -> bool:
        return all(bytes(self.target.readable(name)) == data.tobytes() for name, data in state.items())


def when(reached: int, then: Callable[[], None]) -> Callable[[int, int], None]:
    """A progress callback that does something once so many bytes are applied."""
    todo = [then]

    def progress(done: int, _total: int) -> None:
        if done >= reached and todo:
            todo.pop()()

    return progress


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[MooncakePublisher]:
    with MooncakePublisher(f"ipc://{tmp_path}/p") as made:
        yield made


@pytest.fixture
def ranks() -> Iterator[Callable[..., Rank]]:
    made: list[Rank] = []

    def make(address: str, **options: object) -> Rank:
        made.append(Rank(address, **options))
        return made[-1]

    yield make
    for rank in made:
        rank.transport.close()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many engines ranks have made."""
    made = []

    def make(settings: EngineSettings) -> Engine:
        made.append(settings)
        return Engine(settings)

    monkeypatch.setattr(mooncake_transport, "Engine", make)
    return lambda: len(made)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[tuple[Forked, str]]:
    address = f"ipc://{tmp_path}/t"
    with WITHOUT_PADDLE.start("-c", _TRAINER, address, repr(SIZES), stderr=None) as process:
        assert process.stdout.readline() == b"published\n"
        yield process, address


def test_what_was_set_up_for_the_first_load_serves_the_later_ones(publisher, ranks, engines):
    rank, state = ranks(publisher.address), make_state(1)
    first = publisher.publish(1, {0: state})
    report = rank.load(1)
    assert rank.holds(state)
    assert (report.manifest_digest, report.digest) == (first.manifest_digest, first.digests[0])
    for version in (2, 3):
        publisher.withdraw()
        state["large"] += 1
        state["bias"] += 1
        assert publisher.publish(version, {0: state}).regions == first.regions
        rank.load(version)
        assert rank.holds(state)
    assert engines() == 1


def test_the_report_says_how_long_a_load_waited_for_bytes(publisher, ranks):
    rank = ranks(publisher.address, **SMALL)
    publisher.publish(1, {0: make_state(1)})
    report = rank.load(1)
    assert 0 < report.sync_s <= report.seconds


def test_tensors_that_share_memory_or_move_between_versions_are_published_all_the_same(publisher, ranks):
    rank = ranks(publisher.address, **SMALL)
    flat = np.arange(TOTAL, dtype=np.uint32).view(np.uint8)
    for version, begin in ((1, 0), (2, 777)):
        # Overlapping views of one buffer, as tied parameters and flat buffers are.
        state = {name: flat[begin : begin + nbytes] for name, nbytes in SIZES.items()}
        publisher.publish(version, {0: state, 1: state})
        rank.load(version)
        assert rank.holds(state)


def test_a_version_is_not_withdrawn_while_a_rank_reads_it(publisher, ranks):
    rank, state = ranks(publisher.address, **SMALL), make_state(1)
    publisher.publish(1, {0: state})
    seen: list[BaseException] = []

    def withdraw() -> None:
        with raising("publication-held", match=r"read by ranks \[0\]") as caught:
            publisher.withdraw(wait_s=0.05)
        seen.append(caught.value)

    rank.load(1, progress=when(1 << 20, withdraw))
    assert rank.holds(state)
    assert seen[0].retryable
    publisher.withdraw()
    with raising(stream_errors.PeerFailedError, match="no version is published"):
        ranks(publisher.address, connect_s=0.05).load(1)


def test_who_writes_what_is_published_changes_no_weights_of_the_trainer_and_ranks_notice(publisher, ranks):
    state = make_state(1)
    before = {name: data.copy() for name, data in state.items()}
    publisher.publish(1, {0: state})
    grant = publisher._leases._publication.grants[0]
    (region,) = grant.regions
    other = Engine(EngineSettings())
    zeros = memoryview(bytearray(region.nbytes))
    assert (
        other._engine.transfer_sync_write(grant.session, address_of(zeros), region.address, len(zeros)) == 0
    )
    other.close()
    assert all(np.array_equal(state[name], before[name]) for name in SIZES)
    with raising(errors.DigestMismatchError):
        ranks(publisher.address).load(1)


def test_what_is_published_in_place_is_not_copied_and_what_all_ranks_are_given_is_there_once(tmp_path, ranks):
    state = make_state(1)
    with MooncakePublisher(f"ipc://{tmp_path}/p", in_place=True) as publisher:
        publisher.publish(1, {0: state, 1: state})
        assert publisher._memory.regions == 3  # the two large tensors, and the small ones together
        rank = ranks(publisher.address)
        rank.load(1)
        assert rank.holds(state)


def test_publishing_waits_for_who_reads_the_version_before(publisher, ranks):
    rank, a, b = ranks(publisher.address, **SMALL), make_state(1), make_state(2)
    publisher.publish(1, {0: a})
    publishing = threading.Thread(target=publisher.publish, args=(2, {0: b}))
    rank.load(1, progress=when(1 << 20, publishing.start))
    assert rank.holds(a)
    publishing.join()
    rank.load(2)
    assert rank.holds(b)


def test_a_revoked_lease_ends_the_load_with_the_reason(publisher, ranks, engines):
    rank, state = ranks(publisher.address, **SMALL), make_state(1)
    publisher.publish(1, {0: state})
    with raising(stream_errors.PeerFailedError, match="version 1 was withdrawn") as caught:
        rank.load(1, progress=when(1 << 20, lambda: publisher.withdraw(revoke=True)))
    assert caught.value.touched
    rank.require(publisher, 2, state)
    assert engines() == 2  # what was in flight went with the first


def test_a_context_that_fails_takes_the_version_back_from_who_reads_it(publisher, ranks):
    rank, state = ranks(publisher.address, **SMALL), make_state(1)

    def fail() -> None:
        raise ArithmeticError("the trainer's own")

    with (
        pytest.raises(ArithmeticError),
        publisher.publishing(1, {0: state}),
    ):
        rank.load(1, progress=when(1 << 20, fail))
    with publisher.publishing(2, {0: state}):
        rank.load(2)
    assert rank.holds(state)


def test_a_load_whose_digests_are_all_right_succeeds_though_its_lease_was_over_before_its_end(
    publisher, ranks
):
    state = make_state(1)
    publisher.publish(1, {0: state})
    rank = ranks(publisher.address)
    report = rank.load(1, progress=when(TOTAL, lambda: publisher.withdraw(revoke=True)))
    assert report.verified == len(SIZES)
    assert rank.holds(state)
    rank.require(publisher, 2, state)


def test_a_load_whose_digests_are_all_right_succeeds_though_its_trainer_is_gone_before_it_said_so(
    trainer, ranks
):
    process, address = trainer
    rank = ranks(address)

    def kill() -> None:
        process.kill()
        process.wait()

    assert rank.load(1, progress=when(TOTAL, kill)).verified == len(SIZES)


def test_a_rank_that_dies_gives_its_lease_back(publisher):
    publisher.publish(1, {0: make_state(1)})
    with WITHOUT_PADDLE.start("-c", _DYING_RANK, publisher.address, repr(SIZES), stderr=None) as dying:
        assert dying.wait() == -signal.SIGKILL
    publisher.withdraw(wait_s=60)


@pytest.mark.slow
def test_a_trainer_that_stops_while_it_is_read_is_a_typed_error_within_the_deadline(trainer, ranks):
    process, address = trainer
    rank = ranks(address, silence_s=0.5, **SMALL)

    def stop() -> None:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # or the rest comes meanwhile

    with raising(stream_errors.PeerSilentError, match=r"said nothing for 0\.5") as caught:
        rank.load(1, progress=when(1 << 20, stop))
    assert caught.value.touched


def test_a_load_of_a_stopped_trainer_can_be_cancelled(trainer, ranks):
    process, address = trainer
    rank = ranks(address, silence_s=60.0, **SMALL)
    stopped = threading.Event()

    def stop() -> None:
        process.send_signal(signal.SIGSTOP)
        stopped.set()

    with raising(errors.LoadCancelledError) as caught:
        rank.load(1, progress=when(1 << 20, stop), cancelled=stopped.is_set)
    assert caught.value.touched


def test_what_is_looked_at_is_not_read_and_takes_no_engine(publisher, ranks, monkeypatch):
    publisher.publish(4, {0: make_state(1)})
    monkeypatch.setattr(mooncake_engine, "_engine_class", lambda: pytest.fail("an engine was started"))
    rank = ranks(publisher.address)
    preview = inspect(RsyncSource(rank.transport), name="rsync", target=rank.target)
    assert (preview.version, preview.bytes) == ("4", TOTAL)
    publisher.withdraw(wait_s=0)


def test_bad_tensors_leave_what_is_published_in_place(publisher, ranks):
    state = make_state(1)
    publisher.publish(1, {0: state})
    with raising(errors.trainer_tensor):
        publisher.publish(2, {0: {"w": object()}})
    with raising(errors.incomplete_publication):
        publisher.publish(2, {1: state})
    rank = ranks(publisher.address)
    rank.load(1)
    assert rank.holds(state)


def test_only_one_publisher_listens_at_an_address(publisher):
    with raising("address-busy"):
        MooncakePublisher(publisher.address)


def device_of(descriptor: int) -> bytes:
    with socket.socket(fileno=os.dup(descriptor)) as found:
        device = found.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    return device.rstrip(b"\0")


def listening_everywhere() -> list[int]:
    return [
        connection.fd
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr.ip in {str(ipaddress.IPv4Address(0)), "::"}
        and connection.laddr.port in range(12001, 18001)
    ]


def test_an_engine_on_loopback_cannot_be_reached_from_elsewhere_nor_by_inheritance():
    engine = Engine(EngineSettings())
    descriptors = listening_everywhere()
    assert len(descriptors) == 2
    assert not any(map(os.get_inheritable, descriptors))
    assert {device_of(descriptor) for descriptor in descriptors} == {b"lo"}
    engine.close()


@pytest.mark.slow
def test_an_engine_that_cannot_be_kept_to_this_host_is_refused(monkeypatch):
    monkeypatch.setattr(mooncake_engine, "_PORTS", range(1, 2))
    with raising("engine-exposed", match="only 1 of the two"):
        Engine(EngineSettings())


def test_sockets_that_are_not_the_engines_stay_as_they_are():
    with socket.socket() as foreign:
        for port in range(12001, 18001):
            with contextlib.suppress(OSError):
                foreign.bind(("", port))
                break
        foreign.listen()
        engine = Engine(EngineSettings())
        assert device_of(foreign.fileno()) == b""
        engine.close()


def test_closing_an_engine_ends_what_is_in_flight_before_the_memory_is_anybody_elses():
    source = memoryview(bytearray(b"\7") * (1 << 20))
    reading, serving = Engine(EngineSettings()), Engine(EngineSettings())
    serving.register(address_of(source), len(source))
    memory = memoryview(bytearray(1 << 20))
    assert reading.find(serving.session, address_of(source), 60.0, bool)
    for _ in range(8):
        assert reading.read(serving.session, address_of(source), memory)
    reading.close()
    memory[:] = bytes(len(memory))
    serving.close()
    assert not any(memory)


def test_an_engine_that_is_not_there_or_does_not_let_us_read_is_told_apart():
    reading, serving = Engine(EngineSettings()), Engine(EngineSettings())
    source = memoryview(bytearray(4096))
    assert reading.find(serving.session, address_of(source), 60.0, bool) is False
    serving.register(address_of(source), len(source))
    with raising("memory-not-registered"):
        serving.register(address_of(source), 10)
    assert reading.find(serving.session, address_of(source), 60.0, bool) is True
    serving.unregister(address_of(source))
    assert reading.find("127.0.0.1:1", address_of(source), 60.0, bool) is False
    reading.close()
    serving.close()


def test_a_missing_system_library_is_named_with_what_to_install(monkeypatch):
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "mooncake.engine":
                raise ImportError(
                    "libibverbs.so.1: cannot open shared object file: No such file or directory"
                )

    monkeypatch.delitem(sys.modules, "mooncake.engine", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with raising("mooncake-missing", match=r"libibverbs\.so\.1.*apt-get install libibverbs1"):
        Engine(EngineSettings())


@pytest.mark.slow
def test_many_loads_leave_no_thread_and_no_descriptor(tmp_path):
    def held() -> tuple[int, int]:
        gc.collect()
        return psutil.Process().num_fds(), psutil.Process().num_threads()

    def once() -> None:
        with MooncakePublisher(f"ipc://{tmp_path}/p") as publisher:
            publisher.publish(1, {0: make_state(1)})
            rank = Rank(publisher.address)
            rank.load(1)
            rank.transport.close()

    once()
    before = held()
    for _ in range(3):
        once()
    assert held() <= before
