"""Errors of segments, slots and FastDeploy's words that a caller acts on; others are raised in place."""

from __future__ import annotations

from wsm.errors import BadInputError, InternalError, RefusedError


class SegmentNameError(BadInputError):
    """A name that cannot be one component of a path, or that wsm keeps for itself."""

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(
            f"{name!r} cannot name a segment: {reason}; use 1 to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit",
            name=name,
            reason=reason,
        )


class SegmentMissingError(RefusedError):
    """There is no segment of that name."""


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

    `stopped` says that it lives and is stopped; `unanswered_s`, for how long its command has waited for its
    word, if that is longer than a controller takes that goes on; `supervisor`, that it is the group's
    supervisor; `doing`, which part of the group it is, if it is one.
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
        unanswered_s: float | None = None,
    ) -> None:
        fix = "let its command end, or wait for that (wait_s=30, on the command line --wait 30)"
        if stopped or unanswered_s is not None:
            why = "is stopped" if stopped else f"has not answered for {unanswered_s:.0f} s"
            fix = f"it {why}: {go_on_or_end(pid, stopped=stopped, supervisor=supervisor)}"
        super().__init__(
            f"the controller role of {path} is held by process {pid or '(in another pid namespace)'}"
            f"{f', {doing}' if doing else ''} (waited {waited_s:g} s); {fix}",
            path=path,
            pid=pid,
            waited_s=waited_s,
            stopped=stopped,
            supervisor=supervisor,
            doing=doing,
            unanswered_s=unanswered_s,
        )


class SlotReusedError(InternalError):
    """A payload was to be written twice under one key; a reader could take one for the other."""


def go_on_or_end(pid: int, *, supervisor: bool, stopped: bool = True) -> str:
    """Say what to do about a process that has the controller role and does not go on; 0: not seen."""
    if not pid:
        return "look at it in its own container, and end it there if it does nothing"
    go_on = f"let it go on (kill -CONT {pid})" if stopped else f"see what it does (py-spy dump --pid {pid})"
    # Ranks ask the kernel to end them with the process that started them.
    ends = "it is the supervisor, and the ranks that it started may end with it"
    return f"{go_on}; {ends}" if supervisor else f"{go_on}, or end it (kill -9 {pid})"


class EngineWordMissingError(RefusedError):
    """The engine has not created that word, or has removed it."""
