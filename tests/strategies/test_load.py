"""What a load says at its end and who takes what it brings; and one digest by whatever way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from delta_directory import A, B, Directory

from wsm.strategies import (
    MemoryTarget,
    SharedTensors,
    SnapshotSource,
    TensorSpec,
    load,
    publish_snapshot,
    with_manifest,
)
from wsm.strategies.digest import digest_of
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.load import RARELY, rare_collections
from wsm.strategies.mooncake.publisher import PlacedShard, grants_of
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.registry import register_strategy
from wsm.strategies.strategy import Strategy
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest

SPEC = TensorSpec("w", "U8", (4,))


@dataclass
class Shelf:
    """A source: which version it proves, whether it cancels its load as it closes, and is a checkpoint."""

    proves: str | None = None
    cancels_at_its_end: bool = False
    chunk_tensors: int | None = None


class FromShelf(Strategy):
    source_type = Shelf

    def source(self, *_: Any) -> Any:
        raise NotImplementedError

    def preview(self, *_: Any) -> Any:
        raise NotImplementedError

    @contextmanager
    def open(self, source: Shelf, _version: str | None, _observer: LoadObserver) -> Iterator[Offer]:
        tensor = OfferedTensor.of_bytes(SPEC, "the shelf", memoryview(b"\x07" * 4))
        chunk = source.chunk_tensors
        yield Offer(source.proves, (tensor,), ("the shelf",), None, ManifestScope.LOADED, chunk_tensors=chunk)
        if source.cancels_at_its_end:
            raise LoadCancelledError(tensors_applied=0, tensors=1)


register_strategy("one-tensor", FromShelf())


@pytest.mark.parametrize("proves", [None, "8"])
def test_a_report_names_the_version_that_the_source_proves_and_not_the_one_that_was_asked_for(proves):
    report = load(Shelf(proves), MemoryTarget([SPEC]), name="one-tensor", version=7)
    assert report.version == proves


def test_a_load_that_is_cancelled_behind_its_last_tensor_says_that_the_weights_were_touched():
    target = MemoryTarget([SPEC])
    with pytest.raises(LoadCancelledError) as caught:
        load(Shelf(cancels_at_its_end=True), target, name="one-tensor")
    assert (caught.value.touched, caught.value.tensors_applied) == (True, 1)
    assert bytes(target.readable("w")) == b"\x07" * 4


class Taking:
    """A loader that takes the tensor as it comes."""

    name = "main"
    taken = 0

    def takes(self):
        return {"w": SPEC}

    def load_weights(self, tensors, parameters):
        for spec, data in tensors:
            self.taken += 1
            parameters.memory(spec.name)[:] = data
            parameters.complete(spec.name)


@pytest.mark.parametrize(("chunk", "taken"), [(None, 0), (1, 1)])
def test_a_checkpoint_and_nothing_else_goes_through_the_loaders_that_are_handed_in(chunk, taken):
    loader, target = Taking(), MemoryTarget([SPEC])
    report = load(Shelf(chunk_tensors=chunk), target, name="one-tensor", loaders=[loader])
    assert (loader.taken, report.tensors) == (taken, 1)
    assert bytes(target.readable("w")) == b"\x07" * 4


# -- collections of cycles become rare meanwhile, not absent ---------------------------------------------


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_thresholds_are_high_inside_and_as_before_afterwards():
    gc.set_threshold(500, 7, 9)
    inside = []

    def fail():
        with rare_collections():
            inside.append(gc.get_threshold()[:2])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [(RARELY, 7)]
    assert gc.get_threshold()[:2] == (500, 7)


def test_the_last_one_who_leaves_sets_them_back():
    gc.set_threshold(500)
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == RARELY
    second.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 500


@pytest.mark.parametrize("set_by_user", [0, 2 * RARELY])
def test_a_collector_that_runs_rarely_or_never_is_left_alone(set_by_user):
    gc.set_threshold(set_by_user)
    with rare_collections():
        assert gc.get_threshold()[0] == set_by_user
    assert gc.get_threshold()[0] == set_by_user


def test_what_somebody_else_sets_meanwhile_stays():
    with rare_collections():
        gc.set_threshold(123)
    assert gc.get_threshold()[0] == 123


# -- one digest, by whatever way a version came ----------------------------------------------------------


def test_files_changes_a_stream_and_memory_of_a_trainer_say_one_digest_of_the_same_tensors(
    tmp_path: Path,
) -> None:
    published = publish_snapshot(tmp_path / "whole", 2, {0: B}, durable=False)
    directory = Directory(tmp_path / "changes")
    directory.whole(1, A)
    target = MemoryTarget(spec for spec, _ in B.values())
    source = SnapshotSource(tmp_path / "whole", 0, device_id=0, shared_directory=None)

    tensors = tuple(PromisedTensor(spec, digest_of(data)) for spec, data in B.values())
    shard = PlacedShard(tensors, (), ((0, 0),) * len(tensors))
    grant = grants_of("2", {0: shard}, publisher="0" * 32, session="127.0.0.1:1")[0]
    stream = StreamManifest.decode(bytes(with_manifest(B, version=2)[MANIFEST_TENSOR]), file="a stream")

    with SharedTensors(tmp_path / "shared") as trainer:
        shared = trainer.publish(2, {0: B})

    said = {
        "publisher": published.manifest_digest,
        "rank": load(source, target, version="2").manifest_digest,
        "delta": directory.delta(2, 1, B).manifest_digest,
        "rank with the base": directory.load(2, target).manifest_digest,
        "memory": grant.publication.group_digest,
        "stream": stream.group_digest,
        "shared memory": shared.manifest_digest,
    }
    assert set(said.values()) == {published.manifest_digest}
