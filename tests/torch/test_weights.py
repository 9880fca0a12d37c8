"""Weights of real torch modules: their bytes, their memory, and the flip from one version to another."""

from __future__ import annotations

import contextlib

import pytest
import torch
from small_model import small_model
from torch import nn

from wsm.actions.measuring import resident_digest
from wsm.actions.surfaces import MemorySurface, StageableWeights, WeightSurface
from wsm.errors import BadInputError, GroupError
from wsm.strategies import IpcSource, SharedTensors, SnapshotPublisher, publish_snapshot
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.load import load
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.tensor import StagedTarget, TensorReleasedError
from wsm.torch import TorchWeights, memory_on


@pytest.fixture(autouse=True, params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu(framework="torch"))])
def device(request):
    """Where new tensors lie, those of the engine and of the trainer."""
    with torch.device(request.param):
        yield torch.device(request.param)


def answers(model):
    return model(torch.arange(16))


def contents(weights):
    return {name: bytes(weights.readable(name)) for name in weights.specs()}


def other_model():
    """Another version: what a trainer has, in a module of its own."""
    model = small_model(seed=7)
    with torch.no_grad():
        model.turned.copy_((torch.arange(32.0).reshape(4, 8) - 16).to(torch.float8_e4m3fn))
        model.scale.fill_(3.0)
        model.steps.copy_(torch.tensor([1, -2, 3]))
        model.flags[2] = True
    return model


def publish(directory, model):
    publish_snapshot(directory, 1, {0: dict(model.state_dict())}, durable=False)
    return SnapshotSource(directory, rank=0)


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_rank_puts_the_tensors_of_its_module_into_files_and_into_memory_alike(tmp_path, in_memory):
    model, weights = other_model(), TorchWeights(small_model())
    with contextlib.ExitStack() as undo:
        publisher = (
            undo.enter_context(SharedTensors(tmp_path, world_size=1))
            if in_memory
            else SnapshotPublisher(tmp_path, world_size=1, durable=False)
        )
        with publisher.version(1) as version:
            version.seal({0: version.put(0, dict(model.state_dict()))})
        if in_memory:
            load(IpcSource(tmp_path, 0), weights, name="ipc")
        else:
            load(SnapshotSource(tmp_path, 0), weights)
    assert contents(weights) == contents(TorchWeights(model))


def stage_everything(weights, byte):
    staged = weights.stage()
    for name, spec in weights.specs().items():
        staged.writable(name)[:] = bytes([byte]) * spec.nbytes
        if isinstance(staged, StagedTarget):
            staged.written(name)
    return staged


def same_state(one, other):
    return all(
        torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
        for left, right in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_a_module_is_known_by_its_state_dict_with_tied_tensors_once():
    weights = TorchWeights(small_model())
    assert isinstance(weights, WeightSurface)
    assert isinstance(weights, StageableWeights)
    specs = {name: (spec.dtype, spec.shape) for name, spec in weights.specs().items()}
    assert specs == {
        "turned": ("F8_E4M3", (4, 8)),
        "scale": ("F32", ()),
        "steps": ("I64", (3,)),
        "flags": ("BOOL", (5,)),
        "none": ("F32", (0, 4)),
        "embed.weight": ("BF16", (16, 8)),
        "middle.weight": ("BF16", (8, 8)),
        "middle.bias": ("BF16", (8,)),
    }
    assert weights.tied == {"head.weight": "embed.weight"}


def test_an_engine_whose_whole_loop_is_in_inference_mode_is_updated_too(tmp_path):
    served, trained = small_model(), other_model()
    source = publish(tmp_path, trained)
    with torch.inference_mode():
        weights = TorchWeights(served)
        weights.release()
        load(source, weights, version=1)
        staged = weights.stage()
        load(source, staged, version=1)
        staged.make_ready(frozenset({"scale"}))
        staged.flip()
        assert staged.unflipped() is None
        assert torch.equal(answers(served), answers(trained))
    load(source, weights, version=1)
    assert same_state(served, trained)


def test_bytes_pass_through_the_host_whatever_device_new_tensors_lie_on(tmp_path):
    served, trained = small_model(), other_model()
    source, weights = publish(tmp_path, trained), TorchWeights(served)
    weights.release()
    with torch.device("meta"):
        load(source, weights, version=1)
    assert same_state(served, trained)


@pytest.mark.parametrize("staged", [False, True], ids=["in place", "staged"])
def test_what_a_trainer_publishes_is_what_the_module_computes_with(tmp_path, staged):
    served, trained = small_model(), other_model()
    tensors = dict(served.state_dict(keep_vars=True))
    weights = TorchWeights(served)
    before = contents(weights)
    target = weights.stage() if staged else weights
    report = load(publish(tmp_path, trained), target, version=1)
    if staged:
        assert contents(weights) == before, "staging wrote to what serves"
        assert resident_digest(target, lambda: None) == report.digest
        target.make_ready(frozenset())
        target.flip()
        assert target.unflipped() is None
        assert target.give_back() > 0
    assert resident_digest(weights, lambda: None) == report.digest
    assert same_state(served, trained)
    assert torch.equal(answers(served), answers(trained))
    assert all(served.state_dict(keep_vars=True)[name] is tensor for name, tensor in tensors.items())
    assert served.head.weight is served.embed.weight
    assert served.turned.stride() == (1, 4), "a kernel relies on how it lies"


def test_memory_goes_with_a_release_and_comes_with_the_next_load(tmp_path):
    served, trained = small_model(), other_model()
    weights = TorchWeights(served)
    everything = sum(spec.nbytes for spec in weights.specs().values())
    assert weights.release() == everything
    assert list(weights.held()) == []
    assert weights.release() == 0
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in served.state_dict().values())
    with pytest.raises(TensorReleasedError):
        weights.readable("scale")
    with pytest.raises(RuntimeError):
        answers(served)
    load(publish(tmp_path, trained), weights, version=1)
    assert torch.equal(answers(served), answers(trained))
    assert torch.equal(served.made_anew, torch.arange(4.0)), "what no checkpoint has is left alone"


def test_a_parameter_under_two_objects_stays_one_tensor(tmp_path):
    served, trained = small_model(), other_model()
    served.head.weight = nn.Parameter(served.embed.weight.data)
    weights = TorchWeights(served)
    assert weights.tied == {"head.weight": "embed.weight"}
    weights.release()
    load(publish(tmp_path, trained), weights, version=1)
    staged = stage_everything(weights, 0x3F)
    staged.make_ready(frozenset())
    staged.flip()
    assert served.head.weight.data_ptr() == served.embed.weight.data_ptr()


def test_captured_parameters_get_their_bytes_where_they_lie():
    weights = TorchWeights(small_model())
    addresses, captured = weights.addresses(), frozenset({"embed.weight", "turned"})
    staged = stage_everything(weights, 1)
    staged.make_ready(captured)
    assert staged.unflipped() is not None
    staged.flip()
    assert staged.unflipped() is None
    staged.give_back()
    now = weights.addresses()
    assert {name for name in now if now[name] == addresses[name]} == captured
    assert set(contents(weights).values()) == {b"\1" * spec.nbytes for spec in weights.specs().values()}


def test_a_flipped_bit_is_found_while_it_is_staged_and_the_served_version_stays(tmp_path):
    weights = TorchWeights(small_model())
    before, source = contents(weights), publish(tmp_path, other_model())
    [part] = (tmp_path / "versions" / "1").glob("*.pdparams")
    damaged = bytearray(part.read_bytes())
    damaged[-1] ^= 1
    part.write_bytes(damaged)
    with pytest.raises(DigestMismatchError):
        load(source, weights.stage(), version=1)
    assert contents(weights) == before


def test_what_is_given_back_without_a_flip_leaves_the_served_version_alone():
    weights = TorchWeights(small_model())
    before, staged = contents(weights), stage_everything(weights, 1)
    staged.make_ready(frozenset())
    staged.give_back()
    staged.flip()  # nothing is left that it could flip
    assert contents(weights) == before
    assert not staged.is_ready()


def test_a_tensor_that_was_not_staged_or_holds_no_memory_cannot_be_flipped():
    weights = TorchWeights(small_model())
    with pytest.raises(TensorReleasedError):
        weights.stage().make_ready(frozenset())
    staged = stage_everything(weights, 1)
    weights.release()
    with pytest.raises(TensorReleasedError):
        staged.make_ready(frozenset())
    assert not staged.is_ready()


def test_bytes_that_were_handed_out_outlive_the_release():
    weights = TorchWeights(small_model())
    seen = weights.readable("middle.weight")
    before = bytes(seen)
    weights.release()
    assert bytes(seen) == before


@pytest.mark.parametrize("replace", ["parameter", "memory"])
def test_what_replaces_a_parameter_behind_wsm_is_noticed_before_stale_bytes_are_believed(replace):
    model = small_model()
    weights = TorchWeights(model)
    staged = stage_everything(weights, 1)
    if replace == "parameter":
        model.middle.weight = nn.Parameter(torch.ones(8, 8))
    else:
        model.middle.weight.data = torch.ones(8, 8).to(torch.bfloat16).t()[:, :4]
    for use in (lambda: staged.make_ready(frozenset()), lambda: weights.readable("middle.weight")):
        with pytest.raises(GroupError, match=r"middle\.weight") as caught:
            use()
        assert caught.value.code == "tensor-changed"


def a_view_of_another(model):
    model.part = nn.Parameter(model.middle.weight.data[2:4])


def expanded(model):
    model.register_buffer("wide", torch.zeros(1).expand(4))


def on_meta(model):
    model.nowhere = nn.Parameter(torch.empty(2, device="meta"))


def complex_numbers(model):
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))


def made_by_a_hook(model):
    model.register_state_dict_post_hook(lambda _m, state, prefix, _l: state.update({"made": torch.ones(1)}))


def no_tensor(model):
    model.middle.get_extra_state = lambda: {"amax": 1}
    model.middle.__class__ = type("Stateful", (nn.Linear,), {"get_extra_state": lambda _: {"amax": 1}})


@pytest.mark.parametrize(
    "unfit", [a_view_of_another, expanded, on_meta, complex_numbers, made_by_a_hook, no_tensor]
)
def test_a_tensor_that_cannot_be_released_and_loaded_is_refused_by_name(unfit):
    model = small_model()
    unfit(model)
    with pytest.raises(BadInputError) as caught:
        TorchWeights(model)
    assert caught.value.code == "unsupported-tensor"
    assert caught.value.context["tensor"]


def test_tensors_that_no_version_holds_stay_as_they_are():
    model = small_model()
    weights = TorchWeights(model, excluded=["steps", "fl*"])
    assert not {"steps", "flags"} & set(weights.specs())
    weights.release()
    assert torch.equal(model.steps, torch.zeros(3, dtype=torch.int64))


def test_several_modules_are_told_apart_by_their_prefixes(device):
    weights = TorchWeights({"": nn.Linear(2, 2), "draft.": nn.Linear(2, 2)})
    assert list(weights.specs()) == ["weight", "bias", "draft.weight", "draft.bias"]
    on_host = device.type == "cpu"
    assert isinstance(weights, StagedTarget) is not on_host, "all of the host's is written where it lies"


def test_memory_is_measured_where_the_weights_lie(device):
    memory, _model = memory_on(device), small_model()
    assert isinstance(memory, MemorySurface)
    assert memory.shared_by_ranks is (device.type == "cpu")
    assert memory.resident_bytes() > 0
