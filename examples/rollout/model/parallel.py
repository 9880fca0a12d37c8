"""The collectives of one communicator, as the model uses them, and the expert-parallel exchange buffer on it.

A thin layer over ``paddle.distributed`` on Gloo: it looks the group up on every call, because a
group that was shut down and restarted is another object, and it is the identity on one rank.
The exchange buffer is what DeepEP's buffer is to FastDeploy: tokens travel to the ranks that own their
experts (dispatch), and the experts' outputs travel back (combine), through two preallocated buffers. Gloo has
no all-to-all, so both directions are an all_gather. Knows nothing about models, steps or life cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import distributed

from examples.rollout import errors
from wsm.errors import RefusedError


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
            raise RefusedError(
                f"the {self.kind} group is shut down; it is restarted by the next update",
                code="communicator-gone",
            )
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


class ExchangeBuffer:
    """Send and receive buffers of one rank; a :class:`wsm.actions.surfaces.DeepEPSurface`.

    Parameters
    ----------
    expert_parallel : Communicator
        The ranks that share the experts.
    width : int
        Floats per token: the hidden state, then its expert ids and gates.
    hidden_width : int
        How many of them are the hidden state, which is all that travels back.
    max_tokens : int
        Most tokens of one step, over all ranks.
    """

    def __init__(self, expert_parallel: Communicator, width: int, hidden_width: int, max_tokens: int) -> None:
        self._ranks = expert_parallel
        self._width = width
        self._hidden_width = hidden_width
        self._rows = -(-max_tokens // expert_parallel.size)
        self._buffers: tuple[Any, Any, Any, Any] | None = None
        # The group's id, not the group: a reference to a group keeps it from being destroyed.
        self._group_id: int | None = None

    def recreate_buffer(self) -> None:
        """Allocate the buffers on the present EP group. Idempotent. Collective over the EP group.

        Raises
        ------
        RefusedError
            If the ranks disagree about its size.
        RefusedError
            If the EP group is shut down.
        """
        group_id = self._ranks.group_id()
        if self._buffers is not None and self._group_id == group_id:
            return
        mine = paddle.to_tensor([[self._rows, self._width]], dtype="int64")
        sizes = paddle.zeros([self._ranks.size, 2], dtype="int64")
        self._ranks.all_gather(sizes, mine)
        if not bool((sizes == mine).all()):
            raise errors.no_exchange_buffer(
                reason=f"the ranks ask for buffers of different sizes {sizes.tolist()}",
                remedy="give all ranks the same configuration",
            )
        all_rows = self._rows * self._ranks.size
        self._buffers = (
            paddle.zeros([self._rows, self._width]),
            paddle.zeros([all_rows, self._width]),
            paddle.zeros([all_rows, self._hidden_width]),
            paddle.zeros([all_rows * self._ranks.size, self._hidden_width]),
        )
        self._group_id = group_id

    def clear_buffer(self) -> None:
        """Free the buffers. Idempotent. Collective over the EP group, which must still be alive.

        Raises
        ------
        RefusedError
            If the EP group was shut down first.
        """
        if self._buffers is None:
            return
        # No rank frees what a slower peer still sends into: all have left their last exchange first.
        self._ranks.all_reduce(paddle.zeros([1]))
        self._buffers = None
        self._group_id = None

    def abandon_buffer(self) -> None:
        """Free the buffers alone: the EP group is broken, and no rank sends any more. Idempotent."""
        self._buffers = None
        self._group_id = None

    def allocated(self) -> bool:
        """Whether the buffers exist."""
        return self._buffers is not None

    def dispatch(self, tokens: Any) -> Any:
        """Send this rank's `tokens` (rows, width) to all ranks; return those of all (size * rows, width).

        Collective. The result is a view of the receive buffer, valid until the next dispatch.
        """
        send, receive, _, _ = self._usable(tokens.shape[0])
        rows = tokens.shape[0]
        paddle.assign(tokens, send[:rows])
        gathered = receive[: rows * self._ranks.size]
        self._ranks.all_gather(gathered, send[:rows])
        return gathered

    def combine(self, partial: Any) -> Any:
        """Sum the ranks' outputs for all tokens, (size * rows, hidden width) each. Collective."""
        _, _, send, receive = self._usable(partial.shape[0] // self._ranks.size)
        count = partial.shape[0]
        paddle.assign(partial, send[:count])
        gathered = receive[: count * self._ranks.size]
        self._ranks.all_gather(gathered, send[:count])
        return gathered.reshape([self._ranks.size, count, -1]).sum(axis=0)

    def _usable(self, rows: int) -> tuple[Any, Any, Any, Any]:
        if self._buffers is None:
            raise errors.no_exchange_buffer(
                reason="it is cleared", remedy="it is recreated by the next update"
            )
        if self._ranks.group_id() != self._group_id:
            raise errors.no_exchange_buffer(
                reason="its EP group was replaced", remedy="clear the buffer before the group is shut down"
            )
        if rows > self._rows:
            raise errors.no_exchange_buffer(
                reason=f"{rows} tokens of one rank do not fit {self._rows}", remedy="raise max_step_tokens"
            )
        return self._buffers
