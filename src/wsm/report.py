"""What one rank reports about a command: the facts of a success, the cause of a failure.

Written into the rank's payload slots before the status word that it belongs to, read by the
controller. JSON, bounded, checked on arrival. Knows nothing of words.
"""

from __future__ import annotations

import builtins
import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wsm.errors import BadInputError, NoRoomError, WsmError, error_name
from wsm.shortage import described, remedy

#: Fact of a participant that holds a KV cache and no weights; its report says nothing about a version.
WITHOUT_WEIGHTS = "without_weights"

#: What stands in the place of an action where it was a serving step that raised.
STEP = "step"

#: Bytes that a report may take; a payload slot holds 16 KiB with its header.
MAX_REPORT_BYTES = 15 * 1024
_MAX_TRACEBACK = 8 * 1024
_MAX_MESSAGE = 2 * 1024


class ReportFormatError(BadInputError):
    """A rank's report is not what a worker of this build writes."""

    def __init__(self, *, rank: int, problem: str) -> None:
        super().__init__(
            f"the report of rank {rank} is unusable: {problem}; run the same version of wsm everywhere",
            rank=rank,
            problem=problem,
        )


@dataclass(frozen=True)
class ActionSeconds:
    """How long one action took.

    Parameters
    ----------
    name : str
        The action.
    seconds : float
        Its run and its probe, without the wait for votes.
    """

    name: str
    seconds: float


@dataclass(frozen=True)
class RankReport:
    """What one rank did for a command.

    Parameters
    ----------
    rank : int
        Who.
    version : str or None
        The version that it holds now.
    manifest_digest, digest : str or None
        Of the manifest that was loaded, and of the bytes that are resident; hexadecimal.
    bytes, tensors : int
        Loaded.
    actions : tuple of ActionSeconds
        In the order in which they ran.
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

    rank: int
    version: str | None = None
    manifest_digest: str | None = None
    digest: str | None = None
    bytes: int = 0
    tensors: int = 0
    actions: tuple[ActionSeconds, ...] = ()
    pause_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    bases: tuple[str, ...] = ()
    held: bool | None = None
    loads: bool | None = None

    def to_bytes(self) -> builtins.bytes:
        """Return the JSON text; the largest facts are left out, by name, where all of them do not fit."""
        # Not asdict(), which copies everything: a rank that reports does not serve yet.
        content = {**vars(self), "actions": [vars(action) for action in self.actions]}
        facts, left_out = dict(self.facts), []
        data = _json(content)
        while len(data) > MAX_REPORT_BYTES and facts:
            left_out.append(max(facts, key=lambda name: len(_json(facts[name]))))
            del facts[left_out[-1]]
            data = _json({**content, "facts": {**facts, "left_out": left_out}})
        return data

    @classmethod
    def from_bytes(cls, rank: int, data: builtins.bytes) -> RankReport:
        """Read it back.

        Raises
        ------
        ReportFormatError
            If it is not such a JSON object.
        """
        try:
            content = json.loads(data)
            content["actions"] = tuple([ActionSeconds(**entry) for entry in content["actions"]])
            content["bases"] = tuple(map(str, content["bases"]))
            return cls(**content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReportFormatError(rank=rank, problem=f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class FailureReport:
    """Why one rank failed or refused a command.

    Parameters
    ----------
    rank : int
        Who.
    action : str
        The action or the stage (``begin``, ``drain``, ``park`` ...) that failed.
    error, message : str
        Code (of an error of wsm) or type, and text of the cause.
    traceback : str
        The remote traceback, its end where it was too long.
    no_room : bool
        Whether it lacked room for a second version beside the one that serves, and for nothing else.
    unfit : bool
        Whether it says something of the weights that were to be loaded, and not of this rank.
    """

    rank: int
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
        content, data = asdict(self), _json(asdict(self))
        while len(data) > MAX_REPORT_BYTES and (content["traceback"] or content["message"]):
            if content["traceback"]:
                content["traceback"] = content["traceback"][len(content["traceback"]) // 2 + 1 :]
            else:
                content["message"] = content["message"][: len(content["message"]) // 2]
            data = _json(content)
        return data

    @classmethod
    def from_bytes(cls, rank: int, data: builtins.bytes) -> FailureReport:
        """Read it back.

        Raises
        ------
        ReportFormatError
            If it is not such a JSON object.
        """
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ReportFormatError(rank=rank, problem=f"{type(error).__name__}: {error}") from error


def _json(content: object) -> builtins.bytes:
    # Text of any language as it is, since escapes take up to six times the room; lone surrogates as escapes.
    return json.dumps(content, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
