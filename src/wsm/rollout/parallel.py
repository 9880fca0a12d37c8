"""The collectives of one communicator, as the model uses them.

A thin layer over ``paddle.distributed`` on Gloo: it looks the group up on every call, because a
group that was shut down and restarted is another object, and it is the identity on one rank.
Knows nothing about models, steps or life cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddle import distributed

from wsm.rollout import errors


class Communicator:
    """One rank's end of a tensor-parallel or expert-parallel group.

    Parameters
    ----------
    lookup : callable
        Returns the present ``paddle.distributed`` group, or None while it is shut down.
    rank, size : int
        This rank and the number of ranks in the group.
    kind : str
        What errors call the group.

    Notes
    -----
    Every method is collective, blocks, and lets paddle's ``RuntimeError`` through when a peer died.
    """

    def __init__(self, lookup: Callable[[], Any], rank: int, size: int, kind: str) -> None:
        self._lookup = lookup
        self.rank = rank
        self.size = size
        self.kind = kind

    def group(self) -> Any:
        """Return the present group.

        Raises
        ------
        RefusedError
            While it is shut down.
        """
        group = self._lookup()
        if group is None:
            raise errors.communicator_gone(kind=self.kind)
        return group

    def group_id(self) -> int | None:
        """Return what tells this incarnation of the group from every other; None on one rank.

        Raises
        ------
        RefusedError
            While it is shut down.
        """
        return int(self.group().id) if self.size > 1 else None

    def all_reduce(self, tensor: Any) -> Any:
        """Sum `tensor` over all ranks in place and return it; the same bits arrive on every rank."""
        if self.size > 1:
            distributed.all_reduce(tensor, group=self.group())
        return tensor

    def all_gather(self, gathered: Any, local: Any) -> None:
        """Write every rank's `local` (rows, ...) into `gathered` (size * rows, ...), in rank order."""
        if self.size > 1:
            distributed.stream.all_gather(gathered, local, group=self.group())
        else:
            gathered.copy_(local, False)  # blocking

    def broadcast(self, tensor: Any) -> None:
        """Overwrite `tensor` with rank 0's."""
        if self.size > 1:
            distributed.broadcast(tensor, src=self.group().ranks[0], group=self.group())


def alone() -> Communicator:
    """Return the communicator of a process that holds the whole model, such as a trainer."""
    return Communicator(lambda: None, rank=0, size=1, kind="single-process")
