"""What FastDeploy's configuration says, as wsm's: read off ``fd_config`` and the environment.

The one place that knows the attributes of ``fd_config``. Name, ranks and run of the group are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WorkerFacts:
    """What one worker of FastDeploy was told.

    Parameters
    ----------
    options : mapping of str to Any
        Options of :class:`wsm.WsmConfig` as plain values, without ``name``, ``ranks`` and ``run_id``.
    port : str
        What follows the names of the words of this rank's data-parallel part.
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
    """

    options: Mapping[str, Any]
    port: str
    tensor_parallel_rank: int
    tensor_parallel_size: int
    expert_parallel: bool
    graphs: bool
    drafts: bool
    routing_replay: bool = False


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
    """
    del environment  # not read yet
    parallel = fd_config.parallel_config
    expert_parallel = bool(getattr(parallel, "enable_expert_parallel", False))
    says = getattr(parallel, "shutdown_comm_group_if_worker_idle", None)
    options: dict[str, Any] = {
        "strategy": getattr(load_config, "load_strategy", None) or "ipc_snapshot",
        "shut_down_groups": (not expert_parallel) if says is None else bool(says),
    }
    if options["strategy"] == "ipc_snapshot":
        options["snapshot"] = {"directory": str(fd_config.model_config.model)}
    graphs = getattr(getattr(fd_config, "graph_opt_config", None), "use_cudagraph", False)
    method = getattr(getattr(fd_config, "speculative_config", None), "method", None)
    return WorkerFacts(
        options=options,
        port=_port(parallel),
        tensor_parallel_rank=int(parallel.tensor_parallel_rank),
        tensor_parallel_size=int(parallel.tensor_parallel_size),
        expert_parallel=expert_parallel,
        graphs=bool(graphs),
        drafts=method == "mtp",
        routing_replay=bool(
            getattr(getattr(fd_config, "routing_replay_config", None), "enable_routing_replay", False)
        ),
    )


def _port(parallel: Any) -> str:
    """Return the port of the engine worker queue of this part, which ends the names of its words."""
    ports = getattr(parallel, "local_engine_worker_queue_port", None)
    if ports is None:
        ports = parallel.engine_worker_queue_port
    if isinstance(ports, (list, tuple)):
        return str(ports[int(getattr(parallel, "local_data_parallel_id", 0) or 0)])
    return str(ports)
