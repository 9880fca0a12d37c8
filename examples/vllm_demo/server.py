"""``vllm serve`` on loopback with two workers, and the small random model that it serves."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

PATIENCE_S = 600.0
REPOSITORY = Path(__file__).parents[2]
_SHARED_MEMORY = Path("/dev") / "shm"
_FLAGS = (
    *("--tokens-only", "--skip-tokenizer-init", "--enforce-eager", "--served-model-name", "m"),
    *("--max-model-len", "64", "--max-num-seqs", "8", "--tensor-parallel-size", "2"),
    *("--distributed-executor-backend", "mp", "--host", "127.0.0.1"),
)
#: vLLM on a CPU, on loopback, and nothing fetched.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_RPC_BASE_PATH": ".",  # its sockets, which it leaves, lie in the server's own directory
    "VLLM_SERVER_DEV_MODE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # else a CPU packs the weights, which a GPU does not
    "OMP_NUM_THREADS": "1",
}
#: The demo's engine.
_DISTRIBUTIONS = {"files": "[vllm.general_plugins]\nfiles = examples.vllm_demo.engine:register\n"}
#: vLLM asks for its version under its name, and its CPU build is called otherwise.
_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def random_model(seed: int) -> LlamaForCausalLM:
    """Make a model of widths that no packing kernel takes, so that its parameters are plain, as on a GPU."""
    torch.manual_seed(seed)
    shape = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 64,
    }
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(**shape, **heads, **ends, initializer_range=1.0, dtype="bfloat16")
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def write_model(directory: Path, seed: int) -> tuple[Path, Path]:
    """Write a random model as two files and their index; return the files."""
    model = random_model(seed)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(directory)
    tensors = {name: each.contiguous() for name, each in model.state_dict().items()}
    names, places = sorted(tensors), {}
    files = tuple(directory / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    for file, part in zip(files, (names[: len(names) // 2], names[len(names) // 2 :]), strict=True):
        save_file({name: tensors[name] for name in part}, file, metadata={"format": "pt"})
        places.update(dict.fromkeys(part, file.name))
    index = {"metadata": {}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return files[0], files[1]


_ServerT = TypeVar("_ServerT", bound="Server")


class Server:
    """One ``vllm serve``, which is up within a ``with`` block.

    `plugins` is what ``VLLM_PLUGINS`` says, `distributions` which else there are.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        *flags: str,
        plugins: str,
        distributions: Mapping[str, str] = _DISTRIBUTIONS,
        **environment: str,
    ) -> None:
        for name, entry_points in {"vllm": "", **distributions}.items():
            version = f"{metadata.version('vllm-cpu')}+cpu" if name == "vllm" else "1.0"
            shim = directory / "shim" / f"{name}-{version}.dist-info"
            shim.mkdir(parents=True)
            (shim / "METADATA").write_text(_METADATA.format(name=name, version=version))
            (shim / "entry_points.txt").write_text(entry_points)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = self.url.rpartition(":")[2]
        program = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *_FLAGS]
        path = os.pathsep.join([str(directory / "shim"), str(REPOSITORY)])
        said = {"VLLM_PLUGINS": plugins, "PYTHONPATH": path, **environment}
        self._log = directory / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(  # noqa: S603 - its words are ours
                [*program, "--port", port, *flags],
                cwd=directory,
                env={**os.environ, **ENVIRONMENT, **said},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._family: set[psutil.Process] = set()
        self._memory: set[Path] = set()

    def __enter__(self: _ServerT) -> _ServerT:  # noqa: PYI019 - typing has Self from Python 3.11 on
        try:
            self._await_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def said(self) -> str:
        """Return its log."""
        return self._log.read_text()

    def _await_up(self) -> None:
        late = time.monotonic() + PATIENCE_S
        while self.call("GET", "/health", timeout=5)[0] != 200:
            if self.process.poll() is not None or time.monotonic() > late:
                raise RuntimeError(f"vLLM did not come up:\n{self.said()[-8000:]}")
            time.sleep(0.25)
        self._look()

    def call(
        self, method: str, path: str, body: object = None, *, timeout: float = 120.0, key: str | None = None
    ) -> tuple[int, Any]:
        """Return status and answer; status 0 where there is none."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(self.url + path, content, headers, method=method)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - the same
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        with contextlib.suppress(ValueError):
            return status, json.loads(text or b"null")
        return status, text.decode()

    def generate(
        self, *, tokens: int = 10, prompt: tuple[int, ...] = (1, 2, 3, 4, 5), timeout: float = 120.0
    ) -> tuple[int, Any]:
        """Ask for the tokens behind a prompt, without chance."""
        sampling = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        body = {"model": "m", "token_ids": prompt, "sampling_params": sampling}
        return self.call("POST", "/inference/v1/generate", body, timeout=timeout)

    def tokens(self) -> list[int]:
        """Return what it answers to that prompt."""
        status, said = self.generate()
        if status != 200:
            raise RuntimeError(f"{status}: {said}")
        return list(said["choices"][0]["token_ids"])

    def close(self) -> None:
        """End it, with its engine and its workers."""
        self._look()
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        # multiprocessing's resource trackers unlink what their processes left, once these have ended; workers
        # outlive a server that was killed.
        _, alive = psutil.wait_procs(self._family, timeout=10)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(60)
        psutil.wait_procs(self._family, timeout=60)
        for path in self._memory:  # workers that were killed leave it
            path.unlink(missing_ok=True)

    def _look(self) -> None:
        """See which processes it has, and what they have mapped of the host's shared memory."""
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(self.process.pid)
            self._family |= {server, *server.children(recursive=True)}
        for process in self._family:
            with contextlib.suppress(psutil.Error):
                paths = (Path(each.path) for each in process.memory_maps())
                self._memory |= {path for path in paths if path.parent == _SHARED_MEMORY}
