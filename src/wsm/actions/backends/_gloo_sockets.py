"""The sockets that Gloo and its store open in this process: port, latency, deadline, and how they are cut.

Paddle opens these sockets and hands out neither a descriptor nor a timeout, so a store's are found by its
port among the descriptors of this process, and a communicator's are those that appeared while it was made.
Gloo has no call that ends a blocked collective; one whose connections are shut down raises within
milliseconds (measured on paddle 3.3). Sockets are remembered by inode, since descriptors are reused.
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

#: Where all members of a group are.
HOST = "127.0.0.1"

_LOOK_EVERY_S = 0.02
_LOOK_OFTEN_S = 0.001


def reserve_port() -> socket.socket:
    """Bind a port that the kernel gives to no other socket while the returned socket is open.

    A store can still listen on it, because both sides bind with ``SO_REUSEADDR`` and this one never listens.
    Closing it before would leave a gap, and paddle 3.3 aborts the process if the port is taken when it binds.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("0.0.0.0", 0))  # noqa: S104 - the store binds every interface; the reservation must match
    return holder


def _own_sockets() -> Iterator[socket.socket]:
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # closed meanwhile, or no socket
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                families = (socket.AF_INET, socket.AF_INET6)
                if duplicate.family in families and duplicate.type == socket.SOCK_STREAM:
                    yield duplicate


def sockets_of(port: int) -> Iterator[socket.socket]:
    """Iterate over duplicates of this process's ends of a store's connections and of its listening socket."""
    store = (HOST, port)
    for duplicate in _own_sockets():
        if duplicate.getsockname()[1] == port or _peer(duplicate) == store:
            yield duplicate


def disable_nagle(port: int) -> None:
    """Send small store messages at once; a store call falls from 44 ms to some 30 us.

    On the server, call it before clients connect: they inherit the option from the listening socket.
    """
    for connection in sockets_of(port):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextlib.contextmanager
def without_nagle(port: int) -> Iterator[None]:
    """Disable it once a store is being opened or joined: opening falls from 88 ms to 2 ms."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_OFTEN_S):
            disable_nagle(port)

    watching = threading.Thread(target=watch, name=f"store-without-nagle-{port}", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    disable_nagle(port)


class StoreDeadline:
    """Ends calls on a store that paddle lets wait for ever, by cutting its connections after `seconds`.

    Creating a Gloo group waits without a timeout for the addresses of all members; the blocked call raises
    within milliseconds once its connection is cut (measured on paddle 3.3). `interrupted` is asked every 20
    ms; True cuts at once. `cut` says why the connections were cut; empty if they were not.
    """

    def __init__(self, port: int, seconds: float, interrupted: Callable[[], bool]) -> None:
        self._port = port
        self._seconds = seconds
        self._interrupted = interrupted
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"store-deadline-{port}", daemon=True)
        self.cut = ""

    def __enter__(self) -> StoreDeadline:  # noqa: PYI034 - typing has no Self on 3.10
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
                for connection in sockets_of(self._port):
                    # The listening socket stays: paddle 2.6 ends the process when it cannot accept any more.
                    if _peer(connection) is not None:
                        with contextlib.suppress(OSError):  # the peer has closed it already
                            connection.shutdown(socket.SHUT_RDWR)
                return


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        address, port = connection.getpeername()[:2]
    except OSError:  # listening: it has no peer
        return None
    return address, port


def tcp_sockets() -> set[int]:
    return {os.fstat(duplicate.fileno()).st_ino for duplicate in _own_sockets()}


def cut(inodes: Collection[int]) -> None:
    for duplicate in _own_sockets():
        if os.fstat(duplicate.fileno()).st_ino in inodes:
            with contextlib.suppress(OSError):  # not connected any more
                duplicate.shutdown(socket.SHUT_RDWR)
