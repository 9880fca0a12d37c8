"""The surfaces of one FastDeploy worker, of which most belong to a model runner that is known later.

FastDeploy makes its weight manager while the model is loaded: there is no KV cache yet, and no graph. What
the runner has is named by the configuration then, so that plans can be derived, and bound when FastDeploy's
loop hands the runner in; until then nothing of it is asked for. What FastDeploy built itself counts as there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsm.actions.backends import call_missing, required_call
from wsm.actions.surfaces import (
    DeepEPSurface,
    MemorySurface,
    ProcessGroupSurface,
    WeightSurface,
)
from wsm.errors import BadInputError, InternalError, RefusedError
from wsm.fastdeploy._configuration import WorkerFacts
from wsm.fastdeploy._part_words import TransferProcess
from wsm.signals.fastdeploy import LiveSignal
from wsm.states import engine_words as contract
from wsm.strategies.checkpoint_models import CheckpointModel
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
    caches : callable
        ``caches(model_runner)``: the tensors of its KV cache; none while there are none.
    lets_go : callable
        ``lets_go(model_runner)``: drops what its own ``clear_cache`` still holds of these tensors.
    slots : str
        Where it keeps what each slot runs.
    running : callable
        ``running(model_runner)``: how many slots have a request.
    stop : callable
        ``stop(model_runner)``: ends them all; not every ``clear_requests`` does.
    drafts : bool
        Whether its MTP proposer can give its KV cache back.
    boots_only : bool
        Whether its runners load at start, and have no calls for anything else.
    """

    name: str
    recognised: Callable[[Any], bool]
    resets: Sequence[str]
    caches: Callable[[Any], Iterable[Any]]
    lets_go: Callable[[Any], None]
    slots: str
    running: Callable[[Any], int]
    stop: Callable[[Any], None]
    drafts: bool = True
    boots_only: bool = False


def _under_caches(inputs: Any) -> Iterable[Any]:
    return inputs["caches"] if "caches" in inputs else ()  # noqa: SIM401 - not every build's inputs are a dict


def _lets_own_caches_go(model_runner: Any) -> None:
    model_runner.caches = None


def _stop_by_flags(model_runner: Any) -> None:
    model_runner.share_inputs["stop_flags"][:] = True


def _stop_by_tokens(model_runner: Any) -> None:
    model_runner.request_state.num_tokens_per_seq[:] = 0


def _never_changes(model_runner: Any) -> bool:
    names = ("clear_requests", "clear_parameters", "update_parameters")
    return hasattr(model_runner, "share_inputs") and not any(hasattr(model_runner, name) for name in names)


_WITH_FLAGS: Mapping[str, Any] = {
    "caches": lambda runner: _under_caches(runner.share_inputs),
    "lets_go": lambda _runner: None,  # the build's own call has let everything go
    "slots": 'share_inputs["stop_flags"]',
    "running": lambda runner: int((runner.share_inputs["stop_flags"].numpy() == 0).sum()),
    "stop": _stop_by_flags,
}

#: In the order in which they are looked for; a further generation is a further row.
GENERATIONS = (
    RunnerGeneration(
        "the HPU runner of December 2025", _never_changes, (), drafts=False, boots_only=True, **_WITH_FLAGS
    ),
    RunnerGeneration(
        "the fork of December 2025",
        lambda runner: isinstance(getattr(runner, "share_inputs", None), dict),
        (),
        drafts=False,
        **_WITH_FLAGS,
    ),
    RunnerGeneration(
        "the weight manager of 2026",
        lambda runner: hasattr(runner, "share_inputs"),
        ("reset", "reset_share_inputs"),
        **_WITH_FLAGS,
    ),
    RunnerGeneration(
        "model runner v1",
        lambda runner: hasattr(getattr(runner, "request_state", None), "num_tokens_per_seq"),
        (),
        caches=lambda runner: runner.caches or (),
        lets_go=_lets_own_caches_go,  # its clear_cache forgets this list, and with it no memory is freed
        slots="request_state.num_tokens_per_seq",
        running=lambda runner: sum(tokens > 0 for tokens in runner.request_state.num_tokens_per_seq),
        stop=_stop_by_tokens,
    ),
)


def not_bound(surface: str) -> InternalError:
    """Return the error of a command that needs the model runner before FastDeploy's loop has handed it in."""
    return InternalError(
        f"{surface} belongs to FastDeploy's model runner, which is known from the first entry of its loop on",
        code="not-bound",
        surface=surface,
    )


def examine(model_runner: Any, facts: WorkerFacts) -> RunnerGeneration:
    """Find the generation of a runner, and see that its build has every call that the configuration needs.

    FastDeploy makes its weight manager while it loads the model: parts of the runner that it makes later are
    judged by what makes them.

    Raises
    ------
    RefusedError (``unknown-generation``), BadInputError (``call-missing``)
        If it is of none that is known, or lacks a call.
    """
    generation = next((each for each in GENERATIONS if each.recognised(model_runner)), None)
    if generation is None:
        runner, known = type(model_runner).__name__, tuple(each.name for each in GENERATIONS)
        raise RefusedError(
            f"{runner} is of no generation of FastDeploy that wsm knows ({', '.join(known)}): it has neither "
            "share_inputs nor request_state; run it without wsm.fastdeploy, or add its calls to these",
            code="unknown-generation",
            runner=runner,
            known=known,
        )
    if generation.boots_only:
        return generation
    for call, needed_for in _CALLS.items():
        required_call(model_runner, call, needed_for=needed_for)
    if generation.resets:
        required_call(model_runner.share_inputs, *generation.resets, needed_for="resetting cached inputs")
    if facts.graphs:
        required_call(model_runner, "capture_model", needed_for="capturing CUDA graphs")
        required_call(model_runner.model, *CLEARS_GRAPHS, needed_for="dropping CUDA graphs")
    if facts.drafts:
        proposer: Any = getattr(model_runner, "proposer", None) if generation.drafts else None
        for call, needed_for in _DRAFT_CALLS.items():
            required_call(proposer, call, needed_for=needed_for)
        required_call(proposer.model_inputs, *_DRAFT_RESETS, needed_for="resetting MTP's inputs")
        if facts.graphs:
            required_call(proposer.model, *CLEARS_GRAPHS, needed_for="dropping MTP's CUDA graphs")
    if facts.routing_replay:
        required_call(
            model_runner, "initialize_routing_replay_manager", needed_for="recording expert choices"
        )
    return generation


#: Older builds carry a typing error in the name.
CLEARS_GRAPHS = ("clear_graph_opt_backend", "clear_grpah_opt_backend")

#: What every runner that changes its weights has.
_CALLS = {
    "clear_requests": "aborting requests",
    "clear_cache": "releasing the KV cache",
    "initialize_kv_cache": "rebuilding the KV cache",
}
_DRAFT_CALLS = {
    "clear_mtp_cache": "releasing MTP's KV cache",
    "initialize_kv_cache": "rebuilding MTP's KV cache",
}
_DRAFT_RESETS = ("reset", "reset_model_inputs")


def observed(owner: Any, *spellings: str, note: Callable[[], None], needed_for: str) -> Callable[..., Any]:
    """Let an object say when one of its calls has come to its end, by any caller; return the call.

    FastDeploy's own code makes the same calls as plans do, and what it has done is done.

    Raises
    ------
    BadInputError (``call-missing``)
        If it has none of them.
    """
    call = required_call(owner, *spellings, needed_for=needed_for)

    @functools.wraps(call)
    def noted(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        note()
        return result

    setattr(owner, next(name for name in spellings if callable(getattr(owner, name, None))), noted)
    return noted


def _nothing() -> None:
    """Do nothing: the rank's own part is done already."""


class RunnerCache:
    """A KV cache of FastDeploy's: the model runner's, or its proposer's.

    Which tensors a build keeps where is not always to be seen, so it is remembered whether they are there.

    Parameters
    ----------
    process : TransferProcess or None
        The process that holds KV cache beside it.
    asks : bool
        Whether this rank is the one of its part that asks that process.
    """

    def __init__(self, process: TransferProcess | None = None, *, asks: bool = False) -> None:
        self._process, self._asks = process, asks
        self._let_go = False  # whether that process was asked to let go, and is yet to take it again
        self._calls: tuple[Callable[[], Any], Callable[[], Any]] | None = None
        self._tensors: Callable[[], Iterable[Any]] = tuple
        self._there = False

    def bind(
        self,
        owner: Any,
        clear: str,
        *,
        rebuild: Callable[[], Any],
        tensors: Callable[[], Iterable[Any]],
        lets_go: Callable[[], None],
    ) -> None:
        """Take the owner's calls; its cache is there."""

        def gone() -> None:
            lets_go()
            self._there = False

        def there() -> None:
            self._there = True

        release = observed(owner, clear, note=gone, needed_for="releasing a KV cache")
        observed(owner, "initialize_kv_cache", note=there, needed_for="rebuilding a KV cache")
        self._calls, self._tensors, self._there = (release, rebuild), tensors, True

    def release(self) -> int:
        """Free the cache; return the bytes let go, as far as they are known. Idempotent.

        Behind an update that failed before this rank had a cache, the cache process waits for one to map, and
        answers nothing else; or it has made one that this rank never took, and waits until this rank has let
        go of it. So the cache is made for it first, and FastDeploy's call is made though none is there.
        """
        freed = self.allocated_bytes()
        process, calls = self._process, self._calls
        if process is None or calls is None:
            if self._there:
                self._bound()[0]()
            return freed
        says, (free, allocate) = process.says(), calls
        if says == contract.UPDATING and not self._there:
            process.takes(allocate)
        if self._there or says not in (None, contract.CLEARED):
            self._let_go = True
            if self._asks:
                process.asks(contract.CLEARING, free)
            else:
                process.is_let_go(free)
        return freed

    def rebuild(self) -> int:
        """Allocate an empty cache; return its bytes. Idempotent."""
        allocate = _nothing if self._there else self._bound()[1]
        if self._process is None or not self._asks:
            allocate()
        elif not self._there or self._let_go:
            self._process.asks(contract.UPDATING, allocate)
            self._let_go = False
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
            raise not_bound("the KV cache")
        return self._calls


class RunnerGraphs:
    """The CUDA graphs of one model of the runner's.

    FastDeploy does not tell whether graphs are captured, so that is remembered here.
    """

    def __init__(self) -> None:
        self._clear: Callable[[], Any] | None = None
        self._capture: Callable[[], Any] | None = None
        self._captured = False

    def bind(self, model: Any, model_runner: Any) -> None:
        """Take the model's call that drops, and the runner's one that captures those of every model."""
        self._clear = observed(
            model, *CLEARS_GRAPHS, note=lambda: self._note(captured=False), needed_for="dropping CUDA graphs"
        )
        observed(
            model_runner,
            "capture_model",
            note=lambda: self._note(captured=True),
            needed_for="capturing CUDA graphs",
        )
        self._capture = lambda: model_runner.capture_model()  # noqa: PLW0108 - each model's graphs observe it
        self._captured = True

    def drop(self) -> None:
        """Forget every captured graph. Idempotent."""
        if self._clear is not None and self._captured:
            self._clear()

    def capture(self) -> None:
        """Capture again, where they were dropped; FastDeploy has captured the first ones itself."""
        if self._capture is None:
            raise not_bound("graph capture")
        if not self._captured:
            self._capture()

    def captured(self) -> bool:
        """Whether any graph is held, as far as it is known."""
        return self._captured

    def _note(self, *, captured: bool) -> None:
        self._captured = captured


class RunnerDeepEP:
    """The exchange buffer of ``DeepEPBufferManager``, whose engine was set by the model.

    Parameters
    ----------
    buffers : type
        The class itself; its methods are class methods.

    Raises
    ------
    BadInputError (``call-missing``)
        If the build lacks one of them.
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


class RunnerRequests:
    """The scheduler's side of one worker. Admission is the engine's: it reads the weights word."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._generation: RunnerGeneration | None = None

    def bind(self, model_runner: Any, generation: RunnerGeneration) -> None:
        """Take the runner's calls.

        Raises
        ------
        BadInputError (``call-missing``)
            If the runner does not say where its requests are.
        """
        try:
            generation.running(model_runner)
        except (KeyError, AttributeError) as error:
            owner = type(model_runner).__name__
            raise call_missing(
                owner=owner, call=generation.slots, needed_for="ending running requests"
            ) from error
        self._runner, self._generation = model_runner, generation

    def stop_admitting(self) -> None:
        """Take no request: FastDeploy's loop is not left while this is asked for."""

    def resume_admitting(self) -> None:
        """Take requests again, once FastDeploy's loop is left."""

    def in_flight(self) -> int:
        """Count the slots that have a request; 0 where no runner is known."""
        return 0 if self._generation is None else self._generation.running(self._runner)

    def abort_all(self) -> int:
        """Stop every slot, as ``clear_requests`` does in some builds; return how many ran."""
        if self._generation is None:
            return 0
        running = self.in_flight()
        self._runner.clear_requests()
        self._generation.stop(self._runner)
        return running

    def reset_inputs(self) -> None:
        """Reset the input tensors shared with the kernels, where the build does that in an update."""
        if self._generation is not None and self._generation.resets:
            required_call(
                self._runner.share_inputs, *self._generation.resets, needed_for="resetting cached inputs"
            )()


class RunnerDraft:
    """The MTP proposer of the runner's.

    Parameters
    ----------
    graphs : bool
        Whether its model captures CUDA graphs.
    """

    def __init__(self, *, graphs: bool) -> None:
        self.name = "mtp"
        self.kv_cache = RunnerCache()
        self.graphs = RunnerGraphs() if graphs else None
        self._reset: Callable[[], Any] | None = None

    def bind(self, model_runner: Any) -> None:
        """Take the proposer's calls.

        Raises
        ------
        BadInputError (``call-missing``)
            If the build lacks one of them.
        """
        proposer = model_runner.proposer
        inputs = proposer.model_inputs
        self._reset = required_call(inputs, *_DRAFT_RESETS, needed_for="resetting MTP's inputs")
        self.kv_cache.bind(
            proposer,
            "clear_mtp_cache",
            rebuild=lambda: proposer.initialize_kv_cache(main_model_num_blocks=_blocks(model_runner)),
            tensors=lambda: _under_caches(inputs),
            lets_go=lambda: None,
        )
        if self.graphs is not None:
            self.graphs.bind(proposer.model, model_runner)

    def reset_inputs(self) -> None:
        """Forget cached inputs. Idempotent."""
        if self._reset is not None:
            self._reset()


def _blocks(model_runner: Any) -> int:
    """Return the number of blocks of the main model's cache, by the name that its device has for it."""
    names = ("num_gpu_blocks", "num_gcu_blocks")
    return int(next(getattr(model_runner, name) for name in names if hasattr(model_runner, name)))


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
    process_loaded : callable or None
        What is made of a checkpoint that the models have loaded; None: nothing else.
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
        process_loaded: Callable[[], None] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self._facts = facts
        self._models = tuple(models)
        self._names = names or TrainingNames({})
        self.process_loaded = process_loaded
        # FastDeploy's heartbeat, written where this rank shows progress.
        self._live = LiveSignal(facts.port, facts.tensor_parallel_rank, directory=directory)
        self.progressed = self._live.beat
        self.weights = weights
        self.memory = memory
        self.groups = groups
        self._cache_process = TransferProcess(facts.port, directory) if facts.asks_cache_process else None
        self.requests = RunnerRequests()
        self.kv_cache = RunnerCache(self._cache_process, asks=facts.tensor_parallel_rank == 0)
        self.graphs = RunnerGraphs() if facts.graphs else None
        self.auxiliaries = (RunnerDraft(graphs=facts.graphs),) if facts.drafts else ()
        self.routing_replay = RunnerReplay() if facts.routing_replay else None
        self.deepep: DeepEPSurface | None = None if deepep_buffers is None else RunnerDeepEP(deepep_buffers)
        self._runner: Any = None

    def close(self) -> None:
        """Let go of FastDeploy's words. Idempotent."""
        self._live.close()
        if self._cache_process is not None:
            self._cache_process.close()

    def loaders(self) -> Sequence[CheckpointModel]:
        """Return the models that take a checkpoint, the main one first."""
        return self._models

    def training_names(self) -> TrainingNames:
        """Return what the trainer calls the models' tensors."""
        return self._names

    def bind(self, model_runner: Any) -> None:
        """Take a model runner that FastDeploy hands in; None: the one that was handed in before.

        Raises
        ------
        RefusedError (``unknown-generation``, ``boots-only``), BadInputError (``call-missing``)
            If the build lacks a call that the configuration needs. Nothing was bound.
        BadInputError (``no-runner``)
            If there is none, and none was handed in before.
        """
        model_runner = self._runner if model_runner is None else model_runner
        if model_runner is None:
            raise BadInputError(
                "poll() was called without FastDeploy's model runner, and neither install() nor its loop has "
                "handed one in; hand it in, at the top of the event loop: model_runner = "
                "self.worker.model_runner; model_runner.dynamic_weight_manager.poll(model_runner)",
                code="no-runner",
            )
        if self._runner is model_runner:
            return
        generation = examine(model_runner, self._facts)
        if generation.boots_only:
            runner = type(model_runner).__name__
            raise RefusedError(
                f"{runner} ({generation.name}) has no clear_requests, clear_parameters, update_parameters: "
                "its weights are loaded at start and stay; start it again with another version, or use a "
                "build with these calls",
                code="boots-only",
                runner=runner,
                generation=generation.name,
            )
        if self.routing_replay is not None:
            self.routing_replay.bind(model_runner.routing_replay_manager)
        if self.graphs is not None:
            self.graphs.bind(model_runner.model, model_runner)
        for draft in self.auxiliaries:
            draft.bind(model_runner)
        self.requests.bind(model_runner, generation)
        self.kv_cache.bind(
            model_runner,
            "clear_cache",
            rebuild=lambda: model_runner.initialize_kv_cache(),  # noqa: PLW0108 - observed from here on
            tensors=lambda: generation.caches(model_runner),
            lets_go=lambda: generation.lets_go(model_runner),
        )
        self._runner = model_runner
