"""The weights themselves: given back, loaded, and held to the addresses that others captured.

Responsible for knowing whether the old weights are still whole: the first byte that is let go or
written marks the command, before it happens. It must not know where weights come from (the
strategy does) nor whether the loaded ones are right (:mod:`wsm.actions.verify` does).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, runtime_checkable

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError, StorageMovedError
from wsm.actions.measuring import measure_before
from wsm.actions.preconditions import require_load
from wsm.strategies.tensor import (
    AdoptingTarget,
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

    def bytes_freed(self, context: ActionContext) -> int:
        """Bytes of the tensors that are held now."""
        specs = context.runner.weights.specs()
        return sum(specs[name].nbytes for name in context.runner.weights.held())


class WatchedTarget:
    """A load target that marks the command before the first byte of it can change.

    Handing out writable bytes counts: nobody can see later whether they were written.

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

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return the target's tensors without their bytes."""
        return self._target.specs()

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

    def readable(self, name: str) -> memoryview:
        """Return the tensor's bytes, read-only."""
        return self._target.readable(name)


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


def watched(target: WeightTarget, context: ActionContext) -> WatchedTarget:
    """Return `target`, marking `context` before the first byte of it can change."""
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
        context.facts.update(context.load(context, target))

    def bytes_needed(self, context: ActionContext) -> int:
        """Bytes of the tensors that must be allocated for the load."""
        held = set(context.runner.weights.held())
        return sum(spec.nbytes for name, spec in context.runner.weights.specs().items() if name not in held)


@runtime_checkable
class AddressedWeights(Protocol):
    """Weights that can say where their bytes lie."""

    def addresses(self) -> Mapping[str, int]:
        """Device address of the first byte of every held tensor, by name."""
        ...


class AddressContract:
    """Where the tensors lay when something captured their addresses (CUDA graphs, registered memory).

    Reloading that rebinds a captured tensor makes replays read freed memory (vllm#48941); the contract
    turns that into an error before the new version is offered for commit. Weights that do not
    implement :class:`AddressedWeights` are not watched.
    """

    def __init__(self) -> None:
        self._captured: dict[str, int] = {}

    def record(self, weights: object, names: Collection[str] | None = None) -> None:
        """Remember where these tensors lie now; None: all of them."""
        now = weights.addresses() if isinstance(weights, AddressedWeights) else {}
        self._captured = {name: at for name, at in now.items() if names is None or name in names}

    @property
    def captured(self) -> frozenset[str]:
        """Names of the tensors that must stay where they are."""
        return frozenset(self._captured)

    def forget(self) -> None:
        """Nothing is captured any more; tensors may move. Idempotent."""
        self._captured = {}

    def check(self, weights: object) -> None:
        """Compare with where everything lies now.

        Raises
        ------
        StorageMovedError
            If a captured tensor lies elsewhere, or nowhere.
        """
        if not self._captured:
            return
        now = weights.addresses() if isinstance(weights, AddressedWeights) else {}
        moved = sorted(name for name, address in self._captured.items() if now.get(name) != address)
        if moved:
            raise StorageMovedError(tensors=moved[:5], total=len(moved))
