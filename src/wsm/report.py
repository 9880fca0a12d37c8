"""What one rank reports about a command: the facts of a success, the cause of a failure.

Written into the rank's payload slots before the status word that it belongs to. Bounded.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import traceback
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from wsm.errors import BadInputError, NoRoomError, WsmError, described, error_name, remedy
from wsm.payload import PayloadError, decode, encode, json_bytes

#: Fact of a participant that holds a KV cache and no weights; its report says nothing about a version.
WITHOUT_WEIGHTS = "without_weights"

#: Fact of a rank that was told to load whatever lies there: the digest that the label meant on it before.
LABEL_MEANT = "label_meant"

#: What stands in the place of an action where it was a serving step that raised.
STEP = "step"

#: Kind under which :class:`AtHand` stands in its slot.
AT_HAND_KIND = 1

#: Bytes that a report may take; a payload slot holds 16 KiB with its header.
MAX_REPORT_BYTES = 15 * 1024
_MAX_TRACEBACK = 8 * 1024
_MAX_MESSAGE = 2 * 1024

_Kind = TypeVar("_Kind", bound="_Report")


class ReportFormatError(BadInputError):
    """A rank's report is not what a worker of this build writes."""


class _Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int

    @classmethod
    def from_bytes(cls: type[_Kind], rank: int, data: bytes) -> _Kind:  # noqa: PYI019 - typing has no Self on 3.10
        """Read it back; a ReportFormatError is raised for what is no such JSON object."""
        try:
            return decode(cls, data)
        except PayloadError as error:
            raise ReportFormatError(
                f"the report of rank {rank} is unusable: {error}; run the same version of wsm everywhere",
                rank=rank,
                problem=str(error),
            ) from error


class ActionSeconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long an action took: its run and its probe, without the wait for votes."""

    name: str
    seconds: float


class AtHand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The action that a rank is inside of, or comes to next; it stands in a slot of the rank's own.

    Parameters
    ----------
    plans : str
        Digest of what must be equal in the plans of all ranks: which actions, and which of them are
        collective. Deadlines may differ.
    plan, action : str or None
        The plan, as diagrams call it. No action: the rank is between two plans, or has begun none of this
        one.
    deadline_s : float
        Seconds that it may take, and that ranks may wait for each other's votes before it.
    """

    plans: str
    plan: str | None = None
    action: str | None = None
    deadline_s: float = 0.0
    collective: bool = False

    @classmethod
    @functools.lru_cache(maxsize=256)
    def from_bytes(cls, data: builtins.bytes) -> AtHand | None:
        """Read it; None: another build of wsm wrote it. Equal on most ranks, and in every command."""
        with contextlib.suppress(PayloadError):
            return decode(cls, data)
        return None


class RankReport(_Report, frozen=True, forbid_unknown_fields=True):
    """What one rank did for a command.

    Parameters
    ----------
    manifest_digest, digest : str or None
        Of the manifest that was loaded, and of the bytes that are resident; hexadecimal.
    pause_s : float
        Seconds since this rank last could serve; 0 if it never could.
    facts : mapping
        What else actions declared.
    bases : tuple of str
        The versions that this one, a part, was put on: the whole one, then other parts in their order. Empty
        for a whole version.
    held, loads : bool or None
        Whether the group is held once the command is committed, and whether the command loads weights: for a
        process that has to complete it, and finds its arguments damaged. None: not said.
    """

    version: str | None = None
    manifest_digest: str | None = None
    digest: str | None = None
    bytes: int = 0
    tensors: int = 0
    actions: tuple[ActionSeconds, ...] = ()
    pause_s: float = 0.0
    facts: Mapping[str, Any] = {}
    bases: tuple[str, ...] = ()
    held: bool | None = None
    loads: bool | None = None

    def to_bytes(self) -> builtins.bytes:
        """Return the JSON text; the largest facts are left out, by name, where all of them do not fit."""
        facts, left_out = dict(self.facts), []
        data = encode(self)
        while len(data) > MAX_REPORT_BYTES and facts:
            left_out.append(max(facts, key=lambda name: len(json_bytes(facts[name]))))
            del facts[left_out[-1]]
            data = encode(msgspec.structs.replace(self, facts={**facts, "left_out": left_out}))
        return data


class FailureReport(_Report, frozen=True, forbid_unknown_fields=True):
    """Why one rank failed or refused a command.

    Parameters
    ----------
    action : str
        The action or the stage (``begin``, ``drain``, ``park`` ...) that failed.
    error, message, traceback : str
        Code (of an error of wsm) or type, text and remote traceback of the cause; its end where it was too
        long.
    no_room : bool
        Whether it lacked room for a second version beside the one that serves, and for nothing else.
    unfit : bool
        Whether it says something of the weights that were to be loaded, and not of this rank.
    """

    action: str
    error: str
    message: str
    traceback: str = ""
    no_room: bool = False
    unfit: bool = False

    @classmethod
    def of(cls, rank: int, action: str, error: BaseException) -> FailureReport:
        """Describe an exception; errors of wsm carry their own fix and need no traceback to be understood."""
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        message = " ".join(described(error).split())
        if isinstance(error, WsmError):
            fix = (
                None if isinstance(error, NoRoomError) else remedy(error)
            )  # the other says what to do itself
            message = str(error) if fix is None or fix in str(error) else f"{error}; {fix}"
        return cls(
            rank,
            action,
            error_name(error),
            message[:_MAX_MESSAGE],
            lines[-_MAX_TRACEBACK:],
            no_room=isinstance(error, NoRoomError),
            unfit=isinstance(error, WsmError) and error.unfit,
        )

    def to_bytes(self) -> builtins.bytes:
        """Return the JSON text: the end of a traceback, the beginning of a message, as far as they fit."""
        kept, data = self, encode(self)
        while len(data) > MAX_REPORT_BYTES and (kept.traceback or kept.message):
            shorter = (
                {"traceback": kept.traceback[len(kept.traceback) // 2 + 1 :]}
                if kept.traceback
                else {"message": kept.message[: len(kept.message) // 2]}
            )
            kept = msgspec.structs.replace(kept, **shorter)
            data = encode(kept)
        return data
