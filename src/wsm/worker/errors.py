"""What an embedding loop, or the group through it, can be told by a worker."""

from __future__ import annotations

from wsm.command import SOURCE_OVERWRITTEN
from wsm.errors import BadInputError, GroupError, RefusedError, UnfitError, coded


class NotServingError(RefusedError):
    """A step was asked for although this rank may not step."""

    def __init__(self, *, rank: int, why: str) -> None:
        super().__init__(
            f"rank {rank} may not step now: {why}; enter step() only after poll() returned SERVE or JOIN",
            rank=rank,
            why=why,
        )


def source_overwritten(*, rank: int, version: str, problem: str) -> BadInputError:
    """What was loaded under a label that wsm gave cannot be loaded again: its source holds other weights."""
    return UnfitError(
        f"version {version} cannot be loaded again on rank {rank}: its source named no version, and was "
        f"overwritten: {problem}. Update the group to what its source holds now",
        code=SOURCE_OVERWRITTEN,
        rank=rank,
        version=version,
        problem=problem,
    )


class FlipFailedError(GroupError):
    """The flip of a hot update raised, though all that can fail was tried before the decision."""


class WaitExpiredError(GroupError):
    """A wait of this rank has passed its deadline; the rank stays where it is until the group decides."""

    def __init__(self, *, rank: int, wait: str, seconds: float, waiting_for: str) -> None:
        super().__init__(
            f"rank {rank} waited {seconds:.3g} s in {wait} for {waiting_for}; "
            "look at that rank first, then raise that deadline (deadlines: in the configuration) if it was "
            "only slow",
            rank=rank,
            wait=wait,
            seconds=seconds,
            waiting_for=waiting_for,
        )


@coded("command-aborted")
def command_aborted(*, rank: int, action: str) -> GroupError:
    """The group decided against the command while an action of it was running."""
    return GroupError(
        f"rank {rank} left {action} because the group has decided to abort the command; "
        "the receipt's error names the rank that failed"
    )


class ActionDeadlineError(GroupError):
    """An action of this rank has taken longer than it may."""


class TeardownFailedError(GroupError):
    """A new epoch has begun, and this rank could not give back what it held in the old one."""
