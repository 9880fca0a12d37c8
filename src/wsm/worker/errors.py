"""What an embedding loop, or the group through it, can be told by a worker."""

from __future__ import annotations

from collections.abc import Sequence

from wsm.command import SOURCE_OVERWRITTEN
from wsm.errors import BadInputError, GroupError, NoRoomError, RefusedError


class NotServingError(RefusedError):
    """A step was asked for although this rank may not step."""

    def __init__(self, *, rank: int, why: str) -> None:
        super().__init__(
            f"rank {rank} may not step now: {why}; enter step() only after poll() returned SERVE or JOIN",
            rank=rank,
            why=why,
        )


class PermitExpiredError(RefusedError):
    """Something wants to compute with the weights outside the step that the permit was for."""

    def __init__(self, *, rank: int, step: int) -> None:
        super().__init__(
            f"the permit of step {step} on rank {rank} has ended; "
            "compute inside 'with worker.step() as permit:' and keep no permit beyond it",
            rank=rank,
            step=step,
        )


def part_base(*, version: str | None, base: str, cause: str) -> GroupError:
    """What a part was put on cannot be loaded again, and so the part cannot be restored."""
    return GroupError(
        f"version {version} is a part, put on version {base}, which cannot be loaded again: {cause}; "
        "mend that, or update to a whole version",
        version=version,
        base=base,
        cause=cause,
        code="part-base",
    )


def restored_otherwise(
    *, version: str | None, bases: Sequence[str], digest: str, promised: str
) -> GroupError:
    """A part and what it was put on were loaded again, and are not what was served."""
    return GroupError(
        f"version {version} on version {', '.join(map(str, bases))} is not what was served: digest "
        f"{digest} instead of {promised}; one of them was published anew: update to a whole version",
        version=version,
        bases=tuple(bases),
        digest=digest,
        promised=promised,
        code="restored-otherwise",
    )


def labels_alike(*, rank: int, version: str, committed: str) -> RefusedError:
    """A version is called by a label that stands in words by the number of the committed one's."""
    return RefusedError(
        f"rank {rank} cannot load version {version}: the words of the group have the same number for it as "
        f"for the committed version {committed}; publish it under another label",
        code="labels-alike",
        rank=rank,
        version=version,
        committed=committed,
    )


def other_content(*, rank: int, version: str, digest: str, committed: str) -> BadInputError:
    """What was loaded under the committed version's label is not what was committed under it."""
    return BadInputError(
        f"version {version} is on rank {rank} not what the group committed under this label: digest {digest} "
        f"instead of {committed}; its source was overwritten. A label means one content: publish under "
        "another label, or load it all the same with force",
        code="other-content",
        unfit=True,
        rank=rank,
        version=version,
        digest=digest,
        committed=committed,
    )


def source_overwritten(*, rank: int, version: str, problem: str) -> BadInputError:
    """What was loaded under a label that wsm gave cannot be loaded again: its source holds other weights."""
    return BadInputError(
        f"version {version} cannot be loaded again on rank {rank}: its source named no version, and was "
        f"overwritten: {problem}. Update the group to what its source holds now",
        code=SOURCE_OVERWRITTEN,
        unfit=True,
        rank=rank,
        version=version,
        problem=problem,
    )


def named_on_one(*, rank: int, version: str) -> BadInputError:
    """The source of a rank names a version, and that of rank 0 names none."""
    return BadInputError(
        f"the source of rank {rank} says that it is version {version}, and that of rank 0 names no version; "
        "let all ranks read what one trainer wrote, or name the version in the command",
        code="named-on-one",
        unfit=True,
        rank=rank,
        version=version,
    )


def command_illegal(*, rank: int, command: str, weights: str, kv: str, why: str) -> RefusedError:
    """A command does not fit the state of this rank; nothing was changed."""
    return RefusedError(
        f"rank {rank} refuses {command}: {why} (weights {weights}, KV cache {kv}); nothing was changed",
        rank=rank,
        command=command,
        weights=weights,
        kv=kv,
        why=why,
        code="command-illegal",
    )


def staging_unfinished(*, rank: int) -> NoRoomError:
    """An earlier hot update was ended, and the thread that staged for it does not end."""
    return NoRoomError(
        f"rank {rank} refuses a hot update: the thread that staged for an earlier one hangs and holds "
        "its memory; nothing was changed: see what its source waits for, or update without --hot",
        rank=rank,
        code="staging-unfinished",
    )


def staging_exhausted(*, rank: int, action: str, cause: str) -> NoRoomError:
    """Memory ran out while a version was staged, although the plan had found enough of it before."""
    return NoRoomError(
        f"memory ran out on rank {rank} in {action}, beside the version that serves: {cause}; nothing "
        "was changed: update without --hot, or free memory",
        rank=rank,
        action=action,
        cause=cause,
        code="staging-exhausted",
    )


class FlipFailedError(GroupError):
    """The flip of a hot update raised, though all that can fail was tried before the decision."""

    def __init__(self, *, rank: int, action: str, cause: str) -> None:
        super().__init__(
            f"{action} failed on rank {rank} in the middle of the flip: {cause}; what it holds is unknown, "
            "and no rank steps again in this epoch: end this process, a new epoch restores the group",
            rank=rank,
            action=action,
            cause=cause,
        )


class WaitExpiredError(GroupError):
    """A wait of this rank has passed its deadline; the rank stays where it is until the group decides."""

    def __init__(self, *, rank: int, wait: str, seconds: float, waiting_for: str) -> None:
        super().__init__(
            f"rank {rank} waited {seconds:.3g} s in {wait} for {waiting_for}; "
            "look at that rank first, then raise the deadline if it was only slow",
            rank=rank,
            wait=wait,
            seconds=seconds,
            waiting_for=waiting_for,
        )


def peer_never_ready(*, rank: int, action: str, peers: list[int]) -> GroupError:
    """A peer has failed, so a collective action can never be entered by all."""
    return GroupError(
        f"rank {rank} gave {action} up because rank {', '.join(map(str, peers))} will never enter it; "
        "the cause is in that rank's report",
        rank=rank,
        action=action,
        peers=peers,
        code="peer-never-ready",
    )


def peer_failed(*, rank: int, action: str, peers: list[int], cause: str) -> GroupError:
    """A collective action raised here after it had failed on a peer, whose connections close with it."""
    return GroupError(
        f"{action} raised on rank {rank} after it had failed on rank {', '.join(map(str, peers))}, whose "
        f"report has the cause; here it was: {cause}",
        rank=rank,
        action=action,
        peers=peers,
        code="peer-failed",
    )


def command_aborted(*, rank: int, action: str) -> GroupError:
    """The group decided against the command while an action of it was running."""
    return GroupError(
        f"rank {rank} left {action} because the group has decided to abort the command; "
        "the receipt's error names the rank that failed",
        rank=rank,
        action=action,
        code="command-aborted",
    )


class ActionDeadlineError(GroupError):
    """An action of this rank has taken longer than it may."""

    def __init__(self, *, rank: int, action: str, seconds: float, deadline_s: float) -> None:
        super().__init__(
            f"{action} took {seconds:.3g} s on rank {rank}, and its deadline is {deadline_s:.3g} s; "
            "see what it waits for, or configure a longer one (deadlines: action_s)",
            rank=rank,
            action=action,
            seconds=seconds,
            deadline_s=deadline_s,
        )


def action_interrupted(*, rank: int, action: str, why: str, deadline_s: float) -> GroupError:
    """A collective action that could not end any more was interrupted, which breaks its communicators."""
    return GroupError(
        f"rank {rank} was called out of {action} because {why} (it may take {deadline_s:g} s); "
        "its communicators are broken by that, so the group needs a new epoch: restart it, or let its "
        "supervisor do so",
        rank=rank,
        action=action,
        why=why,
        deadline_s=deadline_s,
        code="action-interrupted",
    )


def step_broken(*, rank: int, step: int) -> GroupError:
    """A step raised; which of its collectives ran is unknown, so the rank cannot go on in this epoch."""
    return GroupError(
        f"step {step} raised on rank {rank}; its peers may wait in a collective of it: "
        "restart the group, which begins a new epoch",
        rank=rank,
        step=step,
        code="step-broken",
    )


class TeardownFailedError(GroupError):
    """A new epoch has begun, and this rank could not give back what it held in the old one."""

    def __init__(self, *, rank: int, epoch: int) -> None:
        super().__init__(
            f"rank {rank} could not give back what it held in epoch {epoch}; "
            "end this process and start another in its place, its journal names the action",
            rank=rank,
            epoch=epoch,
        )


def other_version(*, rank: int, asked: str | None, said: object) -> GroupError:
    """A load function returned, and does not say that it loaded what was asked for."""
    wanted = "the newest version" if asked is None else f"version {asked}"
    return GroupError(
        f"{wanted} was asked for, and the load function of rank {rank} says that it loaded {said!r}; "
        "let it return what it really loaded as facts['version'], or raise",
        rank=rank,
        asked=asked,
        said=said,
        code="other-version",
    )


def unversioned_weights(*, strategy: str, files: tuple[str, ...]) -> BadInputError:
    """Neither the command nor the source says which version is to be loaded."""
    first = files[0] if files else "none"
    return BadInputError(
        f"{strategy} found {len(files)} file(s), first {first}: neither they nor the command "
        "name a version, and the configuration refuses that (unversioned: refuse); name one (--version), or "
        "publish with a manifest and version.yaml",
        strategy=strategy,
        files=files,
        code="unversioned-weights",
        unfit=True,
    )
