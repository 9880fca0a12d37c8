"""The sockets that Gloo and its store open in this process: port, latency, deadline, and how they are cut.

Paddle opens these sockets and hands out neither a descriptor nor a timeout, so a store's are found by its
port among the descriptors of this process, and a communicator's are those that appeared while it was made.
Gloo has no call that ends a blocked collective; one whose connections are shut down raises within
milliseconds (measured on paddle 3.3). Sockets are remembered by inode: a descriptor's number may name
something else by the time it matters. Nothing here knows what travels through them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType

_LOOK_EVERY_S = 0.02
_LOOK_OFTEN_S = 0.001


def reserve_port() -> socket.socket:
    """Bind a port that the kernel gives to no other socket while the returned socket is open.

    A store can still listen on it, because both sides bind with ``SO_REUSEADDR`` and this one never
    listens. Asking for a free port and closing it again would leave a gap, and paddle 3.3 aborts the
    whole process if the port is taken when it binds.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("0.0.0.0", 0))  # noqa: S104 - the store binds every interface; the reservation must match
    return holder


def sockets_of(host: str, port: int) -> Iterator[socket.socket]:
    """Iterate over this process's ends of the store's connections, and its listening socket.

    Each is a duplicate that shares the original's options and is closed after its turn.
    """
    store = (socket.gethostbyname(host), port)
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # closed meanwhile, or no socket
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                if _is_tcp(duplicate) and (duplicate.getsockname()[1] == port or _peer(duplicate) == store):
                    yield duplicate


def disable_nagle(host: str, port: int) -> None:
    """Send small store messages at once; a store call falls from 44 ms to some 30 us.

    On the server, call it before clients connect: they inherit the option from the listening socket.
    """
    for connection in sockets_of(host, port):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextlib.contextmanager
def without_nagle(host: str, port: int) -> Iterator[None]:
    """Disable it while a store is being opened or joined, and leave it disabled.

    Paddle's constructor talks over the connection that it has just made, and hands out nothing before
    that is done: opening a store falls from 88 ms to 2 ms.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_OFTEN_S):
            disable_nagle(host, port)

    watching = threading.Thread(target=watch, name=f"store-without-nagle-{port}", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    disable_nagle(host, port)


class StoreDeadline:
    """Ends calls on a store that paddle lets wait for ever, by cutting the store's connections.

    Creating a Gloo group waits without a timeout for the addresses of all members; the blocked call
    raises within milliseconds once its connection is cut (measured on paddle 3.3).

    Parameters
    ----------
    host, port : str, int
        The store's.
    seconds : float
        When to cut.
    interrupted : callable
        Asked every 20 ms; True cuts at once.

    Attributes
    ----------
    cut : str
        Why the connections were cut; empty if they were not.
    """

    def __init__(self, host: str, port: int, seconds: float, interrupted: Callable[[], bool]) -> None:
        self._host = host
        self._port = port
        self._seconds = seconds
        self._interrupted = interrupted
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"store-deadline-{port}", daemon=True)
        self.cut = ""

    def __enter__(self) -> StoreDeadline:  # noqa: PYI034 - typing has no Self on 3.10
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        ends = time.monotonic() + self._seconds
        while not self._over.wait(_LOOK_EVERY_S):
            if self._interrupted():
                self.cut = "it was interrupted"
            elif time.monotonic() >= ends:
                self.cut = f"not all members came within {self._seconds:.1f} s"
            if self.cut:
                for connection in sockets_of(self._host, self._port):
                    # The listening socket stays: paddle 2.6 ends the process when it cannot accept any more.
                    if _peer(connection) is not None:
                        with contextlib.suppress(OSError):  # the peer has closed it already
                            connection.shutdown(socket.SHUT_RDWR)
                return


def _is_tcp(connection: socket.socket) -> bool:
    return connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        address, port = connection.getpeername()[:2]
    except OSError:  # listening: it has no peer
        return None
    return address, port


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
    """Shut the sockets down that are still open; a thread that waits for one raises. Return how many."""
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
