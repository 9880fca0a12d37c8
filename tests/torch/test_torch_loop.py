"""The example around transformers' ``generate``: a real process, real files, updates under load."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.example_loop import ExampleLoop
from tests.sources import SOURCE
from wsm.controller.errors import RankFailedError
from wsm.strategies import publish_snapshot

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]  # imports alone take long on busy cores
PROMPT = [1, 2, 3, 4, 5]


def trained(seed):
    torch.manual_seed(seed)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(
        **shape, **heads, **ends, tie_word_embeddings=True, initializer_range=1.0, dtype="bfloat16"
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def tokens_of(model):
    ids = torch.tensor([PROMPT], device=model.device)
    said = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    return said[0, len(PROMPT) :].tolist()


class TorchLoop(ExampleLoop):
    def __init__(self, directory, device):
        self.models = {str(version): trained(version).to(device) for version in (1, 2)}
        self.expected = {version: tokens_of(model) for version, model in self.models.items()}
        assert self.expected["1"] != self.expected["2"]
        self.models["1"].config.save_pretrained(directory / "model")
        super().__init__(directory, "torch_loop", device)
        for version in self.models:
            self.publish(version)

    def publish(self, version, **options):
        publish_snapshot(
            self.snapshots, version, {0: self.models[version].state_dict()}, durable=False, **options
        )

    def version_of_answer(self):
        said = self.answer()
        assert said["tokens"] == self.expected[said["version"]], "tokens of another version than they say"
        return said["version"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu(framework="torch"))])
def loop(request, tmp_path):
    loop = TorchLoop(tmp_path, request.param)
    yield loop
    loop.close()


def test_the_loop_serves_each_version_whole_in_place_and_hot_and_refuses_a_damaged_one(loop):
    with loop.controller() as controller:
        controller.update("1")
        loop.ask(*PROMPT)
        assert loop.version_of_answer() == "1"

        for version in ("2", "1", "2"):
            for _ in range(5):
                loop.ask(*PROMPT)
            assert controller.update(version, hot=True).version == version
            loop.ask(*PROMPT)
            assert [loop.version_of_answer() for _ in range(6)][-1] == version

        part = loop.damage("1")
        with pytest.raises(RankFailedError, match="stage_weights") as caught:
            controller.update("1", hot=True)
        assert caught.value.error == "digest-mismatch"
        loop.ask(*PROMPT)
        assert loop.version_of_answer() == "2"

        part.unlink()
        loop.publish("1", replace=True)
        assert controller.clear().version is None
        controller.update("1", force=True)
        loop.ask(*PROMPT)
        assert loop.version_of_answer() == "1"
    loop.process.stdin.close()
    assert loop.process.wait(loop.patience_s) == 0


def test_the_page_prints_the_loop_that_runs_here():
    loop = (SOURCE.parents[1] / "examples" / "torch_loop.py").read_text().strip()
    assert loop in (SOURCE.parents[1] / "docs" / "torch.md").read_text()
