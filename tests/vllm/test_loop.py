"""The example around vLLM's ``LLMEngine.step()``: a real engine, updated while it generates."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import wsm
from tests.vllm.random_llama import ENVIRONMENT, REPOSITORY, trained
from wsm.controller.errors import RankFailedError
from wsm.strategies import publish_snapshot

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
PATIENCE_S = 300.0
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


class Loop:
    """The example in a process of its own."""

    def __init__(self, directory):
        self.snapshots = directory / "snapshots"
        for version in (1, 2):
            model = trained(version)
            state = as_vllm_has_them(model.state_dict())
            publish_snapshot(self.snapshots, version, {0: state}, durable=False)
            model.save_pretrained(directory / "model")
        (directory / "wsm.yaml").write_text(
            f"name: vllm-loop\nranks: 1\nsnapshot: {{directory: {self.snapshots}}}\n"
            f"journal_directory: {directory / 'journals'}\n"
        )
        self.said = (directory / "said").open("w+")
        program = [sys.executable, "-m", "examples.vllm_loop", str(directory / "model")]
        self.process = subprocess.Popen(
            [*program, str(directory / "wsm.yaml"), json.dumps(OPTIONS)],
            cwd=REPOSITORY,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def controller(self):
        late = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(wsm.WsmError):  # until there is a group, which its rank joins then
                wsm.Controller("vllm-loop").close()
                return wsm.Controller("vllm-loop", wait_s=PATIENCE_S)
            self.said.seek(0)
            assert self.process.poll() is None, self.said.read()
            assert time.monotonic() < late
            time.sleep(0.2)

    def ask(self, *prompt):
        self.process.stdin.write(json.dumps(prompt) + "\n")
        self.process.stdin.flush()

    def answer(self):
        while not (line := self.process.stdout.readline()).startswith("{"):
            assert line, "the loop has ended"
        return json.loads(line)

    def close(self):
        self.process.send_signal(signal.SIGINT)  # which the group's segment does not outlive
        self.process.wait(PATIENCE_S)
        self.process.stdin.close()
        self.process.stdout.close()
        self.said.close()


@pytest.fixture
def loop(tmp_path):
    loop = Loop(tmp_path)
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

        [part] = (loop.snapshots / "versions" / "2").glob("*.pdparams")
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 0x10
        part.write_bytes(content)
        with pytest.raises(RankFailedError) as caught:
            controller.update("2", hot=True)
        assert caught.value.error == "digest-mismatch"
        loop.ask(1, 2, 3, 4, 5)
        assert loop.answer() == {"versions": ["1"], "tokens": made["1"]}

        controller.clear()
        controller.update("1", force=True)
        loop.ask(1, 2, 3, 4, 5)
        assert loop.answer() == {"versions": ["1"], "tokens": made["1"]}
