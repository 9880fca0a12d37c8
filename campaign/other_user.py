"""Another user of the host does what it may to a group's names, while a command is under way.

It locks whatever it can open, connects where it can, and tries to put pipes, links and directories under
names that are free: nothing of that may be noticed. It takes root to become another user, so these cases
are for root alone. As a module it is that user: GROUP DIRECTORY SEED; it goes, with what it made, when its
input ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign.deaths_midway import Havoc, later, send
from campaign.environment import victims_environment
from campaign.group import GroupUnderFault
from wsm.shared_directory import private_directory

#: "nobody" on Linux; owns nothing of a group.
_USER = 65534
_SUFFIXES = ("", ".lock", ".new", ".run", ".requests")
_MAKERS: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    Path.mkdir,
    lambda path: path.symlink_to("/etc"),
    lambda path: path.write_bytes(bytes(4096)),
)


def _beside(*, kill: bool) -> Havoc:
    def begin(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
        name, seed = group.config.group.name, str(chance.randrange(1 << 32))
        group.directory.chmod(0o755)  # what is published there may be read
        enemy = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
            [sys.executable, "-m", "campaign.other_user", name, str(group.directory), seed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=victims_environment(),
        )
        assert enemy.stdin is not None  # noqa: S101 - it was asked for
        assert enemy.stdout is not None  # noqa: S101 - it was asked for
        enemy.stdout.readline()  # it holds what it could get
        victim = [chance.choice(group.supervisor.pids())]
        wait = later(chance, lambda: send(victim, signal.SIGKILL)) if kill else _nothing

        def afterwards() -> None:
            wait()
            enemy.communicate()

        return afterwards

    return begin


def _nothing() -> None:
    """Strike no process."""


KINDS: dict[str, Havoc] = (
    {"other-user": _beside(kill=False), "other-user-and-a-death": _beside(kill=True)}
    if os.geteuid() == 0
    else {}
)


def main(name: str, directory: Path, seed: str) -> None:
    """Be the other user, until the input ends."""
    memory = private_directory()
    os.setgroups([])
    os.setgid(_USER)
    os.setuid(_USER)
    chance = random.Random(seed)  # noqa: S311 - a case must be the same every time
    with contextlib.ExitStack() as made:
        kept = list(_held(name, memory, directory))
        for suffix in _SUFFIXES:
            path = memory / f"wsm.{name}{suffix}"
            with contextlib.suppress(OSError):
                chance.choice(_MAKERS)(path)
                made.callback(_remove, path)
        sys.stdout.write(f"{len(kept)}\n")
        sys.stdout.flush()
        sys.stdin.read()


def _held(name: str, memory: Path, directory: Path) -> Iterator[object]:
    """Open and lock what can be: every way that succeeds is kept."""
    paths = [memory / f"wsm.{name}{suffix}" for suffix in _SUFFIXES]
    for path in (*paths, *memory.parent.glob("*wsm*"), *directory.rglob("*")):
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if caller.connect_ex(str(path)) == 0:
            yield caller
        for flags in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, flags | os.O_NONBLOCK)
                yield descriptor
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove(path: Path) -> None:
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
