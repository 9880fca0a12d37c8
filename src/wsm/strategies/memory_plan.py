"""How much memory a load takes in each of its phases, from what a source says before a byte has moved.

Pure arithmetic over a preview: nothing is opened, measured or reserved here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wsm.strategies.applier import admission
from wsm.strategies.applier.admission import LoadWay
from wsm.strategies.load import Preview


@dataclass(frozen=True)
class MemoryPhase:
    """One phase of one rank's load; all numbers are bytes of tensors.

    Parameters
    ----------
    name : str
        What happens in it.
    held : int
        What the rank holds of the model when it begins.
    read : int
        What it reads from the source.
    taken : int
        What it takes besides what is held, at most.
    """

    name: str
    held: int
    read: int
    taken: int

    @property
    def peak(self) -> int:
        """The most that is held at any time."""
        return self.held + self.taken


def plan_memory(preview: Preview, way: LoadWay) -> tuple[MemoryPhase, ...] | None:
    """Return the phases of one rank's load; None if the source says only as it comes what it brings.

    Parameters
    ----------
    preview : Preview
        What :func:`wsm.strategies.load.inspect` has found; the model has its tensors.
    way : LoadWay
        Over what it is loaded.
    """
    model, beside = preview.bytes, preview.peak_extra_bytes
    if model is None:
        return None
    if way is LoadWay.IN_PLACE:
        return (MemoryPhase("overwrite", model, model, beside),)
    if way is LoadWay.AFTER_A_CLEAR:
        return (MemoryPhase("fill", 0, model, model + beside),)
    return (
        MemoryPhase("stage", model, model, model + beside),
        MemoryPhase("flip", 2 * model, 0, 0),
        MemoryPhase("let go", 2 * model, 0, 0),
    )


def admit(phases: Sequence[MemoryPhase], way: LoadWay, *, available: int | None, ranks: int) -> None:
    """See that every phase fits into memory that `ranks` ranks share, all of them loading at once.

    Where it is not known how much is `available`, nothing is refused.

    Raises
    ------
    NoRoomError
        If one does not.
    """
    begun = phases[0].held
    for phase in phases:
        needed = ranks * (phase.peak - begun)
        if available is not None and needed > available:
            raise admission.load_memory(
                way=way, phase=phase.name, needed=needed, available=available, ranks=ranks
            )
