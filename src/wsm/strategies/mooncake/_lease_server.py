"""The publisher's end of every connection: grants, renews and ends leases on the version that is published.

One thread answers all ranks, and none of its calls waits for one, so a rank that is slow or silent keeps no
other waiting, nor the publisher. What is published is put here and taken away by
:mod:`wsm.strategies.mooncake.publisher`; this module registers no memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from wsm.clock import Clock
from wsm.strategies.messages.connection import Connection
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.messages.listener import Listener
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake._read_plan import TransferLayout


@dataclass
class _Lease:
    rank: int
    until_s: float


class Leases:
    """The leases of one publisher.

    Parameters
    ----------
    lease_s : float
        How long one holds without being renewed.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._leases: dict[int, _Lease] = {}
        self._last = 0

    def grant(self, rank: int, now_s: float) -> int:
        """Return a new lease."""
        self._last += 1
        self._leases[self._last] = _Lease(rank, now_s + self.lease_s)
        return self._last

    def renew(self, lease: int, now_s: float) -> bool:
        """Prolong a lease; False if it is over, which it stays."""
        if not self.holds(lease, now_s):
            return False
        self._leases[lease].until_s = now_s + self.lease_s
        return True

    def holds(self, lease: int, now_s: float) -> bool:
        """Whether a lease holds; one that ran out is forgotten."""
        found = self._leases.get(lease)
        if found is None:
            return False
        if found.until_s < now_s:
            del self._leases[lease]
            return False
        return True

    def release(self, lease: int) -> None:
        """End a lease. Idempotent."""
        self._leases.pop(lease, None)

    def revoke(self) -> list[int]:
        """End all leases; returns them."""
        ended = list(self._leases)
        self._leases.clear()
        return ended

    def ranks(self, now_s: float) -> list[int]:
        """Ranks that read now."""
        return sorted({self._leases[lease].rank for lease in list(self._leases) if self.holds(lease, now_s)})


# How long the thread waits for a word, or to be woken.
_GLANCE_S = 1.0
# How long a wait for readers goes without a look: no message tells that a lease has run out.
_LOOK_S = 0.2
# Leases on one rank's shard. Each process that says that it is that rank gets one, in place of the oldest.
_MOST_LEASES = 8


@dataclass(frozen=True)
class ServedPublication:
    """What is published: per rank its layout, the layout's digest, and the digests of its tensors.

    `finite` promises that there is neither NaN nor infinity in them.
    """

    version: str
    shards: Mapping[int, tuple[TransferLayout, str, tuple[str, ...]]]
    shard_digests: tuple[str, ...]
    finite: bool = False


class LeaseServer:
    """Answers ranks for as long as it is open.

    Parameters
    ----------
    listener : Listener
        Where they come; belongs to the server from now on.
    publisher, session : str
        Who publishes, and its engine.
    leases : Leases
        Who reads.
    clock : Clock
        For leases.
    """

    def __init__(
        self, listener: Listener, *, publisher: str, session: str, leases: Leases, clock: Clock
    ) -> None:
        self._listener = listener
        self._publisher = publisher
        self._session = session
        self._leases = leases
        self._clock = clock
        self._changed = threading.Condition()
        self._publication: ServedPublication | None = None
        # Who holds which lease on whose shard, the oldest first; what is told to those whose lease was ended.
        self._readers: dict[Connection, tuple[int, int]] = {}
        self._revoked: list[tuple[Connection, str]] = []
        # What was granted, as bytes: the same for every process that asks for a rank's shard.
        self._grants: dict[tuple[int, bool], bytes] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="wsm-mooncake-leases", daemon=True)
        self._thread.start()

    def put(self, publication: ServedPublication) -> None:
        """Grant leases on `publication` from now on."""
        with self._changed:
            self._publication = publication
            self._grants = {}

    def take(self) -> None:
        """Grant no more leases. Idempotent; those that are held go on."""
        with self._changed:
            self._publication = None
            self._grants = {}

    def wait_until_free(self, wait_s: float) -> list[int]:
        """Wait until no rank reads; returns the ranks that still do after `wait_s`. Blocks."""
        until_s = self._now_s() + wait_s
        with self._changed:
            while ranks := self._leases.ranks(self._now_s()):
                remaining_s = until_s - self._now_s()
                if remaining_s <= 0:
                    return ranks
                self._changed.wait(min(remaining_s, _LOOK_S))
        return []

    def revoke(self, text: str) -> None:
        """End all leases at once and have it told to the readers that held them. Does not wait for that."""
        with self._changed:
            ended = set(self._leases.revoke())
            self._revoked += [(who, text) for who, (_, lease) in self._readers.items() if lease in ended]
        self._listener.wake()

    def close(self) -> None:
        """Answer no rank any more. Blocks, a second at most where ranks take no last word. Idempotent."""
        self._closed = True
        self._listener.wake()
        self._thread.join()

    def _run(self) -> None:
        """Answer until this is closed."""
        try:
            while not self._closed:
                if self._listener.poll(_GLANCE_S):
                    self._hear()
                self._tell_revoked()
        finally:
            self._tell_revoked()
            self._listener.close()

    def _hear(self) -> None:
        """Take in one thing that was said, or that another process has gone."""
        heard = self._listener.receive()
        if heard is None:
            return
        connection, data = heard
        if data is None:
            self._end(connection)
            return
        try:
            self._answer(connection, say.from_bytes(data, peer="a rank"))
        except PeerMessageError as error:
            self._end(connection)
            self._listener.refuse(connection, error.context["problem"])

    def _tell_revoked(self) -> None:
        with self._changed:
            revoked, self._revoked = self._revoked, []
        for connection, text in revoked:
            self._say(connection, say.Revoked(text))

    def _answer(self, connection: Connection, message: say.Message) -> None:
        """Answer a rank.

        Raises
        ------
        PeerMessageError
            If it says what no rank says, or takes no answers.
        """
        now_s = self._now_s()
        if connection.unsent:
            raise PeerMessageError(peer="a rank", problem="it does not take the answer before")
        if isinstance(message, say.Ask):
            self._grant(connection, message, now_s)
        elif isinstance(message, say.Renew):
            with self._changed:
                held = self._leases.renew(self._lease(connection), now_s)
            self._say(connection, say.Held() if held else say.Revoked("the lease was not renewed in time"))
        elif isinstance(message, say.Release):
            with self._changed:
                held = self._leases.holds(self._lease(connection), now_s)
            self._end(connection)
            self._say(connection, say.Released(held))
        else:
            raise PeerMessageError(peer="a rank", problem=f"it is a {type(message).__name__}")

    def _grant(self, connection: Connection, ask: say.Ask, now_s: float) -> None:
        with self._changed:
            refusal = _refusal(self._publication, ask)
            publication, grants = self._publication, self._grants
            if refusal is None and not ask.look:
                self._hold(connection, ask.rank, now_s)
        if refusal is not None or publication is None:
            self._say(connection, refusal or say.Refuse("empty", "no version is published now"))
            return
        layout, layout_digest, digests = publication.shards[ask.rank]
        key = (ask.rank, layout_digest == ask.known_layout)
        if key not in grants:
            grant = say.Grant(
                version=publication.version,
                rank=ask.rank,
                world_size=len(publication.shards),
                publisher=self._publisher,
                session=self._session,
                lease_ms=max(int(self._leases.lease_s * 1000), 1),
                layout_digest=layout_digest,
                layout=None if key[1] else layout,
                digests=digests,
                shards=publication.shard_digests,
                finite=publication.finite,
            )
            grants[key] = say.to_bytes(grant)
        self._listener.send(connection, grants[key])

    def _hold(self, connection: Connection, rank: int, now_s: float) -> None:
        """Give a connection a lease, in place of its own, or of the oldest of that rank's."""
        self._leases.release(self._lease(connection))
        self._readers.pop(connection, None)
        same = [each for each, (of, _) in self._readers.items() if of == rank]
        if len(same) >= _MOST_LEASES:
            self._leases.release(self._readers.pop(same[0])[1])
            same[0].kept = False
            self._revoked.append((same[0], "others asked for the same rank's shard"))
        self._readers[connection] = (rank, self._leases.grant(rank, now_s))
        connection.kept = True

    def _end(self, connection: Connection) -> None:
        """Take back the lease of a connection, if it has one."""
        with self._changed:
            self._leases.release(self._lease(connection))
            self._readers.pop(connection, None)
            self._changed.notify_all()
        connection.kept = False

    def _lease(self, connection: Connection) -> int:
        return self._readers.get(connection, (0, 0))[1]

    def _say(self, connection: Connection, message: say.Message) -> None:
        self._listener.send(connection, say.to_bytes(message))

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


def _refusal(publication: ServedPublication | None, ask: say.Ask) -> say.Refuse | None:
    """Return why a rank gets nothing, if so; pure."""
    if publication is None:
        return say.Refuse("empty", "no version is published now")
    if ask.version is not None and ask.version != publication.version:
        return say.Refuse("version", "another version is published", publication.version)
    world_size = len(publication.shards)
    if ask.world_size is not None and ask.world_size != world_size:
        return say.Refuse("world_size", f"versions are published for {world_size} ranks", world_size)
    if ask.rank not in publication.shards:
        return say.Refuse("rank", f"versions are published for ranks 0 to {world_size - 1}", world_size)
    return None
