"""The example around vLLM's ``LLMEngine.step()``: a real engine, updated while it generates."""

from __future__ import annotations

import json

import pytest
import torch

from examples.vllm_demo.server import ENVIRONMENT, random_model
from tests.example_loop import ExampleLoop
from wsm.controller.errors import RankFailedError
from wsm.strategies import publish_snapshot

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
OPTIONS = {"max_model_len": 64, "dtype": "bfloat16", "max_num_seqs": 8}


def as_vllm_has_them(state):
    """What examples.vllm_loop publishes; said again here, since that imports vLLM."""
    found = {}
    for name, tensor in state.items():
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            found[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif ".gate_proj." in name:
            parts = [tensor, state[name.replace("gate_proj", "up_proj")]]
            found[name.replace("gate_proj", "gate_up_proj")] = torch.cat(parts)
        elif not any(part in name for part in (".k_proj.", ".v_proj.", ".up_proj.")):
            found[name] = tensor
    return found


class VllmLoop(ExampleLoop):
    patience_s = 300.0

    def __init__(self, directory):
        super().__init__(directory, "vllm_loop", json.dumps(OPTIONS), **ENVIRONMENT)
        for version in (1, 2):
            model = random_model(version)
            state = as_vllm_has_them(model.state_dict())
            publish_snapshot(self.snapshots, version, {0: state}, durable=False)


@pytest.fixture
def loop(tmp_path):
    random_model(2).save_pretrained(tmp_path / "model")
    loop = VllmLoop(tmp_path)
    yield loop
    loop.close()


def test_vllm_serves_one_version_or_the_other_and_nothing_of_a_damaged_one(loop):
    with loop.controller() as controller:
        made = {}
        for version in ("1", "2"):
            controller.update(version, hot=version != "1")
            loop.ask(1, 2, 3, 4, 5)
            said = loop.answer()
            assert said["versions"] == [version]
            made[version] = said["tokens"]
        assert made["1"] != made["2"]

        for _ in range(8):
            loop.ask(6, 7, 8)
        controller.update("1", hot=True)
        for _ in range(8):
            assert set(loop.answer()["versions"]) <= {"1", "2"}

        loop.damage("2")
        with pytest.raises(RankFailedError) as caught:
            controller.update("2", hot=True)
        assert caught.value.error == "digest-mismatch"
        loop.ask(1, 2, 3, 4, 5)
        assert loop.answer() == {"versions": ["1"], "tokens": made["1"]}

        controller.clear()
        controller.update("1", force=True)
        loop.ask(1, 2, 3, 4, 5)
        assert loop.answer() == {"versions": ["1"], "tokens": made["1"]}
