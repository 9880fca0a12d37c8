"""The way in: FastDeploy's modules get wsm's class, watched model runners and loaders as they are imported.

``install()`` is one line of a program that starts FastDeploy, or none: FastDeploy calls the entry point
``fastdeploy.model_register_plugins`` in every process, and it installs where ``WSM_FASTDEPLOY=1``.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from wsm.errors import RefusedError
from wsm.fastdeploy._control_calls import DEADLINES_S, ControlRequest
from wsm.fastdeploy._dynamic_weights import DynamicWeightManager
from wsm.fastdeploy._models import UTILITIES, WATCHED, keeping_attributes, remembering

#: FastDeploy's module with the class.
MODULE = "fastdeploy.rl.dynamic_weight_manager"
_CLASS = "DynamicWeightManager"

#: FastDeploy's modules with model runners.
RUNNER_MODULES = (
    *(
        f"fastdeploy.worker.{device}_model_runner"
        for device in ("gpu", "dcu", "iluvatar", "metax", "gcu", "hpu", "xpu")
    ),
    "fastdeploy.worker.gpu.model_runner",
)

_MODULES = (MODULE, UTILITIES, *RUNNER_MODULES)

#: The variable that lets FastDeploy's plugin loader install.
VARIABLE = "WSM_FASTDEPLOY"


def install() -> None:
    """Let FastDeploy use wsm's weight manager in this process. Idempotent; imports nothing of FastDeploy.

    The class is replaced, and model runners and what processes loaded models are watched, as their modules
    are imported; in modules that were imported before, now.
    """
    if not any(isinstance(finder, _ReplacingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ReplacingFinder())
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None:
            _replace(module)


def install_if_asked(environment: Mapping[str, str] | None = None) -> None:
    """Install where ``WSM_FASTDEPLOY=1``; FastDeploy's plugin loader calls this."""
    found = os.environ if environment is None else environment
    if found.get(VARIABLE) == "1":
        install()


class _ReplacingFinder(importlib.abc.MetaPathFinder):
    """Finds FastDeploy's modules as the others do, and lets their loader replace what is wsm's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                executes = spec.loader.exec_module

                def exec_module(module: ModuleType) -> None:
                    executes(module)  # noqa: B023 - returned right away
                    _replace(module)

                vars(spec.loader)["exec_module"] = exec_module
                return spec
        return None


def _replace(module: ModuleType) -> None:
    """Replace what is wsm's in a module: a class, functions, or methods of its model runners."""
    if module.__name__ == MODULE:
        _replace_everywhere(module, _CLASS, DynamicWeightManager)
        return
    if module.__name__ == UTILITIES:
        for name, watching in _WATCHING.items():
            own = getattr(module, name, None)
            if own is not None and not hasattr(own, WATCHED):
                _replace_everywhere(module, name, watching(own))
        return
    for found in list(vars(module).values()):
        if isinstance(found, type) and found.__module__ == module.__name__ and "load_model" in vars(found):
            _watch(found)


#: Functions that FastDeploy processes loaded models with, and what is made of them.
_WATCHING: Mapping[str, Callable[..., Any]] = {
    "process_weight_transpose": keeping_attributes,
    "process_final_after_loading": remembering,
}


def _replace_everywhere(module: ModuleType, called: str, own: Any) -> None:
    """Replace one name in its module, and wherever a module of FastDeploy has taken it from there."""
    before = getattr(module, called, None)
    setattr(module, called, own)
    for name, other in list(sys.modules.items()):
        if name.startswith("fastdeploy.") and before is not None and vars(other).get(called) is before:
            setattr(other, called, own)


def _watch(runner_class: Any) -> None:
    """Let a model runner refuse at start what its build cannot do, and ask the group later. Idempotent."""
    load = runner_class.load_model
    if hasattr(load, WATCHED):
        return

    @functools.wraps(load)
    def load_model(model_runner: Any, *arguments: Any, **options: Any) -> Any:
        DynamicWeightManager.loading = model_runner
        try:
            result = load(model_runner, *arguments, **options)
        finally:
            DynamicWeightManager.loading = None
        load_config = getattr(model_runner.fd_config, "load_config", None)
        if getattr(load_config, "dynamic_load_weight", False) and DynamicWeightManager.present is None:
            runner = type(model_runner).__name__
            raise RefusedError(
                f"{runner}.load_model makes no DynamicWeightManager, although "
                "load_config.dynamic_load_weight is on: weights that this build serves cannot change; start "
                "it without dynamic loading, or without wsm.fastdeploy",
                code="no-manager",
                runner=runner,
                call="DynamicWeightManager",
            )
        return result

    setattr(load_model, WATCHED, True)
    runner_class.load_model = load_model
    for method in DEADLINES_S:
        if method in vars(runner_class):
            setattr(runner_class, method, _controlled(method, getattr(runner_class, method)))


def _controlled(method: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model runner's method whose calls are commands of the group."""

    @functools.wraps(body)
    def call(model_runner: Any, *arguments: Any, **options: Any) -> Any:
        present = DynamicWeightManager.present
        if present is None:
            return body(model_runner, *arguments, **options)
        request = ControlRequest.of(method, body, model_runner, *arguments, **options)
        return present.control(
            model_runner, request, functools.partial(body, model_runner, *arguments, **options)
        )

    return call
