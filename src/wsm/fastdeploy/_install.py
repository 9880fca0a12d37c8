"""The way in: FastDeploy's module gets wsm's class, whenever a process imports it.

``install()`` is one line of a program that starts FastDeploy, or none: FastDeploy calls the entry point
``fastdeploy.model_register_plugins`` in every process, and it installs where ``WSM_FASTDEPLOY=1``.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from wsm.fastdeploy._dynamic_weights import DynamicWeightManager

#: FastDeploy's module with the class.
MODULE = "fastdeploy.rl.dynamic_weight_manager"
_CLASS = "DynamicWeightManager"

#: The variable that lets FastDeploy's plugin loader install.
VARIABLE = "WSM_FASTDEPLOY"


def install() -> None:
    """Let FastDeploy use wsm's weight manager in this process. Idempotent; imports nothing of FastDeploy.

    The class is replaced as its module is imported; in a module that was imported before, now.
    """
    if not any(isinstance(finder, _ReplacingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ReplacingFinder())
    module = sys.modules.get(MODULE)
    if module is not None:
        _replace(module)


def install_if_asked(environment: Mapping[str, str] | None = None) -> None:
    """Install where ``WSM_FASTDEPLOY=1``; FastDeploy's plugin loader calls this."""
    found = os.environ if environment is None else environment
    if found.get(VARIABLE) == "1":
        install()


class _ReplacingFinder(importlib.abc.MetaPathFinder):
    """Finds FastDeploy's module as the others do, and lets its loader replace the class."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ReplacingLoader(spec.loader)
                return spec
        return None


class _ReplacingLoader(importlib.abc.Loader):
    """Loads a module as its own loader does, then replaces the class in it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _replace(module)


def _replace(module: ModuleType) -> None:
    """Replace the class in its module, and wherever a module of FastDeploy has taken it from there."""
    before = getattr(module, _CLASS, None)
    setattr(module, _CLASS, DynamicWeightManager)
    for name, other in list(sys.modules.items()):
        if name.startswith("fastdeploy.") and before is not None and vars(other).get(_CLASS) is before:
            setattr(other, _CLASS, DynamicWeightManager)
