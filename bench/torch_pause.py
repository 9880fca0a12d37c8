"""How long an engine of torch stands still for a version: ``python -m bench.torch_pause --device cuda``.

In place it stands still while the version is loaded; hot, while the staged version is flipped in. It needs
torch, and is no part of ``make bench``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from wsm.strategies import SnapshotSource, load, publish_snapshot
from wsm.torch import TorchWeights

_WIDTH = 4096
_LAYER_BYTES = 2 * _WIDTH * _WIDTH


def measure(device: str, nbytes: int, times: int) -> dict[str, list[float]]:
    """Return the seconds of each way, per update. Blocks."""
    layers = max(1, nbytes // _LAYER_BYTES)
    model = nn.ModuleList(
        nn.Linear(_WIDTH, _WIDTH, bias=False, dtype=torch.bfloat16, device=device) for _ in range(layers)
    )
    weights = TorchWeights(model)
    seconds: dict[str, list[float]] = {}

    def timed(way: str, call: Callable[[], object]) -> None:
        weights.synchronize()
        begun = time.perf_counter()
        call()
        weights.synchronize()
        seconds.setdefault(way, []).append(time.perf_counter() - begun)

    with tempfile.TemporaryDirectory() as directory:
        publish_snapshot(directory, 1, {0: dict(model.state_dict())}, durable=False)
        source = SnapshotSource(Path(directory), rank=0)
        for _ in range(times):
            timed("load in place", partial(load, source, weights, version=1))
            for way, captured in (("flip", ()), ("flip under captured graphs", weights.specs())):
                staged = weights.stage()
                timed("stage, while serving", partial(load, source, staged, version=1))
                staged.make_ready(frozenset(captured))
                timed(way, staged.flip)
                staged.give_back()
    return seconds


def main() -> None:
    """Print the median of each way, and what part it is of loading in place."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gib", type=float, default=0.25)
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    seconds = measure(arguments.device, int(arguments.gib * (1 << 30)), arguments.times)
    whole = statistics.median(seconds["load in place"])
    print(f"{arguments.gib:g} GiB of bf16 on {arguments.device}, torch {torch.__version__}")  # noqa: T201 - its output
    for way, each in seconds.items():
        median = statistics.median(each)
        print(f"{way:28} {median * 1e3:10.2f} ms {median / whole:9.4f} of load in place")  # noqa: T201 - its output


if __name__ == "__main__":
    main()
