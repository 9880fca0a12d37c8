"""What can be wrong with how a tensor lies on the ranks."""

from __future__ import annotations

from wsm.errors import BadInputError


class PlacementError(BadInputError):
    """A tensor cannot be divided by the number of ranks, or is not what its placement says."""

    unfit = True

    def __init__(self, *, tensor: str, problem: str) -> None:
        super().__init__(
            f"{tensor!r} {problem}; correct its placement, or publish for the number of ranks that load",
            tensor=tensor,
            problem=problem,
        )
