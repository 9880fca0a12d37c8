"""The roots of all errors of wsm, split by who is at fault; and what a process is out of.

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

A process that is out of descriptors, memory or threads is told from all that (:func:`shortage_of`): the same
call may succeed a second later, so the message says which limit to raise, or what to free.

The public types are defined where they are raised, exported by :mod:`wsm`, and listed in docs/errors.md.
"""

from __future__ import annotations

import enum
import errno
import functools
import importlib
import re
import resource
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from wsm.printable import printable

_Facts = ParamSpec("_Facts")
_Made = TypeVar("_Made", bound="WsmError")

# A message goes into logs, terminals and reports of a few KiB.
_MAX_MESSAGE = 8000
_HEAD, _TAIL = 6000, 1500


class WsmError(Exception):
    """Root of all errors of wsm.

    An error is `retryable` if the same call may succeed later without a repair: a group that is being
    recovered, a role that another controller has. It is `unfit` if it says something of the weights that were
    to be loaded, whichever process found it: the same content fails in the same way.

    Parameters
    ----------
    message : str
        What happened, where, and what to do; one line. What cannot be printed in it (a name with a line
        feed, an escape sequence) stands there escaped; `context` has it as it is.
    code : str, optional
        Which error of its family it is, in lower case with hyphens, the same from release to release; without
        it, the name of the type is.
    **context : Any
        Facts that a program may want to act on. Each becomes an attribute and an entry of `context`.
    """

    code: str = "wsm"
    retryable: bool = False
    unfit: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
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

    def followed_by(self, clause: str, **context: Any) -> WsmError:
        """Return this error, whose message and context say as well what came after it."""
        self.args = (printable(_shortened(f"{self}; {clause}")),)
        self.context = {**self.context, **context}
        for key, value in context.items():
            setattr(self, key, value)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructors of subclasses, whose parameters differ."""
        return _rebuild, (type(self), str(self), self.code, self.unfit, self.context)


def _shortened(message: str) -> str:
    """Return a message of bounded length; its end, which says what to do, stays."""
    if len(message) <= _MAX_MESSAGE:
        return message
    left_out = len(message) - _HEAD - _TAIL
    return f"{message[:_HEAD]} [... {left_out} characters ...] {message[-_TAIL:]}"


def _rebuild(kind: type[WsmError], message: str, code: str, unfit: bool, context: dict[str, Any]) -> WsmError:
    error = kind.__new__(kind)
    WsmError.__init__(error, message, code=code, unfit=unfit, **context)
    return error


def coded(code: str) -> Callable[[Callable[_Facts, _Made]], Callable[_Facts, _Made]]:
    """Let the error that a function makes have a code, and all arguments of the function as its context.

    The function takes keywords only. What it says of the context itself stays as it is.
    """

    def decorated(make: Callable[_Facts, _Made]) -> Callable[_Facts, _Made]:
        @functools.wraps(make)
        def made(*args: _Facts.args, **facts: _Facts.kwargs) -> _Made:
            error = make(*args, **facts)
            error.code = code
            error.context = {**(make.__kwdefaults__ or {}), **facts, **error.context}
            vars(error).update(error.context)
            return error

        return made

    return decorated


def error_name(error: BaseException) -> str:
    """Return the code of an error of wsm, and the type of any other."""
    return error.code if isinstance(error, WsmError) else type(error).__name__


class RefusedError(WsmError):
    """A request that cannot be carried out in the present state. Nothing was changed."""


class NoRoomError(RefusedError):
    """A second version has no place beside the one that serves; in place, an update may be possible."""


class BadInputError(WsmError):
    """A file, word, message or configuration that is not what it must be. Nothing was changed by it."""


class UnfitError(BadInputError):
    """What was to be loaded is not what it must be, whichever process found it."""

    unfit = True


class GroupError(WsmError):
    """A rank, an action or a deadline of the group failed; the context names it."""


class InternalError(WsmError):
    """One of wsm's own rules was broken: a bug in wsm, not in the caller."""


def raise_kept(errors: list[BaseException]) -> None:
    """Raise the first of the errors that were kept to be raised here, if there is one, and keep none.

    An error that its raiser keeps is in a cycle with its traceback, which holds whatever the callers hold.
    """
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()


class Shortage(enum.Enum):
    """What a process, or its host, has run out of."""

    DESCRIPTORS = "descriptors"
    DESCRIPTORS_OF_HOST = "descriptors of the host"
    MEMORY = "memory"
    THREADS = "threads"


_ERRNO = {
    errno.EMFILE: Shortage.DESCRIPTORS,
    errno.ENFILE: Shortage.DESCRIPTORS_OF_HOST,
    errno.ENOMEM: Shortage.MEMORY,
}
#: What the interpreter says when the kernel grants it no thread; it raises a plain RuntimeError.
_NO_THREAD = "can't start new thread"

#: Errors that were raised from one another; more of them are a loop.
_LONGEST_CHAIN = 8

#: What to raise or to free, and the limit that is in force.
_REMEDIES = {
    Shortage.DESCRIPTORS: "this process is out of descriptors, of which it may have {} (RLIMIT_NOFILE): "
    "raise that (ulimit -n, LimitNOFILE=), or end what leaks them (ls /proc/PID/fd)",
    Shortage.DESCRIPTORS_OF_HOST: "the host is out of descriptors (fs.file-max): raise that, "
    "or end what leaks them",
    Shortage.MEMORY: "this process is out of memory: free some, give it fewer neighbours, or raise its limit "
    "(the control group's memory.max; RLIMIT_AS, ulimit -v, is {})",
    Shortage.THREADS: "the kernel grants this process no thread more: raise the control group's pids.max or "
    "the limit RLIMIT_NPROC (ulimit -u, {}), or free memory for its stack",
}
_LIMITS = {Shortage.MEMORY: resource.RLIMIT_AS, Shortage.THREADS: resource.RLIMIT_NPROC}


def shortage_of(error: BaseException | None) -> Shortage | None:
    """Return what an error, or the one that it was raised from, says is lacking; None: something else."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return None
        if isinstance(error, MemoryError):
            return Shortage.MEMORY
        if isinstance(error, OSError) and error.errno in _ERRNO:
            return _ERRNO[error.errno]
        if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
            return Shortage.THREADS
        error = error.__cause__
    return None


def described(error: BaseException) -> str:
    """Return type and text of an error and, where it is a shortage, what to raise or to free."""
    parts = [type(error).__name__, str(error)] if str(error) else [type(error).__name__]
    fix = remedy(error)
    return ": ".join(parts) + ("" if fix is None else f"; {fix}")


def remedy(error: BaseException) -> str | None:
    """Say what to do about a shortage; None if the error is none."""
    lacking = shortage_of(error)
    if lacking is None:
        return None
    soft, _ = resource.getrlimit(_LIMITS.get(lacking, resource.RLIMIT_NOFILE))  # which takes no descriptor
    return _REMEDIES[lacking].format("unlimited" if soft == resource.RLIM_INFINITY else soft)


def __getattr__(name: str) -> type[WsmError]:
    """Return a public type that is defined elsewhere, of a module that needs this one."""
    library = importlib.import_module("wsm")
    if not name.endswith("Error") or name not in library.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind: type[WsmError] = getattr(library, name)
    return kind
