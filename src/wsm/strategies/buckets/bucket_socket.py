"""A ZMQ socket that whole messages go through: opened, bounded and closed the same way on both sides.

It listens or connects on this host only, takes no message longer than the protocol allows, and closes within
a second whether the other side lives or not. pyzmq is imported when the first one is opened.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from wsm.strategies.buckets.presence import Presence, PresenceWatch
from wsm.strategies.messages.errors import AddressBusyError, AddressError, PyzmqMissingError
from wsm.strategies.messages.frames import HEADER_BYTES, MAX_BODY_BYTES

# For the last message (Done, Abort) to leave, when the socket is closed behind it.
_LINGER_MS = 1000
_TCP = re.compile(r"tcp://(127\.[0-9.]+|localhost|\[::1\]):([0-9]{1,5}|\*)")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107


def check_address(address: str) -> str:
    """Return `address` if buckets can travel by it.

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
    elif not _TCP.fullmatch(address):
        raise AddressError(address=address, problem="it is no address of this host")
    return address


class BucketSocket:
    """One end. Get it with :func:`listen` or :func:`connect`; one thread at a time may use it."""

    def __init__(self, kind: str) -> None:
        try:
            import zmq  # noqa: PLC0415 - an optional dependency, and half a second for those who do without
        except ImportError as error:
            raise PyzmqMissingError from error
        self._zmq = zmq
        self._context = zmq.Context()
        self.socket: Any = self._context.socket(getattr(zmq, kind))
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        # Nothing that is said may be lost. The bytes in flight limit how much both sides have to say.
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, HEADER_BYTES + MAX_BODY_BYTES)
        self._watch: PresenceWatch | None = None
        self._lock = -1
        self._paths: tuple[Path, ...] = ()

    @property
    def address(self) -> str:
        """Where it listens, a wildcard port replaced by the real one."""
        found: bytes = self.socket.getsockopt(self._zmq.LAST_ENDPOINT)
        return found.rstrip(b"\0").decode()

    def poll(self, seconds: float) -> bool:
        """Wait for a message, `seconds` at most; whether there is one."""
        return bool(self.socket.poll(max(int(seconds * 1000), 0)))

    def receive(self) -> list[bytes]:
        """Return the parts of the message that :meth:`poll` announced; none if it was not whole after all."""
        try:
            parts: list[bytes] = self.socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return []
        return parts

    def send(self, *parts: bytes) -> bool:
        """Hand a message over; False if nobody is there to take it, or takes any more. Does not block."""
        try:
            self.socket.send_multipart(parts, self._zmq.NOBLOCK)
        except self._zmq.ZMQError:
            return False
        return True

    def watch(self) -> None:
        """Follow who is at the other end, from before the socket connects."""
        self._watch = PresenceWatch(self.socket)

    def presence(self) -> Presence:
        """Return who is at the other end of a socket that connects. Does not block."""
        return Presence.NOBODY_YET if self._watch is None else self._watch.look()

    def close(self, *, flush: bool = True) -> None:
        """Close; with `flush`, let what was sent leave before, a second at most. Idempotent."""
        if self._context.closed:
            return
        if self._watch is not None:
            self._watch.close()
        self.socket.close(None if flush else 0)
        self._context.term()
        if self._lock >= 0:
            for path in self._paths:
                path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def lock(self, address: Path) -> bool:
        """Be the only one that listens at a path; its socket would be taken away silently otherwise."""
        path = address.with_name(f"{address.name}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                self._lock, self._paths = descriptor, (address, path)
                return True
        os.close(descriptor)
        return False


def listen(address: str) -> BucketSocket:
    """Listen for ranks at `address`.

    Raises
    ------
    AddressError, AddressBusyError, PyzmqMissingError
        If that cannot be.
    """
    check_address(address)
    made = BucketSocket("ROUTER")
    path = Path(address.removeprefix("ipc://")) if address.startswith("ipc://") else None
    try:
        # What a rank said before it closed would be lost with the connection, were it not read at once.
        made.socket.setsockopt(made._zmq.RCVHWM, 0)
        # A rank that is gone gives an error instead of silence.
        made.socket.setsockopt(made._zmq.ROUTER_MANDATORY, 1)
        if path is None or made.lock(path):
            made.socket.bind(address)
            if path is not None:
                path.chmod(0o600)
            return made
        cause: OSError | None = None
    except (made._zmq.ZMQError, OSError) as error:
        cause = error
    made.close()
    reason = "another process listens there" if cause is None else str(cause)
    raise AddressBusyError(address=address, reason=reason) from cause


def connect(address: str) -> BucketSocket:
    """Connect to a trainer at `address`, now or when it comes.

    Raises
    ------
    AddressError, PyzmqMissingError
        If that cannot be.
    """
    check_address(address)
    made = BucketSocket("DEALER")
    made.watch()
    try:
        made.socket.connect(address)
    except made._zmq.ZMQError as error:
        made.close()
        raise AddressError(address=address, problem=str(error)) from error
    return made
