"""What can be wrong with words and slots, and all errors of signals under one name. Knows no states.

Those of a segment as a whole are in :mod:`.segment_errors`, those of FastDeploy's words in
:mod:`.engine_word_errors`.
"""

from __future__ import annotations

from wsm.errors import BadInputError, InternalError, RefusedError
from wsm.signals.engine_word_errors import (
    EngineWordExistsError,
    EngineWordMissingError,
    EngineWordSizeError,
    EngineWordValueError,
)
from wsm.signals.segment_errors import (
    ConfigurationDigestError,
    HeaderChecksumError,
    LayoutVersionError,
    NotOwnerError,
    SegmentAccessError,
    SegmentBusyError,
    SegmentClosedError,
    SegmentExistsError,
    SegmentMagicError,
    SegmentMissingError,
    SegmentNameError,
    SegmentOwnedError,
    SegmentReplacedError,
    SegmentShapeError,
    SegmentTruncatedError,
    SharedMemoryFullError,
    WorldSizeError,
)

__all__ = [
    "AtomicsUnavailableError",
    "ConfigurationDigestError",
    "EngineWordExistsError",
    "EngineWordMissingError",
    "EngineWordSizeError",
    "EngineWordValueError",
    "HeaderChecksumError",
    "LayoutVersionError",
    "NotOwnerError",
    "ParticipantError",
    "PayloadTooLargeError",
    "RoleBusyError",
    "SegmentAccessError",
    "SegmentBusyError",
    "SegmentClosedError",
    "SegmentExistsError",
    "SegmentMagicError",
    "SegmentMissingError",
    "SegmentNameError",
    "SegmentOwnedError",
    "SegmentReplacedError",
    "SegmentShapeError",
    "SegmentTruncatedError",
    "SharedMemoryFullError",
    "SlotReusedError",
    "SlotTakenError",
    "WorldSizeError",
]


class ParticipantError(BadInputError):
    """A participant number that the segment has no place for."""

    def __init__(self, *, participant: int, participants: int) -> None:
        super().__init__(
            f"participant {participant} is none of 0..{participants - 1}; check rank and world size",
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

    `stopped` says that it lives and does not go on; `doing`, which part of the group it is, if it is one.
    """

    retryable = True

    def __init__(
        self, *, path: str, pid: int, waited_s: float, stopped: bool = False, doing: str = ""
    ) -> None:
        fix = "let its command end, or wait longer"
        if stopped:
            fix = f"it is stopped: end it (kill -9 {pid}), or let it go on (kill -CONT {pid})"
        super().__init__(
            f"the controller role of {path} is held by process {pid or '(in another pid namespace)'}"
            f"{f', {doing}' if doing else ''} (waited {waited_s:g} s); {fix}",
            path=path,
            pid=pid,
            waited_s=waited_s,
            stopped=stopped,
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


class PayloadTooLargeError(BadInputError):
    """More bytes than a payload slot holds."""

    def __init__(self, *, size: int, capacity: int) -> None:
        super().__init__(
            f"a payload of {size} bytes does not fit a slot of {capacity}; shorten it, or pass a path to it",
            size=size,
            capacity=capacity,
        )


class AtomicsUnavailableError(RefusedError):
    """Compare-exchange is not to be had: ``libatomic.so.1`` cannot be loaded."""

    def __init__(self, *, library: str, reason: str) -> None:
        super().__init__(
            f"{library} cannot be loaded ({reason}), and FastDeploy's words are never answered without it; "
            "install the system package libatomic1 (Debian, Ubuntu) or libatomic (Fedora, RHEL)",
            library=library,
            reason=reason,
        )
