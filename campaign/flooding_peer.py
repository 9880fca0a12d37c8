"""A peer that says more than is wanted, as a process of its own: ``[--listen] ADDRESS [KIND...]``.

It connects, or listens in the place of a trainer, begins again where it is cut off, and ends when its
standard input does. It speaks through plain sockets, so that no library bounds what it says.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.mooncake import _lease_messages as read

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
OPENING = GREETING + bytes([4, len(READY)]) + READY


def frame(data: bytes, flags: int = 0) -> bytes:
    """Return one frame of ZMQ's protocol."""
    return bytes([flags | 2]) + len(data).to_bytes(8, "big") + data


def hello(version: str | None, session: int, *, look: bool = False) -> bytes:
    """Return what a rank says first."""
    return frame(say.to_bytes(say.Hello(0, 2, version, look), session))


def endless(data: bytes) -> Iterator[bytes]:
    """Iterate over the same, without end."""
    while True:
        yield data


def claims() -> Iterator[bytes]:
    """Claim to be rank 0, and give up."""
    yield hello(None, 5)
    yield frame(say.to_bytes(say.Ready(), 5))
    yield frame(say.to_bytes(say.Abort("failed", "OSError", "no memory today"), 5))


def ask(*, look: bool) -> bytes:
    """Return what a rank says first to a publisher of memory."""
    return frame(read.to_bytes(read.Ask(0, 2, None, look, None)))


def lets_go() -> Iterator[bytes]:
    """Take a lease, give it back twice, and renew it."""
    yield ask(look=False)
    yield from (
        frame(read.to_bytes(each)) for each in (read.Release("", ""), read.Release("", ""), read.Renew())
    )


_ANYWHERE: dict[str, Callable[[], Iterator[bytes]]] = {
    "small messages": lambda: endless(frame(bytes(20)) * 1000),
    "large messages": lambda: endless(frame(bytes(60 << 20))),
    "endless parts": lambda: endless(frame(bytes(1 << 16), flags=1)),
    "connections": lambda: iter(()),
    "no ZMQ": lambda: endless(b"GET / HTTP/1.1\r\n" * 1000),
}

#: What is said to a trainer that streams; and to one whose memory is read.
KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    **_ANYWHERE,
    "looks": lambda: endless(hello(None, 5, look=True) * 100),
    "other versions": lambda: endless(hello("999", 5) * 100),
    "claims": claims,
}
MOONCAKE_KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    **_ANYWHERE,
    "asks": lambda: endless(ask(look=False) * 100),
    "looks at memory": lambda: endless(ask(look=True) * 100),
    "leases": lambda: iter((ask(look=False),)),
    "leases let go": lets_go,
    "renewals": lambda: endless(frame(read.to_bytes(read.Renew())) * 100),
}
_EVERY_KIND = {**KINDS, **MOONCAKE_KINDS}


def main() -> None:
    """Flood an address, or those who come to it, with everything that was asked for."""
    arguments = sys.argv[1:]
    listens = arguments[:1] == ["--listen"]
    address, *kinds = arguments[listens:]
    if listens:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(address.removeprefix("ipc://"))
        listening.listen()
        threading.Thread(target=flood_callers, args=(listening, kinds), daemon=True).start()
        kinds = []
    for kind in () if listens else kinds or KINDS:
        threading.Thread(target=flood, args=(address, kind), daemon=True).start()
    sys.stdout.write("flooding\n")
    sys.stdout.flush()
    sys.stdin.read()


def flood_callers(listening: socket.socket, kinds: list[str]) -> None:
    """Take every caller, and say to each what was asked for, one kind after the other."""
    for caller in itertools.count():
        connection, _ = listening.accept()
        threading.Thread(
            target=flood_caller, args=(connection, kinds[caller % len(kinds)]), daemon=True
        ).start()


def flood_caller(connection: socket.socket, kind: str) -> None:
    """Say one kind of thing to a caller until it goes."""
    with connection, contextlib.suppress(OSError):
        connection.sendall(b"" if kind == "no ZMQ" else OPENING)
        for data in _EVERY_KIND[kind]():
            connection.sendall(data)
        while connection.recv(1 << 16):
            pass


def flood(address: str, kind: str) -> None:
    """Connect again and again, and say one kind of thing until the connection is cut."""
    held: list[socket.socket] = []
    while True:
        made = connected(address)
        if made is None:
            time.sleep(0.01)
            continue
        try:
            made.sendall(b"" if kind == "no ZMQ" else OPENING)
            for data in _EVERY_KIND[kind]():
                made.sendall(data)
            if kind == "connections":
                held.append(made)
                del held[:-500]
                continue
            select.select([made], [], [], 0.05)  # what is said to it
        except OSError:
            pass
        made.close()


def connected(address: str) -> socket.socket | None:
    """Return a connection to an address; None if nothing listens there."""
    path = address.removeprefix("ipc://")
    place: str | tuple[str, int] = path
    if path == address:
        host, port = address.removeprefix("tcp://").split(":")
        place = (host, int(port))
    family = socket.AF_UNIX if place == path else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.connect(place)
    except OSError:
        made.close()
        return None
    return made


if __name__ == "__main__":
    main()
