"""The same breadth-first search on several processes, level by level.

Every world belongs to one process, by its fingerprint. The processes expand what is new to them, exchange
what they reached for each other, and wait for the next order; so every way that is found is a shortest one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from explorer.errors import SearcherEndedError
from explorer.scope import Scope
from explorer.search import Broken, Findings, explore, shortest_way

_END_S = 2.0


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
            [sys.executable, "-m", "explorer.partition"],
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
