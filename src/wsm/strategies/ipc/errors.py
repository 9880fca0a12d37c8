"""What can be wrong with memory that a trainer shares. The files' own errors are in the modules beside this.

Every error is raised before a byte of the target was touched, except where ``touched`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, RefusedError
from wsm.strategies.file_errors import listed


class MetasNotFoundError(BadInputError):
    """No trainer has published shared tensors for this device."""

    def __init__(self, *, file: str, present: Sequence[str]) -> None:
        seen = f"; there are {listed(present)}" if present else ""
        super().__init__(
            f"{file} does not exist{seen}; let the trainer publish its tensors, "
            "or correct the directory or device id",
            file=file,
            present=tuple(present),
        )


class PickledMetasRefusedError(BadInputError):
    """A metas file is in pickle format, as FastDeploy's trainers write it."""

    def __init__(self, *, file: str) -> None:
        super().__init__(
            f"{file} is in pickle format, which may run any code when read, and is refused; publish with "
            "wsm.strategies.SharedTensors, or set allow_pickle: true if you trust its writer",
            file=file,
        )


class SegmentMissingError(BadInputError):
    """A metas file names shared memory that its owner has withdrawn."""

    def __init__(self, *, file: str, segment: str) -> None:
        super().__init__(
            f"{file} points at {segment}, which does not exist (any more); let the trainer publish again",
            file=file,
            segment=segment,
        )


class ForeignSegmentError(BadInputError):
    """Shared memory is no regular file of this user, or not what such memory is."""

    def __init__(
        self, *, segment: str, problem: str, fix: str = "run trainer and worker as one user"
    ) -> None:
        super().__init__(
            f"the shared memory {segment!r} is not used: {problem}; {fix}",
            segment=segment,
            problem=problem,
        )


class SegmentBusyError(RefusedError):
    """The owner of shared memory is writing it anew."""

    def __init__(self, *, segment: str) -> None:
        super().__init__(
            f"the owner of {segment} is writing it anew; load when it has published", segment=segment
        )


class OwnerDiedError(GroupError):
    """The process that shared the tensors has ended, and this source does not take what it left."""

    def __init__(self, *, file: str, segment: str, on_device: bool = False) -> None:
        why = (
            "and device memory is gone with its process; start the trainer and publish again"
            if on_device
            else "and orphans are refused here; start the trainer and publish again, or set orphans: copy"
        )
        super().__init__(
            f"the trainer that published {file} has ended (nobody owns {segment}), {why}",
            file=file,
            segment=segment,
            touched=False,
        )


class SharingRefusedError(RefusedError):
    """There is no room for shared memory, or it cannot be created. Nothing was published."""

    def __init__(self, *, path: str, nbytes: int, reason: str) -> None:
        super().__init__(
            f"cannot share {nbytes} bytes in {path}: {reason}; nothing was published; "
            "enlarge it (docker: --shm-size) or release older versions",
            path=path,
            nbytes=nbytes,
            reason=reason,
        )


class DeviceMemoryLeasedError(RefusedError):
    """A worker reads device memory that its trainer wants to let go. It stays; this may be tried again."""

    def __init__(self, *, file: str, waited_s: float) -> None:
        super().__init__(
            f"a worker still reads the device memory of {file} after {waited_s:g} s; the tensors stay alive: "
            "close again when it has loaded, or end the worker first",
            file=file,
            waited_s=waited_s,
        )


class DeviceMetaError(BadInputError):
    """A meta describes memory that paddle cannot open here.

    ``touched`` if that was seen when the tensor was due.
    """

    def __init__(self, *, tensor: str, file: str, problem: str, touched: bool = False) -> None:
        super().__init__(
            f"the memory of {tensor!r} in {file} cannot be opened: {problem}",
            tensor=tensor,
            file=file,
            problem=problem,
            touched=touched,
        )
