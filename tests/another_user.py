"""Work that is done as another user, for tests that run as root: ``@pytest.mark.needs("root")``."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

#: "nobody" on Linux; owns no file that a test needs.
ANOTHER_USER = 65534


def fork() -> int:
    """Fork, whatever threads earlier tests have left: the child calls nothing that waits for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on
        return os.fork()


@contextlib.contextmanager
def acting(work: Callable[[], object]) -> Iterator[None]:
    """Let another user do `work` in a process that lives, with all it holds, until the ``with`` ends."""
    done, tell_done = os.pipe()
    end, tell_end = os.pipe()
    child = fork()
    if child == 0:
        os.close(tell_end)
        code = 1
        try:
            os.setgroups([])
            os.setgid(ANOTHER_USER)
            os.setuid(ANOTHER_USER)
            kept = work()
            os.write(tell_done, b"+")
            os.read(end, 1)
            del kept
            code = 0
        except BaseException:  # noqa: BLE001 - it is told to the parent, which fails
            os.write(tell_done, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(code)
    os.close(tell_done)
    os.close(end)
    try:
        answer = os.read(done, 8192).decode()
        assert answer == "+", f"as user {ANOTHER_USER}: {answer}"
        yield
    finally:
        os.close(tell_end)
        os.close(done)
        os.waitpid(child, 0)


def as_another_user(work: Callable[[], object]) -> None:
    """Let another user do `work`, and end."""
    with acting(work):
        pass


@contextlib.contextmanager
def shared_place() -> Iterator[Path]:
    """A directory that every user can write in, as /dev/shm."""
    path = Path(tempfile.mkdtemp(prefix="wsm-test-", dir="/tmp"))  # what pytest gives is private
    path.chmod(0o1777)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def makers(path: Path) -> dict[str, Callable[[], object]]:
    """What an enemy may put under a name."""
    return {
        "a file": lambda: path.write_bytes(b"mine"),
        "a directory": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link": lambda: path.symlink_to("/etc"),
        "a dangling link": lambda: path.symlink_to(path.with_name("nowhere")),
    }
