"""Where buckets are talked about: an address of this host, and the sockets at it, opened the same way always.

One sender at a time listens at an address. The messages themselves go through
:mod:`wsm.strategies.messages.listener` and :mod:`wsm.strategies.messages.caller`.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from wsm.own_descriptor import not_inherited
from wsm.shared_directory import bind_alone
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
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file.
    """
    family, place = check_address(address)
    made: socket.socket | None = None
    release: Callable[[], None] = _nothing
    try:
        if isinstance(place, str):
            bound = bind_alone(Path(place))
            if bound is None:
                raise AddressBusyError(address=address, reason="another process listens there")
            made, release = bound.socket, bound.release
            return Listener(made, address, release, most_connections=most_connections)
        made = not_inherited(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        return Listener(made, _named(made), most_connections=most_connections)
    except OSError as error:
        if made is not None:
            made.close()
        release()
        raise AddressBusyError(address=address, reason=str(error)) from error


def connect(address: str) -> Caller:
    """Connect to a trainer at `address`, now or when it comes.

    Raises
    ------
    AddressError
        If it is none.
    """
    return Caller(check_address(address), f"the sender at {address}")


def _named(bound: socket.socket) -> str:
    """Return the ``tcp://`` address of a socket, port 0 replaced by the real one."""
    host, port = bound.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"tcp://{host}:{port}"


def _nothing() -> None:
    """Release nothing: a port goes with its socket."""
