"""A worker whose model takes a checkpoint by itself, and is processed behind that."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from checkpoint_transfer.sender import FakeSender

from wsm import Outcome
from wsm.actions.backends.loader_attributes import carrying_over
from wsm.actions.backends.model_loading import loading_models
from wsm.actions.backends.paddle_weights import PaddleWeights
from wsm.actions.measuring import resident_digest
from wsm.controller.errors import RankFailedError
from wsm.strategies import TensorSpec, with_manifest
from wsm.strategies.transports.configured import RsyncConfig
from wsm.testing import InMemoryRunner

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
