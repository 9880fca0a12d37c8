"""The demo's ``vllm serve`` with a key, a plugin of another, and faults that a test asks for."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import psutil

from examples.vllm_demo.server import PATIENCE_S, Server

__all__ = ["PATIENCE_S", "VllmServer"]
SHARED_MEMORY = Path("/dev") / "shm"
OTHER = {
    "other": "[vllm.endpoint_plugins]\nother = tests.vllm.other_plugin:OtherPlugin\n",
    "pushing": "[vllm.general_plugins]\npushing = tests.vllm.pushing:register\n",
}


def shared_memory_of_vllm():
    """What is named as vLLM and its multiprocessing name theirs."""
    names = ("vllm_dist_", "psm_", "sem.mp-")
    return {path for path in SHARED_MEMORY.iterdir() if path.name.startswith(names)}


def maps_of(process):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/maps").read_text()
    return ""


class VllmServer(Server):
    def __init__(self, directory, model, *flags, plugins="wsm", **environment):
        self._before = shared_memory_of_vllm()
        self.fault_file = directory / "fault.json"
        told = {"VLLM_LOGGING_LEVEL": "INFO", "WSM_TEST_FAULT": str(self.fault_file), **environment}
        key = ("--api-key", "key")
        super().__init__(directory, model, *key, *flags, plugins=plugins, distributions=OTHER, **told)

    def call(self, method, path, body=None, *, timeout=120.0, key="key"):
        return super().call(method, path, body, timeout=timeout, key=key)

    def close(self):
        super().close()
        mapped = "".join(map(maps_of, psutil.process_iter()))
        for path in shared_memory_of_vllm() - self._before:  # what workers have left that a fault killed
            if str(path) not in mapped:
                path.unlink(missing_ok=True)

    def update(self, path, **more):
        return self.call("POST", "/wsm/v1/update", {"path": str(path), **more})

    def versions(self, answer=None):
        """Return the versions of an answer's tokens; vLLM 0.31 says only what it serves now."""
        [choice] = (answer or self.generate()[1])["choices"]
        if "weight_versions" not in choice:
            return [self.call("GET", "/weight_info")[1]["weight_version"]]
        return [span["version"] for span in choice["weight_versions"]]

    def workers(self):
        """Return the processes of its ranks."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in children if "Worker_TP" in "".join(each.cmdline())]

    @contextlib.contextmanager
    def fault(self, **fault):
        self.fault_file.write_text(json.dumps({"times": 1, **fault}))
        try:
            yield
        finally:
            self.fault_file.unlink()
