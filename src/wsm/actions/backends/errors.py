"""What can go wrong between wsm and a real engine: tensors, communicators, rendezvous, missing calls.

Knows no words, no states, and imports no paddle.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, RefusedError


def unsupported_tensor(*, tensor: str, found: str, supported: str) -> BadInputError:
    """A model holds a tensor that this backend cannot release and load."""
    return BadInputError(
        f"tensor {tensor!r} is {found}; this backend handles {supported}",
        tensor=tensor,
        found=found,
        supported=supported,
        code="unsupported-tensor",
        unfit=True,
    )


def tensor_changed(*, tensor: str, expected: str, found: str) -> GroupError:
    """A tensor is no longer what it was when the backend first saw it."""
    return GroupError(
        f"tensor {tensor!r} was {expected} and is {found} now; it was given a foreign buffer, "
        "load a version into a model built anew",
        tensor=tensor,
        expected=expected,
        found=found,
        code="tensor-changed",
    )


def adoption(*, tensor: str, found: str) -> GroupError:
    """Paddle accepted a buffer for a tensor, but the tensor is not what it should be afterwards."""
    return GroupError(
        f"tensor {tensor!r} did not adopt its new memory: {found}; this build of paddle shares buffers "
        "differently from 2.6.2 and 3.3.1, report it with its version",
        tensor=tensor,
        found=found,
        code="adoption",
    )


def rendezvous_entry(*, incarnation: str, found: str, fix: str) -> BadInputError:
    """A rendezvous entry is not what it must be."""
    return BadInputError(
        f"rendezvous {incarnation!r}: {found}; {fix}",
        incarnation=incarnation,
        found=found,
        fix=fix,
        code="rendezvous",
    )


def rendezvous_timeout(*, incarnation: str, leader: int, seconds: float) -> GroupError:
    """The member that creates a communicator's store did not announce it in time."""
    return GroupError(
        f"rank {leader} announced no store for {incarnation!r} within {seconds:.1f} s; "
        "see whether it lives and what it is doing",
        incarnation=incarnation,
        leader=leader,
        seconds=seconds,
        code="rendezvous-timeout",
    )


def group_membership(*, kind: str, ranks: Sequence[int], rank: int) -> BadInputError:
    """A rank was given a communicator that it is no member of, or is a member of twice."""
    return BadInputError(
        f"the {kind} group of rank {rank} cannot have the members {list(ranks)}; name each once, "
        "this rank among them",
        kind=kind,
        ranks=tuple(ranks),
        rank=rank,
        code="group-membership",
    )


def group_creation(*, kind: str, ranks: Sequence[int], reason: str) -> GroupError:
    """A communicator could not be created."""
    return GroupError(
        f"the {kind} group of ranks {list(ranks)} was not created: {reason}; "
        "see which of the ranks is missing, then restart the group",
        kind=kind,
        ranks=tuple(ranks),
        reason=reason,
        code="group-creation",
    )


def group_down(*, kind: str) -> RefusedError:
    """A communicator was used while it is shut down."""
    return RefusedError(
        f"the {kind} group is shut down; the next update restarts it", kind=kind, code="group-down"
    )


def group_still_held(*, kind: str, holders: Sequence[str]) -> GroupError:
    """A communicator cannot be destroyed, because another part of the process has a reference to it."""
    return GroupError(
        f"the {kind} group stays connected, it is still held by: {', '.join(holders)}; "
        "ask the surface for the group at every use instead of keeping it",
        kind=kind,
        holders=tuple(holders),
        code="group-still-held",
    )


def call_missing(*, owner: str, call: str, needed_for: str) -> BadInputError:
    """The installed build of paddle or FastDeploy lacks a call that the configuration needs."""
    return BadInputError(
        f"{owner} has no {call}, which {needed_for} needs; install a build that has it, or do without",
        owner=owner,
        call=call,
        needed_for=needed_for,
        code="call-missing",
    )
