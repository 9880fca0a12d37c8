"""The loop that talks to all ranks of one version: who speaks, who is waited for, who has died.

Responsible for deadlines and for ending all streams as one: when one rank fails, the others are told to stop.
Every process that reaches the address may speak; a rank is only who has its memory, and what others say ends
nothing. The streams themselves decide what is said (:mod:`wsm.strategies.buckets.stream`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from weakref import WeakKeyDictionary

from wsm.clock import Clock
from wsm.errors import WsmError, error_name
from wsm.strategies.buckets import messages as say
from wsm.strategies.buckets.patience import PeerWait
from wsm.strategies.buckets.stream import RankStream, Stage
from wsm.strategies.messages.connection import Connection
from wsm.strategies.messages.errors import (
    PeerDiedError,
    PeerFailedError,
    PeerMessageError,
    PeerSilentError,
    SendCancelledError,
)
from wsm.strategies.messages.listener import Listener

# How long we write or wait before messages, cancellation, deadlines and the ranks' lives are looked at again.
_GLANCE_S = 0.02
# How long a rank's mark goes without a look, while it moves.
_LONGEST_NAP_S = 0.002
# How long a rank's last words may take to arrive once it has let go of the memory.
_LAST_WORDS_S = 1.0
# Messages that are heard before all the rest is looked after again, however many there are.
_HEARD_AT_ONCE = 64

#: By rank, who asked for another version when it had this one already, and what it said.
Early: TypeAlias = dict[int, tuple[Connection, bytes]]


class SendingLoop:
    """Sends one version.

    Parameters
    ----------
    listener : Listener
        Where ranks speak.
    version : str
        What is sent.
    streams : mapping of int to RankStream
        One per rank.
    clock : Clock
        For deadlines.
    early : dict
        Who is heard first, and who is to be heard first the next time.
    """

    def __init__(
        self,
        listener: Listener,
        version: str,
        streams: Mapping[int, RankStream],
        clock: Clock,
        *,
        early: Early,
    ) -> None:
        self._listener = listener
        self._version = version
        self._streams = streams
        self._clock = clock
        self._early = early
        # Who has asked (None: and gets nothing), and who is receiving.
        self._asked: WeakKeyDictionary[Connection, tuple[RankStream | None, int]] = WeakKeyDictionary()
        self._ranks: dict[Connection, RankStream] = {}
        self._bodies: dict[int, bytes] = {}
        # Since when it is a rank's turn, and since when it holds its memory no more.
        self._turn_s: dict[int, float] = {}
        self._gone_s: dict[int, float] = {}
        self._taken: dict[int, int] = {}
        self._begun_s = self._now_s()

    def run(self, *, join_s: float, silence_s: float, cancelled: Callable[[], bool]) -> None:
        """Talk until every rank is done. Blocks.

        Raises
        ------
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, SendCancelledError
            Of the first rank that failed; all others were told.
        """
        try:
            waiting = list(self._early.values())
            self._early.clear()
            for connection, data in waiting:
                connection.kept = False
                self._take(connection, data)
            while any(stream.stage is not Stage.DONE for stream in self._streams.values()):
                self._work()
                self._listen()
                if cancelled():
                    raise SendCancelledError(address=self._listener.address, version=self._version)  # noqa: TRY301 - told to all below, like any other end
                self._look_at_deadlines(join_s, silence_s)
        except BaseException as error:
            self._end_all(error)
            raise
        finally:
            for connection in self._ranks:
                connection.kept = False
            self._listener.flush()

    def _work(self) -> None:
        """Write and say what can be, until a message is there or it is time to look around again."""
        streams = self._streams.values()
        until_s = self._now_s() + _GLANCE_S
        patience = None
        while self._now_s() < until_s:
            wrote = [self._write(stream) for stream in streams]
            said = [self._speak(connection, stream) for connection, stream in self._ranks.items()]
            if any(wrote) or any(said):
                patience = None
                continue
            if not any(stream.stage is Stage.STREAMING for stream in streams):
                self._listener.poll(_GLANCE_S)  # only a message can change anything
                return
            patience = patience or PeerWait(self._listener.poll, _LONGEST_NAP_S)
            if patience.wait():
                return

    def _write(self, stream: RankStream) -> bool:
        """Write what a stream has room for; what that took, waiting for tensors included, is our own time."""
        wrote = stream.write()
        if wrote:
            self._turn_s[stream.rank] = self._now_s()
        return wrote

    def _speak(self, connection: Connection, stream: RankStream) -> bool:
        """Say what a stream has to say; whether it had anything."""
        message = stream.next_message()
        if message is not None:
            self._say(connection, stream.session, message)
        return message is not None

    def _listen(self) -> None:
        """Hear what was said, but no more than a turn's worth: work and deadlines do not wait for talkers."""
        for _ in range(_HEARD_AT_ONCE):
            if not self._listener.poll(0.0):
                return
            heard = self._listener.receive()
            if heard is None:
                continue
            connection, data = heard
            if data is None:
                self._forget(connection)
            else:
                self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        stream = self._ranks.get(connection)
        try:
            session, message = say.from_bytes(data, peer="another process" if stream is None else stream.name)
        except PeerMessageError as error:
            if stream is not None:
                raise
            self._refuse(connection, error.context["problem"])
            return
        if stream is not None:
            if session != stream.session:
                raise PeerMessageError(peer=stream.name, problem="it belongs to another stream")
            self._turn_s[stream.rank] = self._now_s()
            stream.hear(message)
            if stream.stage is Stage.DONE:
                del self._ranks[connection]
                connection.kept = False
        elif isinstance(message, say.Hello) and connection not in self._asked:
            self._welcome(connection, message, session, data)
        elif (asked := self._asked.get(connection)) is None or asked[1] != session or asked[0] is None:
            self._refuse(connection, f"a {type(message).__name__} of no stream of this version")
        elif isinstance(message, say.Ready):
            self._begin(connection, asked[0], session)
        elif isinstance(message, say.Abort):
            asked[0].refused = message
            self._refuse(connection, f"{asked[0].name} does not begin: {message.error}: {message.text}")
        else:
            self._refuse(connection, f"a {type(message).__name__} before its Ready")

    def _welcome(self, connection: Connection, hello: say.Hello, session: int, data: bytes) -> None:
        """Answer a Hello: the one that a connection may say."""
        stream = self._streams.get(hello.rank)
        if stream is not None and self._is_early(stream, hello):
            if hello.rank in self._early:
                self._listener.drop(self._early[hello.rank][0])
            connection.kept = True
            self._early[hello.rank] = (connection, data)
            return
        self._asked[connection] = (None, session)
        if stream is None:
            text = f"versions are sent to ranks 0 to {len(self._streams) - 1}"
            self._say(connection, session, say.Abort("rank", "shard-identity", text, None))
            return
        answer = stream.greet(hello, session)
        if isinstance(answer, say.Init) and not hello.look:
            self._asked[connection] = (stream, session)
        self._say(connection, session, answer, stream)

    def _is_early(self, stream: RankStream, hello: say.Hello) -> bool:
        """Whether a rank that has this version asks for the next one, before the trainer sends it.

        Its Done comes by another connection, and perhaps later.
        """
        has_it = stream.stage in (Stage.ENDED, Stage.DONE)
        return has_it and not hello.look and hello.version != self._version

    def _begin(self, connection: Connection, stream: RankStream, session: int) -> None:
        """Begin with a rank that is ready, if it is one and the first."""
        if stream.claim(session):
            del self._asked[connection]
            self._ranks[connection] = stream
            self._turn_s[stream.rank] = self._now_s()
            connection.kept = True
            return
        text = "another process has this rank's place, or the memory does not say that it is yours"
        self._say(connection, session, say.Abort("busy", "rank-busy", text))
        self._asked[connection] = (None, session)

    def _forget(self, connection: Connection) -> None:
        """Take in that a connection has ended."""
        self._asked.pop(connection, None)
        stream = self._ranks.pop(connection, None)
        if stream is not None:
            raise PeerDiedError(peer=stream.name, expected=stream.stage.value)
        for rank, (early, _) in list(self._early.items()):
            if early is connection:
                del self._early[rank]

    def _look_at_deadlines(self, join_s: float, silence_s: float) -> None:
        now = self._now_s()
        for stream in self._streams.values():
            if stream.stage is Stage.DONE:
                continue
            started = stream.stage not in (Stage.WAITING, Stage.OFFERED)
            if stream.taken != self._taken.get(stream.rank, 0):
                self._taken[stream.rank] = stream.taken
                self._turn_s[stream.rank] = now
            waited = now - (self._turn_s[stream.rank] if started else self._begun_s)
            if started and not stream.segment.leased():
                if now - self._gone_s.setdefault(stream.rank, now) > _LAST_WORDS_S:
                    raise PeerDiedError(peer=stream.name, expected=stream.stage.value)
                continue
            if waited > (silence_s if started else join_s):
                if stream.refused is not None and not started:
                    refused = stream.refused
                    raise PeerFailedError(peer=stream.name, error=refused.error, reason=refused.text)
                raise PeerSilentError(peer=stream.name, waited_s=waited, expected=stream.stage.value)

    def _end_all(self, error: BaseException) -> None:
        reason = "cancelled" if isinstance(error, SendCancelledError) else "failed"
        text = str(error) if isinstance(error, WsmError) else repr(error)
        abort = say.Abort(reason, error_name(error), text[:2000])
        for connection, stream in self._ranks.items():
            self._say(connection, stream.session, abort)
        for connection, (offered, session) in list(self._asked.items()):
            if offered is not None:
                self._say(connection, session, abort)

    def _say(
        self, connection: Connection, session: int, message: say.Message, stream: RankStream | None = None
    ) -> None:
        """Say something; the body of a `stream`'s Init is held once, however many ask for it."""
        if stream is not None and isinstance(message, say.Init):
            if stream.rank not in self._bodies:
                self._bodies[stream.rank] = say.body_of(message)
            body = self._bodies[stream.rank]
        else:
            body = say.body_of(message)
        self._listener.send(connection, say.envelope(message, session, body), body)

    def _refuse(self, connection: Connection, problem: str) -> None:
        self._asked.pop(connection, None)
        self._listener.refuse(connection, problem)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1_000_000_000
