"""A peer that says more than is wanted, as a process of its own: its options are main()'s.

It connects, or listens in the place of a trainer that streams or publishes over Mooncake, begins again where
it is cut off, and ends when its standard input does. It speaks through plain sockets, so that no library
bounds what it says.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from wsm.strategies.buckets import wire
from wsm.strategies.conversation import Abort, frame_of
from wsm.strategies.digest import digest_of
from wsm.strategies.mooncake import _lease_messages as read

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
OPENING = GREETING + bytes([4, len(READY)]) + READY


def frame(data: bytes, flags: int = 0) -> bytes:
    """Return one frame of ZMQ's protocol."""
    return bytes([flags | 2]) + len(data).to_bytes(8, "big") + data


def hello(version: str | None, *, look: bool = False) -> bytes:
    """Return what a rank says first."""
    return frame(frame_of(wire.Hello(0, 2, version, look)))


def endless(data: bytes) -> Iterator[bytes]:
    """Iterate over the same, without end."""
    while True:
        yield data


def slowly(data: bytes) -> Iterator[bytes]:
    """Say `data`, and a byte every 100 ms behind it."""
    yield data
    while True:
        time.sleep(0.1)
        yield b"\0"


def claims() -> Iterator[bytes]:
    """Claim to be rank 0, and give up."""
    yield hello(None)
    yield frame(frame_of(wire.Ready()))
    yield frame(frame_of(Abort("failed", "OSError", "no memory today")))


def message(body: bytes, length: int | None = None) -> bytes:
    """Return a body behind the head of a message about memory, which may announce another `length`."""
    head = len(body) if length is None else length
    return head.to_bytes(4, "big") + bytes.fromhex(digest_of(body)) + body


def ask(*, look: bool) -> bytes:
    """Return what a rank says first to a publisher of memory."""
    return read.to_bytes(read.Ask(0, 2, None, look))


def _no_message() -> Iterator[bytes]:
    return endless(b"GET / HTTP/1.1\r\n" * 1000)


#: What is said to a trainer that streams, behind :data:`OPENING` but for the last; it ends at the handshake
#: there, which asks for a key. And what is said to a trainer whose memory is read.
KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "small messages": lambda: endless(frame(bytes(20)) * 1000),
    "large messages": lambda: endless(frame(bytes(60 << 20))),
    "endless parts": lambda: endless(frame(bytes(1 << 16), flags=1)),
    "connections": lambda: iter(()),
    "looks": lambda: endless(hello(None, look=True) * 100),
    "other versions": lambda: endless(hello("999") * 100),
    "claims": claims,
    "no ZMQ": _no_message,
}
MOONCAKE_KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "small messages": lambda: endless(message(bytes(20)) * 1000),
    "large messages": lambda: endless(message(bytes(60 << 20))),
    "endless bodies": lambda: slowly(message(b"", length=read.MOST_TO_PUBLISHER)),
    "connections": lambda: iter(()),
    "no messages": _no_message,
    "asks": lambda: endless(ask(look=False) * 100),
    "looks at memory": lambda: endless(ask(look=True) * 100),
    "leases": lambda: iter((ask(look=False),)),
}


def main() -> None:
    """Flood an address, or its callers, with every kind: ``[--listen] [--mooncake] ADDRESS [KIND...]``."""
    arguments = sys.argv[1:]
    listens, mooncake = "--listen" in arguments, "--mooncake" in arguments
    address, *names = [each for each in arguments if not each.startswith("--")]
    known = MOONCAKE_KINDS if mooncake else KINDS
    said = {
        name: functools.partial(_opened, known[name], b"" if mooncake or name == "no ZMQ" else OPENING)
        for name in names or known
    }
    if listens:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(address.removeprefix("ipc://"))
        listening.listen()
        threading.Thread(target=flood_callers, args=(listening, [*said.values()]), daemon=True).start()
    for name, kind in () if listens else said.items():
        threading.Thread(target=flood, args=(address, kind, name == "connections"), daemon=True).start()
    sys.stdout.write("flooding\n")
    sys.stdout.flush()
    sys.stdin.read()


def _opened(kind: Callable[[], Iterator[bytes]], opening: bytes) -> Iterator[bytes]:
    yield opening
    yield from kind()


def flood_callers(listening: socket.socket, kinds: list[Callable[[], Iterator[bytes]]]) -> None:
    """Take every caller, and say to each what was asked for, one kind after the other."""
    for caller in itertools.count():
        connection, _ = listening.accept()
        threading.Thread(
            target=flood_caller, args=(connection, kinds[caller % len(kinds)]), daemon=True
        ).start()


def flood_caller(connection: socket.socket, kind: Callable[[], Iterator[bytes]]) -> None:
    """Say one kind of thing to a caller until it goes."""
    with connection, contextlib.suppress(OSError):
        for data in kind():
            connection.sendall(data)
        while connection.recv(1 << 16):
            pass


def flood(address: str, kind: Callable[[], Iterator[bytes]], keeps: bool) -> None:
    """Connect again and again, and say one kind of thing until the connection is cut; keep it if `keeps`."""
    held: list[socket.socket] = []
    while True:
        made = connected(address)
        if made is None:
            time.sleep(0.01)
            continue
        try:
            for data in kind():
                made.sendall(data)
            if keeps:
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
