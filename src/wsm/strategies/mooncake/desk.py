"""The publisher's end of every connection: grants, renews and ends leases on the version that is published.

One thread per rank, because a rank that is slow or silent must not keep others waiting. What is published is
put here and taken away by :mod:`wsm.strategies.mooncake.publisher`; this module registers no memory.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from wsm import log
from wsm.clock import Clock
from wsm.errors import WsmError
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.mooncake import messages as say
from wsm.strategies.mooncake.channel import Channel
from wsm.strategies.mooncake.leases import Leases
from wsm.strategies.mooncake.plan import Layout

# How long a rank may take to take a message off our hands.
_SEND_S = 10.0
# How long a connection waits for a word before it looks whether it is still wanted.
_GLANCE_S = 0.2
_MOST_RANKS = 1 << 10

_log = log.logger("strategies")


@dataclass(frozen=True)
class Publication:
    """What is published: per rank its layout, the layout's digest, and the digests of its tensors.

    `finite` promises that there is neither NaN nor infinity in them.
    """

    version: int
    shards: Mapping[int, tuple[Layout, str, tuple[str, ...]]]
    shard_digests: tuple[str, ...]
    finite: bool = False


class Desk:
    """Answers ranks for as long as it is open.

    Parameters
    ----------
    listening : socket.socket
        Where they come; belongs to the desk from now on.
    publisher, session : str
        Who publishes, and its engine.
    leases : Leases
        Who reads.
    clock : Clock
        For leases.
    """

    def __init__(
        self, listening: socket.socket, *, publisher: str, session: str, leases: Leases, clock: Clock
    ) -> None:
        self._listening = listening
        self._publisher = publisher
        self._session = session
        self._leases = leases
        self._clock = clock
        self._changed = threading.Condition()
        self._publication: Publication | None = None
        self._visits: dict[threading.Thread, _Visit] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="wsm-mooncake-desk", daemon=True)
        self._thread.start()

    def put(self, publication: Publication) -> None:
        """Grant leases on `publication` from now on."""
        with self._changed:
            self._publication = publication

    def take(self) -> None:
        """Grant no more leases. Idempotent; those that are held go on."""
        with self._changed:
            self._publication = None

    def wait_until_free(self, wait_s: float) -> list[int]:
        """Wait until nobody reads; returns the ranks that still do after `wait_s`. Blocks."""
        until_s = self._now_s() + wait_s
        with self._changed:
            while ranks := self._leases.ranks(self._now_s()):
                remaining_s = until_s - self._now_s()
                if remaining_s <= 0:
                    return ranks
                # A lease may also run out, which nobody tells.
                self._changed.wait(min(remaining_s, _GLANCE_S))
        return []

    def revoke(self, text: str) -> None:
        """End all leases at once and tell who held them. Does not wait for them."""
        with self._changed:
            ended = set(self._leases.revoke())
            told = [visit for visit in self._visits.values() if visit.lease in ended]
        for visit in told:
            visit.tell(say.Revoked(text))

    def close(self) -> None:
        """Answer nobody any more. Idempotent."""
        with self._changed:
            self._closed = True
            visits = dict(self._visits)
        with suppress(OSError):  # closed before
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for thread, visit in visits.items():
            visit.channel.end()
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                if self._closed:
                    return
                continue
            with self._changed:
                if self._closed or len(self._visits) >= _MOST_RANKS:
                    connected.close()
                    continue
                visit = _Visit(Channel(connected, "a rank"))
                thread = threading.Thread(
                    target=self._serve, args=(visit,), name="wsm-mooncake-visit", daemon=True
                )
                self._visits[thread] = visit
            thread.start()

    def _serve(self, visit: _Visit) -> None:
        """Answer one rank until it goes; its lease ends with the connection."""
        try:
            while not self._closed:
                message = visit.channel.receive(_GLANCE_S)
                if message is not None:
                    visit.tell(self._answer(visit, message))
        except WsmError as error:
            if isinstance(error, PeerMessageError):
                _log.warning(log.STREAM_MESSAGE_IGNORED, peer=visit.channel.peer, problem=str(error))
        finally:
            with self._changed:
                self._leases.release(visit.lease)
                self._visits.pop(threading.current_thread(), None)
                self._changed.notify_all()
            visit.channel.close()

    def _answer(self, visit: _Visit, message: say.Message) -> say.Message:
        now_s = self._now_s()
        with self._changed:
            if isinstance(message, say.Ask):
                return self._granted(visit, message, now_s)
            if isinstance(message, say.Renew):
                if self._leases.renew(visit.lease, now_s):
                    return say.Held()
                return say.Revoked("the lease was not renewed in time")
            if isinstance(message, say.Release):
                held = self._leases.holds(visit.lease, now_s)
                self._leases.release(visit.lease)
                self._changed.notify_all()
                return say.Released(held)
        raise PeerMessageError(peer=visit.channel.peer, problem=f"it is a {type(message).__name__}")

    def _granted(self, visit: _Visit, ask: say.Ask, now_s: float) -> say.Message:
        publication = self._publication
        if publication is None:
            return say.Refuse("empty", "no version is published now")
        if ask.version is not None and ask.version != publication.version:
            return say.Refuse("version", "another version is published", publication.version)
        world_size = len(publication.shards)
        if ask.world_size is not None and ask.world_size != world_size:
            return say.Refuse("world_size", f"versions are published for {world_size} ranks", world_size)
        if ask.rank not in publication.shards:
            return say.Refuse("rank", f"versions are published for ranks 0 to {world_size - 1}", world_size)
        layout, layout_digest, digests = publication.shards[ask.rank]
        visit.channel.peer = f"rank {ask.rank}"
        if not ask.look:
            self._leases.release(visit.lease)
            visit.lease = self._leases.grant(ask.rank, now_s)
        return say.Grant(
            version=publication.version,
            rank=ask.rank,
            world_size=world_size,
            publisher=self._publisher,
            session=self._session,
            lease_ms=max(int(self._leases.lease_s * 1000), 1),
            layout_digest=layout_digest,
            layout=None if layout_digest == ask.known_layout else layout,
            digests=digests,
            shards=publication.shard_digests,
            finite=publication.finite,
        )

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


class _Visit:
    """One rank that is connected, and its lease (0: none)."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.lease = 0
        self._sending = threading.Lock()

    def tell(self, message: say.Message) -> None:
        """Say something; from the thread that serves the rank, or from one that revokes."""
        with self._sending:
            try:
                self.channel.send(message, _SEND_S)
            except WsmError:
                self.channel.end()  # the thread that serves it sees that, and ends
