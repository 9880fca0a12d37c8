"""Real models of a few layers that take a checkpoint by ``load_weights(iterator)``, as FastDeploy's do."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import paddle
import pytest

from tests.raising import raising
from wsm.actions.backends.model_loading import carrying_over, loading_models
from wsm.actions.backends.paddle_weights import PaddleWeights
from wsm.strategies import errors
from wsm.strategies.applier.feeding import feed
from wsm.strategies.applier.tensor_set import tensors_in
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.observer import UNOBSERVED, LoadObserver, Taint, stamping
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.tensor import TensorSpec

pytestmark = pytest.mark.paddle


def copied_into(parameter, loaded, part=None):
    """A weight loader: turned round if the parameter says so, into one of two halves if it is fused."""
    value = loaded.transpose([1, 0]) if getattr(parameter, "weight_need_transpose", False) else loaded
    where = parameter if part is None else parameter[..., part * 2 : part * 2 + 2]
    where.copy_(value, True)


class Main(paddle.nn.Layer):
    """A layer of two fused tensors, and one whose checkpoint lies the other way round."""

    FUSED = MappingProxyType({"model.q.weight": 0, "model.k.weight": 1})

    def __init__(self):
        super().__init__()
        self.qk = self.create_parameter([3, 4])
        self.out = self.create_parameter([4, 2])
        self.out.weight_need_transpose = True
        self.seen = []

    def load_weights(self, weights):
        for name, tensor in weights:
            self.seen.append(name)
            if name in self.FUSED:
                copied_into(self.qk, tensor, self.FUSED[name])
            elif name == "model.out.weight":
                copied_into(self.out, tensor)


class Draft(paddle.nn.Layer):
    """A model of one layer behind the main model's two; it says where its layers begin."""

    mtp_start_layer_idx = 2
    num_mtp_layers = 1

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([2, 2])
        self.bias = self.create_parameter([2])
        self.calls = []

    def load_weights(self, weights):
        taken = dict(weights)
        self.calls.append(sorted(taken))
        for name, tensor in taken.items():
            copied_into(self.weight if "weight" in name else self.bias, tensor)


def checkpoint(seed=0):
    random = np.random.default_rng(seed)
    shapes = {
        "model.q.weight": (3, 2),
        "model.k.weight": (3, 2),
        "model.out.weight": (2, 4),
        "model.layers.2.mtp.weight": (2, 2),
        "model.layers.2.mtp.bias": (2,),
        "model.layers.20.rotary": (2,),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def offered(state, *, promised=True, chunk=16):
    def one(name, array, digest=None):
        spec = TensorSpec(name, "F32", array.shape)
        return OfferedTensor.of_bytes(spec, "the test", array.tobytes(), digest)

    digests = {name: digest_of(array.tobytes()) if promised else None for name, array in state.items()}
    tensors = iter([one(name, array, digests[name]) for name, array in state.items()])
    specs = tuple(TensorSpec(name, "F32", array.shape) for name, array in state.items())
    return Offer(
        "1",
        tensors,
        ("the test",),
        None,
        ManifestScope.LOADED,
        declared=False,
        promised=specs if promised else None,
        chunk_tensors=chunk,
    )


class Engine:
    def __init__(self, main=None):
        self.main, self.draft = main or Main(), Draft()
        self.weights = PaddleWeights({"": self.main, "mtp.": self.draft})
        self.models = loading_models([self.main, self.draft], None)
        self.taints = 0

    def load(self, offer, before=None, **options):
        taint = Taint(self.taint)
        with stamping(taint):
            return feed(offer, self.models, self.weights, LoadObserver(taint), before=before, **options)

    def taint(self):
        self.taints += 1

    def digest(self):
        specs = self.weights.specs().items()
        return shard_digest((spec, digest_of(self.weights.readable(name))) for name, spec in specs)


def test_a_checkpoint_goes_through_the_models_own_loaders_in_place_and_after_a_clear():
    engine = Engine()
    for seed in (1, 2):
        state = checkpoint(seed)
        applied = engine.load(offered(state, chunk=1))
        fused = np.concatenate([state["model.q.weight"], state["model.k.weight"]], axis=1)
        assert np.array_equal(engine.main.qk.numpy(), fused)
        assert np.array_equal(engine.main.out.numpy(), state["model.out.weight"].T)
        assert np.array_equal(engine.draft.weight.numpy(), state["model.layers.2.mtp.weight"])
        assert (applied.tensors, applied.verified, applied.auxiliary) == (6, 6, 2)
        assert applied.digest == engine.digest()
        engine.weights.release()
    assert engine.taints == 2


def test_where_an_mtp_models_layers_begin_is_read_off_the_configuration_too():
    class Config:
        start_layer_index, num_nextn_predict_layers = 4, 2

    class Told:
        model_config = Config

    _, silent = loading_models([Main(), Main()], Told)
    assert [silent.match(f"layers.{index}.w") for index in (3, 4, 5, 6)] == [False, True, True, False]


def test_a_draft_that_no_tensor_is_for_is_refused_before_anything_where_that_is_known():
    for promised in (True, False):
        engine = Engine()
        state = {name: array for name, array in checkpoint().items() if "mtp" not in name}
        with raising(errors.no_auxiliary_tensors) as caught:
            engine.load(offered(state, promised=promised))
        assert caught.value.touched == bool(engine.taints) == (not promised)


@pytest.mark.parametrize(
    ("lacks", "left"), [("out", {"out": 8}), ("k", {"qk": 6}), ("layers.2.mtp", {"mtp.weight": 4})]
)
@pytest.mark.parametrize("released", [True, False], ids=["after a clear", "a first version"])
def test_elements_that_no_tensor_was_written_to_are_named_with_their_parameter(lacks, left, released):
    engine = Engine()
    if released:
        engine.weights.release()
    state = checkpoint()
    del state[f"model.{lacks}.weight"]
    with raising("parameters-unwritten", match="rsync: {unwritten") as caught:
        engine.load(offered(state, promised=False))
    assert (caught.value.left, caught.value.touched) == (left, True)


def test_a_version_that_is_loaded_by_force_names_what_it_lacks_of_the_one_before():
    engine = Engine()
    before = tensors_in(engine.load(offered(checkpoint())).tensor_set)
    state = checkpoint()
    del state["model.out.weight"]
    with raising("parameters-unwritten", match=r"lacks 'model\.out\.weight'; send") as caught:
        engine.load(offered(state, promised=False), before, anew=True)
    assert caught.value.lacks == ("model.out.weight",)


def test_parameters_that_the_configuration_names_may_stay_unwritten_and_hold_zeros_or_what_they_held():
    engine = Engine()
    state = checkpoint()
    del state["model.k.weight"]
    before = engine.main.qk.numpy()
    offer = replace(offered(state, promised=False), unwritten=["q*"])
    engine.load(offer)
    assert np.array_equal(engine.main.qk.numpy()[:, 2:], before[:, 2:])
    engine.weights.release()
    engine.load(replace(offered(state, promised=False), unwritten=["q*"]))
    assert not engine.main.qk.numpy()[:, 2:].any()


@pytest.mark.parametrize("lacks", ["out", "k"])
@pytest.mark.parametrize("promised", [True, False], ids=["with a manifest", "known as it comes"])
def test_a_version_that_lacks_a_tensor_of_the_one_before_is_refused_by_name(lacks, promised):
    engine = Engine()
    first = engine.load(offered(checkpoint()))
    before, digest = tensors_in(first.tensor_set), engine.digest()
    assert engine.load(offered(checkpoint(), promised=False), before).tensor_set == first.tensor_set
    state = checkpoint(1)
    name = f"model.{lacks}.weight"
    del state[name]
    with raising("other-tensors", match="update with --force") as caught:
        engine.load(offered(state, promised=promised), before)
    assert (caught.value.missing, caught.value.touched) == ((name,), not promised)
    assert ("nothing was changed" in str(caught.value)) is promised
    assert (engine.digest() == digest) is promised


def test_a_tensor_that_the_version_before_did_not_have_so_is_refused_before_a_loader_sees_it():
    engine = Engine()
    before = tensors_in(engine.load(offered(checkpoint())).tensor_set)
    state = {"model.new": np.ones(2, np.float32), **checkpoint()}
    with raising("other-tensors", match="1 new: 'model.new'"):
        engine.load(offered(state, promised=False), before)
    other = {**checkpoint(), "model.k.weight": np.ones((2, 3), np.float32)}
    seen = len(engine.main.seen)
    with raising("other-tensors", match="another dtype or shape: 'model.k.weight'"):
        engine.load(offered(other, promised=False), before)
    assert engine.main.seen[seen:] == ["model.q.weight"]
    assert engine.load(offered(state, promised=False)).tensors == 7  # as a version that was asked for anew


def test_what_is_staged_beside_a_version_that_serves_is_not_what_models_write_into():
    engine = Engine()
    before = engine.digest()
    with raising("models-write-in-place", match="update without --hot"):
        feed(offered(checkpoint()), engine.models, engine.weights.stage(), UNOBSERVED)
    assert engine.digest() == before


# -- parameters that are made anew ---------------------------------------------------------------------------


def turned(layer, name):
    """FastDeploy's way under dynamic load: an empty parameter of the exchanged shape takes the place."""
    old = getattr(layer, name)
    shape = list(old.shape)
    new = layer.create_parameter([*shape[:-2], shape[-1], shape[-2]])
    old.value().get_tensor()._clear()
    setattr(layer, name, new)


@pytest.mark.parametrize("shape", [[4, 2], [3, 4, 2], [2, 2]])
@pytest.mark.parametrize("said", [{"output_dim": True, "split_axis": -1}, {"output_dim": None}, {}])
@pytest.mark.parametrize("torch_format", [True, False])
def test_a_transpose_that_makes_a_parameter_anew_keeps_how_it_is_loaded(shape, said, torch_format):
    layer = paddle.nn.Layer()
    layer.weight = layer.create_parameter(shape)
    own = {
        **said,
        "weight_loader": copied_into,
        "weight_need_transpose": torch_format,
        "is_distributed": True,
    }
    for name, value in {**own, "tensor_track": object()}.items():
        setattr(layer.weight, name, value)
    carrying_over(turned)(layer, "weight")
    new = layer.weight
    assert list(new.shape) == [*shape[:-2], shape[-1], shape[-2]]
    exchanged = {
        "output_dim": None if said.get("output_dim") is None else False,
        "split_axis": len(shape) - 2,
    }
    kept = {**own, **{name: exchanged[name] for name in said}, "weight_need_transpose": not torch_format}
    assert {name: getattr(new, name) for name in own} == kept
    assert not hasattr(new, "tensor_track")
    assert said or not hasattr(new, "output_dim")


class Replacing(Main):
    """A main model whose loader puts another parameter in the place of one."""

    def load_weights(self, weights):
        for name, tensor in weights:
            super().load_weights([(name, tensor)])
            if name == "model.out.weight":
                value = self.out.numpy().T.copy()
                turned(self, "out")
                self.out.set_value(value)


def test_a_loader_that_replaces_parameters_leaves_no_stale_state_and_no_lost_attributes():
    engine = Engine(Replacing())
    engine.main.out.weight_loader = copied_into
    applied = engine.load(offered(checkpoint(3)))
    assert engine.weights.specs()["out"].shape == (2, 4)
    assert engine.weights.tensor("out") is engine.main.out
    assert engine.main.out.weight_need_transpose is False
    assert engine.main.out.weight_loader is copied_into
    assert applied.digest == engine.digest()
    applied = engine.load(offered(checkpoint(4)))
    assert np.array_equal(engine.main.out.numpy(), checkpoint(4)["model.out.weight"].T)
    assert engine.weights.release() > 0
    assert not list(engine.weights.held())


def test_what_a_failed_load_has_put_in_a_parameters_place_is_given_back_with_all_else():
    engine = Engine(Replacing())
    state = {name: array for name, array in checkpoint().items() if "mtp" not in name}
    with raising(errors.no_auxiliary_tensors):
        engine.load(offered(state, promised=False))
    engine.main.out = engine.main.create_parameter([2, 4])  # by a loader that wsm did not call
    assert engine.weights.release() == 4 * (12 + 8 + 4 + 2)
    held = [tensor for tensor in engine.main.state_dict().values() if tensor._is_initialized()]
    assert (held, list(engine.weights.held())) == ([], [])
