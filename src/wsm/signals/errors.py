"""What can be wrong with a segment, its words and slots, and FastDeploy's words. Knows no states.

What no caller catches is a function that returns its family.
"""

from __future__ import annotations

from wsm.errors import BadInputError, InternalError, RefusedError


class SegmentNameError(BadInputError):
    """A name that cannot be one component of a path in ``/dev/shm``, or that wsm keeps for itself."""

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(
            f"{name!r} cannot name a segment: {reason}; use 1 to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit",
            name=name,
            reason=reason,
        )


def segment_shape(*, field: str, value: object, limit: str) -> BadInputError:
    """A segment was asked for with a world size, run id or the like that its layout cannot hold."""
    return BadInputError(
        f"{field} {value!r} is not {limit}; correct the configuration",
        code="segment-shape",
        field=field,
        value=value,
        limit=limit,
    )


class SegmentMissingError(RefusedError):
    """There is no segment of that name."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"there is no segment {path}; start the group first, check its name, "
            "and in containers that both sides share /dev/shm (one IPC namespace)",
            path=path,
        )


class SegmentExistsError(RefusedError):
    """A segment of that name exists, and the caller adopts none."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"{path} exists already and is never replaced blindly; adopt it (create_or_adopt), "
            "or use another name",
            path=path,
        )


class SegmentOwnedError(RefusedError):
    """A live process owns the segment (pid 0: one in another pid namespace)."""

    def __init__(self, *, path: str, pid: int) -> None:
        super().__init__(
            f"{path} belongs to the live process {pid or '(in another pid namespace)'}; "
            "stop that group first, or use another name",
            path=path,
            pid=pid,
        )


class SegmentReplacedError(RefusedError):
    """The file was removed or created anew since this process attached; its words are read no more."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"{path} was removed or created anew since this process attached; close it and attach again",
            path=path,
        )


class SegmentAccessError(RefusedError):
    """The file cannot be opened, or must not be trusted."""

    def __init__(
        self, *, path: str, reason: str, fix: str = "run as the user that started the group"
    ) -> None:
        super().__init__(
            f"{path} cannot be used: {reason}; {fix}, or remove the file if that user has no business there",
            path=path,
            reason=reason,
        )


class SegmentClosedError(RefusedError):
    """The segment was closed in this process; its memory is no longer mapped."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} was closed in this process; attach it again", path=path)


class SegmentBusyError(RefusedError):
    """Another process still holds a view into the memory, which therefore cannot be unmapped."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"{path} cannot be closed while a slice or array over its memory is alive; drop those first",
            path=path,
        )


def not_owner(*, path: str) -> RefusedError:
    """Only the process that owns the segment may remove it; a forked child is another process."""
    return RefusedError(
        f"{path} is not owned by this process and cannot be removed by it; "
        "let its owner do it, or take it over with create_or_adopt",
        code="not-owner",
        path=path,
    )


def shared_memory_full(*, path: str, needed_bytes: int, free_bytes: int, reason: str) -> RefusedError:
    """The file system of the segment has no room; nothing was left behind."""
    return RefusedError(
        f"{path} needs {needed_bytes} bytes and {free_bytes} are free ({reason}); "
        "remove what is stale in that folder, or give it more (containers: --shm-size)",
        code="shared-memory-full",
        path=path,
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
        reason=reason,
    )


def not_a_segment(*, path: str, magic: bytes) -> BadInputError:
    """The file is no segment of wsm."""
    return BadInputError(
        f"{path} begins with {magic!r} and is no segment of wsm; remove it, or use another name",
        code="not-a-segment",
        path=path,
        magic=magic,
    )


class SegmentTruncatedError(BadInputError):
    """The file is shorter than what it must hold."""

    def __init__(self, *, path: str, size: int, needed_bytes: int) -> None:
        super().__init__(
            f"{path} has {size} bytes where {needed_bytes} are needed; "
            "stop what uses it, remove it and start again",
            path=path,
            size=size,
            needed_bytes=needed_bytes,
        )


def layout_version_mismatch(*, path: str, found: int, expected: int) -> BadInputError:
    """The segment was written by a build of wsm with another layout."""
    return BadInputError(
        f"{path} has layout version {found}, this build of wsm reads version {expected}; "
        "run the same version of wsm in all processes of the group",
        code="layout-version-mismatch",
        path=path,
        found=found,
        expected=expected,
    )


def header_damaged(*, path: str, found: int, expected: int) -> BadInputError:
    """The constant part of the header is not what its creator wrote."""
    return BadInputError(
        f"the header of {path} is damaged (checksum {found:#010x}, its bytes give {expected:#010x}); "
        "stop what uses it, remove it and start again",
        code="header-damaged",
        path=path,
        found=found,
        expected=expected,
    )


def world_size_mismatch(*, path: str, field: str, found: int, expected: int) -> BadInputError:
    """The segment is of a group of another size than the caller expects."""
    return BadInputError(
        f"{path} is of a group with {field} {found}, this process was configured for {expected}; "
        "use one configuration for all processes of the group, or another name",
        code="world-size-mismatch",
        path=path,
        field=field,
        found=found,
        expected=expected,
    )


def configuration_mismatch(*, path: str, found: int, expected: int) -> BadInputError:
    """The segment is of a group with another configuration, and that group still lives."""
    return BadInputError(
        f"{path} is of a live group with configuration digest {found:#018x}, not {expected:#018x}; "
        "stop that group, or start with its configuration",
        code="configuration-mismatch",
        path=path,
        found=found,
        expected=expected,
    )


def participant_unknown(*, participant: int, participants: int) -> BadInputError:
    """A participant number that the segment has no place for."""
    return BadInputError(
        f"participant {participant} is none of 0..{participants - 1}; check rank and world size",
        code="participant-unknown",
        participant=participant,
        participants=participants,
    )


class SlotTakenError(RefusedError):
    """A live process stands for that participant already (pid 0: one in another pid namespace)."""

    def __init__(self, *, path: str, participant: int, pid: int) -> None:
        super().__init__(
            f"participant {participant} of {path} is the live process "
            f"{pid or '(in another pid namespace)'}; end it before it is replaced",
            path=path,
            participant=participant,
            pid=pid,
        )


class RoleBusyError(RefusedError):
    """Another process or thread holds the controller role (pid 0: one in another pid namespace).

    `stopped` says that it lives and does not go on; `supervisor`, that it is the group's supervisor; `doing`,
    which part of the group it is, if it is one.
    """

    retryable = True

    def __init__(
        self,
        *,
        path: str,
        pid: int,
        waited_s: float,
        stopped: bool = False,
        supervisor: bool = False,
        doing: str = "",
    ) -> None:
        fix = "let its command end, or wait for that (wait_s=30, on the command line --wait 30)"
        if stopped:
            fix = f"it is stopped: {go_on_or_end(pid, supervisor=supervisor)}"
        super().__init__(
            f"the controller role of {path} is held by process {pid or '(in another pid namespace)'}"
            f"{f', {doing}' if doing else ''} (waited {waited_s:g} s); {fix}",
            path=path,
            pid=pid,
            waited_s=waited_s,
            stopped=stopped,
            supervisor=supervisor,
            doing=doing,
        )


class SlotReusedError(InternalError):
    """A payload was to be written twice under one key; a reader could take one for the other."""

    def __init__(self, *, epoch: int, sequence: int, kind: int) -> None:
        super().__init__(
            f"a payload of kind {kind} was written already for epoch {epoch}, sequence {sequence}; "
            "this is a bug in wsm, please report it",
            epoch=epoch,
            sequence=sequence,
            kind=kind,
        )


def go_on_or_end(pid: int, *, supervisor: bool) -> str:
    """Say what to do about a process that has the controller role and does not go on."""
    go_on = f"let it go on (kill -CONT {pid})"
    # Ranks ask the kernel to end them with the process that started them.
    ends = "it is the supervisor, and the ranks that it started may end with it"
    return f"{go_on}; {ends}" if supervisor else f"{go_on}, or end it (kill -9 {pid})"


def payload_too_large(*, size: int, capacity: int) -> BadInputError:
    """More bytes than a payload slot holds."""
    return BadInputError(
        f"a payload of {size} bytes does not fit a slot of {capacity}; shorten it, or pass a path to it",
        code="payload-too-large",
        size=size,
        capacity=capacity,
    )


def atomics_unavailable(*, library: str, reason: str) -> RefusedError:
    """Compare-exchange is missing: ``libatomic.so.1`` cannot be loaded."""
    return RefusedError(
        f"{library} cannot be loaded ({reason}), and FastDeploy's words are never answered without it; "
        "install the system package libatomic1 (Debian, Ubuntu) or libatomic (Fedora, RHEL)",
        code="atomics-unavailable",
        library=library,
        reason=reason,
    )


class EngineWordMissingError(RefusedError):
    """The engine has not created that word, or has removed it."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"there is no engine word {path}; start the engine first and check the suffix "
            "(its own engine worker queue port, one per data-parallel part)",
            path=path,
        )


def engine_word_exists(*, path: str) -> RefusedError:
    """The word exists already; FastDeploy would unlink it here and split two engines silently."""
    return RefusedError(
        f"the engine word {path} exists already; use another suffix, "
        "or remove the file if no engine with this suffix lives",
        code="engine-word-exists",
        path=path,
    )


def engine_word_size(*, path: str, size: int) -> BadInputError:
    """The file is too small to be an int32 word."""
    return BadInputError(
        f"the engine word {path} has {size} bytes where an int32 needs 4; "
        "remove the file and restart the engine",
        code="engine-word-size",
        path=path,
        size=size,
    )


def engine_word_value(*, path: str, value: int) -> BadInputError:
    """A value that no int32 holds."""
    return BadInputError(
        f"{value} does not fit the int32 word {path}; pass a status code",
        code="engine-word-value",
        path=path,
        value=value,
    )
