"""A publisher that is killed before each of its file operations in turn; for a process without threads."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

_OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.listdir", "os.scandir"}

_left: int | None = None


def _stop(event: str, _arguments: object) -> None:
    global _left  # noqa: PLW0603 - an audit hook has no other place for it
    if _left is not None and event in _OPERATIONS:
        _left -= 1
        if _left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(_stop)


def deaths(publish: Callable[[], object]) -> Iterator[int]:
    """Call `publish` in a child that dies at its first file operation, at its second one, and so on.

    Yields how many operations each child lived for; the last of them came to its end.
    """
    global _left  # noqa: PLW0603 - as above
    operations, ended = 0, -signal.SIGKILL
    while ended:
        child = os.fork()
        if not child:
            _left = operations
            publish()
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in (0, -signal.SIGKILL), ended
        yield operations
        operations += 1
