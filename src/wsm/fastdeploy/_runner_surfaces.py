"""The surfaces of one FastDeploy worker, of which most belong to a model runner that is known later.

FastDeploy makes its weight manager while the model is loaded: there is no KV cache yet, and no graph. What
the runner has is named by the configuration then, so that plans can be derived, and bound when FastDeploy's
loop hands the runner in; until then nothing of it is asked for. What FastDeploy built itself counts as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsm.actions.backends.fastdeploy import (
    FastDeployDeepEP,
    FastDeployGraphs,
    cache_tensors,
    required_call,
)
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
from wsm.fastdeploy import errors
from wsm.fastdeploy._configuration import WorkerFacts
from wsm.signals.live_signal import LiveSignal
from wsm.strategies.checkpoint_models import CheckpointModel
from wsm.strategies.tensor import tied_names
from wsm.strategies.training_names import TrainingNames


@dataclass(frozen=True)
class RunnerGeneration:
    """What the objects of one generation of FastDeploy are like.

    Parameters
    ----------
    name : str
        What it is called in messages.
    recognised : callable
        ``recognised(model_runner)``: whether a runner is of it.
    resets : sequence of str
        How its shared inputs are reset; empty: it has no such call, and its own update makes none.
    """

    name: str
    recognised: Callable[[Any], bool]
    resets: Sequence[str]


#: In the order in which they are looked for; a further generation is a further row.
GENERATIONS = (
    RunnerGeneration("the fork of December 2025", lambda runner: isinstance(runner.share_inputs, dict), ()),
    RunnerGeneration(
        "the weight manager of 2026",
        lambda runner: hasattr(runner, "share_inputs"),
        ("reset", "reset_share_inputs"),
    ),
)


def generation_of(model_runner: Any) -> RunnerGeneration:
    """Find out of which generation a model runner is.

    Raises
    ------
    RefusedError (``unknown-generation``)
        If it is of none that is known.
    """
    if hasattr(model_runner, "share_inputs"):
        for generation in GENERATIONS:
            if generation.recognised(model_runner):
                return generation
    raise errors.unknown_generation(
        runner=type(model_runner).__name__, known=[generation.name for generation in GENERATIONS]
    )


class RunnerCache:
    """A KV cache of FastDeploy's: the model runner's, or its proposer's.

    Which tensors a build keeps where is not always to be seen, so it is remembered whether they are there.
    """

    def __init__(self) -> None:
        self._calls: tuple[Callable[[], Any], Callable[[], Any]] | None = None
        self._tensors: Callable[[], Iterable[Any]] = tuple
        self._there = False

    def bind(
        self, release: Callable[[], Any], rebuild: Callable[[], Any], tensors: Callable[[], Iterable[Any]]
    ) -> None:
        """Take the runner's calls; its cache is there."""
        self._calls, self._tensors, self._there = (release, rebuild), tensors, True

    def release(self) -> int:
        """Free the cache; return the bytes let go, as far as they are known. Idempotent."""
        freed = self.allocated_bytes()
        if self._there:
            self._bound()[0]()
            self._there = False
        return freed

    def rebuild(self) -> int:
        """Allocate an empty cache; return its bytes. Idempotent."""
        if not self._there:
            self._bound()[1]()
            self._there = True
        return self.allocated_bytes()

    def forget(self) -> None:
        """Leave the blocks: FastDeploy's prefix tree leads to them, and its engine resets it by a word."""

    def allocated_bytes(self) -> int:
        """Bytes of the tensors that are found; 1 where the cache is there, and none is found."""
        if not self._there:
            return 0
        found: int = sum(math.prod(tensor.shape) * int(tensor.element_size()) for tensor in self._tensors())
        return max(found, 1)

    def _bound(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        if self._calls is None:
            raise errors.not_bound(surface="the KV cache")
        return self._calls


class RunnerGraphs:
    """The CUDA graphs of one model of the runner's."""

    def __init__(self) -> None:
        self._graphs: FastDeployGraphs | None = None

    def bind(self, graphs: FastDeployGraphs) -> None:
        """Take the runner's calls; its graphs are captured."""
        self._graphs = graphs

    def drop(self) -> None:
        """Forget every captured graph. Idempotent."""
        if self._graphs is not None:
            self._graphs.drop()

    def capture(self) -> None:
        """Capture again, where they were dropped; FastDeploy has captured the first ones itself."""
        if self._graphs is None:
            raise errors.not_bound(surface="graph capture")
        if not self._graphs.captured():
            self._graphs.capture()

    def captured(self) -> bool:
        """Whether any graph is held, as far as it is known."""
        return self._graphs is not None and self._graphs.captured()


class RunnerRequests:
    """The scheduler's side of one worker. Admission is the engine's: it reads the weights word."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._reset: Callable[[], Any] | None = None

    def bind(self, model_runner: Any, reset: Callable[[], Any] | None) -> None:
        """Take the runner's calls."""
        self._runner, self._reset = model_runner, reset
        required_call(model_runner, "clear_requests", needed_for="aborting requests")

    def stop_admitting(self) -> None:
        """Take no request: FastDeploy's loop is not left while this is asked for."""

    def resume_admitting(self) -> None:
        """Take requests again, once FastDeploy's loop is left."""

    def in_flight(self) -> int:
        """Count the slots whose stop flag is down; 0 where no runner is known."""
        if self._runner is None:
            return 0
        return sum(not bool(flag) for flag in self._flags().numpy().reshape(-1))

    def abort_all(self) -> int:
        """Stop every slot, as ``clear_requests`` does in some builds; return how many ran."""
        if self._runner is None:
            return 0
        running = self.in_flight()
        self._runner.clear_requests()
        self._flags()[:] = True
        return running

    def reset_inputs(self) -> None:
        """Reset the input tensors shared with the kernels, where the build does that in an update."""
        if self._reset is not None:
            self._reset()

    def _flags(self) -> Any:
        return self._runner.share_inputs["stop_flags"]


class RunnerDraft:
    """The MTP proposer of the runner's.

    Parameters
    ----------
    graphs : bool
        Whether its model captures CUDA graphs.
    """

    def __init__(self, *, graphs: bool) -> None:
        self.name = "mtp"
        self._cache = RunnerCache()
        self._captures = RunnerGraphs() if graphs else None
        self._reset: Callable[[], Any] | None = None

    @property
    def kv_cache(self) -> KVCacheSurface:
        """Its own cache."""
        return self._cache

    @property
    def graphs(self) -> GraphSurface | None:
        """Its captured graphs."""
        return self._captures

    def bind(self, model_runner: Any) -> None:
        """Take the proposer's calls.

        Raises
        ------
        BadInputError (``call-missing``)
            If the build lacks one of them.
        """
        proposer = required_call_owner(model_runner)
        inputs = proposer.model_inputs
        clear = required_call(proposer, "clear_mtp_cache", needed_for="releasing MTP's KV cache")
        start = required_call(proposer, "initialize_kv_cache", needed_for="rebuilding MTP's KV cache")
        self._reset = required_call(
            inputs, "reset", "reset_model_inputs", needed_for="resetting MTP's inputs"
        )
        self._cache.bind(
            clear,
            lambda: start(main_model_num_blocks=model_runner.num_gpu_blocks),
            lambda: cache_tensors(inputs),
        )
        if self._captures is not None:
            self._captures.bind(FastDeployGraphs(proposer.model, capture=None))

    def reset_inputs(self) -> None:
        """Forget cached inputs. Idempotent."""
        if self._reset is not None:
            self._reset()


def required_call_owner(model_runner: Any) -> Any:
    """Return the runner's proposer.

    Raises
    ------
    BadInputError (``call-missing``)
        If it has none.
    """
    proposer = getattr(model_runner, "proposer", None)
    required_call(proposer, "clear_mtp_cache", needed_for="releasing MTP's KV cache")
    return proposer


class RunnerReplay:
    """The routing replay manager of the runner's."""

    def __init__(self) -> None:
        self._clear: Callable[[], Any] | None = None
        self._update: Callable[[], Any] | None = None

    def bind(self, records: Any) -> None:
        """Take the records' calls; not every build follows ``FD_SUSPEND_ROUTING_REPLAY``."""
        self._clear = required_call(records, "clear_all_request", needed_for="forgetting routing records")
        self._update = getattr(records, "update_suspend_routing_replay", None)

    def clear_all_requests(self) -> None:
        """Forget the record of every request. Idempotent."""
        if self._clear is not None:
            self._clear()

    def resume(self) -> None:
        """Go on recording, as FastDeploy does after an update. Idempotent."""
        if self._update is not None:
            self._update()


class WorkerSurfaces:
    """All surfaces of one worker, as :class:`wsm.actions.surfaces.Runner`.

    Parameters
    ----------
    facts : WorkerFacts
        What the worker was told.
    weights : WeightSurface
        Over the main and all auxiliary models.
    memory : MemorySurface
        Of the device.
    groups : ProcessGroupSurface or None
        The worker's communicators.
    deepep_buffers : type or None
        ``DeepEPBufferManager`` under expert parallelism.
    models : sequence of CheckpointModel
        The main model and auxiliary ones, for checkpoints that they load by themselves.
    names : TrainingNames or None
        What the trainer calls the models' tensors; None: the same.
    directory : path or None
        Where FastDeploy's words lie; ``/dev/shm`` by default.
    """

    def __init__(
        self,
        facts: WorkerFacts,
        *,
        weights: WeightSurface,
        memory: MemorySurface,
        groups: ProcessGroupSurface | None = None,
        deepep_buffers: Any = None,
        models: Sequence[CheckpointModel] = (),
        names: TrainingNames | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self._models = tuple(models)
        self._names = names or TrainingNames({})
        # FastDeploy's heartbeat, written where this rank shows progress.
        self._live = LiveSignal(facts.port, facts.tensor_parallel_rank, directory=directory)
        self.progressed = self._live.beat
        self.weights = weights
        self.memory = memory
        self.groups = groups
        self._requests, self._cache = RunnerRequests(), RunnerCache()
        self._graphs = RunnerGraphs() if facts.graphs else None
        self._draft = RunnerDraft(graphs=facts.graphs) if facts.drafts else None
        self._replay = RunnerReplay() if facts.routing_replay else None
        self.deepep: DeepEPSurface | None = (
            None if deepep_buffers is None else FastDeployDeepEP(deepep_buffers)
        )
        self._runner: Any = None

    def close(self) -> None:
        """Let go of FastDeploy's heartbeat. Idempotent."""
        self._live.close()

    @property
    def requests(self) -> RunnerRequests:
        """The scheduler's side."""
        return self._requests

    @property
    def kv_cache(self) -> KVCacheSurface | None:
        """The main model's cache."""
        return self._cache

    @property
    def graphs(self) -> GraphSurface | None:
        """The main model's graphs."""
        return self._graphs

    @property
    def auxiliaries(self) -> Sequence[AuxiliarySurface]:
        """The draft model, where there is one."""
        return () if self._draft is None else (self._draft,)

    @property
    def routing_replay(self) -> RoutingReplaySurface | None:
        """The records of expert choices, where they are kept."""
        return self._replay

    def loaders(self) -> Sequence[CheckpointModel]:
        """Return the models that take a checkpoint, the main one first."""
        return self._models

    def training_names(self) -> TrainingNames:
        """Return what the trainer calls the models' tensors."""
        return self._names

    def bind(self, model_runner: Any) -> bool:
        """Take a model runner that FastDeploy hands in; return whether it is the first time.

        Raises
        ------
        RefusedError (``unknown-generation``), BadInputError (``call-missing``)
            If the build lacks a call that the configuration needs. Nothing was bound.
        """
        if self._runner is model_runner:
            return False
        generation = generation_of(model_runner)
        calls = {
            "release": required_call(model_runner, "clear_cache", needed_for="releasing the KV cache"),
            "rebuild": required_call(
                model_runner, "initialize_kv_cache", needed_for="rebuilding the KV cache"
            ),
        }
        reset = None
        if generation.resets:
            reset = required_call(
                model_runner.share_inputs, *generation.resets, needed_for="resetting cached inputs"
            )
        if self._graphs is not None:
            capture = required_call(model_runner, "capture_model", needed_for="capturing CUDA graphs")
            self._graphs.bind(FastDeployGraphs(model_runner.model, capture))
        if self._draft is not None:
            self._draft.bind(model_runner)
        if self._replay is not None:
            self._replay.bind(model_runner.routing_replay_manager)
        self._requests.bind(model_runner, reset)
        self._cache.bind(**calls, tensors=lambda: cache_tensors(model_runner.share_inputs))
        first, self._runner = self._runner is None, model_runner
        return first


def surfaces_of_models(models: Sequence[Any]) -> WeightSurface:
    """Return the weights of FastDeploy's models; a model that is a weight surface already stays what it is.

    The first is the main one; names of the others are those that they have themselves, as in FastDeploy.
    """
    if len(models) == 1 and isinstance(models[0], WeightSurface):
        return models[0]
    import paddle  # noqa: PLC0415 - only a worker with paddle's models has any

    from wsm.actions.backends.device_weights import DeviceWeights  # noqa: PLC0415 - they need paddle
    from wsm.actions.backends.paddle_weights import PaddleWeights  # noqa: PLC0415 - so do they

    layers: Mapping[str, Any] = {"": _Together(models)}
    place = paddle.framework._current_expected_place()
    if place.is_cpu_place():
        return PaddleWeights(layers)
    return DeviceWeights(layers, place)


def checkpoint_models(models: Sequence[Any], fd_config: Any) -> Sequence[CheckpointModel]:
    """Return FastDeploy's models as what takes a checkpoint; none if one of them has no ``load_weights``."""
    if not all(callable(getattr(model, "load_weights", None)) for model in models):
        return ()
    from wsm.actions.backends.model_loading import loading_models  # noqa: PLC0415 - as above

    return loading_models(models, fd_config)


def training_names_of(models: Sequence[Any], weights: WeightSurface) -> TrainingNames:
    """Return what FastDeploy's models say of their trainer's names; those that say nothing have the same.

    They may name tensors that this configuration of theirs does not have; `weights` says which they have.

    Raises
    ------
    BadInputError (``bad-training-names``)
        If they do not say which tensor is which.
    """
    there = weights.specs().keys() | tied_names(weights).keys()
    said: dict[str, Any] = {}
    for model in models:
        ask = getattr(model, "get_name_mappings_to_training", None)
        said.update({own: name for own, name in (ask() if callable(ask) else {}).items() if own in there})
    return TrainingNames.of_model(said)


class _Together:
    """Several models under one set of names: of two with one name the later counts, as in FastDeploy."""

    def __init__(self, models: Sequence[Any]) -> None:
        self._models = models

    def state_dict(self) -> dict[str, Any]:
        """Return every tensor by name."""
        return {name: tensor for model in self._models for name, tensor in model.state_dict().items()}
