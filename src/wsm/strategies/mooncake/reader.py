"""Reads a plan's spans ahead of who consumes them, through a few buffers that are used again and again.

While one span is copied out and digested the engine reads the next ones. Spans are consumed in order; who
leaves some out, or comes back, is served too, only more slowly. Knows no tensors and no versions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from wsm.errors import GroupError
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.messages.errors import PeerSilentError
from wsm.strategies.mooncake import errors as mooncake_errors
from wsm.strategies.mooncake.engine import Engine
from wsm.strategies.mooncake.lease import RankLease
from wsm.strategies.mooncake.plan import ReadPlan, Span

# How long a wait lasts before reads in flight, the lease and deadlines are looked at again.
_GLANCE_S = 0.001
# How long the publisher may take to say why its memory cannot be read.
_LAST_WORDS_S = 1.0


class SpanReader:
    """The reads of one load.

    Parameters
    ----------
    engine : Engine
        Reads.
    session : str
        The publisher's engine.
    plan : ReadPlan
        What to read.
    buffers : sequence of memoryview
        Each as long as the longest span, and no other process's until the reader is done or the engine
        closed.
    lease : RankLease
        Kept while we wait.
    silence_s : float
        How long no read may end.

    Attributes
    ----------
    waited_s : float
        Seconds that were spent waiting for bytes.
    """

    def __init__(
        self,
        engine: Engine,
        session: str,
        plan: ReadPlan,
        buffers: Sequence[memoryview],
        lease: RankLease,
        *,
        silence_s: float,
    ) -> None:
        self.waited_s = 0.0
        self._engine = engine
        self._session = session
        self._plan = plan
        self._lease = lease
        self._silence_s = silence_s
        self._free = list(buffers)
        self._flying: dict[int, tuple[int, memoryview]] = {}
        self._arrived: dict[int, memoryview] = {}
        self._held = -1
        self._span = memoryview(b"")
        self._wanted = 0
        self._next = 0
        self._kept_s = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Wait for the first span, before anything is touched. Blocks.

        Raises
        ------
        As :meth:`copy`.
        """
        with self._lock:
            if self._plan.spans:
                self._fetch(0)
            self._lease.keep()

    def copy(self, region: int, offset: int, destination: memoryview) -> None:
        """Fill `destination` from byte `offset` of a region on. Blocks until it has arrived.

        Raises
        ------
        GroupError, PeerSilentError
            If the engine cannot read, or no read ends.
        GroupError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            As :meth:`RankLease.keep`.
        """
        with self._lock:
            done = 0
            while done < len(destination):
                index, begin = self._plan.where(region, offset + done)
                # Most small tensors lie in the span of the one before.
                span = self._span if index == self._held else self._fetch(index)
                self._keep()
                part = span[begin : begin + len(destination) - done]
                copy_bytes(part, destination[done : done + len(part)])
                done += len(part)

    def drain(self) -> None:
        """Wait until the engine lets go of every buffer, those of unconsumed reads included. Blocks."""
        with self._lock:
            self._wanted, self._held = len(self._plan.spans), -1
            self._wait_until(lambda: not self._flying)

    def _fetch(self, index: int) -> memoryview:
        self._wanted, self._held = index, -1
        for old in [old for old in self._arrived if old < index]:
            self._free.append(self._arrived.pop(old))
        if index not in self._arrived and index not in self._flying:
            self._free += self._arrived.values()
            self._arrived.clear()
            self._next = index
        self._begin_reads()
        if index not in self._arrived:
            self._wait_until(lambda: index in self._arrived)
        self._held = index
        self._span = self._arrived[index][: self._plan.spans[index].nbytes]
        return self._span

    def _keep(self) -> None:
        """Look after the lease, but no more often than is of use: it costs more than a small tensor."""
        now_s = time.monotonic()
        if now_s - self._kept_s > _GLANCE_S:
            self._kept_s = now_s
            self._lease.keep()

    def _begin_reads(self) -> None:
        spans = self._plan.spans
        while self._free and self._next < len(spans):
            index = self._next
            self._next += 1
            if index in self._flying or index in self._arrived:
                continue
            buffer = self._free.pop()
            span = spans[index]
            ticket = self._engine.read(self._session, span.address, buffer[: span.nbytes])
            if not ticket:
                self._free.append(buffer)
                raise self._failed(span)
            self._flying[index] = (ticket, buffer)

    def _wait_until(self, arrived: Callable[[], bool]) -> None:
        begun_s = progress_s = time.monotonic()
        self._look()
        while not arrived():
            self._lease.keep(_GLANCE_S)
            now_s = time.monotonic()
            if self._look():
                progress_s = now_s
                self._begin_reads()
            elif now_s - progress_s > self._silence_s:
                raise PeerSilentError(
                    peer=self._lease.peer,
                    waited_s=self._silence_s,
                    expected="a part of the version",
                    touched=self._lease.touched,
                )
        self._begin_reads()
        self.waited_s += time.monotonic() - begun_s

    def _look(self) -> bool:
        """Take in which reads have ended; whether any has."""
        ended = False
        for index, (ticket, buffer) in list(self._flying.items()):
            done = self._engine.done(ticket)
            if done is None:
                continue
            ended = True
            del self._flying[index]
            if not done:
                self._free.append(buffer)
                raise self._failed(self._plan.spans[index])
            if index < self._wanted:
                self._free.append(buffer)  # left out
            else:
                self._arrived[index] = buffer
        return ended

    def _failed(self, span: Span) -> GroupError:
        """Ask the publisher first whether it lives and still publishes; that raises if not."""
        deadline_s = time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < deadline_s:
            self._lease.keep(_GLANCE_S)
        return mooncake_errors.transfer_failed(
            peer=f"{self._lease.peer} (engine {self._session})",
            nbytes=span.nbytes,
            touched=self._lease.touched,
        )
