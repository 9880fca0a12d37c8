"""Modules that stand in for what needs a GPU, a cluster or a whole framework, in the process of a trainer.

A module stands in only where its package is not installed. Whatever is asked of it is a class that can be a
base, a decorator, a type or a function that does nothing; no request of a client comes from it.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Collection
from typing import Any

#: The fields of SGLang's ``ServerArgs`` that slime sets; it leaves out what is no field.
_SERVER_ARGS = (
    *("model_path", "trust_remote_code", "random_seed", "enable_memory_saver", "host", "port", "nccl_port"),
    *("nnodes", "node_rank", "dist_init_addr", "gpu_id_step", "base_gpu_id", "tp_size", "dp_size", "pp_size"),
    *("ep_size", "skip_server_warmup", "enable_draft_weights_cpu_backup", "enable_metrics"),
)


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (StandIn,), {})

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and callable(given[0]):
            return given[0]  # a decorator without arguments
        return super().__call__(*given, **named)

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, key: Any) -> Any:
        return cls


class StandIn(metaclass=_Anything):
    """Does nothing, whatever is done with it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and not named and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class _Module(types.ModuleType):
    #: Of vLLM, which TRL asks for.
    __version__ = "0.24.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Anything(name, (StandIn,), {})
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Collection[str]) -> None:
        self.packages = packages
        self.stood_in: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = name.partition(".")[0]
        if package not in self.packages:
            return None
        self.stood_in.add(package)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        made = _Module(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "vllm.utils.network_utils":
            module.get_ip = lambda: "127.0.0.1"  # type: ignore[attr-defined] # both are sent as JSON
            module.get_open_port = lambda: 1  # type: ignore[attr-defined] # the same
        if module.__name__ == "torch":
            module.cuda = _Module("torch.cuda")  # type: ignore[attr-defined] # it is asked whether there is one
            module.cuda.is_available = lambda: False
            module.cuda.device_count = lambda: 0
            module.is_tensor = lambda _: False  # type: ignore[attr-defined] # texts come as lists
        if module.__name__ == "ray":
            module.get = lambda done: done  # type: ignore[attr-defined] # calls are done in this process
        if module.__name__ == "sglang.srt.server_args":
            made = dataclasses.make_dataclass("ServerArgs", [(name, Any, None) for name in _SERVER_ARGS])
            module.ServerArgs = made  # type: ignore[attr-defined] # of a module that is made here


def stand_in(*packages: str) -> set[str]:
    """Let modules stand in for packages that are not installed; return a set that grows by their names."""
    missing = {name for name in packages if importlib.util.find_spec(name) is None}
    finder = _Finder(missing)
    sys.meta_path.append(finder)
    return finder.stood_in


class Remote:
    """An object as ray gives it: ``name.remote(...)`` calls ``name(...)``, here and now."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(remote=getattr(self._of, name))
