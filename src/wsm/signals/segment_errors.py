"""What can be wrong with a segment as a whole: its name, its file, its owner, its header. Knows no words."""

from __future__ import annotations

from wsm.errors import BadInputError, RefusedError


class SegmentNameError(BadInputError):
    """A name that cannot be one component of a path in ``/dev/shm``, or that wsm keeps for itself."""

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(
            f"{name!r} cannot name a segment: {reason}; use 1 to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit",
            name=name,
            reason=reason,
        )


class SegmentShapeError(BadInputError):
    """A segment was asked for with a world size, run id or the like that its layout cannot hold."""

    def __init__(self, *, field: str, value: object, limit: str) -> None:
        super().__init__(
            f"{field} {value!r} is not {limit}; correct the configuration",
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
    """A segment of that name exists and was not to be adopted."""

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
    """The file was removed or created anew since this process attached; its words reach nobody."""

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
    """Somebody still holds a view into the memory, which therefore cannot be unmapped."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"{path} cannot be closed while a slice or array over its memory is alive; drop those first",
            path=path,
        )


class NotOwnerError(RefusedError):
    """Only the process that owns the segment may remove it; a forked child is another process."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"{path} is not owned by this process and cannot be removed by it; "
            "let its owner do it, or take it over with create_or_adopt",
            path=path,
        )


class SharedMemoryFullError(RefusedError):
    """The file system of the segment has no room; nothing was left behind."""

    def __init__(self, *, path: str, needed_bytes: int, free_bytes: int, reason: str) -> None:
        super().__init__(
            f"{path} needs {needed_bytes} bytes and {free_bytes} are free ({reason}); "
            "remove what is stale in that folder, or give it more (containers: --shm-size)",
            path=path,
            needed_bytes=needed_bytes,
            free_bytes=free_bytes,
            reason=reason,
        )


class SegmentMagicError(BadInputError):
    """The file is no segment of wsm."""

    def __init__(self, *, path: str, magic: bytes) -> None:
        super().__init__(
            f"{path} begins with {magic!r} and is no segment of wsm; remove it, or use another name",
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


class LayoutVersionError(BadInputError):
    """The segment was written by a build of wsm with another layout."""

    def __init__(self, *, path: str, found: int, expected: int) -> None:
        super().__init__(
            f"{path} has layout version {found}, this build of wsm reads version {expected}; "
            "run the same version of wsm in all processes of the group",
            path=path,
            found=found,
            expected=expected,
        )


class HeaderChecksumError(BadInputError):
    """The constant part of the header is not what its creator wrote."""

    def __init__(self, *, path: str, found: int, expected: int) -> None:
        super().__init__(
            f"the header of {path} is damaged (checksum {found:#010x}, its bytes give {expected:#010x}); "
            "stop what uses it, remove it and start again",
            path=path,
            found=found,
            expected=expected,
        )


class WorldSizeError(BadInputError):
    """The segment is of a group of another size than the caller expects."""

    def __init__(self, *, path: str, field: str, found: int, expected: int) -> None:
        super().__init__(
            f"{path} is of a group with {field} {found}, this process was configured for {expected}; "
            "use one configuration for all processes of the group, or another name",
            path=path,
            field=field,
            found=found,
            expected=expected,
        )


class ConfigurationDigestError(BadInputError):
    """The segment is of a group with another configuration, and that group still lives."""

    def __init__(self, *, path: str, found: int, expected: int) -> None:
        super().__init__(
            f"{path} is of a live group with configuration digest {found:#018x}, not {expected:#018x}; "
            "stop that group, or start with its configuration",
            path=path,
            found=found,
            expected=expected,
        )
