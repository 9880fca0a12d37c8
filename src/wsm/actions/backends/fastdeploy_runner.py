"""FastDeploy's model runner as a whole, fitted to :class:`wsm.actions.surfaces.Runner`.

Responsible for reading from a model runner which parts it has. Each part's own adapter is in
:mod:`wsm.actions.backends.fastdeploy`; nothing here calls FastDeploy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wsm.actions.backends.fastdeploy import (
    FastDeployCache,
    FastDeployDeepEP,
    FastDeployDraft,
    FastDeployGraphs,
    FastDeployRequests,
    FastDeployRoutingReplay,
    cache_tensors,
    required_call,
)
from wsm.actions.request_surfaces import RequestSurface
from wsm.actions.surfaces import (
    AuxiliarySurface,
    DeepEPSurface,
    GraphSurface,
    KVCacheSurface,
    MemorySurface,
    ProcessGroupSurface,
    RoutingReplaySurface,
    WeightSurface,
)


class FastDeployRunner:
    """All surfaces of one FastDeploy worker.

    Parameters
    ----------
    model_runner : object
        FastDeploy's, with ``model``, ``share_inputs``, ``clear_requests``, ``clear_cache`` and
        ``initialize_kv_cache``; where it has them, with ``proposer``, ``routing_replay_manager`` and
        ``use_cudagraph``.
    weights : WeightSurface
        Over the main and all auxiliary models, for example
        :class:`wsm.actions.backends.device_weights.DeviceWeights`.
    memory : MemorySurface
        Of the device.
    groups : ProcessGroupSurface or None
        The worker's communicators.
    deepep_buffers : type or None
        ``DeepEPBufferManager`` under expert parallelism.
    pause, resume, forget_prefixes : callable
        Reach the engine: stop and continue admission, reset the prefix tree.

    Raises
    ------
    CallMissingError
        If the installed build lacks a call that this configuration needs.
    """

    def __init__(
        self,
        model_runner: Any,
        *,
        weights: WeightSurface,
        memory: MemorySurface,
        pause: Callable[[], Any],
        resume: Callable[[], Any],
        forget_prefixes: Callable[[], Any],
        groups: ProcessGroupSurface | None = None,
        deepep_buffers: Any = None,
    ) -> None:
        self.weights = weights
        self.memory = memory
        self.groups = groups
        self.requests: RequestSurface = FastDeployRequests(model_runner, pause=pause, resume=resume)
        self.kv_cache: KVCacheSurface | None = FastDeployCache(
            release=required_call(model_runner, "clear_cache", needed_for="releasing the KV cache"),
            rebuild=required_call(model_runner, "initialize_kv_cache", needed_for="rebuilding the KV cache"),
            tensors=lambda: cache_tensors(model_runner.share_inputs),
            forget=forget_prefixes,
        )
        captures = bool(getattr(model_runner, "use_cudagraph", False))
        self.graphs: GraphSurface | None = _main_graphs(model_runner) if captures else None
        self.deepep: DeepEPSurface | None = (
            None if deepep_buffers is None else FastDeployDeepEP(deepep_buffers)
        )
        self.auxiliaries: Sequence[AuxiliarySurface] = _drafts(model_runner, captures=captures)
        records = getattr(model_runner, "routing_replay_manager", None)
        self.routing_replay: RoutingReplaySurface | None = (
            None if records is None else FastDeployRoutingReplay(records)
        )


def _main_graphs(model_runner: Any) -> FastDeployGraphs:
    capture = required_call(model_runner, "capture_model", needed_for="capturing CUDA graphs")
    return FastDeployGraphs(model_runner.model, capture)


def _drafts(model_runner: Any, *, captures: bool) -> list[FastDeployDraft]:
    proposer = getattr(model_runner, "proposer", None)
    if proposer is None or not hasattr(proposer, "clear_mtp_cache"):  # an n-gram proposer has no model
        return []
    return [FastDeployDraft(proposer, main_blocks=lambda: model_runner.num_gpu_blocks, graphs=captures)]
