"""``vllm serve`` on loopback, with two workers, a small random model, and wsm or without it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from tests.vllm.random_llama import ENVIRONMENT, REPOSITORY

PATIENCE_S = 400.0
SHARED_MEMORY = Path("/dev") / "shm"
FLAGS = (
    *("--tokens-only", "--skip-tokenizer-init", "--enforce-eager", "--api-key", "key"),
    *("--served-model-name", "m", "--max-model-len", "64", "--max-num-seqs", "8"),
    *("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp"),
)


def shared_memory_of_vllm():
    """What is named as vLLM and its multiprocessing name theirs."""
    names = ("vllm_dist_", "psm_", "sem.mp-")
    return {path for path in SHARED_MEMORY.iterdir() if path.name.startswith(names)}


def maps_of(process):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/maps").read_text()
    return ""


class VllmServer:
    """`plugins`: what VLLM_PLUGINS says."""

    def __init__(self, directory, model, *flags, plugins="wsm", **environment):
        self.directory = directory
        self.fault_file = directory / "fault.json"
        self.family = []
        self._before = shared_memory_of_vllm()
        # vLLM asks for its version under this name, and its CPU build is called otherwise.
        shim = directory / "shim" / "vllm-0.32.0+cpu.dist-info"
        shim.mkdir(parents=True)
        (shim / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
        other = directory / "shim" / "other-1.0.dist-info"
        other.mkdir()
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        (other / "entry_points.txt").write_text(
            "[vllm.endpoint_plugins]\nother = tests.vllm.other_plugin:OtherPlugin\n"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = (directory / "log").open("w+")
        program = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *FLAGS]
        self.process = subprocess.Popen(
            [*program, "--host", "127.0.0.1", "--port", str(self.port), *flags],
            cwd=directory,
            env={
                **os.environ,
                **ENVIRONMENT,
                "VLLM_LOGGING_LEVEL": "INFO",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_PLUGINS": plugins,
                "VLLM_SERVER_DEV_MODE": "1",
                "PYTHONPATH": os.pathsep.join([str(shim.parent), str(REPOSITORY)]),
                "WSM_TEST_FAULT": str(self.fault_file),
                **environment,
            },
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def await_up(self):
        late = time.monotonic() + PATIENCE_S
        while self.call("GET", "/health", timeout=5)[0] != 200:
            assert self.process.poll() is None, self.said()[-8000:]
            assert time.monotonic() < late, self.said()[-8000:]
            time.sleep(0.25)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def call(self, method, path, body=None, *, timeout=120.0, key="key"):
        """Return status and answer; 0 where there is none."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - of loopback
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            text = error.read()
            with contextlib.suppress(ValueError):
                return error.code, json.loads(text)
            return error.code, text.decode()
        except OSError as error:
            return 0, str(error)

    def update(self, path, **more):
        return self.call("POST", "/wsm/v1/update", {"path": str(path), **more})

    def generate(self, *, tokens=12, timeout=120.0):
        sampling = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        body = {"model": "m", "token_ids": [1, 2, 3, 4, 5], "sampling_params": sampling}
        return self.call("POST", "/inference/v1/generate", body, timeout=timeout)

    def tokens(self):
        status, answer = self.generate()
        assert status == 200, answer
        return answer["choices"][0]["token_ids"]

    def versions(self):
        """Return the versions of an answer's tokens."""
        return [span["version"] for span in self.generate()[1]["choices"][0]["weight_versions"]]

    @contextlib.contextmanager
    def fault(self, **fault):
        self.fault_file.write_text(json.dumps({"times": 1, **fault}))
        try:
            yield
        finally:
            self.fault_file.unlink()

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        # Resource trackers unlink what their processes left, once these have ended. A worker outlives an API
        # server that was killed.
        _, alive = psutil.wait_procs(self.family, timeout=10)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.kill()
        self.process.wait(60)
        psutil.wait_procs(self.family, timeout=60)
        mapped = "".join(map(maps_of, psutil.process_iter()))
        for path in shared_memory_of_vllm() - self._before:  # what killed workers have left
            if str(path) not in mapped:
                path.unlink(missing_ok=True)
        self.log.close()
