# ruff: noqa: PLC0415 - sources are imported where their paths are known
"""The published clients of trainers, each with the steps that its trainer takes around it.

What sends requests is the trainers' own code, imported from the source that is given. Beside it stands what
calls it, where that needs a GPU or a cluster; each class says which function it was written after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
from safetensors.numpy import load_file, save_file
from stand_ins import Remote, stand_in

PROMPT = [1, 2, 3]
TOKENS = 12


def write_directory(directory: Path, base: Path, number: int) -> None:
    """Write a Hugging Face directory of the model: the weights of `base`, changed by a number."""
    directory.mkdir(parents=True, exist_ok=True)
    state = {name: array + np.float32(number * 1e-3) for name, array in load_file(base).items()}
    names, weight_map = sorted(state), {}
    for part in range(2):
        file = f"model-{part + 1:05d}-of-00002.safetensors"
        held = {name: state[name] for name in names[part::2]}
        save_file(held, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(held, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")


class Slime:
    """slime with ``--update-weight-transport disk`` and engines that it has not started.

    After `RayTrainGroup.update_weights` and `UpdateWeightFromDisk.update_weights`, whose Megatron parts are
    left out; the reload itself is `RayTrainGroup._reload_rollout_weights_from_disk`, as published.
    """

    pulls = False

    def __init__(self, source: Path) -> None:
        self.stood_in = stand_in("sglang", "ray", "megatron", "pylatexenc", "PIL", "torch", "transformers")
        sys.path.insert(0, str(source))
        from slime.backends.sglang_utils import external, sglang_engine
        from slime.ray import actor_group
        from slime.rollout import sglang_rollout
        from slime.utils import http_utils, types

        self._external, self._engine = external, sglang_engine.SGLangEngine
        self._group, self._rollout = actor_group.RayTrainGroup, sglang_rollout
        self._http, self._sample = http_utils, types.Sample

    def connect(self, address: str, directory: Path, model: str) -> None:
        host, port = address.split(":")
        self._directory = directory
        self._args = args = argparse.Namespace(
            rollout_external=True,
            rollout_external_engine_addrs=[address],
            update_weight_mode="full",
            update_weight_transport="disk",
            update_weight_disk_dir=str(directory),
            update_weight_local_checkpoint_dir=str(directory / "local") if self.pulls else None,
            update_weight_disk_keep_files=False,
            ci_test=True,
            offload_rollout=False,
            num_gpus_per_node=8,
            rollout_num_gpus_per_engine=2,
            colocate=False,
            debug_rollout_only=True,
            sglang_pp_size=1,
            sglang_dp_size=1,
            sglang_ep_size=1,
            sglang_server_concurrency=4,
            hf_checkpoint=model,
            seed=0,
            fp16=False,
            use_rollout_routing_replay=False,
            use_distributed_post=False,
            partial_rollout=True,
            rollout_temperature=1.0,
            rollout_top_p=1.0,
            rollout_top_k=-1,
            rollout_max_response_len=TOKENS,
            rollout_stop=None,
            rollout_stop_token_ids=None,
            rollout_skip_special_tokens=False,
            sglang_speculative_algorithm=None,
            sglang_router_ip=host,
            sglang_router_port=int(port),
        )
        self._external.apply_external_engine_info_to_args(args)
        (info,) = self._external.external_engine_infos_from_args(args)
        engine = self._engine(args, 0, info.worker_type, 0, num_gpus_per_engine=info.num_gpus)
        seen = {"is_available.return_value": True, "device_count.return_value": 1}
        with mock.patch("torch.cuda", **seen):  # it numbers devices, and uses none
            engine.init(**self._external.external_engine_init_kwargs(info), router_ip=host, router_port=port)
        group = self._group.__new__(self._group)
        group.args, group.role = args, "actor"
        updatable = argparse.Namespace(get_updatable_engines_and_lock=lambda: ([Remote(engine)], None))
        group._rollout_manager = Remote(updatable)
        self._trains = group

    def step(self, number: int, write: Callable[[Path], None]) -> None:
        directory = self._directory / f"weight_v{number:06d}"
        shutil.rmtree(directory, ignore_errors=True)
        write(directory)
        self._trains._reload_rollout_weights_from_disk(directory, str(number))
        assert not directory.exists()

    async def ask(self) -> list[int]:
        self._http.init_http_client(self._args)
        with (
            mock.patch("transformers.AutoTokenizer.from_pretrained"),  # the group speaks token ids alone
            mock.patch("transformers.AutoProcessor.from_pretrained", side_effect=OSError),
        ):
            state = self._rollout.GenerateState(self._args)
        sample = self._sample(prompt="", tokens=list(PROMPT))
        self._args.ci_test = False
        while sample.status in (self._sample.Status.PENDING, self._sample.Status.ABORTED):
            sample = await self._rollout.generate(self._args, sample, state.sampling_params.copy())
        return list(sample.tokens[len(PROMPT) :])


class SlimePulls(Slime):
    """slime with ``--update-weight-local-checkpoint-dir``: engines pull, before the pause."""

    pulls = True


class Areal:
    """AReaL with weight updates from disk, on SGLang.

    After `FSDPEngine._update_weights_from_disk`: pause, begin the update, write, say that it is written,
    wait, continue. The engine's class removes the directory.
    """

    kind = "sglang"

    def __init__(self, source: Path) -> None:
        self.stood_in = stand_in(
            *("sglang", "vllm", "ray", "megatron", "numba", "PIL", "torchvision", "peft", "einops", "wandb"),
            *("torch", "torchdata"),
            *(
                "swanlab",
                "trackio",
                "tensorboardX",
                "torch_memory_saver",
                "mcp",
                "litellm",
                "nvitop",
                "math_verify",
            ),
            *("flask", "lark", "datasets", "transformers", "colorlog", "hydra", "omegaconf", "aiofiles"),
        )
        sys.path.insert(0, str(source))
        from areal.api import ModelRequest, WeightUpdateMeta
        from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig
        from areal.engine import RemoteSGLangEngine, RemotevLLMEngine
        from areal.utils import name_resolve, names

        self._engine = {"sglang": RemoteSGLangEngine, "vllm": RemotevLLMEngine}[self.kind]
        self._config, self._resolve_config = InferenceEngineConfig, NameResolveConfig
        self._request, self._meta, self._sampling = ModelRequest, WeightUpdateMeta, GenerationHyperparameters
        self._resolve, self._names = name_resolve, names

    def connect(self, address: str, directory: Path, model: str) -> None:
        records = tempfile.mkdtemp(dir=directory)
        self._resolve.reconfigure(self._resolve_config(type="nfs", nfs_record_root=records))
        config = self._config(
            experiment_name="published",
            trial_name="one",
            backend=f"{self.kind}:d1t2",
            pause_grace_period=0.0,
            max_concurrent_rollouts=4,
            consumer_batch_size=1,
            setup_timeout=30.0,
            fileroot=str(directory),
        )
        self._remote = self._engine(config)
        self._remote.initialize(addr=address, train_data_parallel_size=1)
        self._base = self._meta(type="disk", path=str(directory / "weight_update"))

    def step(self, number: int, write: Callable[[Path], None]) -> None:
        meta = self._base.with_version(number)
        self._remote.pause_generation()
        update = self._remote.update_weights_from_disk(meta)
        write(Path(meta.path))
        written = self._names.update_weights_from_disk("published", "one", self._remote.get_version())
        self._resolve.add(written, str(time.time()), keepalive_ttl=120)
        update.result()
        self._remote.continue_generation()
        self._remote.set_version(number)
        for _ in range(500):  # its callback removes the directory beside us
            if not Path(meta.path).exists():
                return
            time.sleep(0.01)
        raise AssertionError(f"{meta.path} was not removed")

    async def ask(self) -> list[int]:
        sampling = self._sampling(n_samples=1, max_new_tokens=TOKENS, max_tokens=1024, temperature=1.0)
        return list(
            (
                await self._remote.agenerate(self._request(input_ids=list(PROMPT), gconfig=sampling))
            ).output_tokens
        )


class ArealOnVllm(Areal):
    """AReaL with weight updates from disk, on vLLM."""

    kind = "vllm"


class ArealOffloads(Areal):
    """AReaL whose trainer has the rollout's GPUs: its memory is released while it trains.

    After `PPOTrainer._offload_rollout`, `_onload_rollout` and `train`, which offloads before its first step.
    """

    def connect(self, address: str, directory: Path, model: str) -> None:
        super().connect(address, directory, model)
        self._offload()

    def step(self, number: int, write: Callable[[Path], None]) -> None:
        try:
            self._remote.onload()
        finally:
            self._remote.continue_generation()
        self._offload()
        super().step(number, write)

    def _offload(self) -> None:
        self._remote.pause_generation()
        self._remote.offload()


class ArealOnVllmOffloads(ArealOffloads):
    """The same on vLLM, by its sleep of level 1."""

    kind = "vllm"


class PrimeRl:
    """prime-rl's inference pool, with weights from a directory.

    After `WeightWatcher.apply_policy_update`; the directories are removed as its `maybe_clean` does.
    Its rollouts speak ``/inference/v1/generate`` and chat, which the reference group has not: the text asked
    for beside it is ``/v1/completions``, by httpx.
    """

    def __init__(self, source: Path) -> None:
        self.stood_in = stand_in(
            "verifiers", "renderers", "vllm", "pydantic_config", "openai", "loguru", "torch"
        )
        for part in ("src", "packages/prime-rl-configs/src"):
            sys.path.insert(0, str(source / part))
        from prime_rl.configs.shared import ClientConfig
        from prime_rl.utils.client import InferencePool

        self._config, self._make = ClientConfig, InferencePool

    def connect(self, address: str, directory: Path, model: str) -> None:
        self._directory, self._address = directory / "broadcasts", f"http://{address}"
        self._model = model
        self._loop = asyncio.new_event_loop()
        self._pool = self._make(
            self._config(base_url=f"{self._address}/v1", wait_for_ready_timeout=30), model
        )
        self._loop.run_until_complete(self._pool.wait_for_ready(model))

    def step(self, number: int, write: Callable[[Path], None]) -> None:
        directory = self._directory / f"step_{number}"
        shutil.rmtree(directory, ignore_errors=True)
        write(directory)
        (directory / "STABLE").touch()
        self._loop.run_until_complete(self._pool.update_weights(directory, step=number))
        shutil.rmtree(directory)

    async def ask(self) -> list[int]:
        asked = {"model": self._model, "prompt": PROMPT, "max_tokens": TOKENS, "return_token_ids": True}
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{self._address}/v1/completions", json=asked)
        return list(answer.raise_for_status().json()["choices"][0]["token_ids"])


class Trl:
    """TRL's client of ``trl vllm-serve``, which pushes tensors."""

    def __init__(self, source: Path) -> None:
        self.stood_in = stand_in("vllm", "accelerate", "datasets", "transformers", "torch")
        sys.path.insert(0, str(source))
        from trl.generation.vllm_client import VLLMClient

        self._make = VLLMClient

    def connect(self, address: str, directory: Path, model: str) -> None:
        self._client = self._make(base_url=f"http://{address}", connection_timeout=30.0)

    def step(self, number: int, write: Callable[[Path], None]) -> None:
        with mock.patch("torch.cuda.get_device_properties"):  # only its uuid is asked for
            self._client.init_communicator(device=0)


class TrlAsync:
    """TRL's asynchronous trainer: its transfer client, which looks at no answer, and the text behind it.

    The group of NCCL that its own side forms, and would wait in, stands in: it is formed, and sends nothing.
    """

    def __init__(self, source: Path) -> None:
        self.stood_in = stand_in("vllm", "accelerate", "datasets", "transformers", "torch")
        sys.path.insert(0, str(source))
        import accelerate

        accelerate.PartialState()  # its loggers ask for it
        from trl.experimental.async_grpo.vllm_client import VLLMClient
        from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

        self._make, self._transfer = VLLMClient, WeightTransferClient

    def connect(self, address: str, directory: Path, model: str) -> None:
        self._address = address
        client = self._make(f"http://{address}", server_timeout=30.0)
        info = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]], "packed": True}
        self._sends = self._transfer(client, info, 30)

    def step(self, number: int, write: Callable[[Path], None]) -> None:
        self._sends.init_weight_transfer()
        self._sends.pause()
        self._sends.send_weights(iter(()))
        self._sends.resume()
        asked = {"prompt": PROMPT, "max_tokens": TOKENS, "return_token_ids": True, "logprobs": 0}
        httpx.post(f"http://{self._address}/v1/completions", json=asked, timeout=60).raise_for_status()


CLIENTS: dict[str, Callable[[Path], Any]] = {
    "slime": Slime,
    "slime-pulls": SlimePulls,
    "areal": Areal,
    "areal-vllm": ArealOnVllm,
    "areal-offloads": ArealOffloads,
    "areal-vllm-offloads": ArealOnVllmOffloads,
    "prime-rl": PrimeRl,
    "trl": Trl,
    "trl-async": TrlAsync,
}


class Asking(threading.Thread):
    """Asks for text through a client's own data route, one request behind the other, beside its steps."""

    def __init__(self, client: Any) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._ends = threading.Event()
        self.answered = 0
        self.failed: list[str] = []

    def run(self) -> None:
        asyncio.run(self._asks())

    async def _asks(self) -> None:
        while not self._ends.is_set():
            try:
                tokens = await self._client.ask()
            except Exception as error:  # noqa: BLE001, PERF203 - whatever the client raises is told
                self.failed.append(f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(0.2)
            else:
                assert 0 < len(tokens) <= TOKENS, tokens
                self.answered += 1

    def end(self) -> None:
        self._ends.set()
        self.join(60)
