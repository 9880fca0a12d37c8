"""The roots of every error that wsm raises on purpose, split by who is at fault.

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
"""

from __future__ import annotations

import re
from typing import Any

from wsm.printable import printable

# A message goes into logs, terminals and reports of a few KiB.
_MAX_MESSAGE = 8000
_HEAD, _TAIL = 6000, 1500


class WsmError(Exception):
    """Root of all errors of wsm.

    An error is `retryable` if the same call may succeed later without anybody repairing anything: a group
    that is being recovered, a role that another controller has.

    Parameters
    ----------
    message : str
        What happened, where, and what to do; one line. What cannot be printed in it (a name with a line
        feed, an escape sequence) stands there escaped; `context` has it as it is.
    code : str, optional
        Which error of its family it is, in lower case with hyphens; without it, the name of the type is.
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Name the type: what is raised without a code of its own has the type's."""
        super().__init_subclass__(**kwargs)
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, *, code: str | None = None, **context: Any) -> None:
        super().__init__(printable(_shortened(message)))
        if code is not None:
            self.code = code
        self.context = context
        for key, value in context.items():
            setattr(self, key, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructors of subclasses, whose parameters differ."""
        return _rebuild, (type(self), str(self), self.code, self.context)


def _shortened(message: str) -> str:
    """Return a message of bounded length: what a file or a peer says of itself may stand in it.

    Its end stays, which says what to do; the context holds the facts whole.
    """
    if len(message) <= _MAX_MESSAGE:
        return message
    left_out = len(message) - _HEAD - _TAIL
    return f"{message[:_HEAD]} [... {left_out} characters ...] {message[-_TAIL:]}"


def _rebuild(kind: type[WsmError], message: str, code: str, context: dict[str, Any]) -> WsmError:
    error = kind.__new__(kind)
    WsmError.__init__(error, message, code=code, **context)
    return error


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
