"""Files that wsm did not write: names that the model lacks, and bytes that no digest was promised for."""

from __future__ import annotations

import json

import pytest

from tests.raising import raising
from wsm.command import CommandArguments
from wsm.config import ConfigurationError, NamesConfig, config_from_mapping
from wsm.controller.errors import RankFailedError
from wsm.states.vocabulary import Tag, UnknownTensors
from wsm.strategies import errors as strategies_errors
from wsm.strategies import publish_snapshot, write_version
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.typed import bad_keyword

MODEL = {"weight": b"\x01" * 256, "bias": b"\x01" * 32}
STRANGER = {"rotary.cos": ("U8", (3,), b"abc")}


def lone_over(make_lone, directory, **options):
    snapshot = SnapshotConfig(directory=str(directory), device_ids=(0,))
    return make_lone(load=None, snapshot=snapshot, **options)


@pytest.fixture
def flat(plain, tmp_path):
    """Write a snapshot as FastDeploy's trainers do, with one tensor more than the model has."""

    def write(lone, step, **more):
        specs = lone.runner.weights.specs()
        state = {name: (specs[name].dtype, specs[name].shape, data) for name, data in MODEL.items()}
        plain("model_state.tp0.0.pdparams", {**state, **STRANGER, **more}, directory=tmp_path)
        write_version(tmp_path, step)

    return write


def held(lone):
    return {name: bytes(lone.runner.weights.readable(name)) for name in lone.runner.weights.specs()}


def test_names_that_the_model_lacks_are_refused_unless_the_command_says_otherwise(make_lone, flat, tmp_path):
    lone = lone_over(make_lone, tmp_path)
    flat(lone, "global_step_1200")
    with pytest.raises(RankFailedError, match="rotary"):
        lone.update("global_step_1200")
    receipt = lone.update("global_step_1200", unknown_tensors="ignore")
    assert held(lone) == MODEL
    assert receipt.ranks[0].facts["unknown_tensors"] == 1
    assert "1 tensors left out that the model does not have" in receipt.sentence()
    flat(lone, "global_step_1300")
    with pytest.raises(RankFailedError, match="rotary"):
        lone.update("global_step_1300")  # the next command speaks for itself


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("training_names", {"model.w": "weight"}),
        ("names_to_training", {"weight": "model.w", "bias": ["bias.0", "bias.1"], "bias2": ["model.b"]}),
    ],
)
def test_a_trainers_own_names_are_exchanged_as_the_configurations_file_says(
    make_lone, plain, tmp_path, option, names
):
    file = tmp_path / "names.json"
    file.write_text(json.dumps(names))
    lone = lone_over(make_lone, tmp_path, **{option: str(file)})
    specs = lone.runner.weights.specs()
    trained = {"model.w": "weight", "bias": "bias"}
    state = {name: (specs[own].dtype, specs[own].shape, MODEL[own]) for name, own in trained.items()}
    plain("model_state.tp0.0.pdparams", state, directory=tmp_path)
    lone.update(None)
    assert held(lone) == MODEL


def test_a_prefix_of_the_trainers_names_is_left_out_where_the_configuration_says_so(
    make_lone, plain, tmp_path
):
    lone = lone_over(make_lone, tmp_path, names=NamesConfig(strip="module."))
    specs = lone.runner.weights.specs()
    state = {f"module.{name}": (specs[name].dtype, specs[name].shape, data) for name, data in MODEL.items()}
    plain("model_state.tp0.0.pdparams", state, directory=tmp_path)
    lone.update(None)
    assert held(lone) == MODEL


@pytest.mark.parametrize(
    ("text", "both", "said"),
    [
        ("[]", False, "Expected `object`"),
        ('{"a": 3}', False, "Expected `str`"),
        ('{"a": "b"}', True, "is to say it, too"),
        (None, False, "No such file"),
    ],
)
def test_a_file_of_names_that_cannot_be_used_is_refused_as_the_worker_starts(
    make_lone, tmp_path, text, both, said
):
    file = tmp_path / "names.json"
    if text is not None:
        file.write_text(text)
    options = {"training_names": str(file), **({"names_to_training": "other.json"} if both else {})}
    with raising(strategies_errors.bad_names, match=said):
        lone_over(make_lone, tmp_path, **options)


def test_the_configuration_says_it_for_every_command_that_does_not(make_lone, flat, tmp_path):
    lone = lone_over(make_lone, tmp_path, unknown_tensors="ignore")
    flat(lone, 1)
    assert lone.update(None).ranks[0].facts["unknown_tensors"] == 1
    flat(lone, 2)
    with pytest.raises(RankFailedError, match="rotary"):
        lone.update(2, unknown_tensors=UnknownTensors.REFUSE)
    assert lone.update(2, hot=True).version == "2"
    assert held(lone) == MODEL


def test_bytes_that_no_digest_was_promised_for_are_never_called_verified(make_lone, flat, tmp_path):
    lone = lone_over(make_lone, tmp_path, unknown_tensors="ignore")
    flat(lone, 1)
    receipt = lone.update(1)
    assert (receipt.verified, receipt.ranks[0].facts["verified_tensors"]) == (False, 0)
    assert "unverified" in receipt.sentence()
    specs = lone.runner.weights.specs()
    shard = {name: (specs[name], data) for name, data in MODEL.items()}
    publish_snapshot(tmp_path, 2, {0: shard}, durable=False)
    receipt = lone.update(2)
    assert (receipt.verified, receipt.ranks[0].facts["verified_tensors"]) == (True, 2)
    assert "verified" not in receipt.sentence()
    assert lone.clear().verified is None


def test_another_choice_is_refused_where_it_is_made(make_lone, tmp_path):
    with pytest.raises(ConfigurationError, match="it must be one of refuse, ignore"):
        config_from_mapping({"name": "g", "ranks": 1, "unknown_tensors": "skip"})
    lone = lone_over(make_lone, tmp_path)
    with raising(bad_keyword, match="refuse, ignore"):
        lone.controller.begin_update(1, unknown_tensors="skip")
    with raising("tags-contradict", match="unknown_tensors"):
        lone.controller.begin_update(tags=[Tag.KV_CACHE], unknown_tensors="ignore")


def test_the_choice_travels_with_the_command():
    arguments = CommandArguments("x", "2", unknown_tensors=UnknownTensors.IGNORE)
    assert CommandArguments.from_bytes(arguments.to_bytes()) == arguments
