"""Every error that a caller of wsm can branch on: the roots, split by who is at fault, and the public types.

Every error has a stable `code`, keeps its context as attributes and says in its message what happened,
where, and what to do. It is a type of its own where a caller does something different about it; everything
else is one of the four families, told apart by its code.

=====================  ====================================================================
family                 meaning
=====================  ====================================================================
:class:`RefusedError`  the caller asked for something that cannot be done now; nothing changed
:class:`BadInputError` a file, word, message or configuration is not what it must be
:class:`GroupError`    a rank, an action or a deadline of the group failed
:class:`InternalError` wsm broke one of its own rules: a bug in wsm, please report it
=====================  ====================================================================

The public types are defined where they are raised, found here and in :mod:`wsm` (:data:`PUBLIC`), and listed
with their codes and attributes in docs/errors.md.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from wsm.printable import printable

#: The module of each public type that is not a family. Those modules need this one, so none is imported
#: before its type is asked for here; :mod:`wsm` takes each type from where it is defined.
PUBLIC = {
    "ActionOverdueError": "wsm.controller.errors",
    "CommandOpenError": "wsm.states.errors",
    "CommandRefusedError": "wsm.controller.errors",
    "CommandTimeoutError": "wsm.controller.errors",
    "CommandWithdrawnError": "wsm.controller.errors",
    "ConfigurationError": "wsm.config_reading",
    "DeltaBaseError": "wsm.strategies.delta.errors",
    "DigestMismatchError": "wsm.strategies.errors",
    "EpochEndedError": "wsm.controller.errors",
    "EpochUsedError": "wsm.states.errors",
    "FlipFailedError": "wsm.worker.errors",
    "ForeignPathError": "wsm.shared_directory",
    "LoadCancelledError": "wsm.strategies.errors",
    "MixedGroupError": "wsm.controller.errors",
    "NotServingError": "wsm.worker.errors",
    "PeerDiedError": "wsm.strategies.messages.errors",
    "PeerFailedError": "wsm.strategies.messages.errors",
    "PeerSilentError": "wsm.strategies.messages.errors",
    "PostconditionError": "wsm.actions.errors",
    "PreconditionError": "wsm.actions.errors",
    "PublisherBusyError": "wsm.strategies.errors",
    "RankFailedError": "wsm.controller.errors",
    "RankLostError": "wsm.controller.errors",
    "RestartLimitError": "wsm.controller.errors",
    "RoleBusyError": "wsm.signals.errors",
    "SegmentMissingError": "wsm.signals.errors",
    "SegmentTruncatedError": "wsm.signals.errors",
    "SlotTakenError": "wsm.signals.errors",
    "SnapshotNotFoundError": "wsm.strategies.errors",
    "StorageError": "wsm.strategies.errors",
    "TensorReleasedError": "wsm.strategies.errors",
    "UnreadableFileError": "wsm.strategies.errors",
    "UnsettledError": "wsm.controller.errors",
    "VersionExistsError": "wsm.strategies.errors",
    "VersionMismatchError": "wsm.strategies.errors",
}

__all__ = [
    "PUBLIC",
    "BadInputError",
    "GroupError",
    "InternalError",
    "NoRoomError",
    "RefusedError",
    "WsmError",
    "error_name",
]
__all__ += list(PUBLIC)

# A message goes into logs, terminals and reports of a few KiB.
_MAX_MESSAGE = 8000
_HEAD, _TAIL = 6000, 1500


class WsmError(Exception):
    """Root of all errors of wsm.

    An error is `retryable` if the same call may succeed later without a repair: a group
    that is being recovered, a role that another controller has. It is `unfit` if it says something of the
    weights that were to be loaded, whichever process found it: the same content fails in the same way.

    Parameters
    ----------
    message : str
        What happened, where, and what to do; one line. What cannot be printed in it (a name with a line
        feed, an escape sequence) stands there escaped; `context` has it as it is.
    code : str, optional
        Which error of its family it is, in lower case with hyphens; without it, the name of the type is.
    unfit : bool, optional
        Whether it says something of the weights; without it, as its type says.
    **context : Any
        Facts that a program may want to act on. Each becomes an attribute and an entry of `context`.

    Attributes
    ----------
    code : str
        Which error it is; stays the same from release to release.
    context : dict of str to Any
        The same facts as a mapping, for logs and for JSON.
    """

    code: str = "wsm"
    retryable: bool = False
    unfit: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Name the type: what is raised without a code of its own has the type's."""
        super().__init_subclass__(**kwargs)
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(
        self, message: str, *, code: str | None = None, unfit: bool | None = None, **context: Any
    ) -> None:
        super().__init__(printable(_shortened(message)))
        if code is not None:
            self.code = code
        if unfit is not None:
            self.unfit = unfit
        self.context = context
        for key, value in context.items():
            setattr(self, key, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructors of subclasses, whose parameters differ."""
        return _rebuild, (type(self), str(self), self.code, self.unfit, self.context)


def _shortened(message: str) -> str:
    """Return a message of bounded length: what a file or a peer says of itself may stand in it.

    Its end stays, which says what to do; the context holds the facts whole.
    """
    if len(message) <= _MAX_MESSAGE:
        return message
    left_out = len(message) - _HEAD - _TAIL
    return f"{message[:_HEAD]} [... {left_out} characters ...] {message[-_TAIL:]}"


def _rebuild(kind: type[WsmError], message: str, code: str, unfit: bool, context: dict[str, Any]) -> WsmError:
    error = kind.__new__(kind)
    WsmError.__init__(error, message, code=code, unfit=unfit, **context)
    return error


def error_name(error: BaseException) -> str:
    """Return what a report, a journal or a message to another process calls `error`.

    That is the code of an error of wsm, and the type of any other.
    """
    return error.code if isinstance(error, WsmError) else type(error).__name__


class RefusedError(WsmError):
    """A request that cannot be carried out in the present state. Nothing was changed."""


class NoRoomError(RefusedError):
    """A second version has no place beside the one that serves; in place, an update may be possible."""


class BadInputError(WsmError):
    """A file, word, message or configuration that is not what it must be. Nothing was changed by it."""


class GroupError(WsmError):
    """A rank, an action or a deadline of the group failed; the context names it."""


class InternalError(WsmError):
    """One of wsm's own rules was broken: a bug in wsm, not in the caller."""


def __getattr__(name: str) -> type[WsmError]:
    """Import the module that defines the public type `name`."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind: type[WsmError] = getattr(importlib.import_module(PUBLIC[name]), name)
    return kind
