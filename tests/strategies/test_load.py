"""What a load says, who takes what it brings, under whose names, by whatever way, and from former files."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delta_directory import A, B, Directory

from tests.raising import raising
from wsm.strategies import (
    AdoptSettings,
    AdoptWay,
    DeltaSource,
    MemoryTarget,
    SharedTensors,
    SnapshotSource,
    TensorSpec,
    TrainingNames,
    adopt,
    errors,
    inspect,
    load,
    publish_snapshot,
    read_version,
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


# -- tensors that come under the names of their trainer --------------------------------------------------


OWN = (TensorSpec("head.linear", "U8", (3,)), TensorSpec("body", "U8", (2,)))
TRAINED = {"head": (TensorSpec("head", "U8", (3,)), b"abc"), "body": (OWN[1], b"de")}
NAMES = TrainingNames({"head": "head.linear", "body": "body", "absent": "nowhere"})


def source(directory):
    return SnapshotSource(directory, 0, device_id=0, shared_directory=None)


@pytest.mark.parametrize("side", ["publisher", "load", "both"])
def test_tensors_arrive_under_the_models_names_on_whichever_side_they_are_exchanged(tmp_path, side):
    shard = TRAINED if side == "load" else NAMES.tensors(TRAINED)
    publish_snapshot(tmp_path, 1, {0: shard}, durable=False)
    names = None if side == "publisher" else NAMES
    target = MemoryTarget(OWN)
    inspect(source(tmp_path), target=target, names=names)
    report = load(source(tmp_path), target, names=names)
    assert [bytes(target.readable(spec.name)) for spec in OWN] == [b"abc", b"de"]
    straight = MemoryTarget(OWN)
    publish_snapshot(
        tmp_path / "own", 1, {0: {"head.linear": (OWN[0], b"abc"), "body": (OWN[1], b"de")}}, durable=False
    )
    assert report.digest == load(source(tmp_path / "own"), straight).digest
    assert report.verified == 2


def test_a_name_that_exists_already_is_refused_before_anything_is_touched(tmp_path):
    shard = {**TRAINED, "head.linear": (OWN[0], b"xyz")}
    with raising("mapped-name-exists"):
        NAMES.tensors(shard)
    publish_snapshot(tmp_path, 1, {0: shard}, durable=False)
    target = MemoryTarget(OWN)
    target.writable("body")[:] = b"??"
    touched = []
    with raising("mapped-name-exists") as refused:
        load(
            source(tmp_path),
            target,
            names=NAMES,
            allowed_unknown=["head"],
            taint=lambda: touched.append(True),
        )
    assert (refused.value.context["tensor"], refused.value.context["name"]) == ("head", "head.linear")
    assert not touched
    assert bytes(target.readable("body")) == b"??"


@pytest.mark.parametrize("promised", [(), None], ids=["promised", "offered"])
def test_an_offer_of_nothing_is_refused_by_where_it_comes_from(promised):
    tensors = () if promised is None else iter(())
    with raising("empty-snapshot", match="a stream holds no tensor"):
        Offer("1", tensors, ("a stream",), None, ManifestScope.LOADED, promised=promised)


def test_a_stream_is_renamed_as_it_comes_and_what_it_promises_at_once():
    tensors = (OfferedTensor.of_bytes(spec, "a stream", memoryview(data)) for spec, data in TRAINED.values())
    promised = tuple(spec for spec, _ in TRAINED.values())
    offer = Offer("1", tensors, ("a stream",), None, ManifestScope.LOADED, declared=False, promised=promised)
    renamed = NAMES.offer(offer)
    assert renamed.promised == OWN
    assert tuple(tensor.spec for tensor in renamed.tensors) == OWN
    twice = Offer("1", iter(()), (), None, ManifestScope.LOADED, declared=False, promised=(*promised, OWN[0]))
    with raising("mapped-name-exists"):
        NAMES.offer(twice)


@pytest.mark.parametrize(
    "names", [{"a": "c", "b": "c"}, {"a": "b", "b": "c"}, {"c": "c", "a": "c"}, {"a": "b", "b": "b"}]
)
def test_a_map_that_does_not_say_which_tensor_is_which_is_refused(names):
    with raising(errors.bad_training_names):
        TrainingNames(names)


def test_a_models_own_map_is_turned_round_and_merged_tensors_keep_their_names():
    names = TrainingNames.of_model({"a": "x", "b": ["y"], "experts": ["e0", "e1"], "same": "same"})
    assert [names.of_inference(name) for name in ("x", "y", "e0", "experts", "same")] == [
        "a", "b", "e0", "experts", "same"
    ]  # fmt: skip
    with raising(errors.bad_training_names):
        TrainingNames.of_model({"a": "x", "b": "x"})


def test_a_prefix_is_left_out_of_whatever_has_it_and_a_map_speaks_of_the_rest():
    names = TrainingNames({"head": "head.linear"}, strip="_orig_mod.")
    trained = ["_orig_mod.head", "head", "_orig_mod.body", "body", "head.linear"]
    own = ["head.linear", "head.linear", "body", "body", "head.linear"]
    assert [names.of_inference(name) for name in trained] == own
    shard = {f"_orig_mod.{name}": data for name, (_, data) in TRAINED.items()}
    assert list(names.tensors(shard)) == ["head.linear", "body"]
    with raising("mapped-name-exists") as twice:
        names.tensors({**shard, "body": b""})
    assert (twice.value.tensor, twice.value.name) == ("_orig_mod.body", "body")
    assert errors.common_prefix(["a", "b"], ["m.a", "m.b", "visual"]) == "m."
    assert errors.common_prefix(["a", "b"], ["m.a", "n.b"]) is None
    assert errors.common_prefix([], ["m.a"]) is errors.common_prefix(["a"], []) is None


# -- what users have on their discs: published by wsm at de3b07b, and a trainer's checkpoint -------------


SPECS = (TensorSpec("layer.weight", "F32", (4, 4)), TensorSpec("layer.bias", "BF16", (8,)))


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """One version, a delta against it and a directory of safetensors, each of two tensors."""
    return Path(shutil.copytree(Path(__file__).parent / "former", tmp_path / "former"))


def holds(target: MemoryTarget, first: int) -> bool:
    weight = (np.arange(16, dtype="<f4") + first).tobytes()
    return bytes(target.readable("layer.weight")) == weight and bytes(target.readable("layer.bias")) == bytes(
        range(16)
    )


def test_a_version_and_the_delta_against_it_load_as_they_were_published(former: Path) -> None:
    assert read_version(former / "versions") == "step-2"
    for rank in range(2):
        target = MemoryTarget(SPECS)
        source = SnapshotSource(former / "versions", rank, device_id=rank, shared_directory=None)
        assert load(source, target, version="step-1").version == "step-1"
        assert holds(target, 1)
        newer = DeltaSource(former / "versions", rank, device_id=rank)
        assert load(newer, target, name="delta", version="step-2").version == "step-2"
        assert holds(target, 2)


def test_a_trainers_checkpoint_is_adopted(former: Path, tmp_path: Path) -> None:
    settings = AdoptSettings(tmp_path / "into", [former], way=AdoptWay.COPY, durable=False)
    adopt(former / "trainer", settings, version="7")
    target = MemoryTarget(SPECS)
    source = SnapshotSource(tmp_path / "into", 0, shared_directory=None)
    assert load(source, target, version="7").version == "7"
    assert holds(target, 3)
