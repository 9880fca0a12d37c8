"""Small parts of FastDeploy's weight manager that its runners and tests call by name, and its arguments."""

from __future__ import annotations

import enum
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from wsm import log
from wsm.actions import names
from wsm.actions.backends import required_call
from wsm.actions.base import Action, ActionContext
from wsm.actions.measuring import DetailedMemory
from wsm.actions.surfaces import GroupKind, MemorySurface, ProcessGroupSurface
from wsm.errors import WsmError
from wsm.fastdeploy import errors
from wsm.fastdeploy._configuration import WorkerFacts
from wsm.signals.fastdeploy import LiveSignal
from wsm.states.plan_key import COMMANDED, Half, Request
from wsm.strategies.errors import listed
from wsm.strategies.files.shard_source import device_index_from_environment
from wsm.strategies.files.version_file import read_version

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
    if key.operation in (Request.CLEAR, Request.UPDATE) and (key.loads or key.weights is Half.GOES)
)

#: What stands behind the weights word in 2025 and in 2026.
_LOOP_ARGUMENTS = (
    ("model_runner", "pid"),
    ("kv_cache_status", "model_runner", "pid", "block"),
)


@dataclass(frozen=True)
class LoopCall:
    """How FastDeploy's loop calls ``check_model_weights_status``.

    Parameters
    ----------
    model_runner : object
        FastDeploy's.
    block : bool
        Whether the call stays inside while the weights are away.
    """

    model_runner: Any
    block: bool

    @classmethod
    def of(cls, rest: Sequence[Any], named: Mapping[str, Any]) -> LoopCall:
        """Read what stands behind the weights word, in the order or by the names of 2025 or of 2026.

        Raises
        ------
        BadInputError (``unknown-call``)
            If it is neither.
        """
        for known in _LOOP_ARGUMENTS:
            said = {**dict(zip(known, rest, strict=False)), **named}
            if len(said) == len(rest) + len(named) == len(known) and said.keys() == set(known):
                return cls(said["model_runner"], block=bool(said.get("block", True)))
        raise errors.unknown_call(arguments=1 + len(rest), named=sorted(named))


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


def list_parameters(state: Mapping[str, Any]) -> None:
    """Write a line for each parameter."""
    for name, parameter in state.items():
        place = str(getattr(parameter, "place", ""))
        shape, dtype = list(parameter.shape), str(parameter.dtype)
        say(Fragment.PARAMETER, name, shape=shape, dtype=dtype, place=place)


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


def version_in(directory: Path) -> str | None:
    """Return the version that ``version.yaml`` names; None, and a line in the log, if it names none."""
    try:
        return read_version(directory)
    except WsmError as error:
        _log.error(log.COMMAND_FAILED, asked="version.yaml", error=str(error))
        return None


def verify(state: Mapping[str, Any], operation: str) -> None:
    """Raise RuntimeError unless every parameter is as `operation` (``update``, ``clearance``) leaves it."""
    wanted = operation == "update"
    wrong = [name for name, parameter in state.items() if parameter._is_initialized() is not wanted]
    if wrong:
        states = "hold no memory" if wanted else "hold memory still"
        raise RuntimeError(
            f"Model Parameter {operation} verification failed: {len(wrong)} parameters {states}, "
            f"the first is {wrong[0]}"
        )
    say(Fragment.VERIFIED, operation)


def require_match(name: str, source: Any, target: Any) -> None:
    """Raise TypeError for another dtype, ValueError for another shape."""
    if source.dtype != target.dtype:
        raise TypeError(f"Type mismatch for {name}: {source.dtype} vs {target.dtype}")
    if source.shape != target.shape:
        raise ValueError(f"Shape mismatch for {name}: {source.shape} vs {target.shape}")


def take_state(state: Mapping[str, Any], brought: Mapping[str, Any], source: str) -> None:
    """Let every parameter of a name in `brought` have its memory; other names are left out.

    Raises
    ------
    ValueError, TypeError
        If nothing is brought, or a tensor is of another shape or dtype. Those before it were taken.
    """
    if not brought:
        raise ValueError(f"No parameter found in state dict from {source}")
    say(Fragment.TOOK, len(brought.keys() & state.keys()), len(brought), source=source)
    for name, new in brought.items():
        target = state.get(name)
        if target is None:
            continue
        require_match(name, new, target)
        if new.stride() == target.stride():
            new._share_buffer_to(target)
        else:
            import paddle  # noqa: PLC0415 - only paddle's tensors have strides

            with paddle.no_grad():
                if not target._is_initialized():
                    paddle.empty(target.shape, dtype=target.dtype)._share_buffer_to(target)
                target[...] = new


def opened_metas(metas: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the tensors that handles of CUDA lead to, opened on this process's device.

    Parameters
    ----------
    metas : mapping of str to sequence
        By tensor, what paddle's ``_share_cuda`` says; the handle may be text, one byte each character.

    Raises
    ------
    BadInputError (``call-missing``)
        If this build of paddle has no CUDA.
    """
    import paddle  # noqa: PLC0415 - the tensors are its own

    core = paddle.base.core
    dense = getattr(core, "LoDTensor", None) or core.DenseTensor
    opens = required_call(dense, "_new_shared_cuda", needed_for="opening a trainer's device tensors")
    device = device_index_from_environment(os.environ)
    opened = {}
    for name, (handle, *fields) in metas.items():
        as_bytes = handle.encode("latin-1") if isinstance(handle, str) else handle
        opened[name] = paddle.to_tensor(opens((as_bytes, *fields[:5], device, *fields[6:])))
    return opened


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


def log_memory(context: str) -> None:
    """Write one line with what the device's allocator holds and has held at most, in GiB."""
    memory = device_memory()
    measured = memory.figures() if isinstance(memory, DetailedMemory) else {}
    figures = {
        f"{'max' if said.startswith('peak_') else 'current'}_{said.removeprefix('peak_')}": None
        if said not in measured
        else round(measured[said] / _GIB, 2)
        for said in ("peak_allocated", "peak_reserved", "allocated", "reserved")
    }
    _log.warning("device.memory", context=context, **figures)


#: FastDeploy's modules with its event loop: the program of a worker, or that program's own file.
_LOOP_MODULES = ("fastdeploy.worker.worker_process", "__main__")


def place_of_loop() -> str:
    """Say where ``poll()`` belongs: file and line of the top of FastDeploy's event loop."""
    for name in _LOOP_MODULES:
        for value in list(vars(sys.modules.get(name, sys)).values()):
            loop = vars(value).get("event_loop_normal") if isinstance(value, type) else None
            code = getattr(loop, "__code__", None)
            if isinstance(code, CodeType):
                return f"{code.co_filename}:{_top_of_loop(code)}"
    return "event_loop_normal of FastDeploy's worker_process.py"


def _top_of_loop(code: CodeType) -> int:
    """Return the line of ``while True:`` in a function, or of the function itself."""
    try:
        with open(code.co_filename, encoding="utf-8") as file:  # noqa: PTH123 - as the code names it
            lines = file.read().splitlines()
    except OSError:
        return code.co_firstlineno
    for number, line in enumerate(lines[code.co_firstlineno :], start=code.co_firstlineno + 1):
        if line.strip() == "while True:":
            return number
    return code.co_firstlineno
