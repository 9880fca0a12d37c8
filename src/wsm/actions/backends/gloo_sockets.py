"""The TCP sockets that a Gloo communicator opened in this process, and how they are cut.

Gloo has no timeout that can be set and no call that ends a blocked collective; a collective whose
connections are shut down raises within milliseconds (measured on paddle 3.3). Paddle hands out no
descriptor, so the sockets are those that appeared while the communicator was made. They are remembered by
inode: a descriptor's number may name something else by the time it matters.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator
from pathlib import Path


def tcp_sockets() -> dict[int, int]:
    """Return the descriptor of every TCP socket of this process, by inode."""
    return dict(_tcp_sockets())


def _tcp_sockets() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, or no socket
            descriptor = int(entry.name)
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                if duplicate.family in (socket.AF_INET, socket.AF_INET6) and (
                    duplicate.type == socket.SOCK_STREAM
                ):
                    yield status.st_ino, descriptor


def cut(inodes: Collection[int]) -> int:
    """Shut the sockets down that are still open; whoever waits for one of them raises. Return how many."""
    count = 0
    for inode, descriptor in tcp_sockets().items():
        if inode in inodes:
            with contextlib.suppress(OSError):  # closed meanwhile, or not connected any more
                count += _cut_one(inode, descriptor)
    return count


def _cut_one(inode: int, descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        if os.fstat(duplicate.fileno()).st_ino != inode:
            return False
        duplicate.shutdown(socket.SHUT_RDWR)
        return True
