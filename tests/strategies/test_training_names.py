"""Tensors that come under the names of their trainer."""

from __future__ import annotations

import pytest

from tests.raising import raising
from wsm.strategies import (
    MemoryTarget,
    SnapshotSource,
    TensorSpec,
    TrainingNames,
    errors,
    inspect,
    load,
    publish_snapshot,
)
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor

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
