"""What can go wrong between wsm and a real engine: tensors, communicators, rendezvous, missing calls.

Knows no words, no states, and imports no paddle.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, RefusedError


class UnsupportedTensorError(BadInputError):
    """A model holds a tensor that this backend cannot release and load."""

    def __init__(self, *, tensor: str, found: str, supported: str) -> None:
        super().__init__(
            f"tensor {tensor!r} is {found}; this backend handles {supported}",
            tensor=tensor,
            found=found,
            supported=supported,
        )


class TensorChangedError(GroupError):
    """A tensor is no longer what it was when the backend first saw it."""

    def __init__(self, *, tensor: str, expected: str, found: str) -> None:
        super().__init__(
            f"tensor {tensor!r} was {expected} and is {found} now; it was given a foreign buffer, "
            "load a version into a model built anew",
            tensor=tensor,
            expected=expected,
            found=found,
        )


class AdoptionError(GroupError):
    """Paddle accepted a buffer for a tensor, but the tensor is not what it should be afterwards."""

    def __init__(self, *, tensor: str, found: str) -> None:
        super().__init__(
            f"tensor {tensor!r} did not adopt its new memory: {found}; this build of paddle shares buffers "
            "differently from 2.6.2 and 3.3.1, report it with its version",
            tensor=tensor,
            found=found,
        )


class RendezvousError(BadInputError):
    """A rendezvous entry is not what it must be."""

    def __init__(self, *, incarnation: str, found: str, fix: str) -> None:
        super().__init__(
            f"rendezvous {incarnation!r}: {found}; {fix}", incarnation=incarnation, found=found, fix=fix
        )


class RendezvousTimeoutError(GroupError):
    """The member that creates a communicator's store did not announce it in time."""

    def __init__(self, *, incarnation: str, leader: int, seconds: float) -> None:
        super().__init__(
            f"rank {leader} announced no store for {incarnation!r} within {seconds:.1f} s; "
            "see whether it lives and what it is doing",
            incarnation=incarnation,
            leader=leader,
            seconds=seconds,
        )


class GroupMembershipError(BadInputError):
    """A rank was given a communicator that it is no member of, or is a member of twice."""

    def __init__(self, *, kind: str, ranks: Sequence[int], rank: int) -> None:
        super().__init__(
            f"the {kind} group of rank {rank} cannot have the members {list(ranks)}; name each once, "
            "this rank among them",
            kind=kind,
            ranks=tuple(ranks),
            rank=rank,
        )


class GroupCreationError(GroupError):
    """A communicator could not be created."""

    def __init__(self, *, kind: str, ranks: Sequence[int], reason: str) -> None:
        super().__init__(
            f"the {kind} group of ranks {list(ranks)} was not created: {reason}; "
            "see which of the ranks is missing, then restart the group",
            kind=kind,
            ranks=tuple(ranks),
            reason=reason,
        )


class GroupDownError(RefusedError):
    """A communicator was used while it is shut down."""

    def __init__(self, *, kind: str) -> None:
        super().__init__(f"the {kind} group is shut down; the next update restarts it", kind=kind)


class GroupStillHeldError(GroupError):
    """A communicator cannot be destroyed, because somebody else holds a reference to it."""

    def __init__(self, *, kind: str, holders: Sequence[str]) -> None:
        super().__init__(
            f"the {kind} group stays connected, it is still held by: {', '.join(holders)}; "
            "ask the surface for the group at every use instead of keeping it",
            kind=kind,
            holders=tuple(holders),
        )


class CallMissingError(BadInputError):
    """The installed build of paddle or FastDeploy lacks a call that the configuration needs."""

    def __init__(self, *, owner: str, call: str, needed_for: str) -> None:
        super().__init__(
            f"{owner} has no {call}, which {needed_for} needs; install a build that has it, or do without",
            owner=owner,
            call=call,
            needed_for=needed_for,
        )
