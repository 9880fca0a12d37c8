"""Weights: released, loaded in place, staged beside the served ones, and flipped.

Responsible for the taint before the first byte is touched, and for what a hot update must prove before the
decision: it fits, it is verified, and nothing in the flip can fail any more. It must not know where bytes
come from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import cast

from wsm.actions import errors, names
from wsm.actions.base import Action, ActionContext, Loaded, require_digest, require_load
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.actions.measuring import AddressContract, ResidentDigest, available_bytes, measure_before
from wsm.actions.surfaces import (
    AvailableMemory,
    NamingGraphs,
    Runner,
    StageableWeights,
    StagedWeights,
    processing_of,
)
from wsm.strategies.tensor import (
    AdoptingTarget,
    ReplaceableTarget,
    StagedTarget,
    TensorSpec,
    WeightTarget,
    tied_names,
    transposed_names,
)


class ReleaseWeights(Action):
    """Free the memory of every parameter and buffer, auxiliary models' included."""

    name = names.RELEASE_WEIGHTS
    purpose = "free every parameter and buffer"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        """Release. Local. Reports ``weights_released_bytes`` and the resident bytes before it."""
        measure_before(context)
        context.weights_touched = True
        freed = context.runner.weights.release()
        context.facts["weights_released_bytes"] = context.facts.get("weights_released_bytes", 0) + freed

    def probe(self, context: ActionContext) -> None:
        """List what still holds memory; PostconditionError names the first one."""
        for name in context.runner.weights.held():
            raise PostconditionError(action=self.name, expected="no tensor held", found=f"{name!r} held")


class WatchedTarget:
    """A load target that marks the command before the first byte of it can change.

    Handing out writable bytes counts: it cannot be seen later whether they were written.

    Parameters
    ----------
    target : WeightTarget
        The real one.
    context : ActionContext
        The command to mark.
    """

    def __init__(self, target: WeightTarget, context: ActionContext) -> None:
        self._target = target
        self._context = context
        self._adopting = target if isinstance(target, AdoptingTarget) else None
        self.transposed = transposed_names(target)
        self.tied = tied_names(target)
        #: The target's own: its tensors without their bytes, and the bytes of one, read-only.
        self.specs: Callable[[], Mapping[str, TensorSpec]] = target.specs
        self.readable: Callable[[str], memoryview] = target.readable

    def held(self) -> Iterator[str]:
        """Iterate over the names of tensors that hold memory."""
        return self._context.runner.weights.held()

    def writable(self, name: str) -> memoryview:
        """Mark the command, then return the tensor's bytes for writing."""
        self._context.weights_touched = True
        return self._target.writable(name)

    def adopts(self, name: str) -> bool:
        """Whether the target would keep a source's memory for this tensor."""
        return self._adopting is not None and self._adopting.adopts(name)

    def adopt(self, name: str, memory: memoryview) -> None:
        """Mark the command, then let the target keep `memory`, if it is one that does."""
        self._context.weights_touched = True
        if self._adopting is not None:
            self._adopting.adopt(name, memory)


class WatchedStagedTarget(WatchedTarget):
    """The same for a target whose bytes are written elsewhere and moved: one tensor at a time.

    A type of its own, because what a target can do is told by what it has.
    """

    def __init__(self, target: WeightTarget, staged: StagedTarget, context: ActionContext) -> None:
        super().__init__(target, context)
        self._staged = staged

    def written(self, name: str) -> None:
        """Pass on that the bytes are complete, to the target that has to move them."""
        self._staged.written(name)


class WatchedModels(WatchedTarget):
    """The same for weights whose models may write into their parameters by themselves, in host memory."""

    def __init__(self, target: WeightTarget, models: ReplaceableTarget, context: ActionContext) -> None:
        super().__init__(target, context)
        self._models = models

    def restore(self) -> list[str]:
        """Mark the command, then give memory to every tensor that holds none."""
        self._context.weights_touched = True
        return self._models.restore()

    def recapture(self, restored: Collection[str] = ()) -> list[str]:
        """Look anew which tensors the models have."""
        return self._models.recapture(restored)


class WatchedStagedModels(WatchedStagedTarget, WatchedModels):
    """The same for models on a device."""

    def __init__(self, target: WeightTarget, context: ActionContext) -> None:
        WatchedModels.__init__(self, target, cast("ReplaceableTarget", target), context)
        self._staged = cast("StagedTarget", target)


def watched(target: WeightTarget, context: ActionContext) -> WatchedTarget:
    """Return `target`, marking `context` before the first byte of it can change."""
    if isinstance(target, ReplaceableTarget):
        if isinstance(target, StagedTarget):
            return WatchedStagedModels(target, context)
        return WatchedModels(target, target, context)
    if isinstance(target, StagedTarget):
        return WatchedStagedTarget(target, target, context)
    return WatchedTarget(target, context)


class LoadWeights(Action):
    """Run the configured strategy into the weights.

    A source that is refused before its first byte is applied leaves the old weights whole, and the
    command unmarked: the group keeps what it had.
    """

    name = names.LOAD_WEIGHTS
    purpose = "load the version through the configured strategy"
    touches_weights = True
    deadline_s = 600.0

    def precondition(self, context: ActionContext) -> None:
        """Refuse a command that brings nothing to load (PreconditionError)."""
        require_load(context, action=self.name)

    def run(self, context: ActionContext) -> None:
        """Load. Local; blocks as long as the strategy does. Its facts become the command's facts."""
        if context.load is None:  # the precondition refused this already; it narrows the type here
            return
        target = watched(context.runner.weights, context)
        context.facts.update(Loaded.of(context.load(context, target)).facts())

    def bytes_needed(self, context: ActionContext) -> int:
        """Bytes of the tensors that must be allocated for the load."""
        held = set(context.runner.weights.held())
        return sum(spec.nbytes for name, spec in context.runner.weights.specs().items() if name not in held)


class ProcessLoaded(Action):
    """Let the engine make of a checkpoint what it computes with: quantised, fused, turned round.

    FastDeploy calls ``process_final_after_loading`` behind a load through the models. What comes of it is
    verified, kept and compared from then on. A version that holds the final layout, as a snapshot does, is
    left as it is.

    Parameters
    ----------
    digest : callable
        Gives what is comparable with the load's ``digest`` fact.
    """

    name = names.PROCESS_LOADED
    purpose = "process what the models' loaders have written"
    touches_weights = True
    deadline_s = 300.0

    def __init__(self, digest: ResidentDigest) -> None:
        self._digest = digest

    def run(self, context: ActionContext) -> None:
        """Process, and look anew which tensors there are. Local. Its digest takes the load's place.

        Raises
        ------
        PostconditionError
            If the label is one that was committed, and the weights have become others than they were then.
        """
        process = processing_of(context.runner)
        if process is None or not context.facts.get("through_models"):
            return
        weights = context.runner.weights
        process()
        if isinstance(weights, ReplaceableTarget):
            weights.recapture()
        digest = self._digest(weights, context.progress)
        if context.promised_digest not in (None, digest):
            expected = f"digest {context.promised_digest}"
            raise PostconditionError(action=self.name, expected=expected, found=digest)
        context.facts["digest"] = digest


#: Bytes that stay free besides, for each rank: what steps and loads allocate meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024


class PlanStagingMemory(Action):
    """Compare what staging needs with what may be taken, for every rank that draws on the same memory.

    All ranks stage at the same time, so a rank counts the others in where they share the host's memory; its
    own shard stands for theirs. Where what is available is not known, or cannot be read now, it is believed
    to suffice.

    Parameters
    ----------
    reserve_bytes : int
        What must stay free, per rank.
    """

    name = names.PLAN_STAGING_MEMORY
    purpose = "see that a second version fits beside the served one"

    def __init__(self, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._reserve_bytes = reserve_bytes

    def run(self, context: ActionContext) -> None:
        """Plan. Local, takes nothing. Reports ``staging_bytes`` and ``staging_available_bytes``.

        Raises
        ------
        NoRoomError (``staging-unsupported``)
            If the weights cannot be staged.
        NoRoomError (``staging-memory``)
            If there is too little memory; it names both numbers.
        """
        weights, memory = context.runner.weights, context.runner.memory
        if not isinstance(weights, StageableWeights):
            raise errors.staging_unsupported(weights=type(weights).__name__)
        needed = self.bytes_needed(context)
        context.facts["staging_bytes"] = needed
        if not isinstance(memory, AvailableMemory):
            return
        sharing = context.world_size if memory.shared_by_ranks else 1
        available = available_bytes(context)
        context.facts["staging_available_bytes"] = available
        if available is None:
            return
        if sharing * (needed + self._reserve_bytes) > available:
            raise errors.staging_memory(
                needed=sharing * needed,
                reserve=sharing * self._reserve_bytes,
                available=available,
                ranks=sharing,
            )

    def bytes_needed(self, context: ActionContext) -> int:
        """Bytes of the whole shard: every tensor lies in memory twice until the old ones are let go."""
        return sum(spec.nbytes for spec in context.runner.weights.specs().values())


def staged_weights(context: ActionContext, action: str) -> StagedWeights:
    """Return what was staged for the command.

    Raises
    ------
    PreconditionError
        If nothing was.
    """
    if context.staged is None:
        raise PreconditionError(action=action, found="nothing was staged", fix="run stage_weights first")
    return context.staged


class StageWeights(Action):
    """Run the configured strategy into memory of its own, with every check of an ordinary load."""

    name = names.STAGE_WEIGHTS
    purpose = "load the version beside the one that serves"
    deadline_s = 600.0

    def precondition(self, context: ActionContext) -> None:
        """Refuse a command that brings nothing to load (PreconditionError)."""
        require_load(context, action=self.name)

    def run(self, context: ActionContext) -> None:
        """Stage. Local; blocks as long as the strategy does. Its facts become the command's facts."""
        weights = context.runner.weights
        if not isinstance(weights, StageableWeights):
            raise errors.staging_unsupported(weights=type(weights).__name__)
        context.staged = weights.stage()
        if context.load is not None:  # the precondition refused this already; it narrows the type here
            context.facts.update(Loaded.of(context.load(context, context.staged)).facts())

    def undo(self, context: ActionContext) -> None:
        """Let go of what was staged. Local."""
        if context.staged is not None:
            context.staged.give_back()


class VerifyStaged(Action):
    """The staged bytes, read again, are the bytes that the source declared.

    Parameters
    ----------
    digest : callable
        Gives what is comparable with the load's ``digest`` fact.
    """

    name = names.VERIFY_STAGED
    purpose = "compare the staged bytes with the manifest"
    deadline_s = 300.0

    def __init__(self, digest: ResidentDigest) -> None:
        self._digest = digest

    def precondition(self, context: ActionContext) -> None:
        """Refuse to verify what does not say what it should be (PreconditionError)."""
        require_digest(context, action=self.name)

    def run(self, context: ActionContext) -> None:
        """Verify. Local; reads every byte once, at the speed of the memory bus.

        Raises
        ------
        PostconditionError
            If the digest of the staged bytes differs.
        wsm.errors.WsmError
            Whatever staged weights raise for a tensor that was not loaded.
        """
        digest = self._digest(staged_weights(context, self.name), context.progress)
        if digest != context.facts["digest"]:
            raise PostconditionError(
                action=self.name, expected=f"digest {context.facts['digest']}", found=digest
            )


class MakeFlipReady(Action):
    """See that nothing can keep the staged version from taking the served one's place.

    Parameters
    ----------
    contract : AddressContract or None
        Captured addresses that must not change.
    """

    name = names.MAKE_FLIP_READY
    purpose = "check addresses, and prepare the flip of every tensor"

    def __init__(self, contract: AddressContract | None = None) -> None:
        self._contract = contract

    def run(self, context: ActionContext) -> None:
        """Check and prepare. Local, changes nothing that serves. Reports ``tensors_copied_in_place``.

        Raises
        ------
        GroupError (``storage-moved``)
            If a captured tensor lies elsewhere than where it was captured.
        wsm.errors.WsmError
            Whatever staged weights raise that cannot be flipped.
        """
        weights = context.runner.weights
        if self._contract is not None:
            self._contract.check(weights)
        captured = captured_names(context.runner, self._contract)
        context.facts["tensors_copied_in_place"] = len(captured)
        staged_weights(context, self.name).make_ready(captured)

    def probe(self, context: ActionContext) -> None:
        """See that a flip would flip, while the old version can still be kept.

        Raises
        ------
        PostconditionError
            If it would not.
        """
        if not staged_weights(context, self.name).is_ready():
            raise PostconditionError(action=self.name, expected="a flip that is prepared", found="none")


def captured_names(runner: Runner, contract: AddressContract | None) -> frozenset[str]:
    """Return the tensors whose addresses something has captured: these are copied, not flipped.

    Where graphs are captured and neither they nor the contract says which tensors they use, they may use any.
    """
    recorded = frozenset() if contract is None else contract.captured
    surfaces = [runner.graphs, *(auxiliary.graphs for auxiliary in runner.auxiliaries)]
    held = [graphs for graphs in surfaces if graphs is not None and graphs.captured()]
    named = [graphs for graphs in held if isinstance(graphs, NamingGraphs)]
    if not recorded and len(named) < len(held):
        return frozenset(runner.weights.specs())
    return recorded.union(*(graphs.captured_tensors() for graphs in named))


class FlipWeights(Action):
    """Give every parameter its new memory, or its new bytes where its address is captured.

    What served before is let go later, by the thread that staged: that takes time, and the pause must not.

    Parameters
    ----------
    contract : AddressContract or None
        Captured addresses that must still hold afterwards.
    """

    name = names.FLIP_WEIGHTS
    purpose = "let the staged version take the served one's place"
    touches_weights = True

    def __init__(self, contract: AddressContract | None = None) -> None:
        self._contract = contract

    def run(self, context: ActionContext) -> None:
        """Flip. Local; the same time for any number of bytes, captured tensors aside.

        Raises
        ------
        PreconditionError
            If nothing was staged; nothing was changed.
        """
        if context.staged is None:
            raise PreconditionError(
                action=self.name, found="nothing was staged", fix="run stage_weights first"
            )
        context.weights_touched = True
        context.staged.flip()

    def probe(self, context: ActionContext) -> None:
        """See that every tensor serves what was staged, and captured ones lie where they did.

        Raises
        ------
        PostconditionError
            If one still serves what it served before.
        GroupError (``storage-moved``)
            If a captured one has moved.
        """
        left = None if context.staged is None else context.staged.unflipped()
        if left is not None:
            raise PostconditionError(
                action=self.name, expected="the staged version in every tensor", found=f"another in {left}"
            )
        if self._contract is not None:
            self._contract.check(context.runner.weights)
