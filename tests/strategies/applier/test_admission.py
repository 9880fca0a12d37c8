"""Memory is asked for once, before the first byte of a load, and only what the load really takes."""

from __future__ import annotations

import pytest

from tests.raising import raising
from wsm.strategies import IpcSource, MemoryTarget, SharedTensors, SnapshotSource, TensorSpec, load
from wsm.strategies import publish_snapshot as publish
from wsm.strategies.applier import admission
from wsm.strategies.applier.admission import LoadWay, MemoryNeed, memory_need
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor

SPECS = [TensorSpec("large", "U8", (3 << 20,)), TensorSpec("small", "U8", (100,))]
STATE = {spec.name: (spec, b"\1" * spec.nbytes) for spec in SPECS}
BYTES = sum(spec.nbytes for spec in SPECS)


class DeviceTarget(MemoryTarget):
    """A target whose bytes are moved elsewhere."""

    def written(self, name):
        """Move them."""


@pytest.fixture
def source(tmp_path):
    publish(tmp_path, 7, {0: STATE}, durable=False)
    return SnapshotSource(tmp_path, rank=0)


def held(kind=MemoryTarget):
    target = kind(SPECS)
    for spec in SPECS:
        target.writable(spec.name)[:] = b"\2" * spec.nbytes
    return target


def only(available):
    return lambda need: need.fits(host=available)


def test_a_load_that_does_not_fit_is_refused_before_the_target_is_touched(source):
    target, tainted = MemoryTarget(SPECS), []
    with raising(admission.load_memory, match="after a clear does not fit") as caught:
        load(source, target, taint=lambda: tainted.append(1), admit=only(BYTES - 1))
    assert (caught.value.needed, caught.value.available) == (BYTES, BYTES - 1)
    assert caught.value.way is LoadWay.AFTER_A_CLEAR
    assert not tainted
    assert list(target.held()) == []
    load(source, target, admit=only(BYTES))
    assert target.readable("small") == STATE["small"][1]


def test_a_load_over_held_tensors_takes_only_what_lies_beside(source):
    target = held()
    load(source, target, admit=only(0))
    assert target.readable("large") == STATE["large"][1]


def test_a_load_in_place_is_refused_by_what_the_strategy_holds_beside():
    offer = Offer(7, iter(()), (), None, ManifestScope.LOADED, peak_extra_bytes=10, declared=False)
    need = memory_need(offer, held())
    assert need == MemoryNeed(10, 0, released=False)
    with raising(admission.load_memory, match="in place does not fit"):
        need.fits(host=9)


def test_tensors_that_a_partial_load_does_not_bring_take_nothing(tmp_path):
    publish(tmp_path, 8, {0: {"small": STATE["small"]}}, durable=False)
    target, needs = held(), []
    load(SnapshotSource(tmp_path, rank=0), target, partial=True, admit=needs.append)
    assert needs == [MemoryNeed(0, 0, released=False)]


def test_a_stream_that_declares_nothing_brings_all_that_is_released():
    offer = Offer(7, iter(()), (), None, ManifestScope.LOADED, peak_extra_bytes=10, declared=False)
    assert memory_need(offer, MemoryTarget(SPECS)) == MemoryNeed(BYTES + 10, 0, released=True)


def test_a_checkpoint_for_the_loaders_of_models_fills_all_that_is_released():
    tensor = OfferedTensor.of_bytes(SPECS[1], "here", memoryview(bytes(100)))
    offer = Offer(7, (tensor,), (), None, ManifestScope.LOADED, chunk_tensors=16)
    assert memory_need(offer, MemoryTarget(SPECS)) == MemoryNeed(BYTES, 0, released=True)


def test_a_tied_tensor_is_counted_once_under_whatever_name():
    tensors = [
        OfferedTensor.of_bytes(TensorSpec(name, "U8", (100,)), "here", memoryview(bytes(100)))
        for name in ("alias", "small")
    ]
    target = MemoryTarget(SPECS, tied={"alias": "small"})
    for some in (tensors, tensors[:1]):
        offer = Offer(7, tuple(some), (), None, ManifestScope.LOADED)
        assert memory_need(offer, target) == MemoryNeed(100, 0, released=True)


def test_memory_that_is_kept_is_not_taken(tmp_path):
    with SharedTensors(tmp_path) as shared:
        shared.publish(7, {0: STATE})
        needs = []
        target = MemoryTarget(SPECS, adopting=True)
        report = load(IpcSource(tmp_path, 0, device_id=0), target, name="ipc", admit=needs.append)
        assert report.adopted_bytes == BYTES
        target.release()
    assert needs == [MemoryNeed(0, 0, released=False)]


def test_what_lies_in_nobodys_memory_is_taken_though_the_target_would_keep_it():
    data = memoryview(bytes(100))
    offer = Offer(7, (OfferedTensor.of_bytes(SPECS[1], "here", data),), (), None, ManifestScope.LOADED)
    assert memory_need(offer, MemoryTarget(SPECS, adopting=True)) == MemoryNeed(100, 0, released=True)


class LeastTarget:
    """A target that can do what every one can, and nothing besides."""

    def __init__(self):
        self._target = MemoryTarget(SPECS)
        self.specs, self.writable = self._target.specs, self._target.writable
        self.readable = self._target.readable


@pytest.mark.parametrize("target", [LeastTarget(), MemoryTarget(SPECS)], ids=["the least", "in memory"])
def test_shared_memory_is_copied_to_a_target_that_keeps_none(tmp_path, target):
    with SharedTensors(tmp_path) as shared:
        shared.publish(7, {0: STATE})
        report = load(IpcSource(tmp_path, 0, device_id=0), target, name="ipc")
    assert (report.adopted_bytes, bytes(target.readable("large"))) == (0, STATE["large"][1])


def test_what_is_moved_to_a_device_takes_one_tensor_of_the_host_and_all_of_the_device(source):
    needs = []
    load(source, DeviceTarget(SPECS), admit=needs.append)
    assert needs == [MemoryNeed(SPECS[0].nbytes, BYTES, released=True)]
    needs[0].fits(host=SPECS[0].nbytes, device=BYTES)
    with raising(admission.load_memory):
        needs[0].fits(host=None, device=BYTES - 1)
    with raising(admission.load_memory):
        needs[0].fits(host=SPECS[0].nbytes - 1, device=None)


def test_a_target_that_does_not_say_what_it_holds_is_not_asked_for(source):
    staged, asked = held().stage(), []
    load(source, staged, admit=asked.append)
    assert asked == []
    assert staged.readable("small") == STATE["small"][1]
