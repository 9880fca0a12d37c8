"""Several threads: the same bytes, the first error, nobody left who writes, and nothing kept alive."""

from __future__ import annotations

import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from stamped import apply_tensors
from watched_target import WatchedTarget, no_collector

from wsm.clock import SystemClock
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.applier import apply, tensor_copy
from wsm.strategies.applier.tensor_copy import default_threads
from wsm.strategies.buckets.sender import Sending
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import digest_of
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.transports._foreign import Batches, ForeignThread
from wsm.worker._hot_run import Staging

SIZE = 3 * CHUNK_BYTES + 17
NAMES = tuple(f"w{index}" for index in range(6))
SMALL = TensorSpec("small", "U8", (5,))


def data_of(name):
    return bytes(range(256)) * (SIZE // 256) + name.encode() * (SIZE % 256 // 2) + b"!"


def spec_of(name):
    return TensorSpec(name, "U8", (SIZE,))


def offered(name, *, read=None, digest=None):
    data = memoryview(data_of(name))

    def read_into(offset, destination):
        if read is not None:
            read(name, offset)
        destination[:] = data[offset : offset + len(destination)]

    return OfferedTensor(spec_of(name), "somewhere", read_into, digest or digest_of(data))


def small():
    return OfferedTensor.of_bytes(SMALL, "somewhere", memoryview(b"small"), digest_of(b"small"))


def target_of(kind=MemoryTarget, **options):
    return kind([*map(spec_of, NAMES), SMALL], **options)


def loading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("wsm-load")]


def test_two_tensors_are_read_at_the_same_time():
    together = threading.Barrier(2, timeout=60)

    def read(name, offset):
        if offset == 0:
            together.wait()

    apply_tensors(
        [*(offered(name, read=read) for name in NAMES), small()], target_of(), LoadObserver(), threads=2
    )
    assert not together.broken


def test_what_is_not_said_to_be_readable_in_parallel_is_read_by_the_calling_thread_alone():
    readers = set()

    def read(*_):
        readers.add(threading.current_thread())

    tensors = (*(offered(name, read=read) for name in NAMES), small())
    offer = Offer(None, tensors, (), None, ManifestScope.LOADED)
    assert apply.apply_tensors(offer, target_of(), LoadObserver(), threads=4).tensors == len(tensors)
    assert readers == {threading.current_thread()}


def test_the_target_and_the_observer_are_called_from_the_calling_thread_alone():
    callers = set()

    class Watched(MemoryTarget):
        def writable(self, name):
            callers.add(threading.current_thread())
            return super().writable(name)

    def call(*_):
        callers.add(threading.current_thread())
        return False

    observer = LoadObserver(taint=call, progress=call, cancelled=call)
    apply_tensors([*(offered(name) for name in NAMES), small()], target_of(Watched), observer, threads=4)
    assert callers == {threading.current_thread()}


def test_the_first_error_of_any_thread_ends_the_load_and_the_others_stop_at_their_next_chunk():
    reads = []
    failed = threading.Event()

    def read(name, offset):
        if name == "w1":
            failed.set()
            raise errors.UnreadableFileError(file="disk", reason="it burns")
        if offset:
            failed.wait(60)  # nobody gets further before it has happened
        reads.append((name, offset))

    tensors = [*(offered(name, read=read) for name in NAMES), small()]
    with pytest.raises(errors.UnreadableFileError, match="it burns"):
        apply_tensors(tensors, target_of(), LoadObserver(), threads=2)
    assert not loading_threads()
    before = list(reads)
    assert ("w5", 0) not in before


def test_a_cancellation_ends_all_threads_before_it_is_raised():
    done = 0

    def progress(so_far, _total):
        nonlocal done
        done = so_far

    observer = LoadObserver(progress=progress, cancelled=lambda: done >= CHUNK_BYTES)
    target = target_of()
    tensors = [*(offered(name) for name in NAMES), small()]
    with pytest.raises(errors.LoadCancelledError) as caught:
        apply_tensors(tensors, target, observer, threads=2)
    assert caught.value.touched
    assert not loading_threads()
    held = {name: bytes(target.readable(name)) for name in target.held()}
    assert held == {name: bytes(target.readable(name)) for name in target.held()}


def test_a_cancellation_is_seen_while_no_thread_has_come_to_the_end_of_a_chunk(monkeypatch):
    monkeypatch.setattr(tensor_copy, "_GLANCE_S", 0.0005)
    release, asked = threading.Event(), []

    def cancelled():
        asked.append(None)
        if len(asked) > 200:  # far more often than there are tensors
            release.set()
        return release.is_set()

    with pytest.raises(errors.LoadCancelledError):
        apply_tensors(
            [*(offered(name, read=lambda *_: release.wait(60)) for name in NAMES), small()],
            target_of(),
            LoadObserver(cancelled=cancelled),
            threads=2,
        )
    assert not loading_threads()


@pytest.mark.slow_but("digest-1", "no thread-1", "no thread-3")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "failing", ["digest", "read", "no memory", "cancelled", "progress", "small", "no thread", "nothing"]
)
def test_a_load_that_failed_keeps_no_memory_of_the_target_alive(failing, threads, monkeypatch):
    """Nor does a good one."""
    target = target_of(WatchedTarget)

    def read(name, offset):
        if name == "w3" and offset and failing in ("read", "no memory"):
            raise OSError("it burns") if failing == "read" else MemoryError

    def progress(done, _total):
        if failing == "progress" and done > SIZE:
            raise ZeroDivisionError

    def cannot_start(_thread):
        raise RuntimeError("can't start new thread")

    tensors = [offered(name, read=read) for name in NAMES]
    tensors[4].digest = digest_of(b"x") if failing == "digest" else tensors[4].digest
    tensors.append(small())
    tensors[-1].digest = digest_of(b"x") if failing == "small" else tensors[-1].digest
    if failing == "no thread":
        monkeypatch.setattr(threading.Thread, "start", cannot_start)
    asked = iter(range(2))
    cancelled = (lambda: next(asked, None) is None) if failing == "cancelled" else (lambda: False)
    fails = failing != "nothing" and (failing != "no thread" or threads > 1)
    observer = LoadObserver(progress=progress, cancelled=cancelled)
    with no_collector():
        try:
            apply_tensors(tensors, target, observer, threads=threads)
        except Exception:  # noqa: BLE001 - whatever was raised must not hold the memory once it is handled
            assert fails
        else:
            assert not fails
        assert target.given
        assert target.kept_by_others() == 0


def test_memory_that_is_kept_is_digested_on_threads_and_adopted_when_all_is_verified():
    adopted = []

    class Adopting(MemoryTarget):
        def adopt(self, name, memory):
            adopted.append((name, threading.current_thread()))
            super().adopt(name, memory)

    def kept(name, digest=None):
        memory = bytearray(data_of(name))
        offer = offered(name, digest=digest)
        offer.memory = lambda: memoryview(memory)
        return offer

    tensors = [*(kept(name) for name in NAMES), small()]
    target = target_of(Adopting, adopting=True)
    applied = apply_tensors(tensors, target, LoadObserver(), threads=2)
    assert applied.adopted_bytes == SIZE * len(NAMES)
    assert adopted == [(name, threading.current_thread()) for name in NAMES]
    tensors[2] = kept("w2", digest_of(b"x"))
    adopted.clear()
    with pytest.raises(errors.DigestMismatchError):
        apply_tensors(tensors, target_of(Adopting, adopting=True), LoadObserver(), threads=2)
    assert adopted == []


def test_a_target_that_moves_bytes_itself_gets_one_tensor_at_a_time():
    events = []

    class Staged(MemoryTarget):
        def writable(self, name):
            events.append(("writable", name))
            return super().writable(name)

        def written(self, name):
            events.append(("written", name))

    apply_tensors([*(offered(n) for n in NAMES), small()], target_of(Staged), LoadObserver(), threads=4)
    assert events == [(what, name) for name in (*NAMES, "small") for what in ("writable", "written")]


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"),
    [(1, 1, 1), (2, 1, 2), (2, 2, 1), (192, 8, 8), (32, 8, 4), (4, 8, 1), (64, 1, 8)],
)
def test_ranks_share_the_cores_and_none_takes_more_than_eight(monkeypatch, cores, ranks, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert default_threads(ranks) == threads


# -- an error that one thread hands to another keeps nothing alive ---------------------------------------


class FailedError(Exception):
    """What the work raises."""


def fail():
    raise FailedError


def through_a_foreign_thread(work):
    thread = ForeignThread("wsm-test-foreign", SystemClock())
    try:
        thread.call(work, until_ns=SystemClock().monotonic_ns() + 60_000_000_000, observer=UNOBSERVED)
    finally:
        thread.end(lambda: None, wait_s=60)


def through_a_batch(work):
    def stream():
        yield "a", b"1"
        work()

    batches = Batches(stream(), keep=True)
    assert len(batches.take()) == 1
    batches.take()


def through_a_stager(work):
    nothing = SimpleNamespace(staged=None, facts={})
    context = SimpleNamespace(cancelled=lambda: False, done=nothing, facts=nothing.facts)
    action = SimpleNamespace(
        name="fail", precondition=lambda _: None, carry_out=lambda _: work(), probe=lambda _: None
    )
    stager = Staging(0, SystemClock())
    stager.start([action], context)
    try:
        while not stager.ended():
            time.sleep(0.001)
        stager.result()
    finally:
        stager.retire()
        assert stager.rest(60)


def through_a_sending(work):
    sending = Sending()
    sending.run(lambda _cancelled: work())
    sending.result(60)


@pytest.mark.parametrize(
    "through", [through_a_foreign_thread, through_a_batch, through_a_stager, through_a_sending]
)
def test_nothing_waits_for_a_collector_once_the_error_is_handled(through):
    seen = []

    def work():
        memory = np.zeros(1 << 16)
        seen.append(weakref.ref(memory))
        fail()

    def load():
        target = np.zeros(1 << 16)
        seen.append(weakref.ref(target))
        through(work)

    with no_collector():
        with pytest.raises(FailedError) as caught:
            load()
        del caught
        assert [memory() for memory in seen] == [None, None]


def test_what_a_sending_raised_is_raised_once_and_then_said_to_be_over():
    sending = Sending()
    sending.run(lambda _cancelled: fail())
    with pytest.raises(FailedError):
        sending.result()
    with pytest.raises(RuntimeError, match="was raised before"):
        sending.result()
