"""A peer that says more than anybody wants to hear, as a process of its own: ADDRESS KIND...

Begins again where it is cut off, and ends when its standard input does. Speaks for itself, with plain
sockets, so that what it says is bounded by nobody's library.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from wsm.strategies.buckets import messages as say

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
OPENING = GREETING + bytes([4, len(READY)]) + READY


def frame(data: bytes, flags: int = 0) -> bytes:
    return bytes([flags | 2]) + len(data).to_bytes(8, "big") + data


def hello(version: int | None, session: int, *, look: bool = False) -> bytes:
    return frame(say.to_bytes(say.Hello(0, 2, version, look), session))


def endless(data: bytes) -> Iterator[bytes]:
    while True:
        yield data


def claims() -> Iterator[bytes]:
    """Be rank 0, or somebody who says so, and give up."""
    yield hello(None, 5)
    yield frame(say.to_bytes(say.Ready(), 5))
    yield frame(say.to_bytes(say.Abort("failed", "OSError", "no memory today"), 5))


KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "small messages": lambda: endless(frame(bytes(20)) * 1000),
    "large messages": lambda: endless(frame(bytes(60 << 20))),
    "endless parts": lambda: endless(frame(bytes(1 << 16), flags=1)),
    "looks": lambda: endless(hello(None, 5, look=True) * 100),
    "other versions": lambda: endless(hello(999, 5) * 100),
    "claims": claims,
    "connections": lambda: iter(()),
    "no ZMQ": lambda: endless(b"GET / HTTP/1.1\r\n" * 1000),
}


def main() -> None:
    address, *kinds = sys.argv[1:]
    for kind in kinds or KINDS:
        threading.Thread(target=flood, args=(address, kind), daemon=True).start()
    sys.stdout.write("flooding\n")
    sys.stdout.flush()
    sys.stdin.read()


def flood(address: str, kind: str) -> None:
    held: list[socket.socket] = []
    while True:
        made = connected(address)
        if made is None:
            time.sleep(0.01)
            continue
        try:
            made.sendall(b"" if kind == "no ZMQ" else OPENING)
            for data in KINDS[kind]():
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
    path = address.removeprefix("ipc://")
    if path != address:
        made, place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path
    else:
        host, port = address.removeprefix("tcp://").split(":")
        made, place = socket.socket(socket.AF_INET, socket.SOCK_STREAM), (host, int(port))
    try:
        made.connect(place)
    except OSError:
        made.close()
        return None
    return made


if __name__ == "__main__":
    main()
