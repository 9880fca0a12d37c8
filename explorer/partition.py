"""One process of a partitioned search: it owns the worlds whose fingerprints fall to it.

``python -m explorer.partition``, started by :mod:`.partitioned`. It takes orders as JSON lines on
standard input and answers each with one on standard output; worlds that it reaches and that fall to
another process go to that one through a socket, as plain bytes.

======== ================================= ========================================================
order    answer                            meaning
======== ================================= ========================================================
begin    what it holds                     the bounds, which part, the sockets' descriptors
expand   what came of it                   one move further from everything that is new; then exchange
parent   the parent's fingerprint          from where a world of this part was reached first
======== ================================= ========================================================
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

from explorer.moves import Moves
from explorer.scope import Scope
from explorer.search import ROOT, Known, expand
from explorer.world import Symmetry, World, fingerprint, first_worlds

_LENGTH = struct.Struct("<Q")
_MOST_AT_ONCE = 1 << 20


class Partition:
    """One part of all worlds.

    Parameters
    ----------
    scope : Scope
        The exploration's bounds.
    part, parts : int
        Which part, of how many.
    links : mapping of int to socket
        To the process of every other part.
    """

    def __init__(self, scope: Scope, part: int, parts: int, links: dict[int, socket.socket]) -> None:
        self._scope = scope
        self._part = part
        self._parts = parts
        self._links = links
        self._moves = Moves(scope)
        self._symmetry = Symmetry(scope)
        self._known = Known()
        self._outgoing: dict[int, dict[int, bytes]] = {peer: {} for peer in links}
        self._sizes: list[int] = []
        for world in first_worlds(scope):
            self._sizes = [len(part_of_it) for part_of_it in world]
            self._reach(self._symmetry.representative(world), ROOT)
        # Everybody knows where everything begins.
        self._outgoing = {peer: {} for peer in links}

    def holds(self) -> dict[str, Any]:
        """Return how much there is here."""
        return {
            "states": len(self._known.parents),
            "newest": len(self._known.newest),
            "situations": self._moves.situations(),
        }

    def expand(self) -> dict[str, Any]:
        """Take everything new one move further, and exchange what falls to others."""
        level = expand(self._known.take_newest(), self._moves, self._symmetry, self._scope.ranks, self._reach)
        self._exchange()
        broken = None if level.broken is None else list(level.broken)
        return {**self.holds(), "moves": level.moves, "resting": level.resting, "broken": broken}

    def parent(self, own: int) -> int:
        """Return from where a world of this part was reached."""
        return self._known.parents[own]

    def _reach(self, world: World, parent: int) -> None:
        own = fingerprint(world)
        owner = own % self._parts
        if owner == self._part:
            self._known.reach(world, parent)
        elif own not in self._outgoing[owner]:
            self._outgoing[owner][own] = _LENGTH.pack(parent) + b"".join(world)

    def _exchange(self) -> None:
        """Send and receive at once: whoever only sends waits for one who only sends too."""
        senders = []
        for peer, found in self._outgoing.items():
            data = b"".join(found.values())
            sender = threading.Thread(target=_send, args=(self._links[peer], data), daemon=True)
            sender.start()
            senders.append(sender)
        self._outgoing = {peer: {} for peer in self._links}
        for link in self._links.values():
            for world, parent in self._worlds_in(_receive(link)):
                self._known.reach(world, parent)
        for sender in senders:
            sender.join()

    def _worlds_in(self, data: bytes) -> Iterator[tuple[World, int]]:
        size = _LENGTH.size + sum(self._sizes)
        for begin in range(0, len(data), size):
            (parent,) = _LENGTH.unpack_from(data, begin)
            at, parts = begin + _LENGTH.size, []
            for length in self._sizes:
                parts.append(data[at : at + length])
                at += length
            yield tuple(parts), parent


def _send(link: socket.socket, data: bytes) -> None:
    link.sendall(_LENGTH.pack(len(data)))
    link.sendall(data)


def _receive(link: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_receive_exactly(link, _LENGTH.size))
    return _receive_exactly(link, length)


def _receive_exactly(link: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        data = link.recv(min(length - len(found), _MOST_AT_ONCE))
        if not data:
            raise EOFError("the other process of this search has ended")
        found += data
    return bytes(found)


def serve() -> None:
    """Take orders until there are none."""
    partition: Partition | None = None
    for line in sys.stdin:
        order = json.loads(line)
        if order["order"] == "begin":
            links = {int(peer): socket.socket(fileno=number) for peer, number in order["links"].items()}
            partition = Partition(Scope.from_text(order["scope"]), order["part"], order["parts"], links)
            answer = partition.holds()
        elif partition is None:
            raise EOFError("the first order is to begin")
        elif order["order"] == "expand":
            answer = partition.expand()
        else:
            answer = {"parent": partition.parent(order["of"])}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
