"""A worker whose model takes a checkpoint by itself, and is processed behind that."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from checkpoint_transfer.sender import FakeSender

from wsm import Outcome
from wsm.actions.backends.model_loading import carrying_over, loading_models
from wsm.actions.backends.paddle_weights import PaddleWeights
from wsm.actions.measuring import resident_digest
from wsm.controller.errors import RankFailedError
from wsm.strategies import TensorSpec, publish_snapshot, with_manifest
from wsm.strategies.transports.by_version import RsyncConfig
from wsm.testing import InMemoryRunner, LocalGroup

pytestmark = [pytest.mark.paddle, pytest.mark.processes]


class Quantised(paddle.nn.Layer):
    """What comes as numbers is kept as signs, in a parameter of its own; the other one is freed."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([3, 4])
        self.norm = self.create_parameter([4])

    def load_weights(self, weights):
        for name, tensor in weights:
            if self.weight.shape != [3, 4] or self.weight.dtype != paddle.float32:
                self.weight = self.create_parameter([3, 4])
            getattr(self, name.removeprefix("model.")).set_value(tensor)

    def process(self):
        signs = paddle.sign(self.weight).cast("int32").cast("float32").transpose([1, 0]).contiguous()

        def turned(layer, name):
            setattr(layer, name, layer.create_parameter([4, 3]))

        carrying_over(turned)(self, "weight")
        self.weight.set_value(signs)


@pytest.fixture
def sender():
    made = FakeSender()
    yield made
    made.close()


def state(seed):
    random = np.random.default_rng(seed)
    return {
        "model.weight": random.standard_normal((3, 4)).astype(np.float32),
        "model.norm": random.standard_normal(4).astype(np.float32),
    }


@pytest.fixture
def engine(make_lone, sender, tmp_path):
    """A worker over a model of two parameters; `processes`: what is loaded is quantised and turned round."""

    def made(*, processes=True):
        model = Quantised()
        runner = InMemoryRunner([TensorSpec("weight", "F32", (3, 4))])
        runner.weights = PaddleWeights(model)
        runner.loaders = lambda: loading_models([model], None)
        if processes:
            runner.process_loaded = model.process
        transfer = {"redis_host": "127.0.0.1", "redis_port": sender.port}
        rsync = RsyncConfig(verify_checksum=False, rsync_config=transfer, directory=str(tmp_path))
        return make_lone(load=None, strategy="gdr", rsync=rsync, runner=runner), model

    return made


def test_what_a_load_left_is_processed_and_what_came_of_it_is_what_is_held(engine, sender):
    lone, model = engine()
    for version in (1, 2):
        sent = state(version)
        sender.send(with_manifest(sent, version=version), step_id=str(version))
        receipt = lone.update(version)
        assert np.array_equal(model.weight.numpy(), np.sign(sent["model.weight"]).T)
        assert np.array_equal(model.norm.numpy(), sent["model.norm"])
        (rank,) = receipt.ranks
        assert rank.digest == resident_digest(lone.runner.weights, lambda: None)
        assert rank.facts["through_models"]
        assert [action.name for action in rank.actions if action.name == "process_loaded"]
        assert receipt.verified
    lone.clear()
    assert lone.update(2).outcome is Outcome.UPDATED  # which its label has meant before, as it was processed


def test_other_content_under_the_label_is_found_behind_the_processing(engine, sender):
    lone, _ = engine()
    sender.send(with_manifest(state(1), version=1), step_id="1")
    lone.update(1)
    lone.clear()
    sender.send(with_manifest(state(5), version=1), step_id="1")
    with pytest.raises(RankFailedError, match="process_loaded"):
        lone.update(1)
    assert not list(lone.runner.weights.held())


def test_without_a_manifest_it_is_loaded_and_called_unverified(engine, sender):
    lone, model = engine(processes=False)
    sender.send(state(1), step_id="1")
    receipt = lone.update(1)
    assert receipt.verified is False
    assert np.array_equal(model.weight.numpy(), state(1)["model.weight"])


def test_a_stream_that_lacks_a_tensor_of_the_version_before_is_refused_at_its_end_and_the_group_is_cleared(
    engine, sender
):
    lone, model = engine(processes=False)
    sender.send(state(1), step_id="1")
    lone.update(1)
    sender.send({"model.weight": state(2)["model.weight"]}, step_id="2")
    with pytest.raises(RankFailedError, match=r"1 missing: 'model\.norm'.*the load ended part way"):
        lone.update(2)
    assert (lone.worker.version, list(lone.runner.weights.held())) == (None, [])
    assert not model.weight._is_initialized()  # which the loader had put in the place of the one before
    sender.send(state(3), step_id="3")
    assert lone.update(3).serving


def test_fastdeploys_rdma_goes_by_name_and_its_gdr_needs_a_device(engine, sender):
    lone, model = engine(processes=False)
    by_name = {name.removeprefix("model."): array for name, array in state(1).items()}
    sender.send(by_name, step_id="1")
    lone.update(1, transfer_mode="rdma")
    assert np.array_equal(model.weight.numpy(), by_name["weight"])
    with pytest.raises(RankFailedError, match="'gdr' cannot be used: paddle is built without CUDA"):
        lone.update(2, transfer_mode="gdr")
    assert lone.worker.version == "1"


def test_a_hot_update_is_refused_before_anything_or_done_in_place(engine, sender):
    lone, model = engine()
    sender.send(with_manifest(state(1), version=1), step_id="1")
    lone.update(1)
    sender.send(with_manifest(state(2), version=2), step_id="2")
    with pytest.raises(RankFailedError, match="update without --hot"):
        lone.update(2, hot=True)
    assert lone.worker.version == "1"
    receipt = lone.update(2, hot=True, hot_fallback="in_place")
    assert "its own parameters" in (receipt.fallback or "")
    assert np.array_equal(model.norm.numpy(), state(2)["model.norm"])


# -- a version that lacks what the one before had ----------------------------------------------------------


class Fused(paddle.nn.Layer):
    """Two tensors of a checkpoint are one parameter of the model."""

    def __init__(self):
        super().__init__()
        self.qk = self.create_parameter([2, 4])
        self.out = self.create_parameter([4])

    def load_weights(self, weights):
        for name, tensor in weights:
            if name == "out":
                self.out.set_value(tensor)
            else:
                half = slice(0, 2) if name == "q" else slice(2, 4)
                self.qk[:, half] = tensor


def fused(version, *, lacks=""):
    state = {
        "q": np.full((2, 2), version, np.float32),
        "k": np.full((2, 2), -version, np.float32),
        "out": np.full(4, version, np.float32),
    }
    return {name: array for name, array in state.items() if name != lacks}


@pytest.fixture
def models(tmp_path):
    """A group of two ranks, and what publishes for it."""
    made = []

    def runner(_rank):
        model = Fused()
        made.append(model)
        found = InMemoryRunner([TensorSpec("qk", "F32", (2, 4))])
        found.weights = PaddleWeights(model)
        found.loaders = lambda: loading_models([model], None)
        return found

    def publish(version, **how):
        publish_snapshot(tmp_path / "models", version, {0: fused(version, **how)})

    configuration = {
        "strategy": "gdr",
        "rsync": RsyncConfig(transport="files", directory=str(tmp_path / "models")),
    }
    with LocalGroup(runner, tmp_path, load=None, configuration=configuration) as group:
        group.models, group.publish = made, publish
        yield group


@pytest.mark.parametrize("lacks", ["out", "k"])
def test_a_first_version_that_leaves_elements_unwritten_is_refused_with_their_parameter(models, lacks):
    models.publish(1, lacks=lacks)
    with pytest.raises(RankFailedError, match="'out' .4 elements" if lacks == "out" else "'qk' .4 elements"):
        models.update(1)
    assert models.step() is None


def test_the_tensors_of_the_last_whole_version_outlive_ranks_clears_and_controllers(models):
    models.publish(1)
    models.update(1)
    models.replace(1)
    assert models.step() == "1"
    models.clear()
    models.replace(0)
    models.publish(2, lacks="out")
    with pytest.raises(RankFailedError, match="1 missing: 'out'"):
        models.update(2)
    with pytest.raises(RankFailedError, match="not written whole: 'out'"):  # as a set that was asked for anew
        models.update(2, force=True)
    models.publish(3)
    assert "tensor_set" not in models.update(3).to_mapping()["ranks"][0]["facts"]


def test_a_changed_set_of_tensors_is_taken_with_force_and_holds_from_then_on(models):
    models.publish(1)
    models.update(1)
    for model in models.models:
        model.out = model.qk  # a model that needs no tensor 'out' any more
    models.publish(2, lacks="out")
    models.update(2, force=True)
    assert models.step() == "2"
    models.publish(3, lacks="out")
    assert models.update(3).serving
    models.publish(4)
    with pytest.raises(RankFailedError, match="1 new: 'out'"):
        models.update(4)
