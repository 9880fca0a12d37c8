"""What can be wrong with memory that a trainer shares. The files' own errors are in the modules beside this.

Every error is raised before a byte of the target was touched, except where ``touched`` says otherwise, as a
load stamps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, RefusedError, coded, remedy
from wsm.strategies.errors import listed


@coded("metas-not-found")
def metas_not_found(*, file: str, present: Sequence[str]) -> BadInputError:
    """No trainer has published shared tensors for this device."""
    seen = f"; there are {listed(present)}" if present else ""
    return BadInputError(
        f"{file} does not exist{seen}; let the trainer publish its tensors, "
        "or correct the directory or device id",
        unfit=True,
        present=tuple(present),
    )


@coded("pickled-metas-refused")
def pickled_metas_refused(*, file: str) -> BadInputError:
    """A metas file is in pickle format, as FastDeploy's trainers write it."""
    return BadInputError(
        f"{file} is in pickle format, which may run any code when read, and is refused; publish with "
        "wsm.strategies.SharedTensors, or set allow_pickle: true if you trust its writer",
        unfit=True,
    )


class SharedMemoryGoneError(BadInputError):
    """A metas file names shared memory that its owner has withdrawn."""

    unfit = True

    def __init__(self, *, file: str, segment: str) -> None:
        super().__init__(
            f"{file} points at {segment}, which does not exist (any more); "
            "let the trainer publish again, as the user that runs the ranks",
            file=file,
            segment=segment,
        )


def foreign_segment(
    *, segment: str, problem: str, fix: str = "run trainer and worker as one user"
) -> BadInputError:
    """Shared memory is no regular file of this user, or not what such memory is."""
    return BadInputError(
        f"the shared memory {segment!r} is not used: {problem}; {fix}",
        code="foreign-segment",
        unfit=True,
        segment=segment,
        problem=problem,
    )


class SharedMemoryBusyError(RefusedError):
    """The owner of shared memory is writing it anew."""

    def __init__(self, *, segment: str) -> None:
        super().__init__(
            f"the owner of {segment} is writing it anew; load when it has published", segment=segment
        )


def owner_died(*, file: str, segment: str, on_device: bool = False) -> GroupError:
    """The process that shared the tensors has ended, and this source does not take what it left."""
    why = (
        "and device memory is gone with its process; start the trainer and publish again"
        if on_device
        else "and orphans are refused here; start the trainer and publish again, or set orphans: copy"
    )
    return GroupError(
        f"the trainer that published {file} has ended (no process owns {segment}), {why}",
        code="owner-died",
        file=file,
        segment=segment,
    )


def sharing_refused(*, path: str, nbytes: int, error: OSError) -> RefusedError:
    """There is no room for shared memory, or it cannot be created. Nothing was published."""
    fix = remedy(error) or "enlarge it (docker: --shm-size) or release older versions"
    return RefusedError(
        f"cannot share {nbytes} bytes in {path}: {error}; nothing was published; {fix}",
        code="sharing-refused",
        path=path,
        nbytes=nbytes,
        reason=str(error),
    )


@coded("device-memory-leased")
def device_memory_leased(*, file: str, waited_s: float) -> RefusedError:
    """A worker reads device memory that its trainer wants to let go. It stays; this may be tried again."""
    return RefusedError(
        f"a worker still reads the device memory of {file} after {waited_s:g} s; the tensors stay alive: "
        "close again when it has loaded, or end the worker first"
    )


@coded("bad-device-meta")
def bad_device_meta(*, tensor: str, file: str, problem: str) -> BadInputError:
    """A meta describes memory that paddle cannot open here."""
    return BadInputError(f"the memory of {tensor!r} in {file} cannot be opened: {problem}", unfit=True)
