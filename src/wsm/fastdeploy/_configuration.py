"""What FastDeploy's configuration says, as wsm's: read off ``fd_config`` and the environment.

The one place that knows the attributes of ``fd_config`` and FastDeploy's variables. Name, ranks and run of
the group are not known here. Opens no file and imports nothing of FastDeploy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wsm.config import ConfigurationError
from wsm.strategies.files.shard_source import device_id_from_environment
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.strategies.transports.checkpoint_transfer import CheckpointTransferOptions

#: Either says that versions come by the newer interface of CheckpointTransfer.
_UNIFIED = ("FD_USE_CHECKPOINT_TRANSFER", "FD_USE_GDR_CHECKPOINT_TRANSFER")
_OFF = ("", "0", "false", "no", "off")
_STRATEGIES = ("ipc_snapshot", "ipc", "rsync")


@dataclass(frozen=True)
class WorkerFacts:
    """What one worker of FastDeploy was told.

    Parameters
    ----------
    options : mapping of str to Any
        Options of :class:`wsm.WsmConfig` as plain values, without ``name``, ``ranks`` and ``run_id``.
    port : str
        What follows the names of the words of this rank's data-parallel part.
    ports : tuple of str
        The same of each part whose ranks are one group, as far as that is said.
    tensor_parallel_rank, tensor_parallel_size : int
        This rank within its part, and the ranks of the part.
    expert_parallel : bool
        Whether experts are spread over ranks, so that an EP group steps together.
    graphs : bool
        Whether the model runner captures CUDA graphs.
    drafts : bool
        Whether the model runner has an MTP proposer.
    routing_replay : bool
        Whether it records expert choices.
    by_requests : bool
        Whether the engine asks by control requests (``FD_ENABLE_V1_UPDATE_WEIGHTS``).
    asks_cache_process : bool
        Whether a process of its own holds KV cache (CPU blocks, or a storage behind them) and is asked by its
        word; where FastDeploy's engine hands control requests on, that process gets those. Whether it lets
        its CPU blocks go as well it reads off ``FD_ENABLE_SWAP_SPACE_CLEARING`` itself.
    mtp_chunk_size : int
        Tensors that an MTP model gets at once.
    over_ipc : bool
        Whether versions come by the newer interface over IPC, where FastDeploy looks for no ``version.yaml``.
    """

    options: Mapping[str, Any]
    port: str
    tensor_parallel_rank: int
    tensor_parallel_size: int
    expert_parallel: bool
    graphs: bool
    drafts: bool
    ports: tuple[str, ...] = ()
    routing_replay: bool = False
    by_requests: bool = False
    asks_cache_process: bool = False
    mtp_chunk_size: int = 16
    over_ipc: bool = False


def read(fd_config: Any, load_config: Any, environment: Mapping[str, str] | None = None) -> WorkerFacts:
    """Read what FastDeploy's worker was told.

    Parameters
    ----------
    fd_config : object
        FastDeploy's ``FDConfig``.
    load_config : object
        Its ``load_config``.
    environment : mapping of str to str or None
        None takes that of the process.

    Raises
    ------
    ConfigurationError
        If an attribute that FastDeploy always has is missing, or weights do not arrive in a way that changes
        them in a running worker (``normal``, ``meta``).
    BadInputError
        If ``rsync_config`` is not what it must be, or no number of a device can be read off the environment.
    """
    variables = os.environ if environment is None else environment
    expert_parallel = bool(_said(fd_config, "parallel_config.enable_expert_parallel", False))
    tensor_parallel_size = int(_said(fd_config, "parallel_config.tensor_parallel_size"))
    shuts_down = _said(fd_config, "parallel_config.shutdown_comm_group_if_worker_idle", None)
    shuts_down = (not expert_parallel) if shuts_down is None else bool(shuts_down)
    has_groups = expert_parallel or tensor_parallel_size > 1  # a lone rank has none to shut down
    rsync_config = _rsync_config(load_config)
    by_requests = _is_on(variables, "FD_ENABLE_V1_UPDATE_WEIGHTS")
    method = _said(fd_config, "speculative_config.method", None)
    strategy = _load_strategy(load_config)
    parts = _listed(_said(fd_config, "parallel_config.engine_worker_queue_port", ()))
    swaps = int(_said(fd_config, "cache_config.num_cpu_blocks", 0) or 0) > 0
    swaps = swaps or bool(_said(fd_config, "cache_config.kvcache_storage_backend", None))
    unified = any(_is_on(variables, name) for name in _UNIFIED)
    return WorkerFacts(
        options={
            "shut_down_groups": shuts_down and has_groups,
            "unknown_tensors": "ignore",
            **_way(fd_config, strategy, rsync_config, variables, unified=unified, whole=expert_parallel),
        },
        port=(port := _port(fd_config)),
        ports=tuple(parts if len(parts) > 1 else ()) if expert_parallel else (port,),
        tensor_parallel_rank=int(_said(fd_config, "parallel_config.tensor_parallel_rank")),
        tensor_parallel_size=tensor_parallel_size,
        expert_parallel=expert_parallel,
        graphs=bool(_said(fd_config, "graph_opt_config.use_cudagraph", False)),
        drafts=str(getattr(method, "value", method)).lower() == "mtp",
        routing_replay=bool(_said(fd_config, "routing_replay_config.enable_routing_replay", False)),
        by_requests=by_requests,
        asks_cache_process=swaps and not by_requests,
        mtp_chunk_size=CheckpointTransferOptions.of(rsync_config).gdr_mtp_chunk_size,
        over_ipc=unified and strategy != "rsync",
    )


def _is_on(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").strip().lower() not in _OFF


def _load_strategy(load_config: Any) -> str:
    """Return FastDeploy's name of the way that weights arrive; refuse one that brings none later."""
    strategy = getattr(load_config, "load_strategy", None)
    if strategy not in _STRATEGIES:
        raise ConfigurationError(
            where="fd_config: load_config.load_strategy",
            problem=f"is {strategy!r}, which brings no weights to a worker that runs",
            fix=f"start FastDeploy with --load-strategy, one of {', '.join(_STRATEGIES)}",
        )
    return str(strategy)


def _way(
    fd_config: Any,
    strategy: str,
    rsync_config: Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    unified: bool,
    whole: bool,
) -> dict[str, Any]:
    """Return wsm's strategy and its section.

    `unified`: by the newer interface of CheckpointTransfer; `whole`: the ranks of all parts are one group.
    """
    model, place = (
        str(_said(fd_config, "model_config.model")),
        _place_in_job(fd_config, expert_parallel=whole),
    )
    rsync = {
        "verify_checksum": False,
        "requires_manifest": False,  # FastDeploy's flag is the package's own check
        "rsync_config": rsync_config,
        **place,
    }
    if strategy == "rsync":
        mode = {"transfer_mode": "gdr"} if unified else {}
        return {"strategy": "rsync", "rsync": {**rsync, **mode, "directory": model}}
    if unified:
        return {"strategy": "gdr", "rsync": {**rsync, "transfer_mode": "ipc"}}
    # Each load reads the device off the same variables; what cannot be read there is refused at start.
    device_id_from_environment(0, variables)
    # May be pickled, as FastDeploy's own trainers write them; it trusts who may write there, too.
    section, directory = {"ipc_snapshot": ("snapshot", model), "ipc": ("ipc", SHARED_DIRECTORY)}[strategy]
    return {"strategy": strategy, section: {"directory": directory, "allow_pickle": True, **place}}


def _place_in_job(fd_config: Any, *, expert_parallel: bool) -> dict[str, int]:
    """Return where the group's ranks lie among those of the whole job; nothing if they are all of them."""
    if expert_parallel:
        return {}
    parallel = "parallel_config."
    ranks = int(_said(fd_config, parallel + "tensor_parallel_size", 1) or 1)
    part = int(_said(fd_config, parallel + "data_parallel_rank", 0) or 0)
    parts = max(part + 1, int(_said(fd_config, parallel + "data_parallel_size", 1) or 1))
    return {} if parts == 1 else {"first_rank": part * ranks, "job_ranks": parts * ranks}


def _rsync_config(load_config: Any) -> Mapping[str, Any]:
    """Return the options of CheckpointTransfer, which a command line leaves as JSON."""
    where = "fd_config: load_config.rsync_config"
    said = getattr(load_config, "rsync_config", None) or {}
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(where=where, problem=f"is no JSON ({error})", fix="mend it") from error
    if not isinstance(said, Mapping):
        raise ConfigurationError(where=where, problem=f"is {said!r}", fix="it must be a mapping of options")
    return dict(said)


def _listed(ports: Any) -> list[str]:
    """Return ports that stand in a list, in a text with commas, or alone."""
    several = ports.split(",") if isinstance(ports, str) else ports
    return [str(port).strip() for port in (several if isinstance(several, (list, tuple)) else [several])]


def _port(fd_config: Any) -> str:
    """Return the port of the engine worker queue of this part, which ends the names of its words."""
    own = _said(fd_config, "parallel_config.local_engine_worker_queue_port", None)
    ports = _listed(_said(fd_config, "parallel_config.engine_worker_queue_port") if own is None else own)
    part = int(_said(fd_config, "parallel_config.local_data_parallel_id", 0) or 0)
    return ports[part if part < len(ports) else 0]


_REQUIRED = object()


def _said(fd_config: Any, path: str, otherwise: Any = _REQUIRED) -> Any:
    """Return what stands under a dotted name; `otherwise` where this build has no such thing."""
    found = fd_config
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            break
    if found is not None:
        return found
    if otherwise is _REQUIRED:
        raise ConfigurationError(
            where="fd_config",
            problem=f"has no {path}",
            fix="hand over the FDConfig of FastDeploy's worker, of a build that wsm knows",
        )
    return otherwise
