"""What is measured of an engine: its memory, the bytes of its tensors, and where these lie.

A release is believed when the resident bytes fell, not when a call returned (slime#579, miles#86). Where a
measurement cannot be taken (no descriptor is left, the driver does not answer), its figure is None, the fact
``not_measured`` says why, and the command goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wsm import log
from wsm.actions.base import ActionContext
from wsm.actions.surfaces import AvailableMemory
from wsm.errors import GroupError, described
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.tensor import TensorSpec, WeightTarget

_log = log.logger("actions")
_hears = logging.getLogger(f"{log.ROOT}.actions").isEnabledFor
_GIB = 1 << 30

#: Fact of a command in which a measurement could not be taken: why.
NOT_MEASURED = "not_measured"


#: Computes the digest of all bytes that a target holds, calling the second argument now and then.
ResidentDigest = Callable[[WeightTarget, Callable[[], None]], str]


def resident_bytes(context: ActionContext) -> int | None:
    """Measure what this process occupies, in bytes; None if that cannot be measured now. Never raises."""
    return _measured(context, context.runner.memory.resident_bytes)


@runtime_checkable
class DetailedMemory(Protocol):
    """What a memory surface implements besides, that knows more than what is resident."""

    def figures(self) -> Mapping[str, int]:
        """Return bytes that are allocated and reserved now, and were at most, by name."""
        ...


def log_memory(context: ActionContext, after: str) -> None:
    """Log what is allocated and reserved, and was at most, in GiB, if a handler hears it. Never raises."""
    if not _hears(logging.INFO):
        return
    memory = context.runner.memory
    try:
        found = memory.figures() if isinstance(memory, DetailedMemory) else {}
        found = found or {"resident": memory.resident_bytes()}
    except Exception as error:  # noqa: BLE001 - whatever a kernel or a driver answers: there is no figure
        _log.info(log.MEMORY_MEASURED, after=after, error=described(error))
        return
    rounded = {f"{name}_gib": round(value / _GIB, 3) for name, value in found.items()}
    _log.info(log.MEMORY_MEASURED, after=after, rank=context.rank, **rounded)


def measure_before(context: ActionContext) -> None:
    """Measure before the first release of a command. Reports ``resident_bytes_before``.

    A first measurement that failed stays "not measured": a later one would not count what was gone by then.
    """
    if "resident_bytes_before" not in context.facts:
        context.facts["resident_bytes_before"] = resident_bytes(context)


def available_bytes(context: ActionContext) -> int | None:
    """Ask how many bytes may still be taken; None: unknown, and a load is believed to fit. Never raises."""
    memory = context.runner.memory
    return _measured(context, memory.available_bytes) if isinstance(memory, AvailableMemory) else None


def _measured(context: ActionContext, measure: Callable[[], int | None]) -> int | None:
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - as above
        context.facts[NOT_MEASURED] = described(error)
        return None


@dataclass(frozen=True)
class MemoryDrop:
    """How much the measured memory must fall for a release to be believed.

    Parameters
    ----------
    share : float
        Of the bytes that were said to be let go, 0 to 1. Below 1 because memory that was reserved and
        never written is let go without ever having been resident.
    noise_bytes : int
        A release smaller than this cannot be measured, and the receipt says so instead of claiming a proof.
    """

    share: float = 0.5
    noise_bytes: int = 32 * 1024 * 1024


class MemoryProof:
    """Judges measurements of one process, and does not forget a release that was not believed.

    Repeating a clear that failed finds nothing left to release, and would else call used memory free.
    """

    def __init__(self, drop: MemoryDrop) -> None:
        self._drop = drop
        self._ceiling: int | None = None

    def ceiling(self, before: int | None, released: int) -> int | None:
        """Return the most that may be resident now, in bytes; None where nothing can be proven.

        Where nothing was measured before this release (`before` None), earlier failures count alone.
        """
        wanted = int(self._drop.share * released) - self._drop.noise_bytes
        ceilings = [self._ceiling] if self._ceiling is not None else []
        if before is not None and wanted > 0:
            ceilings.append(before - wanted)
        return min(ceilings, default=None)

    def refuted(self, ceiling: int) -> None:
        """Remember that more than `ceiling` bytes were resident."""
        self._ceiling = ceiling

    def proven(self) -> None:
        """Forget earlier failures: the memory is free."""
        self._ceiling = None


def resident_digest(weights: WeightTarget, progress: Callable[[], None]) -> str:
    """Read every tensor in memory and return the shard's digest, as manifests have it. Blocks."""
    return shard_digest(resident_tensors(weights, progress))


def resident_tensors(weights: WeightTarget, progress: Callable[[], None]) -> Iterator[tuple[TensorSpec, str]]:
    """Read every tensor in memory; iterate over them with their digests. As :func:`resident_digest`."""
    for name, spec in weights.specs().items():
        yield spec, digest_of(weights.readable(name))
        progress()


@runtime_checkable
class AddressedWeights(Protocol):
    """Weights that can say where their bytes lie."""

    def addresses(self) -> Mapping[str, int]:
        """Device address of the first byte of every held tensor, by name."""
        ...


class AddressContract:
    """Where the tensors lay when something captured their addresses (CUDA graphs, registered memory).

    Reloading that rebinds a captured tensor makes replays read freed memory (vllm#48941); the contract turns
    that into an error before the commit. Weights without :class:`AddressedWeights` are not watched.
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
        """Raise GroupError (``storage-moved``) if a captured tensor lies elsewhere now, or nowhere."""
        if not self._captured:
            return
        now = weights.addresses() if isinstance(weights, AddressedWeights) else {}
        moved = sorted(name for name, address in self._captured.items() if now.get(name) != address)
        if moved:
            raise GroupError(
                f"{len(moved)} tensor(s) moved although their addresses are captured, first: "
                f"{', '.join(moved[:5])}; load in place, or drop and capture the graphs around the update",
                code="storage-moved",
                tensors=tuple(moved[:5]),
                total=len(moved),
            )
