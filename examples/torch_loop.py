"""README's loop around transformers' ``generate``: ``python -m examples.torch_loop MODEL wsm.yaml [DEVICE]``.

Each line of standard input is a prompt of token ids, each line of output says which version answered.
"""

import json
import queue
import sys
import threading

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import wsm
from wsm.torch import TorchWeights, memory_on


class Prompts(queue.Queue[str]):
    """wsm's request surface. A prompt is answered within one step, so none is in flight between two."""

    admitting = True

    def stop_admitting(self) -> None:
        """Leave queued prompts where they are."""
        self.admitting = False

    def resume_admitting(self) -> None:
        """Take prompts again."""
        self.admitting = True

    def in_flight(self) -> int:
        """Count none."""
        return 0

    abort_all = freeze = in_flight

    def reset_inputs(self) -> None:
        """Nothing is kept of a prompt that was answered."""


class Engine:
    """wsm's runner: the model, empty until the first update, its memory, and its prompts."""

    def __init__(self, directory: str, device: str = "cpu") -> None:
        config = AutoConfig.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_config(config).to(device).eval()
        self.weights, self.memory, self.requests = TorchWeights(self.model), memory_on(device), Prompts()
        self.weights.release()

    def answer(self, prompt: list[int]) -> list[int]:
        """Return what the model says to a prompt, as token ids."""
        ids = torch.tensor([prompt], device=self.model.device)
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 16, "do_sample": False}
        said = self.model.generate(ids, **options)
        tokens: list[int] = said[0, len(prompt) :].tolist()
        return tokens


def read(prompts: Prompts) -> None:
    """Queue the lines of standard input, and an empty one at its end."""
    for line in sys.stdin:
        prompts.put(line)
    prompts.put("")


def main(directory: str, configuration: str, device: str = "cpu") -> None:
    """Serve until standard input ends."""
    engine = Engine(directory, device)
    threading.Thread(target=read, args=[engine.requests], daemon=True).start()
    with wsm.Worker.from_config(configuration, engine, rank=0) as worker:
        while True:
            if worker.poll() is wsm.HOLD or not engine.requests.admitting:
                continue
            try:
                prompt = engine.requests.get(timeout=0.001)
            except queue.Empty:
                continue
            if not prompt:
                return
            with worker.step() as permit:
                tokens = engine.answer(json.loads(prompt))
            sys.stdout.write(json.dumps({"version": permit.version, "tokens": tokens}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
