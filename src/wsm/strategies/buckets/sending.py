"""The loop that talks to all ranks of one version: who speaks, who is waited for, who has died.

Responsible for deadlines and for ending all streams as one: when one rank fails, the others are told to stop.
The streams themselves decide what is said (:mod:`wsm.strategies.buckets.stream`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wsm import log
from wsm.clock import Clock
from wsm.errors import WsmError
from wsm.strategies.buckets import messages as say
from wsm.strategies.buckets.bucket_socket import BucketSocket
from wsm.strategies.buckets.patience import Patience
from wsm.strategies.buckets.stream import RankStream, Stage
from wsm.strategies.messages.errors import (
    PeerDiedError,
    PeerMessageError,
    PeerSilentError,
    SendCancelledError,
)

# How long we write or wait before messages, cancellation, deadlines and the ranks' lives are looked at again.
_GLANCE_S = 0.02
# How long a rank's mark goes without a look, while it moves.
_LONGEST_NAP_S = 0.002
# How long a rank's last words may take to arrive once it has let go of the memory.
_LAST_WORDS_S = 1.0

_log = log.logger("strategies")


class SendingLoop:
    """Sends one version.

    Parameters
    ----------
    socket : BucketSocket
        Where ranks speak.
    address : str
        Its address, for messages.
    version : int
        What is sent.
    streams : mapping of int to RankStream
        One per rank.
    clock : Clock
        For deadlines.
    early : list of (bytes, bytes)
        Who asked for another version when it had this one already: heard first, and added to for the next.
    """

    def __init__(
        self,
        socket: BucketSocket,
        address: str,
        version: int,
        streams: Mapping[int, RankStream],
        clock: Clock,
        *,
        early: list[tuple[bytes, bytes]],
    ) -> None:
        self._socket = socket
        self._address = address
        self._version = version
        self._streams = streams
        self._clock = clock
        self._early = early
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
            waiting, self._early[:] = self._early[:], []
            for identity, data in waiting:
                self._take(identity, data)
            while any(stream.stage is not Stage.DONE for stream in self._streams.values()):
                self._work()
                while self._socket.poll(0):
                    self._listen()
                if cancelled():
                    raise SendCancelledError(address=self._address, version=self._version)  # noqa: TRY301 - told to all below, like any other end
                self._look_at_deadlines(join_s, silence_s)
        except BaseException as error:
            self._end_all(error)
            raise

    def _work(self) -> None:
        """Write and say what can be, until a message is there or it is time to look around again."""
        streams = self._streams.values()
        until_s = self._now_s() + _GLANCE_S
        patience = None
        while self._now_s() < until_s:
            wrote = [self._write(stream) for stream in streams]
            said = [self._speak(stream) for stream in streams]
            if any(wrote) or any(said):
                patience = None
                continue
            if not any(stream.stage is Stage.STREAMING for stream in streams):
                self._socket.poll(_GLANCE_S)  # only a message can change anything
                return
            patience = patience or Patience(self._socket.poll, _LONGEST_NAP_S)
            if patience.wait():
                return

    def _write(self, stream: RankStream) -> bool:
        """Write what a stream has room for; what that took, waiting for tensors included, is our own time."""
        wrote = stream.write()
        if wrote:
            self._turn_s[stream.rank] = self._now_s()
        return wrote

    def _speak(self, stream: RankStream) -> bool:
        """Say what a stream has to say; whether it had anything."""
        message = stream.next_message()
        if message is not None:
            self._say(stream.identity, stream.session, message)
        return message is not None

    def _listen(self) -> None:
        parts = self._socket.receive()
        if len(parts) != 2:
            if parts:
                self._ignore(f"a message of {len(parts)} parts")
            return
        self._take(*parts)

    def _take(self, identity: bytes, data: bytes) -> None:
        stream = next((s for s in self._streams.values() if s.identity == identity), None)
        try:
            session, message = say.from_bytes(data, peer="a rank" if stream is None else stream.name)
        except PeerMessageError as error:
            if stream is None:
                self._ignore(error.context["problem"])
                return
            raise
        if isinstance(message, say.Hello):
            if self._is_early(message):
                self._early.append((identity, data))
            else:
                self._welcome(message, identity, session)
        elif stream is None or session != stream.session:
            self._ignore(f"a {type(message).__name__} of no stream of this version")
            if isinstance(message, say.Ready):  # it would wait for what goes to another one now
                text = "another process has this rank's place, or that version is no longer sent"
                self._say(identity, session, say.Abort("busy", "RankBusyError", text))
        else:
            self._turn_s[stream.rank] = self._now_s()
            stream.hear(message)

    def _is_early(self, hello: say.Hello) -> bool:
        """Whether a rank that has this version asks for the next one, before the trainer sends it."""
        stream = self._streams.get(hello.rank)
        done = stream is not None and stream.stage is Stage.DONE
        return done and not hello.look and hello.version != self._version

    def _welcome(self, hello: say.Hello, identity: bytes, session: int) -> None:
        stream = self._streams.get(hello.rank)
        if stream is None:
            text = f"versions are sent to ranks 0 to {len(self._streams) - 1}"
            self._say(identity, session, say.Abort("rank", "ShardIdentityError", text, None))
            return
        answer = stream.greet(hello, identity, session)
        if stream.identity == identity:
            self._turn_s[stream.rank] = self._now_s()
        if not self._say(identity, session, answer) and stream.identity == identity:
            stream.forget()  # it asked and went away; another may come in its place

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
                raise PeerSilentError(peer=stream.name, waited_s=waited, expected=stream.stage.value)

    def _end_all(self, error: BaseException) -> None:
        reason = "cancelled" if isinstance(error, SendCancelledError) else "failed"
        text = str(error) if isinstance(error, WsmError) else repr(error)
        for stream in self._streams.values():
            if stream.identity and stream.stage is not Stage.DONE:
                self._say(
                    stream.identity, stream.session, say.Abort(reason, type(error).__name__, text[:2000])
                )

    def _say(self, identity: bytes, session: int, message: say.Message) -> bool:
        return self._socket.send(identity, say.to_bytes(message, session))

    def _ignore(self, what: str) -> None:
        _log.warning(log.STREAM_MESSAGE_IGNORED, address=self._address, version=self._version, what=what)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1_000_000_000
