"""Where ranks ask for a version: addresses of publishers, and listening at one."""

from __future__ import annotations

import os
import re
import socket

from wsm.strategies.messages.connection import Place
from wsm.strategies.messages.listener import Listener, listen_at
from wsm.strategies.mooncake import errors as mooncake_errors

_TCP = re.compile(r"tcp://([0-9.]{7,15}):([0-9]{1,5})")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107
# Ranks may be on many hosts.
_MOST_CONNECTIONS = 1 << 10


def parse_address(address: str) -> Place:
    """Return what a socket takes for ``ipc:///absolute/path`` or ``tcp://IPv4:port`` (port 0: any).

    Raises
    ------
    BadInputError
        If it is neither.
    """
    path = address.removeprefix("ipc://")
    if path != address and path.startswith("/") and len(os.fsencode(path)) <= _LONGEST_PATH:
        return socket.AF_UNIX, path
    found = _TCP.fullmatch(address)
    if found is None or int(found[2]) > 0xFFFF:
        raise mooncake_errors.bad_engine_settings(
            field="address",
            value=address,
            problem=f"is neither tcp://IPv4:port nor ipc:///absolute/path of at most {_LONGEST_PATH} bytes",
        )
    return socket.AF_INET, (found[1], int(found[2]))


def listen(address: str) -> Listener:
    """Listen for ranks.

    Raises
    ------
    BadInputError
        If the address is none.
    RefusedError
        If another process listens there.
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file.
    """
    return listen_at(parse_address(address), address, most_connections=_MOST_CONNECTIONS)
