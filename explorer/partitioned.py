"""The same breadth-first search on several processes, level by level.

Every world belongs to one process, by its fingerprint. The processes expand what is new to them, exchange
what they reached for each other, and wait for the next order; so every way that is found is a shortest one.
``python -m explorer.partitioned`` is one of them. It takes orders as JSON lines on standard input and answers
each with one on standard output; worlds that it reaches and that belong to another process go to that one
through a socket, as plain bytes.

======== ================================= ========================================================
order    answer                            meaning
======== ================================= ========================================================
begin    what it holds                     the bounds, which part, the sockets' descriptors
expand   what came of it                   one move further from everything that is new; then exchange
parent   the parent's fingerprint          from where a world of this part was reached first
======== ================================= ========================================================
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from explorer.errors import SearcherEndedError
from explorer.moves import Moves
from explorer.scope import Scope
from explorer.search import ROOT, Broken, Findings, Known, expand, explore, shortest_way
from explorer.world import Symmetry, World, fingerprint, first_worlds

_LENGTH = struct.Struct("<Q")
_MOST_AT_ONCE = 1 << 20
_END_S = 2.0

#: Where this package is found, from wherever the search was started.
_REPOSITORY = Path(__file__).resolve().parent.parent


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
        # Every process knows where everything begins.
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
        """Send and receive at once: a process that only sends waits for one that only sends too."""
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


def explore_on(
    processes: int,
    scope: Scope,
    *,
    limit: int | None = None,
    progress: Callable[[Findings], None] | None = None,
) -> Findings:
    """Explore on several processes; as :func:`explorer.search.explore`, with one it is that.

    Raises
    ------
    SearcherEndedError
        If one of them ends before the search does.
    """
    if processes <= 1:
        return explore(scope, limit=limit, progress=progress)
    began, found = time.monotonic(), Findings(scope)
    with _searchers(scope, processes) as searchers:
        held = [searcher.answer() for searcher in searchers]
        while any(each["newest"] for each in held):
            found.widths.append(sum(each["newest"] for each in held))
            held = _ask_all(searchers, {"order": "expand"})
            found.moves += sum(each["moves"] for each in held)
            found.resting += sum(each["resting"] for each in held)
            found.states = sum(each["states"] for each in held)
            found.situations = sum(each["situations"] for each in held)
            found.depth, found.seconds = len(found.widths) - 1, time.monotonic() - began
            broken = next((Broken(*each["broken"]) for each in held if each["broken"]), None)
            if broken is not None:
                found.violation = shortest_way(
                    scope, broken, lambda own: _ask(searchers[own % processes], own)
                )
                return found
            if progress is not None:
                progress(found)
            if limit is not None and found.states >= limit:
                return found
    found.complete = True
    return found


class _Searcher:
    """One process of the search."""

    def __init__(self, number: int, links: dict[int, socket.socket]) -> None:
        self._number = number
        self._process = subprocess.Popen(
            [sys.executable, "-m", "explorer.partitioned"],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[link.fileno() for link in links.values()],
            start_new_session=True,  # Ctrl-C is for the one who reports
        )

    def order(self, order: dict[str, Any]) -> None:
        """Send an order."""
        if self._process.stdin is None or self._process.poll() is not None:
            raise SearcherEndedError(searcher=self._number, code=self._process.poll())
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to an order."""
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise SearcherEndedError(searcher=self._number, code=self._process.wait(_END_S))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                # What it was told last, it need not read any more.
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def _searchers(scope: Scope, processes: int) -> Iterator[list[_Searcher]]:
    with contextlib.ExitStack() as undo:
        links: list[dict[int, socket.socket]] = [{} for _ in range(processes)]
        for one, other in itertools.combinations(range(processes), 2):
            links[one][other], links[other][one] = socket.socketpair()
        for link in (link for found in links for link in found.values()):
            undo.callback(link.close)
        searchers = []
        for number in range(processes):
            searcher = _Searcher(number, links[number])
            undo.callback(searcher.end)
            searchers.append(searcher)
        for number, searcher in enumerate(searchers):
            descriptors = {str(peer): link.fileno() for peer, link in links[number].items()}
            searcher.order(
                {
                    "order": "begin",
                    "scope": scope.as_text(),
                    "part": number,
                    "parts": processes,
                    "links": descriptors,
                }
            )
        for link in (link for found in links for link in found.values()):
            link.close()
        yield searchers


def _ask_all(searchers: list[_Searcher], order: dict[str, Any]) -> list[dict[str, Any]]:
    for searcher in searchers:
        searcher.order(order)
    return [searcher.answer() for searcher in searchers]


def _ask(searcher: _Searcher, own: int) -> int:
    searcher.order({"order": "parent", "of": own})
    parent: int = searcher.answer()["parent"]
    return parent


if __name__ == "__main__":
    serve()
