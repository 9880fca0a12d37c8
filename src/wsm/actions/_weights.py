"""Weights: released, loaded in place, staged beside the served ones, and flipped.

Responsible for the taint before the first byte is touched, and for what a hot update must prove before the
decision: it fits, it is verified, and nothing in the flip can fail any more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wsm.actions._verify import VerifyingBytes
from wsm.actions.base import Action, ActionContext, Loaded
from wsm.actions.errors import PreconditionError
from wsm.actions.measuring import AddressContract, ResidentDigest, available_bytes, measure_before
from wsm.actions.surfaces import (
    AvailableMemory,
    NamingGraphs,
    Runner,
    StageableWeights,
    StagedWeights,
    processing_of,
)
from wsm.errors import NoRoomError
from wsm.strategies.tensor import ReplaceableTarget, TensorSpec, WeightTarget


class ReleaseWeights(Action):
    """Free the memory of every parameter and buffer, auxiliary models' included."""

    purpose = "free every parameter and buffer"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        measure_before(context)
        context.done.weights_touched = True
        freed = context.runner.weights.release()
        context.facts["weights_released_bytes"] = context.facts.get("weights_released_bytes", 0) + freed

    def probe(self, context: ActionContext) -> None:
        for name in context.runner.weights.held():
            self._expect(False, "no tensor held", f"{name!r} held")


#: What a load target may have that changes no byte, and what touches the weights.
_READS = ("specs", "readable", "adopts", "written", "recapture", "transposed", "tied")
_TOUCHES = ("writable", "adopt", "restore")


class WatchedTarget:
    """A load target that marks the command before the first byte of it can change.

    Handing out writable bytes counts: it cannot be seen later whether they were written. What a target can do
    is told by what it has, so this one has what the real one has.
    """

    specs: Callable[[], Mapping[str, TensorSpec]]
    readable: Callable[[str], memoryview]
    writable: Callable[[str], memoryview]

    def __init__(self, target: WeightTarget, context: ActionContext) -> None:
        self._context = context
        for name in (*_READS, *_TOUCHES):
            if hasattr(target, name):
                found = getattr(target, name)
                setattr(self, name, functools.partial(self._mark, found) if name in _TOUCHES else found)

    def held(self) -> Iterator[str]:
        return self._context.runner.weights.held()

    def _mark(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        self._context.done.weights_touched = True
        return call(*arguments, **keywords)


class LoadWeights(Action):
    """Run the configured strategy into the weights.

    A source that is refused before its first byte is applied leaves the old weights whole, and the
    command unmarked: the group keeps what it had.
    """

    purpose = "load the version through the configured strategy"
    touches_weights = True
    deadline_s = 600.0

    def run(self, context: ActionContext) -> None:
        target = WatchedTarget(context.runner.weights, context)
        context.facts.update(Loaded.of(context.load(context, target)).facts())

    def bytes_needed(self, context: ActionContext) -> int:
        held = set(context.runner.weights.held())
        return sum(spec.nbytes for name, spec in context.runner.weights.specs().items() if name not in held)


class ProcessLoaded(Action):
    """Let the engine make of a checkpoint what it computes with: quantised, fused, turned round.

    FastDeploy calls ``process_final_after_loading`` behind a load through the models. A version that holds
    the final layout, as a snapshot does, is left as it is.
    """

    purpose = "process what the models' loaders have written"
    touches_weights = True
    deadline_s = 300.0

    def __init__(self, digest: ResidentDigest) -> None:
        self._digest = digest

    def run(self, context: ActionContext) -> None:
        process = processing_of(context.runner)
        if process is None or not context.facts.get("through_models"):
            return
        weights = context.runner.weights
        process()
        if isinstance(weights, ReplaceableTarget):
            weights.recapture()
        digest = self._digest(weights, context.progress)
        promised = context.promised_digest
        self._expect(promised in (None, digest), f"digest {promised}", digest)
        context.facts["digest"] = digest


#: Bytes that stay free besides, for each rank: what steps and loads allocate meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024


class PlanStagingMemory(Action):
    """Compare what staging needs with what may be taken, for every rank that draws on the same memory.

    All ranks stage at the same time, so a rank counts the others in where they share the host's memory; its
    own shard stands for theirs. An unknown figure is believed to suffice.
    """

    purpose = "see that a second version fits beside the served one"

    def run(self, context: ActionContext) -> None:
        """Plan. Local, takes nothing. Reports ``staging_bytes`` and ``staging_available_bytes``."""
        memory = context.runner.memory
        _stageable(context)
        needed = self.bytes_needed(context)
        context.facts["staging_bytes"] = needed
        if not isinstance(memory, AvailableMemory):
            return
        sharing = context.world_size if memory.shared_by_ranks else 1
        available = available_bytes(context)
        context.facts["staging_available_bytes"] = available
        if available is None:
            return
        if sharing * (needed + RESERVE_BYTES) > available:
            needed, reserve = sharing * needed, sharing * RESERVE_BYTES
            raise NoRoomError(
                f"staging needs {needed} bytes for {sharing} rank(s), with {reserve} more to stay free, and "
                f"{available} are available; nothing was changed: update without --hot, or free memory",
                code="staging-memory",
                needed=needed,
                reserve=reserve,
                available=available,
                ranks=sharing,
            )

    def bytes_needed(self, context: ActionContext) -> int:
        """Bytes of the whole shard: every tensor lies in memory twice until the old ones are let go."""
        return sum(spec.nbytes for spec in context.runner.weights.specs().values())


def _stageable(context: ActionContext) -> StageableWeights:
    weights = context.runner.weights
    if not isinstance(weights, StageableWeights):
        kind = type(weights).__name__
        raise NoRoomError(
            f"the weight surface {kind} cannot stage a second version; nothing was changed: "
            "update without --hot, or give the surface a stage() method (wsm.actions.surfaces)",
            code="staging-unsupported",
            weights=kind,
        )
    return weights


def staged_weights(context: ActionContext, action: str) -> StagedWeights:
    if context.done.staged is None:
        raise PreconditionError(action=action, found="nothing was staged", fix="run stage_weights first")
    return context.done.staged


class StageWeights(Action):
    purpose = "load the version beside the one that serves"
    deadline_s = 600.0

    def run(self, context: ActionContext) -> None:
        context.done.staged = staged = _stageable(context).stage()
        context.facts.update(Loaded.of(context.load(context, staged)).facts())

    def undo(self, context: ActionContext) -> None:
        if context.done.staged is not None:
            context.done.staged.give_back()


class VerifyStaged(VerifyingBytes):
    purpose = "compare the staged bytes with the manifest"

    def run(self, context: ActionContext) -> None:
        self._compare(staged_weights(context, self.name), context)


class MakeFlipReady(Action):
    purpose = "check addresses, and prepare the flip of every tensor"

    def __init__(self, contract: AddressContract | None = None) -> None:
        self._contract = contract

    def run(self, context: ActionContext) -> None:
        weights = context.runner.weights
        if self._contract is not None:
            self._contract.check(weights)
        captured = captured_names(context.runner, self._contract)
        context.facts["tensors_copied_in_place"] = len(captured)
        staged_weights(context, self.name).make_ready(captured)

    def probe(self, context: ActionContext) -> None:
        ready = staged_weights(context, self.name).is_ready()
        self._expect(ready, "a flip that is prepared", "none")


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
    """

    purpose = "let the staged version take the served one's place"
    touches_weights = True

    def __init__(self, contract: AddressContract | None = None) -> None:
        self._contract = contract

    def run(self, context: ActionContext) -> None:
        staged = staged_weights(context, self.name)
        context.done.weights_touched = True
        staged.flip()

    def probe(self, context: ActionContext) -> None:
        left = None if context.done.staged is None else context.done.staged.unflipped()
        self._expect(left is None, "the staged version in every tensor", f"another in {left}")
        if self._contract is not None:
            self._contract.check(context.runner.weights)
