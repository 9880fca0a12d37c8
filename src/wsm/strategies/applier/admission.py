"""Whether there is memory for a load, asked once before its first byte: what it will take, and the refusal.

Counts what a target says that it does not hold, and what the strategy holds beside it. How much there is, the
caller knows; where it is not known what will be taken, nothing is refused. Measures and reserves nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wsm.errors import NoRoomError, coded
from wsm.printable import counted
from wsm.strategies.offer import Offer
from wsm.strategies.tensor import (
    AdoptingTarget,
    HoldingTarget,
    StagedTarget,
    TensorSpec,
    WeightTarget,
    tied_names,
)


class LoadWay(enum.Enum):
    """Over what a version is loaded."""

    IN_PLACE = "in place"
    AFTER_A_CLEAR = "after a clear"
    HOT = "hot"


@coded("load-memory")
def load_memory(*, way: LoadWay, phase: str, needed: int, available: int, ranks: int) -> NoRoomError:
    """A load would take more memory than there is. Nothing was changed."""
    return NoRoomError(
        f"a load {way.value} does not fit: {phase!r} takes {needed} bytes besides for "
        f"{counted(ranks, 'rank')}, and {available} are available; free memory, "
        "clear first, or give it fewer ranks per host"
    )


@dataclass(frozen=True)
class MemoryNeed:
    """What one rank's load takes besides what is held; all numbers are bytes.

    Parameters
    ----------
    host : int
        Of host memory: what the strategy holds, and tensors of the target that hold none and lie there; for
        a target whose bytes are moved elsewhere, its largest tensor instead.
    device : int
        Of that other memory: the target's tensors that hold none.
    released : bool
        Whether there are such tensors.
    """

    host: int
    device: int
    released: bool

    def fits(self, *, host: int | None, device: int | None = None) -> None:
        """See that it is there; None stands for memory of which it is not known how much there is.

        Raises
        ------
        NoRoomError
            If it is not.
        """
        for needed, available in ((self.host, host), (self.device, device)):
            if available is not None and needed > available:
                raise load_memory(
                    way=LoadWay.AFTER_A_CLEAR if self.released else LoadWay.IN_PLACE,
                    phase="fill" if self.released else "overwrite",
                    needed=needed,
                    available=available,
                    ranks=1,
                )


#: Raises if there is too little memory, :class:`NoRoomError` (``load-memory``) for one.
Admit = Callable[[MemoryNeed], None]


def memory_need(offer: Offer, target: WeightTarget) -> MemoryNeed | None:
    """Return what a load of `offer` takes; None if the target does not say what it holds.

    Tensors whose memory is kept take nothing, nor do those that the offer is known not to bring.
    """
    if not isinstance(target, HoldingTarget):
        return None
    held = set(target.held())
    released = [spec for spec in _brought(offer, target) if spec.name not in held]
    size = sum(spec.nbytes for spec in released)
    if isinstance(target, StagedTarget):
        largest = max((spec.nbytes for spec in target.specs().values()), default=0)
        return MemoryNeed(offer.peak_extra_bytes + largest, size, released=size > 0)
    return MemoryNeed(offer.peak_extra_bytes + size, 0, released=size > 0)


def _brought(offer: Offer, target: WeightTarget) -> Iterable[TensorSpec]:
    specs, known = target.specs(), offer.known
    if known is None or offer.chunk_tensors is not None:  # a checkpoint's names are not the target's
        return specs.values()
    adopting = target if isinstance(target, AdoptingTarget) else None
    tied = tied_names(target)
    brought = {tied.get(tensor.spec.name, tensor.spec.name): tensor for tensor in known}
    return [
        specs[name]
        for name, tensor in brought.items()
        if name in specs and (adopting is None or tensor.memory is None or not adopting.adopts(name))
    ]
