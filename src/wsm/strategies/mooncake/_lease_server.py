"""The publisher's end of every connection: grants and ends leases on the version that is published.

One thread answers all ranks, and a rank that is slow or silent keeps no other waiting, nor the publisher.
What is published is put here and taken away by :mod:`wsm.strategies.mooncake.publisher`; this module
registers no memory.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from wsm.errors import BadInputError
from wsm.own_descriptor import not_inherited
from wsm.strategies.conversation import ListeningSocket, why_not
from wsm.strategies.mooncake import _lease_messages as say

# Connections at a time (a quarter of what the process may open, if that is less), and those of them that may
# hold leases on one rank's shard: the oldest make room.
_MOST_CONNECTIONS, _MOST_LEASES = 1 << 10, 8
# Bytes of an answer that are handed to a connection at once; asyncio holds twice as many besides.
_PIECE_BYTES = 1 << 15
# How long a connection without a lease may say nothing, and any may take no answer.
_SILENCE_S = 10.0
# How long last words may take to leave, and a wait for descriptors.
_LAST_WORDS_S, _AGAIN_S = 1.0, 0.1


@dataclass(frozen=True)
class ServedPublication:
    """What is published: per rank its Grant, and the bytes of those that were asked for, one copy for all."""

    version: str
    grants: Mapping[int, say.Grant]
    encoded: dict[int, bytes] = field(default_factory=dict)


class LeaseServer:
    """Answers ranks for as long as it is open.

    Parameters
    ----------
    listening : ListeningSocket
        Where they come; belongs to the server from now on.
    lease_s : float
        How long a rank's host may answer nothing while the rank holds a lease.
    """

    def __init__(self, listening: ListeningSocket, *, lease_s: float) -> None:
        self._listening, self._lease_s = listening, lease_s
        self._changed = threading.Condition()
        self._publication: ServedPublication | None = None
        # Every connection, the oldest first, and those that hold a lease, on whose shard.
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._readers: dict[asyncio.StreamWriter, int] = {}
        # Connections that are being answered, and what they are told behind that as their last words.
        self._answered: dict[asyncio.StreamWriter, str | None] = {}
        self._most = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="wsm-mooncake-leases", daemon=True)
        self._thread.start()

    def put(self, publication: ServedPublication | None) -> None:
        """Grant leases on `publication` from now on; None: on none. Those that are held go on."""
        with self._changed:
            self._publication = publication

    def wait_until_free(self, wait_s: float) -> list[int]:
        """Wait until no rank reads; returns the ranks that still do after `wait_s`. Blocks."""
        with self._changed:
            self._changed.wait_for(lambda: not self._readers, wait_s)
            return sorted(set(self._readers.values()))

    def revoke(self, text: str) -> None:
        """End all leases at once and have it told to the readers that held them. Does not wait for that."""
        with self._changed:
            ended, self._readers = self._readers, {}
        for writer in ended:
            self._loop.call_soon_threadsafe(self._end, writer, text)

    def close(self) -> None:
        """Answer no rank any more. Blocks, a second at most where ranks take no last word. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve_all())
        finally:
            self._loop.close()
            self._listening.socket.close()
            self._listening.release()

    async def _serve_all(self) -> None:
        self._listening.socket.setblocking(False)
        accepting = self._loop.create_task(self._accept())
        await self._over.wait()
        accepting.cancel()
        tasks = [accepting, *self._connections.values()]
        for writer in list(self._connections):
            writer.close()
        _, late = await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        for task in late:
            task.cancel()
        await asyncio.wait(tasks, timeout=_LAST_WORDS_S)

    async def _accept(self) -> None:
        while True:
            try:
                made, _ = await self._loop.sock_accept(self._listening.socket)
            except OSError:  # no descriptors are left: those who wait are seen again at once
                await asyncio.sleep(_AGAIN_S)
                continue
            not_inherited(made)
            try:
                if made.family == socket.AF_INET:  # the lease of a host that is gone ends, too
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(int(self._lease_s / 2), 1))
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._lease_s * 1000))
                reader, writer = await asyncio.open_connection(sock=made, limit=say.MOST_TO_PUBLISHER * 2)
            except OSError:
                made.close()  # it alone is lost: all others are taken as before
                continue
            self._connections[writer] = self._loop.create_task(self._serve(reader, writer))
            if len(self._connections) > self._most:
                idle = (each for each in self._connections if each not in self._readers)
                next(idle, writer).transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until its end, or until it says what no rank says."""
        try:
            while True:
                wait_s = None if writer in self._readers else _SILENCE_S
                length = await asyncio.wait_for(reader.readexactly(say.LENGTH_BYTES), wait_s)
                nbytes = say.frame_bytes(length, say.MOST_TO_PUBLISHER, "a rank")
                frame = await asyncio.wait_for(reader.readexactly(nbytes), _SILENCE_S)
                await self._say(writer, self._answer(writer, say.ask_of(frame)))
        except (OSError, EOFError, asyncio.TimeoutError, BadInputError):
            pass  # its lease ends with its connection, whatever the reason
        finally:
            with self._changed:
                self._readers.pop(writer, None)
                self._changed.notify_all()
            del self._connections[writer]
            writer.close()

    async def _say(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        """Answer one connection as fast as it takes that, and hold little of the answer meanwhile."""
        self._answered[writer] = None
        try:
            for begin in range(0, len(answer), _PIECE_BYTES):
                writer.write(answer[begin : begin + _PIECE_BYTES])
                await asyncio.wait_for(writer.drain(), _SILENCE_S)
        finally:
            ended = self._answered.pop(writer)
        if ended is not None:
            self._end(writer, ended)

    def _end(self, writer: asyncio.StreamWriter, text: str) -> None:
        """Tell a rank that its lease is over, behind what it is told now, and hang up."""
        if writer in self._answered:
            self._answered[writer] = text
            return
        with suppress(OSError, RuntimeError):
            writer.write(say.to_bytes(say.Revoked(text)))
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, ask: say.Ask) -> bytes:
        with self._changed:
            publication = self._publication
            if publication is None:
                return say.to_bytes(say.Refuse("empty", "no version is published now"))
            refusal = why_not(ask, publication.version, len(publication.grants))
            if refusal is not None:
                return say.to_bytes(say.Refuse(*refusal))
            if not ask.look:
                self._readers[writer] = ask.rank
                same = [each for each, rank in self._readers.items() if rank == ask.rank]
                if len(same) > _MOST_LEASES:
                    del self._readers[same[0]]
                    self._end(same[0], "others asked for the same rank's shard")
        if ask.rank not in publication.encoded:
            publication.encoded[ask.rank] = say.to_bytes(publication.grants[ask.rank])
        return publication.encoded[ask.rank]
