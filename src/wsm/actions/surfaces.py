"""The small protocols through which an action reaches the inference engine.

:mod:`wsm.fastdeploy` fits FastDeploy's objects to them, the reference rollout group implements them itself.
A surface that an engine does not have is ``None`` on its :class:`Runner`, and the plan then has no step for
it. Nothing here imports paddle or knows about words, states or commands.

"Collective" in a docstring means: every rank of the group must make the call, or all who made it wait.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

from wsm.errors import BadInputError, InternalError
from wsm.strategies.tensor import WeightTarget

_Surface = TypeVar("_Surface")


class GroupKind(enum.Enum):
    """The communicators that FastDeploy shuts down and restarts."""

    WORLD = "world"
    TP = "tp"
    EP = "ep"


@runtime_checkable
class GraphSurface(Protocol):
    """Captured CUDA graphs (or what stands for them) of one model."""

    def drop(self) -> None:
        """Forget every captured graph. Idempotent."""

    def capture(self) -> None:
        """Capture again, for the parameters' present addresses. May be collective."""

    def captured(self) -> bool:
        """Whether any graph is held."""


@runtime_checkable
class NamingGraphs(GraphSurface, Protocol):
    """Graphs that say which tensors they use; a hot update then copies those alone into place.

    Without it all are copied while the group stands still, unless an
    :class:`wsm.actions.measuring.AddressContract` says which.
    """

    def captured_tensors(self) -> Collection[str]:
        """Names, among the weights' specs, of the tensors whose addresses are captured now."""


@runtime_checkable
class DeepEPSurface(Protocol):
    """The expert-parallel exchange buffer (FastDeploy's DeepEPBufferManager)."""

    def clear_buffer(self) -> None:
        """Destroy the buffer. Collective over the EP group, and it needs that group alive."""

    def recreate_buffer(self) -> None:
        """Create the buffer on the present EP group. Collective over the EP group."""

    def allocated(self) -> bool:
        """Whether the buffer exists."""


@runtime_checkable
class AbandonableBuffer(DeepEPSurface, Protocol):
    """An exchange buffer that a rank can give up alone."""

    def abandon_buffer(self) -> None:
        """Free the buffer without the other ranks, whose EP group is broken. Idempotent."""


@runtime_checkable
class ProcessGroupSurface(Protocol):
    """The communicators of one rank."""

    def kinds(self) -> Sequence[GroupKind]:
        """The kinds that this rank belongs to, in the order in which they are created."""

    def barrier(self, kind: GroupKind) -> None:
        """Wait for all members. Collective."""

    def shut_down(self, kind: GroupKind) -> None:
        """Tear the communicator down and free what it holds. Collective. Idempotent."""

    def restart(self, kind: GroupKind, *, incarnation: str) -> None:
        """Create the communicator anew. Collective. `incarnation` is equal on all ranks and never reused."""

    def alive(self, kind: GroupKind) -> bool:
        """Whether the communicator can be used."""


@runtime_checkable
class AbandonableGroups(ProcessGroupSurface, Protocol):
    """Communicators that a rank can give up alone, so that it outlives the death of a peer."""

    def abandon(self, kind: GroupKind) -> None:
        """Let go of a communicator whose other members may be dead. Local, never waits. Idempotent."""


@runtime_checkable
class InterruptibleGroups(ProcessGroupSurface, Protocol):
    """Communicators out of which a blocked thread can be called by another one."""

    def interrupt(self) -> bool:
        """Break the communicators: all collectives of this process raise until a restart. Never waits.

        Returns False if they did already.
        """


@runtime_checkable
class WeightSurface(WeightTarget, Protocol):
    """The parameters and persistent buffers of one model shard; also the target of every load.

    ``readable`` raises :class:`wsm.strategies.tensor.TensorReleasedError` for released tensors.
    """

    def release(self) -> int:
        """Free the memory of every tensor and return the bytes let go. Idempotent."""

    def held(self) -> Iterator[str]:
        """Iterate over the names of tensors that hold memory; tensors of size zero never do."""


@runtime_checkable
class KVCacheSurface(Protocol):
    """The paged KV cache of one rank, prefix tree included."""

    def release(self) -> int:
        """Free the cache and forget the prefix tree; return the bytes let go. Idempotent."""

    def rebuild(self) -> int:
        """Allocate an empty cache; return its bytes. Idempotent."""

    def forget(self) -> None:
        """Drop every block's content and the prefix tree, keep the memory. Idempotent."""

    def allocated_bytes(self) -> int:
        """Bytes held now."""


@runtime_checkable
class KeepingKVCacheSurface(KVCacheSurface, Protocol):
    """A cache that can carry blocks from one version of the weights to the next, and knows which are whose.

    ``KVPolicy.KEEP_IN_FLIGHT`` needs it. Under ``KVPolicy.KEEP`` a cache without it keeps all blocks as they
    are.
    """

    def keep_all(self) -> int:
        """Let later versions read every block that is held or findable now; return how many. Idempotent."""

    def forget_idle(self) -> int:
        """Forget every prefix, but not the blocks that requests hold; return how many. Idempotent."""


@runtime_checkable
class CountedKVCacheSurface(KVCacheSurface, Protocol):
    """A cache that can say what it would offer to a new request. Of another, what it forgot is believed."""

    def findable_blocks(self) -> int:
        """Blocks, computed before now, that a new request could be given instead of computing its own."""


@runtime_checkable
class AuxiliarySurface(Protocol):
    """An auxiliary model such as MTP: shares the weight life cycle, has a KV cache of its own."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def kv_cache(self) -> KVCacheSurface:
        """Its own cache."""

    @property
    def graphs(self) -> GraphSurface | None:
        """Its captured graphs."""

    def reset_inputs(self) -> None:
        """Forget cached inputs. Idempotent."""


@runtime_checkable
class RoutingReplaySurface(Protocol):
    """FastDeploy's routing replay (R3): recorded expert choices per request."""

    def clear_all_requests(self) -> None:
        """Forget the record of every request (FastDeploy#6569). Idempotent."""

    def resume(self) -> None:
        """Go on recording. Idempotent."""


@runtime_checkable
class MemorySurface(Protocol):
    """The device's allocator, for measuring. A measurement that raises fails nothing: there is no figure."""

    def empty_cache(self) -> None:
        """Return cached free blocks to the device or the operating system. Idempotent."""

    def resident_bytes(self) -> int:
        """Bytes that this process really occupies now, as the device or the kernel counts them."""


@runtime_checkable
class BareRunner(Protocol):
    """What every engine has. Another surface of :class:`Runner` may be absent: that is read as ``None``."""

    @property
    def weights(self) -> WeightSurface:
        """The model shard."""

    @property
    def memory(self) -> MemorySurface:
        """The allocator."""

    @property
    def requests(self) -> RequestSurface:
        """The scheduler."""


@runtime_checkable
class Runner(BareRunner, Protocol):
    """The engine as actions see it: its surfaces, ``None`` where it has none."""

    @property
    def kv_cache(self) -> KVCacheSurface | None:
        """The main model's KV cache."""

    @property
    def graphs(self) -> GraphSurface | None:
        """The main model's captured graphs."""

    @property
    def deepep(self) -> DeepEPSurface | None:
        """The expert-parallel exchange buffer."""

    @property
    def groups(self) -> ProcessGroupSurface | None:
        """The communicators."""

    @property
    def auxiliaries(self) -> Sequence[AuxiliarySurface]:
        """Auxiliary models such as MTP."""

    @property
    def routing_replay(self) -> RoutingReplaySurface | None:
        """Recorded expert choices."""


@runtime_checkable
class RequestSurface(Protocol):
    """The scheduler of one rank, as far as a weight change concerns it."""

    def stop_admitting(self) -> None:
        """Admit no new request until :meth:`resume_admitting`; queued ones wait. Idempotent."""

    def resume_admitting(self) -> None:
        """Admit requests again. Idempotent."""

    def in_flight(self) -> int:
        """Count the live requests that hold a slot (never stale markers: FastDeploy#7825)."""

    def abort_all(self) -> int:
        """End every running request now, answer it with what it has so far; return how many."""

    def reset_inputs(self) -> None:
        """Forget every cached input tensor of the last batch (FastDeploy#7744). Idempotent."""


@runtime_checkable
class FreezingRequestSurface(RequestSurface, Protocol):
    """A scheduler that can set running requests aside and go on with them later: ``InFlightPolicy.KEEP``."""

    def freeze(self) -> int:
        """Take every running request off its slot and blocks, to be prefilled anew; return how many."""


@runtime_checkable
class HoldingRequestSurface(FreezingRequestSurface, Protocol):
    """A scheduler that can set running requests aside together with their KV blocks.

    Needed for ``KVPolicy.KEEP_IN_FLIGHT``; used under ``KVPolicy.KEEP`` where it is there.
    """

    def hold(self) -> int:
        """Take every running request off its slot, with its blocks; return how many.

        :meth:`resume_admitting` puts them back. A request whose blocks were forgotten is prefilled anew.
        """


@runtime_checkable
class KnownSetAside(FreezingRequestSurface, Protocol):
    """A scheduler that knows what it has set aside: ``InFlightPolicy.ABORT`` under a hold needs it."""

    def set_aside(self) -> int:
        """Count the requests that :meth:`freeze` or :meth:`hold` has set aside, and that wait still."""

    def abort_set_aside(self) -> int:
        """End each of them now, answer it with what it has so far; return how many."""


@runtime_checkable
class KnownAdmission(RequestSurface, Protocol):
    """A scheduler that can say whether it admits requests. Of one that cannot, it is believed."""

    def is_admitting(self) -> bool:
        """Whether new requests are admitted now."""


@runtime_checkable
class LosableRequests(RequestSurface, Protocol):
    """A scheduler that can tell its clients that a rank was lost. One that cannot answers as for an abort."""

    def lose_all(self) -> int:
        """Answer every running request with an error that says "ask again"; return how many."""


class StagedWeights(WeightTarget, Protocol):
    """One version that is being staged beside the served one; also the target of its load.

    A thread beside the serving one loads it, makes it ready and gives it back; the serving one flips it;
    never both at a time. Until :meth:`flip` it must not write to what is served, nor let go of it.
    """

    def make_ready(self, captured: frozenset[str]) -> None:
        """Do and check everything that can fail, so that :meth:`flip` cannot.

        The addresses of `captured` tensors must stay: their bytes are copied, the others change their memory.
        If the flip would not succeed, this raises and the served version is untouched.
        """

    def is_ready(self) -> bool:
        """Whether :meth:`make_ready` has succeeded, so that a flip would flip every tensor."""

    def flip(self) -> None:
        """Make the staged version the served one; only captured tensors cost time by their size.

        What served before stays in memory, unreachable, until :meth:`give_back`.
        """

    def unflipped(self) -> str | None:
        """Return the first tensor that serves something else after :meth:`flip`, by addresses, not bytes."""

    def give_back(self) -> int:
        """Let go of the memory that does not serve, tensor by tensor; return its bytes. Idempotent."""


@runtime_checkable
class StageableWeights(Protocol):
    """Weights that can be staged."""

    def stage(self) -> StagedWeights:
        """Begin another version; takes no memory yet."""


@runtime_checkable
class AvailableMemory(Protocol):
    """Memory that can say how much of it may still be taken."""

    @property
    def shared_by_ranks(self) -> bool:
        """Whether all ranks of the node draw on it, as they do on the host's; not so on a device each."""

    def available_bytes(self) -> int | None:
        """Bytes that can be taken now without taking them from another process; None if that is not known."""


def require(surface: _Surface | None, *, name: str, action: str) -> _Surface:
    """Return a surface that the plan takes for granted.

    Raises
    ------
    InternalError (``surface-missing``)
        If the runner has ``None`` there: the plan was derived for another runner.
    """
    if surface is None:
        raise InternalError(
            f"{action} needs the surface {name!r}, and this runner has None there; "
            "derive the plans from PlanOptions.from_runner() of this very runner",
            code="surface-missing",
            action=action,
            surface=name,
        )
    return surface


#: What a surface counts as that a runner does not name at all. A new surface is added here, and no engine
#: that was written before it has to change.
OPTIONAL: Final[Mapping[str, object]] = {
    "kv_cache": None,
    "graphs": None,
    "deepep": None,
    "groups": None,
    "auxiliaries": (),
    "routing_replay": None,
}

_PROTOCOLS: Final[Mapping[str, type]] = {
    "weights": WeightSurface,
    "memory": MemorySurface,
    "requests": RequestSurface,
    "kv_cache": KVCacheSurface,
    "graphs": GraphSurface,
    "deepep": DeepEPSurface,
    "groups": ProcessGroupSurface,
    "auxiliaries": AuxiliarySurface,
    "routing_replay": RoutingReplaySurface,
}


class _Completed:
    def __init__(self, runner: BareRunner) -> None:
        object.__setattr__(self, "_runner", runner)

    def __getattr__(self, name: str) -> object:
        if name in OPTIONAL:
            return getattr(self._runner, name, OPTIONAL[name])
        return getattr(self._runner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._runner, name, value)


class ProgressingRunner(Protocol):
    """What a runner implements besides, whose engine looks at a heartbeat of its own (FastDeploy's)."""

    def progressed(self) -> None:
        """Show that the rank is at work: called at polls, in actions and with each loaded chunk. Cheap."""


def progress_of(runner: object) -> Callable[[], None] | None:
    """Return how a :class:`ProgressingRunner` shows progress; None of another runner."""
    found = getattr(runner, "progressed", None)
    return found if callable(found) else None


class ProcessingRunner(Protocol):
    """What a runner implements besides, that makes something else of a checkpoint its models have loaded."""

    def process_loaded(self) -> None:
        """Quantise, fuse or turn round what was loaded, in every model. Local."""


def processing_of(runner: object) -> Callable[[], None] | None:
    """Return how a :class:`ProcessingRunner` processes what was loaded; None of another runner."""
    found = getattr(runner, "process_loaded", None)
    return found if callable(found) else None


def completed(runner: BareRunner) -> Runner:
    """Check every surface of a runner, and return the runner with ``None`` for those that it does not name.

    Raises
    ------
    BadInputError (``surface-incomplete``)
        Once for all surfaces: `missing` maps names (``weights``, ``auxiliaries[0].graphs``) to the methods
        that they lack; an empty tuple says that the surface itself is missing.
    """
    found: dict[str, Any] = {name: getattr(runner, name, OPTIONAL.get(name)) for name in _PROTOCOLS}
    for index, auxiliary in enumerate(found.pop("auxiliaries") or ()):
        place = f"auxiliaries[{index}]"
        found |= {place: auxiliary, f"{place}.graphs": getattr(auxiliary, "graphs", None)}
        if hasattr(auxiliary, "kv_cache"):
            found[f"{place}.kv_cache"] = auxiliary.kv_cache
    require_complete(found)
    if all(hasattr(runner, name) for name in OPTIONAL):
        return cast("Runner", runner)
    return cast("Runner", _Completed(runner))


def require_complete(surfaces: Mapping[str, object]) -> None:
    """Refuse surfaces, by the name of their place, that lack what their protocol asks for.

    Raises
    ------
    BadInputError (``surface-incomplete``)
        As :func:`completed`.
    """
    missing: dict[str, tuple[str, ...]] = {}
    for place, surface in surfaces.items():
        kind = place.rpartition(".")[2].partition("[")[0]
        if surface is None:
            if kind not in OPTIONAL or place.endswith("].kv_cache"):
                missing[place] = ()
        elif lacking := tuple(name for name in members(_PROTOCOLS[kind]) if not hasattr(surface, name)):
            missing[place] = lacking
    if missing:
        said = "; ".join(
            f"{place} lacks {', '.join(names)}" if names else f"{place} is missing"
            for place, names in missing.items()
        )
        raise BadInputError(
            f"the runner does not offer what every engine must: {said}; add it, see wsm.actions.surfaces",
            code="surface-incomplete",
            missing=missing,
        )


def members(protocol: type) -> Iterator[str]:
    """Iterate over the names that a protocol asks for, its parents' first."""
    seen = {
        name: None
        for parent in reversed(protocol.__mro__)
        if parent.__module__.startswith("wsm.")
        for name in vars(parent)
        if not name.startswith("_")
    }
    yield from seen
