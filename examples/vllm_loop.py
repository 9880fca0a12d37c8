"""README's loop around vLLM's ``LLMEngine.step()``, in one process.

``python -m examples.vllm_loop MODEL wsm.yaml``: each line of standard input is a prompt of token ids, each
line of output has the tokens of an answer, and the versions that made them. A published version holds vLLM's
own parameters, as :func:`as_vllm_has_them` makes them of a Llama's.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # before vLLM is imported: the engine is in this process

import torch
from vllm import LLM, SamplingParams
from vllm.v1.request import RequestStatus

import wsm
from wsm.torch import TorchWeights, memory_on


def as_vllm_has_them(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a Llama's tensors under vLLM's names; those that vLLM computes with at once become one."""
    fused = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    parts = {part: (whole, names) for whole, names in fused.items() for part in names}
    found = {}
    for name, tensor in state.items():
        part = next((part for part in parts if f".{part}." in name), "")
        whole, names = parts.get(part, ("", ("",)))
        if part and part == names[0]:
            found[name.replace(part, whole)] = torch.cat([state[name.replace(part, each)] for each in names])
        elif not part:
            found[name] = tensor
    return found


class Scheduler:
    """wsm's request surface over vLLM's scheduler."""

    def __init__(self, core: Any) -> None:
        self._core, self._scheduler = core, core.scheduler

    def stop_admitting(self) -> None:
        """Schedule nothing until wsm says so."""
        self._core.pause_scheduler(mode="keep", clear_cache=False)

    def resume_admitting(self) -> None:
        """Schedule again."""
        self._core.resume_scheduler()

    def is_admitting(self) -> bool:
        """Whether vLLM schedules."""
        return not self._core.is_scheduler_paused()

    def in_flight(self) -> int:
        """Count the requests that hold blocks."""
        return len(self._scheduler.running)

    def abort_all(self) -> int:
        """End the requests that hold blocks."""
        ended = [request.request_id for request in self._scheduler.running]
        self._scheduler.finish_requests(ended, RequestStatus.FINISHED_ABORTED)
        return len(ended)

    def freeze(self) -> int:
        """Take the requests off their blocks; they are prefilled anew."""
        frozen = len(self._scheduler.running)
        self._forget(running=True)
        return frozen

    def reset_inputs(self) -> None:
        """Forget the prefixes that the old weights have computed."""
        self._forget(running=False)

    def _forget(self, *, running: bool) -> None:
        if not self._scheduler.reset_prefix_cache(reset_running_requests=running):
            raise RuntimeError("vLLM did not reset its prefix cache: requests hold blocks of it")


class Engine:
    """wsm's runner. vLLM's KV cache is no surface of it: it stays, and what is in it is forgotten."""

    def __init__(self, directory: str, device: str = "cpu", **options: Any) -> None:
        llm = LLM(model=directory, skip_tokenizer_init=True, enforce_eager=True, **options)
        self.llm = llm.llm_engine
        models: list[Any] = []
        llm.apply_model(models.append)
        self.weights = TorchWeights(models[0], excluded=["*.attn._*_scale"])  # buffers of vLLM's own
        self.memory = memory_on(device)
        self.requests = Scheduler(self.llm.engine_core.engine_core)
        self.weights.release()  # what vLLM has loaded is no version that wsm knows


def read(prompts: queue.Queue[str]) -> None:
    """Queue the lines of standard input, and an empty one at its end."""
    for line in sys.stdin:
        prompts.put(line)
    prompts.put("")


def main(directory: str, configuration: str, options: str = "{}") -> None:
    """Serve until standard input ends and all is answered; `options` are those of vLLM's ``LLM``, as JSON."""
    engine = Engine(directory, **json.loads(options))
    prompts: queue.Queue[str] = queue.Queue()
    threading.Thread(target=read, args=[prompts], daemon=True).start()
    sampling = SamplingParams(temperature=0, max_tokens=16, detokenize=False)
    versions: dict[str, list[str]] = {}  # of the requests that run
    asked, ended = 0, False
    with wsm.Worker.from_config(configuration, engine, rank=0) as worker:
        while not ended or versions:
            if worker.poll() is wsm.HOLD:
                continue
            try:
                prompt = prompts.get(timeout=0 if versions else 0.001)
            except queue.Empty:
                prompt = None
            if prompt:
                asked += 1
                versions[str(asked)] = []
                engine.llm.add_request(str(asked), {"prompt_token_ids": json.loads(prompt)}, sampling)
            ended = ended or prompt == ""
            if not versions:
                continue
            with worker.step() as permit:
                outputs = engine.llm.step()
            for made in versions.values():
                made[:] = [*dict.fromkeys([*made, str(permit.version)])]
            for output in (output for output in outputs if output.finished):
                answer = {
                    "versions": versions.pop(output.request_id),
                    "tokens": [*output.outputs[0].token_ids],
                }
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
