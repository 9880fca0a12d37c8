"""What FastDeploy says in its log, how its loop calls the manager, and what of its device is asked for."""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

from wsm import log
from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.surfaces import GroupKind, MemorySurface, ProcessGroupSurface
from wsm.errors import BadInputError, WsmError
from wsm.fastdeploy._configuration import WorkerFacts
from wsm.signals.fastdeploy import LiveSignal
from wsm.states.plan_key import COMMANDED, Half
from wsm.states.words import Operation
from wsm.strategies.errors import listed

_log = log.logger("fastdeploy")

_GIB = 1 << 30


class Fragment(enum.Enum):
    """A piece of a line of FastDeploy's log that runbooks look for, and which of its functions writes it.

    They are an interface, as names of functions are, and stay; nothing else of these lines does. The
    functions are in ``fastdeploy/rl/dynamic_weight_manager.py``.
    """

    BUILT = "DynamicLoad model built successfully", "__init__"
    PARAMETER = "Model param: {}", "_capture_model_state"
    ASKED = "check model weights status! {}", "check_model_weights_status"
    CLEARS = "start to clear checkpoint", "check_model_weights_status"
    CLEARED = "finished clearing checkpoint", "check_model_weights_status"
    LOADS = "start to load new checkpoint", "check_model_weights_status"
    LOADED = "finished loading new checkpoint", "check_model_weights_status"
    TOOK = "Updated {}/{} parameters", "_update_model_from_state"
    VERIFIED = "Model Parameter {} verified successfully", "_verify_parameters"
    STREAM_BEGINS = "START rank:{}", "update_weights_by_rdma"
    STREAM_ENDS = "END update_weights_by_rdma", "update_weights_by_rdma"


#: What is said before an action of a plan, and behind it; and of which plans.
_BEFORE = {names.RELEASE_WEIGHTS: Fragment.CLEARS, names.LOAD_WEIGHTS: Fragment.LOADS}
_BEHIND: Mapping[str, tuple[Fragment, str]] = {
    names.VERIFY_CLEARED: (Fragment.VERIFIED, "clearance"),
    names.DECLARE_CLEARED: (Fragment.CLEARED, ""),
    names.VERIFY_LOADED: (Fragment.VERIFIED, "update"),
    names.RESUME_ADMITTING: (Fragment.LOADED, ""),
}
_SAID_OF = frozenset(
    str(key)
    for key in COMMANDED
    if key.operation in (Operation.CLEAR, Operation.UPDATE) and (key.loads or key.weights is Half.GOES)
)

#: What stands behind the weights word in 2025 and in 2026.
_LOOP_ARGUMENTS = (
    ("model_runner", "pid"),
    ("kv_cache_status", "model_runner", "pid", "block"),
)


def loop_call(rest: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, bool]:
    """Read what stands behind the weights word, in the order or by the names of 2025 or of 2026.

    Returns
    -------
    tuple
        FastDeploy's model runner, and whether the call stays inside while the weights are away.

    Raises
    ------
    BadInputError (``unknown-call``)
        If it is neither.
    """
    for known in _LOOP_ARGUMENTS:
        said = {**dict(zip(known, rest, strict=False)), **named}
        if len(said) == len(rest) + len(named) == len(known) and said.keys() == set(known):
            return said["model_runner"], bool(said.get("block", True))
    raise BadInputError(
        f"check_model_weights_status was called with {1 + len(rest)} arguments by place and {sorted(named)} "
        "by name; known are (weights, model_runner, pid) and (weights, kv_cache_status, model_runner, pid, "
        "block)",
        code="unknown-call",
        arguments=1 + len(rest),
        named=tuple(sorted(named)),
    )


def device_memory() -> MemorySurface:
    """Return the allocator of this process's device, or its host's where paddle sees none."""
    from wsm.actions.backends.memory import DeviceMemory, HostMemory  # noqa: PLC0415 - they need paddle

    try:
        return DeviceMemory()
    except WsmError:
        return HostMemory()


def device_groups(facts: WorkerFacts, parallel_config: Any) -> ProcessGroupSurface:
    """Return FastDeploy's communicators, as they are shut down and restarted."""
    from wsm.actions.backends.paddle_groups import DeviceGroups  # noqa: PLC0415 - it needs paddle

    found: dict[GroupKind, Any] = {}
    if facts.tensor_parallel_size > 1:
        found[GroupKind.TP] = parallel_config.tp_group
    if facts.expert_parallel:
        found[GroupKind.EP] = parallel_config.ep_group
    return DeviceGroups(found)


def deepep_buffers() -> Any:
    """Return FastDeploy's ``DeepEPBufferManager``; imported only where expert parallelism needs it."""
    return importlib.import_module("fastdeploy.model_executor.layers.moe.ep").DeepEPBufferManager


def say(fragment: Fragment, *said: object, **facts: object) -> None:
    """Write a fragment with what it says, and what else is known."""
    text, written_by = fragment.value
    _log.info("fastdeploy.says", line=text.format(*said), of=written_by, **facts)


def saying(action: Action, context: ActionContext, run: Callable[[], None]) -> None:
    """Run an action; one of a clear or an update says FastDeploy's fragments."""
    says = action.plan in _SAID_OF
    if says and action.name in _BEFORE:
        say(_BEFORE[action.name])
    run()
    if says and action.name in _BEHIND:
        say(*_BEHIND[action.name])
    if says and action.name == names.LOAD_WEIGHTS:
        came, more = (context.facts.get(name) or 0 for name in ("tensors", "unknown_tensors"))
        say(Fragment.TOOK, came, came + more, files=listed(context.facts.get("files") or ()))


def last_seen(facts: WorkerFacts, rank: int, directory: str | Path | None) -> int | None:
    """Return the second, of the epoch, in which FastDeploy's loop of a rank of the group was last at work.

    It is what FastDeploy's own health check reads; None where nothing says it.
    """
    part, place = divmod(rank, facts.tensor_parallel_size)
    if part >= len(facts.ports):
        return None
    live = LiveSignal(facts.ports[part], place, directory=directory)
    try:
        return live.seen()
    finally:
        live.close()


#: FastDeploy's modules with its event loop: the program of a worker, or that program's own file.
_LOOP_MODULES = ("fastdeploy.worker.worker_process", "__main__")


def place_of_loop() -> str:
    """Say where ``poll()`` belongs: file and line of the top of FastDeploy's event loop."""
    for name in _LOOP_MODULES:
        for value in list(vars(sys.modules.get(name, sys)).values()):
            loop = vars(value).get("event_loop_normal") if isinstance(value, type) else None
            if isinstance(loop, FunctionType):
                with suppress(OSError):  # its file is gone
                    lines, first = inspect.getsourcelines(loop)
                    top = [number for number, line in enumerate(lines) if line.strip() == "while True:"]
                    return f"{loop.__code__.co_filename}:{first + (top[0] if top else 0)}"
    return "event_loop_normal of FastDeploy's worker_process.py"
