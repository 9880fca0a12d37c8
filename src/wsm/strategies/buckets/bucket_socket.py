"""Where buckets are talked about: addresses of this host, and listening and calling there."""

from __future__ import annotations

import os
import re
import socket

from wsm.strategies.messages import errors as message_errors
from wsm.strategies.messages.caller import Caller
from wsm.strategies.messages.connection import Place
from wsm.strategies.messages.listener import Listener, listen_at

_TCP = re.compile(r"tcp://(127\.[0-9.]+|localhost|\[::1\]):([0-9]{1,5}|\*)")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107
_LAST_PORT = 0xFFFF


def check_address(address: str) -> Place:
    """Return what a socket takes for `address`, if buckets can travel by it.

    Raises
    ------
    BadInputError
        If it is neither an absolute ``ipc://`` path nor a loopback ``tcp://`` address.
    """
    path = address.removeprefix("ipc://")
    if path != address:
        if not path.startswith("/"):
            raise message_errors.bad_address(
                address=address, problem="the path of the socket is not absolute"
            )
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise message_errors.bad_address(
                address=address, problem=f"the path is longer than {_LONGEST_PATH} bytes"
            )
        return socket.AF_UNIX, path
    found = _TCP.fullmatch(address)
    port = 0 if found is None or found[2] == "*" else int(found[2])
    if found is None or port > _LAST_PORT:
        raise message_errors.bad_address(address=address, problem="it is no address of this host")
    if found[1] == "[::1]":
        return socket.AF_INET6, ("::1", port)
    host = "127.0.0.1" if found[1] == "localhost" else found[1]
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError as error:
        raise message_errors.bad_address(address=address, problem="it is no address of this host") from error
    return socket.AF_INET, (host, port)


def listen(address: str) -> Listener:
    """Listen for ranks at `address`.

    Raises
    ------
    BadInputError, RefusedError
        If that cannot be.
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file.
    """
    return listen_at(check_address(address), address)


def connect(address: str) -> Caller:
    """Connect to a trainer at `address`, now or when it comes.

    Raises
    ------
    BadInputError
        If it is none.
    """
    return Caller(check_address(address), f"the sender at {address}")
