"""A process that is out of descriptors, memory or threads: how that is told from other errors, and its fix.

Such an error says nothing about what was tried, only about the moment: the same call may succeed a second
later. So it fails no more than it must, and its message says which limit to raise, or what to free. Knows no
states and no words.
"""

from __future__ import annotations

import enum
import errno
import resource


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
    if lacking is Shortage.DESCRIPTORS:
        limit = _limit(resource.RLIMIT_NOFILE)
        return (
            f"this process is out of descriptors, of which it may have {limit} (RLIMIT_NOFILE): raise that "
            "(ulimit -n, LimitNOFILE=), or end what leaks them (ls /proc/PID/fd)"
        )
    if lacking is Shortage.DESCRIPTORS_OF_HOST:
        return "the host is out of descriptors (fs.file-max): raise that, or end what leaks them"
    if lacking is Shortage.MEMORY:
        return (
            "this process is out of memory: free some, give it fewer neighbours, or raise its limit (the "
            f"control group's memory.max; RLIMIT_AS, ulimit -v, is {_limit(resource.RLIMIT_AS)})"
        )
    if lacking is Shortage.THREADS:
        return (
            "the kernel grants this process no thread more: raise the control group's pids.max or the limit "
            f"RLIMIT_NPROC (ulimit -u, {_limit(resource.RLIMIT_NPROC)}), or free memory for its stack"
        )
    return None


def _limit(kind: int) -> str:
    """Return the limit that is in force; asking takes no descriptor."""
    soft, _ = resource.getrlimit(kind)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
