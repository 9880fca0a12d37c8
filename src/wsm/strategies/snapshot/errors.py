"""What can be wrong when a version that was written for some number of ranks is read for another.

All are raised before a byte of the target was touched. Lists are complete in the attributes and shortened
in the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError
from wsm.strategies.errors import listed


class PlacementError(BadInputError):
    """A tensor cannot be divided by the number of ranks, or is not what its placement says."""

    unfit = True

    def __init__(self, *, tensor: str, problem: str) -> None:
        super().__init__(
            f"{tensor!r} {problem}; correct its placement, or publish for the number of ranks that load",
            tensor=tensor,
            problem=problem,
        )


def placement_missing(*, where: str, found: int, wanted: int, tensors: Sequence[str]) -> BadInputError:
    """A version for another number of ranks does not say how some of its tensors were divided."""
    return BadInputError(
        f"{where} was written for {found} ranks and does not say how {len(tensors)} of its tensors are "
        f"divided ({listed([repr(name) for name in tensors])}), so it cannot be read for {wanted}; "
        "publish with placements for all tensors, or for the number of ranks that load",
        code="placement-missing",
        unfit=True,
        where=where,
        found=found,
        wanted=wanted,
        tensors=tuple(tensors),
    )


def bad_slices(*, where: str, problems: Sequence[tuple[str, str]]) -> BadInputError:
    """The shards of a version, put together, do not give each tensor once and whole."""
    details = listed([f"{tensor!r} {problem}" for tensor, problem in problems])
    return BadInputError(
        f"the shards in {where} do not fit together: {details}; publish the version again",
        code="bad-slices",
        unfit=True,
        where=where,
        problems=tuple(problems),
    )
