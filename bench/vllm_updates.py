"""What wsm costs in vLLM: ``python -m bench.vllm_updates``, in the environment of ``make test-vllm``.

An update is held against vLLM's own ``reload_weights`` by path on the same server, in turns. Tokens a second,
and what they cost the cores, are measured on a server without wsm and on one with it, in turns. It is no part
of ``make bench``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.vllm_demo.server import Server

_PLUGIN = {"bench": "[vllm.endpoint_plugins]\nbench = bench.vllm_plugin:VerbsPlugin\n"}
_ALONE = "vLLM's reload_weights by path"
_VOCABULARY = 64
_ASKERS, _TOKENS = 4, 48


def write_model(directory: Path, seed: int, mib: int) -> None:
    """Write a random model of about so many MiB of bfloat16."""
    torch.manual_seed(seed)
    width, inner = 512, 1536
    layer_bytes = 2 * (4 * width * width + 3 * width * inner)
    shape = {"hidden_size": width, "intermediate_size": inner, "vocab_size": _VOCABULARY}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 64}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    layers = max(1, (mib << 20) // layer_bytes)
    config = LlamaConfig(**shape, **heads, **ends, num_hidden_layers=layers, dtype="bfloat16")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def served(place: Path, model: Path, name: str, plugins: str, *flags: str) -> Server:
    """Serve a model with these plugins."""
    return Server(place / name, model, *flags, plugins=plugins, distributions=_PLUGIN)


def updates(server: Server, versions: tuple[Path, Path], turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each way to the next version."""
    found: dict[str, list[float]] = {_ALONE: [], "an update by wsm": [], "its pause": []}
    for turn in range(turns + 1):
        for version in versions:
            begun = time.perf_counter()
            alone, said = server.call("POST", f"/bench/reload?path={quote(str(version))}")
            reloaded = time.perf_counter()
            wsm, receipt = server.call("POST", "/wsm/v1/update", {"path": str(version)})
            updated = time.perf_counter()
            if (alone, wsm) != (200, 200):
                raise RuntimeError(f"vLLM's own answers {alone} {said}, wsm's {wsm} {receipt}")
            if turn:  # the first of each warms up
                pause_ms = receipt["ms"]["over"] - receipt["ms"]["voted"]
                taken = (reloaded - begun) * 1e3, (updated - reloaded) * 1e3, pause_ms
                for each, value in zip(found.values(), taken, strict=True):
                    each.append(value)
    return found


def throughput(server: Server) -> tuple[float, float]:
    """Return tokens a second of requests side by side, and the milliseconds of all cores for each."""
    family = [psutil.Process(server.process.pid)]
    family += family[0].children(recursive=True)

    def cpu_s() -> float:
        return sum(sum(each.cpu_times()[:2]) for each in family)

    begun, spent = time.perf_counter(), cpu_s()
    askers = [threading.Thread(target=server.generate, kwargs={"tokens": _TOKENS}) for _ in range(_ASKERS)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    count = _ASKERS * _TOKENS
    return count / (time.perf_counter() - begun), (cpu_s() - spent) / count * 1e3


def main() -> None:
    """Print medians, and the median part that ours is of vLLM's own in the same turn."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--mib", type=int, default=256)
    asked.add_argument("--turns", type=int, default=5)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        first, second = place / "one", place / "two"
        for seed, version in enumerate((first, second)):
            write_model(version, seed, options.mib)
        rates: dict[str, list[tuple[float, float]]] = {"without wsm": [], "with wsm": []}
        with_wsm = ("wsm,bench", "--worker-extension-cls", "wsm.vllm.Worker")
        with served(place, first, "off", "bench") as off, served(place, first, "on", *with_wsm) as on:
            ways = [("without wsm", off), ("with wsm", on)]
            for turn in range(2 * options.turns + 1):
                for way, server in ways[:: 1 if turn % 2 else -1]:
                    rate = throughput(server)
                    if turn:
                        rates[way].append(rate)
            found = updates(on, (second, first), options.turns)
    print(f"{options.mib} MiB of bf16, two workers, medians of {2 * options.turns}")  # noqa: T201 - its output
    for way, each in found.items():
        part = statistics.median(ours / alone for ours, alone in zip(each, found[_ALONE], strict=True))
        print(f"{way:36} {statistics.median(each):9.1f} ms {part:6.2f} of vLLM's")  # noqa: T201 - its output
    without_it = [per_s for per_s, _ in rates["without wsm"]]
    for way, measured in rates.items():
        per_s, ms = (statistics.median(values) for values in zip(*measured, strict=True))
        part = statistics.median(rate / off for (rate, _), off in zip(measured, without_it, strict=True))
        said = f"{per_s:9.1f} tokens/s {part:6.2f} of those without, {ms:6.2f} ms of cores for each"
        print(f"{way:36} {said}")  # noqa: T201 - its output


if __name__ == "__main__":
    main()
