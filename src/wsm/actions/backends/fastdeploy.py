"""FastDeploy's objects behind wsm's surfaces.

Responsible for calling what FastDeploy's own clear and update call, one call per surface method, and for
finding out before anything begins whether an installed build has those calls. FastDeploy is not
imported: its objects are handed in. Order, votes and states are not known here.

The names are those of FastDeploy's model runner, MTP proposer, ``DeepEPBufferManager`` and routing
replay manager. Where builds spell a call differently, all spellings are listed. :class:`FastDeployRunner`
reads from a model runner which of these parts it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wsm.actions.backends import errors
from wsm.actions.surfaces import (
    AuxiliarySurface,
    DeepEPSurface,
    GraphSurface,
    KVCacheSurface,
    MemorySurface,
    ProcessGroupSurface,
    RequestSurface,
    RoutingReplaySurface,
    WeightSurface,
)
from wsm.strategies.checkpoint_models import CheckpointModel

#: Older builds carry a typing error in the name.
CLEARS_GRAPHS = ("clear_graph_opt_backend", "clear_grpah_opt_backend")


def required_call(owner: Any, *spellings: str, needed_for: str) -> Callable[..., Any]:
    """Return the first of `spellings` that `owner` has.

    Raises
    ------
    BadInputError (``call-missing``)
        If it has none of them.
    """
    for spelling in spellings:
        call = getattr(owner, spelling, None)
        if callable(call):
            found: Callable[..., Any] = call
            return found
    name = owner.__name__ if isinstance(owner, type) else type(owner).__name__
    raise errors.call_missing(owner=name, call=" or ".join(spellings), needed_for=needed_for)


class FastDeployGraphs:
    """The graphs of one model: the main one, or MTP's.

    FastDeploy does not tell whether graphs are captured, so that is remembered here.

    Parameters
    ----------
    model : object
        Has ``clear_graph_opt_backend``.
    capture : callable or None
        ``runner.capture_model``. None for MTP, whose graphs that one call captures too.
    """

    def __init__(self, model: Any, capture: Callable[[], Any] | None) -> None:
        self._clear = required_call(model, *CLEARS_GRAPHS, needed_for="dropping CUDA graphs")
        self._capture = capture
        self._captured = True

    def drop(self) -> None:
        """Forget every captured graph. Idempotent."""
        if self._captured:
            self._clear()
            self._captured = False

    def capture(self) -> None:
        """Capture again. Collective under tensor parallelism: the runner's dummy passes are whole passes."""
        if self._capture is not None:
            self._capture()
        self._captured = True

    def captured(self) -> bool:
        """Whether any graph is held."""
        return self._captured


class FastDeployDeepEP:
    """The exchange buffer of ``DeepEPBufferManager``, whose engine was set by the model.

    Parameters
    ----------
    buffers : type
        The class itself; its methods are class methods.
    """

    def __init__(self, buffers: Any) -> None:
        self._clear = required_call(buffers, "clear_buffer", needed_for="clearing the DeepEP buffer")
        self._recreate = required_call(buffers, "recreate_buffer", needed_for="recreating the DeepEP buffer")
        self._allocated = True

    def clear_buffer(self) -> None:
        """Destroy the buffer. Collective over the EP group, which must be alive."""
        self._clear()
        self._allocated = False

    def recreate_buffer(self) -> None:
        """Create the buffer on the present EP group. Collective over it."""
        self._recreate()
        self._allocated = True

    def allocated(self) -> bool:
        """Whether the buffer exists."""
        return self._allocated


class FastDeployCache:
    """A KV cache: the runner's, or MTP's.

    Parameters
    ----------
    release, rebuild : callable
        ``runner.clear_cache`` and ``runner.initialize_kv_cache``, or the proposer's.
    tensors : callable
        Returns the cache's tensors, empty while there are none.
    forget : callable
        Resets the prefix tree, which FastDeploy keeps in another process (``prefix_tree_status``).
    """

    def __init__(
        self,
        *,
        release: Callable[[], Any],
        rebuild: Callable[[], Any],
        tensors: Callable[[], Iterable[Any]],
        forget: Callable[[], Any],
    ) -> None:
        self._release = release
        self._rebuild = rebuild
        self._tensors = tensors
        self._forget = forget

    def release(self) -> int:
        """Free the cache and forget the prefix tree; return the bytes let go. Idempotent.

        FastDeploy's own call fails on a cache that is gone already.
        """
        freed = self.allocated_bytes()
        if freed:
            self._release()
        self._forget()
        return freed

    def rebuild(self) -> int:
        """Allocate an empty cache; return its bytes. Idempotent."""
        if not self.allocated_bytes():
            self._rebuild()
        return self.allocated_bytes()

    def forget(self) -> None:
        """Make every block unreachable; the tree is what leads to blocks. Idempotent."""
        self._forget()

    def allocated_bytes(self) -> int:
        """Bytes of the cache's tensors."""
        return sum(math.prod(tensor.shape) * int(tensor.element_size()) for tensor in self._tensors())


class FastDeployRequests:
    """The scheduler's side of one worker.

    Admission is the engine's (its ``pause`` and ``resume``); slots are the worker's. A worker of FastDeploy
    cannot hand requests back, so there is no ``freeze``, and commands that would keep requests are refused.

    Parameters
    ----------
    runner : object
        Has ``clear_requests`` and ``share_inputs`` with ``stop_flags`` (max sequences, 1), bool.
    pause, resume : callable
        Stop and continue handing requests to this worker. Idempotent.
    """

    def __init__(self, runner: Any, *, pause: Callable[[], Any], resume: Callable[[], Any]) -> None:
        self._runner = runner
        self._clear = required_call(runner, "clear_requests", needed_for="aborting requests")
        self._reset = required_call(
            runner.share_inputs, "reset", "reset_share_inputs", needed_for="resetting cached inputs"
        )
        self._pause = pause
        self._resume = resume

    def stop_admitting(self) -> None:
        """Take no new request from the engine."""
        self._pause()

    def resume_admitting(self) -> None:
        """Take requests from the engine again."""
        self._resume()

    def in_flight(self) -> int:
        """Count the slots whose stop flag is down; abort markers do not count (FastDeploy#7825)."""
        return sum(not bool(flag) for flag in self._runner.share_inputs["stop_flags"].numpy().reshape(-1))

    def abort_all(self) -> int:
        """Stop every slot through ``clear_requests``; return how many ran.

        The stop flags are set here as well, since not every build's ``clear_requests`` sets them.
        """
        running = self.in_flight()
        self._clear()
        self._runner.share_inputs["stop_flags"][:] = True
        return running

    def reset_inputs(self) -> None:
        """Reset the input tensors shared with the kernels."""
        self._reset()


class FastDeployRoutingReplay:
    """The routing replay manager of a model runner.

    Parameters
    ----------
    records : object
        ``runner.routing_replay_manager``.
    """

    def __init__(self, records: Any) -> None:
        self._clear = required_call(records, "clear_all_request", needed_for="forgetting routing records")
        self._update = required_call(
            records, "update_suspend_routing_replay", needed_for="resuming routing replay"
        )

    def clear_all_requests(self) -> None:
        """Forget the record of every request. Idempotent."""
        self._clear()

    def resume(self) -> None:
        """Follow ``FD_SUSPEND_ROUTING_REPLAY``, as FastDeploy does after an update (FastDeploy#6604)."""
        self._update()


class FastDeployDraft:
    """The MTP proposer of a model runner.

    Parameters
    ----------
    proposer : object
        Has ``model``, ``model_inputs``, ``clear_mtp_cache`` and ``initialize_kv_cache``.
    main_blocks : callable
        Returns the number of KV blocks of the main model, which MTP's cache is laid out for.
    graphs : bool
        Whether its model captures CUDA graphs.
    """

    def __init__(self, proposer: Any, *, main_blocks: Callable[[], int], graphs: bool) -> None:
        self.name = "mtp"
        clear = required_call(proposer, "clear_mtp_cache", needed_for="releasing MTP's KV cache")
        initialize = required_call(proposer, "initialize_kv_cache", needed_for="rebuilding MTP's KV cache")
        inputs = proposer.model_inputs
        self._reset = required_call(
            inputs, "reset", "reset_model_inputs", needed_for="resetting MTP's inputs"
        )
        self.kv_cache: KVCacheSurface = FastDeployCache(
            release=clear,
            rebuild=lambda: initialize(main_model_num_blocks=main_blocks()),
            tensors=lambda: cache_tensors(inputs),
            forget=lambda: None,  # the main model's prefix tree is the only way to its blocks
        )
        self.graphs: GraphSurface | None = FastDeployGraphs(proposer.model, capture=None) if graphs else None

    def reset_inputs(self) -> None:
        """Forget cached inputs. Idempotent."""
        self._reset()


def cache_tensors(inputs: Any) -> Iterable[Any]:
    """Return the tensors under ``caches`` of FastDeploy's shared inputs; none while there are none."""
    return inputs["caches"] if "caches" in inputs else ()  # noqa: SIM401 - not every build's inputs are a dict


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
    models : sequence of CheckpointModel
        The main model and auxiliary ones, for checkpoints that they load by themselves
        (:func:`wsm.actions.backends.model_loading.loading_models`).
    process_loaded : callable or None
        What FastDeploy does behind such a load, for every model: ``process_final_after_loading``.

    Raises
    ------
    BadInputError (``call-missing``)
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
        models: Sequence[CheckpointModel] = (),
        process_loaded: Callable[[], None] | None = None,
    ) -> None:
        self._models = tuple(models)
        self.process_loaded = process_loaded
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

    def loaders(self) -> Sequence[CheckpointModel]:
        """Return the models that take a checkpoint, the main one first."""
        return self._models


def _main_graphs(model_runner: Any) -> FastDeployGraphs:
    capture = required_call(model_runner, "capture_model", needed_for="capturing CUDA graphs")
    return FastDeployGraphs(model_runner.model, capture)


def _drafts(model_runner: Any, *, captures: bool) -> list[FastDeployDraft]:
    proposer = getattr(model_runner, "proposer", None)
    if proposer is None or not hasattr(proposer, "clear_mtp_cache"):  # an n-gram proposer has no model
        return []
    return [FastDeployDraft(proposer, main_blocks=lambda: model_runner.num_gpu_blocks, graphs=captures)]
