"""Where buckets are talked about, and waiting for the other side: addresses of this host, listening, calling.

Two sides that copy at the speed of memory wait for each other for microseconds, many times in a second; to be
put to sleep and woken each time would take longer than the copies. A side that has waited for a while sleeps
until a message comes, or for a moment. Knows neither marks nor messages.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable

from wsm.strategies.messages import errors as message_errors
from wsm.strategies.messages.caller import Caller
from wsm.strategies.messages.connection import Place
from wsm.strategies.messages.listener import Listener, listen_at

# How often a wait only lets others run, and how often it naps then: some hundred microseconds together.
_TURNS = 50
_NAPS = 20
_NAP_S = 20e-6
# Then it sleeps, each time twice as long.
_FIRST_SLEEP_S = 1e-3


class PeerWait:
    """One wait; use a new one for the next.

    Parameters
    ----------
    poll : callable
        ``poll(seconds)`` sleeps until a message is there, so long at most, and says whether one is.
    longest_s : float
        The longest sleep.
    """

    def __init__(self, poll: Callable[[float], bool], longest_s: float) -> None:
        self._poll = poll
        self._longest_s = longest_s
        self._waits = 0
        self._sleep_s = _FIRST_SLEEP_S

    def wait(self) -> bool:
        """Wait a little, longer each time; whether a message is there, which is not looked at at first."""
        self._waits += 1
        if self._waits <= _TURNS + _NAPS:
            time.sleep(0 if self._waits <= _TURNS else _NAP_S)  # a mark is set without a word
            return False
        sleep_s = min(self._sleep_s, self._longest_s)
        self._sleep_s = sleep_s * 2
        return self._poll(sleep_s)


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
