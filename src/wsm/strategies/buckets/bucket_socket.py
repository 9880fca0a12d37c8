"""Where buckets are talked about: an address of this host, and the sockets at it, opened the same way always.

One sender at a time listens at an address. The messages themselves go through
:mod:`wsm.strategies.messages.listener` and :mod:`wsm.strategies.messages.caller`.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from wsm.strategies.messages.caller import Caller, Place
from wsm.strategies.messages.errors import AddressBusyError, AddressError
from wsm.strategies.messages.listener import MOST_CONNECTIONS, Listener

_TCP = re.compile(r"tcp://(127\.[0-9.]+|localhost|\[::1\]):([0-9]{1,5}|\*)")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107
_LAST_PORT = 0xFFFF


def check_address(address: str) -> Place:
    """Return what a socket takes for `address`, if buckets can travel by it.

    Raises
    ------
    AddressError
        If it is neither an absolute ``ipc://`` path nor a loopback ``tcp://`` address.
    """
    path = address.removeprefix("ipc://")
    if path != address:
        if not path.startswith("/"):
            raise AddressError(address=address, problem="the path of the socket is not absolute")
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise AddressError(address=address, problem=f"the path is longer than {_LONGEST_PATH} bytes")
        return socket.AF_UNIX, path
    found = _TCP.fullmatch(address)
    port = 0 if found is None or found[2] == "*" else int(found[2])
    if found is None or port > _LAST_PORT:
        raise AddressError(address=address, problem="it is no address of this host")
    if found[1] == "[::1]":
        return socket.AF_INET6, ("::1", port)
    host = "127.0.0.1" if found[1] == "localhost" else found[1]
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError as error:
        raise AddressError(address=address, problem="it is no address of this host") from error
    return socket.AF_INET, (host, port)


def listen(address: str, *, most_connections: int = MOST_CONNECTIONS) -> Listener:
    """Listen for ranks at `address`.

    Raises
    ------
    AddressError, AddressBusyError
        If that cannot be.
    """
    family, place = check_address(address)
    lock: _PathLock | None = None
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(place, str):
            lock = _PathLock(Path(place))
            # Before it has a name: nobody else may connect in between.
            os.fchmod(made.fileno(), 0o600)
            if Path(place).is_socket():
                Path(place).unlink()  # of a sender that has died: we have the lock
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        where = address if lock is not None else _named(made)
        return Listener(
            made, where, lock.release if lock is not None else _nothing, most_connections=most_connections
        )
    except OSError as error:
        made.close()
        if lock is not None:
            lock.release()
        raise AddressBusyError(address=address, reason=str(error)) from error


def connect(address: str) -> Caller:
    """Connect to a trainer at `address`, now or when it comes.

    Raises
    ------
    AddressError
        If it is none.
    """
    return Caller(check_address(address), f"the sender at {address}")


class _PathLock:
    """The right to listen at a path; another one's socket there would be taken away silently otherwise.

    Raises
    ------
    OSError
        If another process has it.
    """

    def __init__(self, address: Path) -> None:
        path = address.with_name(f"{address.name}.lock")
        self._paths = (address, path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(self._descriptor), path.stat()):
                return
        os.close(self._descriptor)
        raise OSError("another process listens there")

    def release(self) -> None:
        """Take both names away, and let others listen."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _named(bound: socket.socket) -> str:
    """Return the ``tcp://`` address of a socket, port 0 replaced by the real one."""
    host, port = bound.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"tcp://{host}:{port}"


def _nothing() -> None:
    """Release nothing: a port goes with its socket."""
