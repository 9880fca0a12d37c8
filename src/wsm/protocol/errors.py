"""What can go wrong in the protocol itself."""

from __future__ import annotations

from wsm.errors import InternalError, RefusedError


class ProtocolViolationError(InternalError):
    """A word says what the rules exclude: a bug, or a process that writes words it does not own."""

    def __init__(self, *, rank: int | None, rule: str, seen: str) -> None:
        who = "the controller" if rank is None else f"rank {rank}"
        super().__init__(
            f"{who} read {seen}, but {rule}; stop the group, keep its journals and report this",
            rank=rank,
            rule=rule,
            seen=seen,
        )


class EpochUsedError(RefusedError):
    """A process wants to join an epoch in which its slot was used by another process."""

    def __init__(self, *, rank: int, epoch: int) -> None:
        super().__init__(
            f"rank {rank} was already taken in epoch {epoch}, and a replacement joins only an epoch "
            "that its slot never used; restart the group",
            rank=rank,
            epoch=epoch,
        )


class CommandOpenError(RefusedError):
    """The last command is not over on every rank; the next one must wait."""

    retryable = True

    def __init__(self, *, epoch: int, sequence: int, operation: str, waiting: dict[int, str]) -> None:
        working = ", ".join(f"rank {rank}: {what}" for rank, what in waiting.items())
        what = "not complete yet" if operation == "NONE" else f"still at command {sequence} ({operation})"
        super().__init__(
            f"the group is {what} in epoch {epoch} ({working}); "
            "ask again when that is over, or look at 'wsm status'",
            epoch=epoch,
            sequence=sequence,
            operation=operation,
            waiting=waiting,
        )
