"""The example around transformers' ``generate``: a real process, real files, updates under load."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import wsm
from wsm.controller.errors import RankFailedError
from wsm.strategies import publish_snapshot

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]  # imports alone take long on busy cores
REPOSITORY = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0
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


class Loop:
    """The example in a process of its own, and what a trainer has published for it."""

    def __init__(self, directory, device):
        self.models = {str(version): trained(version).to(device) for version in (1, 2)}
        self.expected = {version: tokens_of(model) for version, model in self.models.items()}
        assert self.expected["1"] != self.expected["2"]
        self.snapshots = directory / "snapshots"
        for version in self.models:
            self.publish(version)
        self.models["1"].config.save_pretrained(directory / "model")
        (directory / "wsm.yaml").write_text(
            f"name: torch-loop\nranks: 1\nsnapshot: {{directory: {self.snapshots}}}\n"
            f"journal_directory: {directory / 'journals'}\n"
        )
        self.said = (directory / "said").open("w+")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "examples.torch_loop",
                str(directory / "model"),
                str(directory / "wsm.yaml"),
                device,
            ],
            cwd=REPOSITORY,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def publish(self, version, **options):
        publish_snapshot(
            self.snapshots, version, {0: self.models[version].state_dict()}, durable=False, **options
        )

    def controller(self):
        late = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(wsm.WsmError):  # until there is a group, which its rank joins then
                wsm.Controller("torch-loop").close()
                return wsm.Controller("torch-loop", wait_s=PATIENCE_S)
            self.said.seek(0)
            assert self.process.poll() is None, self.said.read()
            assert time.monotonic() < late
            time.sleep(0.05)

    def ask(self):
        self.process.stdin.write(json.dumps(PROMPT) + "\n")
        self.process.stdin.flush()

    def answer(self):
        said = json.loads(self.process.stdout.readline())
        assert said["tokens"] == self.expected[said["version"]], "tokens of another version than they say"
        return said["version"]

    def close(self):
        self.process.send_signal(signal.SIGINT)  # which the group's segment does not outlive
        self.process.wait(PATIENCE_S)
        self.process.stdin.close()
        self.process.stdout.close()
        self.said.close()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu(framework="torch"))])
def loop(request, tmp_path):
    loop = Loop(tmp_path, request.param)
    yield loop
    loop.close()


def test_the_loop_serves_each_version_whole_in_place_and_hot_and_refuses_a_damaged_one(loop):
    with loop.controller() as controller:
        controller.update("1")
        loop.ask()
        assert loop.answer() == "1"

        for version in ("2", "1", "2"):
            for _ in range(5):
                loop.ask()
            assert controller.update(version, hot=True).version == version
            loop.ask()
            assert [loop.answer() for _ in range(6)][-1] == version

        [part] = (loop.snapshots / "versions" / "1").glob("*.pdparams")
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 0x10  # the end may be the copy of a tied tensor, which is not read
        part.write_bytes(content)
        with pytest.raises(RankFailedError, match="stage_weights") as caught:
            controller.update("1", hot=True)
        assert caught.value.error == "digest-mismatch"
        loop.ask()
        assert loop.answer() == "2"

        part.unlink()
        loop.publish("1", replace=True)
        assert controller.clear().version is None
        controller.update("1", force=True)
        loop.ask()
        assert loop.answer() == "1"
    loop.process.stdin.close()
    assert loop.process.wait(PATIENCE_S) == 0


def test_the_page_prints_the_loop_that_runs_here():
    loop = (REPOSITORY / "examples" / "torch_loop.py").read_text().strip()
    assert loop in (REPOSITORY / "docs" / "torch.md").read_text()
