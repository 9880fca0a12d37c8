"""Whether a trainer is at the other end of a socket that connects: as ZMQ's own events say it.

ZMQ connects by itself, now or later, and again after an end, and tells nobody who does not ask. Knows no
messages and no deadlines.
"""

from __future__ import annotations

import enum
import errno
import socket
from typing import Any


class Presence(enum.Enum):
    """Who is at the other end."""

    NOBODY_YET = "nobody has been there"
    HERE = "somebody is there"
    GONE = "somebody was there, and has gone"


class PresenceWatch:
    """Follows one socket.

    Parameters
    ----------
    connecting : zmq.Socket
        The socket, before it is told to connect.
    """

    def __init__(self, connecting: Any) -> None:
        import zmq  # noqa: PLC0415 - an optional dependency
        from zmq.utils import monitor  # noqa: PLC0415 - likewise

        self._zmq = zmq
        self._received = monitor.recv_monitor_message
        self._watched = connecting
        # Before the handshake somebody listens; with it, somebody lives and is a socket like ours.
        self._events = connecting.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._presence = Presence.NOBODY_YET

    def look(self) -> Presence:
        """Return who is there now; once somebody has gone that stays so. Does not block."""
        while self._events.poll(0):
            event = self._received(self._events)["event"]
            if self._presence is Presence.NOBODY_YET and event == self._zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._presence = Presence.HERE
            elif self._presence is Presence.HERE and event == self._zmq.EVENT_DISCONNECTED:
                self._presence = Presence.GONE
        return self._presence

    def close(self) -> None:
        """Look no more; before the socket is closed. Idempotent."""
        if not self._events.closed:
            self._watched.disable_monitor()
            self._events.close(0)


def is_abandoned(address: str) -> bool:
    """Whether a trainer listened at an ``ipc://`` address and has ended without removing its socket.

    Only a path can say that; of a ``tcp://`` port without a listener nobody knows whether there ever was one.
    """
    path = address.removeprefix("ipc://")
    if path == address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
