"""The trainer's side of the strategy ``ipc_async``: versions in buckets, to all ranks of a group at once.

A sender listens at one address for as long as it lives and owns the memory of the buckets, which it uses
again for every version. :meth:`BucketSender.send` blocks until every rank has applied and verified its shard,
or one has failed; :meth:`BucketSender.sending` does the same beside the caller, who commands the group
meanwhile. Ranks come when they are told to load; what they ask for is held against what is sent.

One loop talks to all ranks of one version, keeps the deadlines and ends all streams as one: when one rank
fails, the others are told to stop. Every process that reaches the address may speak; a rank is only a process
that has its memory, and what others say ends nothing. The streams themselves decide what is said
(:mod:`wsm.strategies.buckets._stream`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

from wsm.clock import Clock, SystemClock
from wsm.errors import WsmError, error_name
from wsm.labels import checked_version
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets import _bucket_socket as bucket_socket
from wsm.strategies.buckets._bucket_plan import ALIGNMENT, SEGMENT_PREFIX, segment_bytes
from wsm.strategies.buckets._bucket_socket import PeerWait
from wsm.strategies.buckets._stream import RankStream, Stage
from wsm.strategies.documents import content_digest
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY, OwnedSegment, sweep
from wsm.strategies.messages import errors as message_errors
from wsm.strategies.messages.connection import Connection
from wsm.strategies.messages.errors import (
    PeerDiedError,
    PeerFailedError,
    PeerMessageError,
    PeerSilentError,
    SendCancelledError,
)
from wsm.strategies.messages.listener import Listener
from wsm.strategies.observer import never_cancelled
from wsm.strategies.trainer.tensors import TrainerReport, TrainerTensors, bytes_of, check_ranks, specs_of

# How long we write or wait before messages, cancellation, deadlines and the ranks' lives are looked at again.
_GLANCE_S = 0.02
# How long a rank's mark goes without a look, while it moves.
_LONGEST_NAP_S = 0.002
# How long a rank's last words may take to arrive once it has let go of the memory.
_LAST_WORDS_S = 1.0
# Messages that are heard before all the rest is looked after again, however many there are.
_HEARD_AT_ONCE = 64

#: By rank, those that asked for another version when they had this one already, and what each said.
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
        Which rank is heard first, and which one the next time.
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
        # The ranks that have asked (None: and get nothing), and those that are receiving.
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
        waiting = None
        while self._now_s() < until_s:
            wrote = [self._write(stream) for stream in streams]
            said = [self._speak(connection, stream) for connection, stream in self._ranks.items()]
            if any(wrote) or any(said):
                waiting = None
                continue
            if not any(stream.stage is Stage.STREAMING for stream in streams):
                self._listener.poll(_GLANCE_S)  # only a message can change anything
                return
            waiting = waiting or PeerWait(self._listener.poll, _LONGEST_NAP_S)
            if waiting.wait():
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


#: Size of a bucket, which is verified as one: large enough that messages cost little.
BUCKET_BYTES = 64 << 20
#: Bytes that may be on their way to one rank: few enough that they stay in the cache between the two.
WINDOW_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class SendReport(TrainerReport):
    """What was sent.

    Its `seconds` go to the last rank's word that it has verified everything, waiting for ranks included.
    """


class Sending:
    """A version that is being sent beside the caller."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._cancelled = False
        self._report: SendReport | None = None
        self._error: BaseException | None = None

    def result(self, timeout_s: float | None = None) -> SendReport:
        """Return what was sent. Blocks until it is, or `timeout_s`.

        Raises
        ------
        TimeoutError
            If it is not sent yet.
        wsm.errors.WsmError
            What :meth:`BucketSender.send` raises. Only once: its traceback holds the tensors.
        RuntimeError
            If the sending thread was killed, or what it raised was raised here before.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"not every rank has its version after {timeout_s} s")
        if self._report is not None:
            return self._report
        error, self._error = self._error, None
        try:
            raise error or RuntimeError("nothing was sent, and the cause was raised before or is not known")
        finally:
            del error

    def cancel(self) -> None:
        """Send no more; ranks that are receiving are told. Does not block."""
        self._cancelled = True

    def run(self, send: Callable[[Callable[[], bool]], SendReport]) -> None:
        """Send, in the sending thread; remember how it ended."""
        try:
            self._report = send(lambda: self._cancelled)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        finally:
            self._ended.set()


class BucketSender:
    """Listens for ranks and streams versions to them; use it in ``with``. One version at a time.

    Parameters
    ----------
    address : str
        ``ipc:///absolute/path`` (mode 0600) or ``tcp://127.0.0.1:port``; ``*`` for any free port.
    bucket_bytes : int
        Size of a bucket, a multiple of 64.
    window_bytes : int
        Bytes that may be on their way to one rank, a multiple of 64; as much shared memory it takes per rank.
    memory_directory : str
        Where shared memory is created.
    clock : Clock, optional
        For deadlines and reports.

    Attributes
    ----------
    address : str
        Where ranks find it.

    Raises
    ------
    BadInputError, RefusedError
        If it cannot listen there.
    BadInputError
        If buckets or a window have no bytes, or would not end on cache lines.
    """

    def __init__(
        self,
        address: str,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        window_bytes: int = WINDOW_BYTES,
        memory_directory: str = MEMORY_DIRECTORY,
        clock: Clock | None = None,
    ) -> None:
        if any(size < 1 or size % ALIGNMENT for size in (bucket_bytes, window_bytes)):
            raise message_errors.bad_bucket_size(bucket_bytes=bucket_bytes, window_bytes=window_bytes)
        self._bucket_bytes = bucket_bytes
        self._window_bytes = window_bytes
        self._memory_directory = memory_directory
        self._clock = clock or SystemClock()
        self._segments: dict[int, OwnedSegment] = {}
        self._early: Early = {}
        self._listener = bucket_socket.listen(address)
        self.address = self._listener.address
        # Which version is being sent, by which thread, and whether that is to end.
        self._changed = threading.Condition()
        self._sends: tuple[str, int] | None = None
        self._closing = self._closed = False
        # Buckets are worth nothing without their sender: whatever has no owner is a dead one's.
        sweep(SEGMENT_PREFIX, memory_directory)

    def send(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        join_s: float = 60.0,
        silence_s: float = 10.0,
        finite: bool = False,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> SendReport:
        """Stream one version to every rank. Blocks until all have verified it.

        Parameters
        ----------
        version : str or int
            Its number.
        shards : mapping of int to mapping
            Per rank 0..world size - 1, its state dict (:mod:`wsm.strategies.trainer.tensors`).
        join_s : float
            How long to wait for a rank to come.
        silence_s : float
            How long a rank that has come may say nothing and take nothing when it is its turn.
        finite : bool
            Refuse NaN and infinity before anything is sent (one more pass over the bytes), and have every
            rank refuse them.
        progress : callable, optional
            ``progress(bytes sent, bytes in all)``, after each MiB at most; what it raises ends the sending.
        cancelled : callable, optional
            True ends the sending.

        Raises
        ------
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError
            What the first rank that failed did; the others were told to stop.
        SendCancelledError
            If `cancelled` said so.
        RefusedError
            If there is no room for buckets.
        BadInputError, TrainerTensorError
            If what was handed over is no version.
        BadInputError
            If it is too large for buckets of this size.
        RefusedError
            If another thread is sending, or it listens no more.
        """
        version = checked_version(version)
        with self._alone(version):
            return self._send(
                version,
                shards,
                join_s=join_s,
                silence_s=silence_s,
                finite=finite,
                progress=progress,
                cancelled=lambda: self._closing or cancelled(),
            )

    def _send(
        self,
        version: str,
        shards: Mapping[int, TrainerTensors],
        *,
        join_s: float,
        silence_s: float,
        finite: bool,
        progress: Callable[[int, int], None] | None,
        cancelled: Callable[[], bool],
    ) -> SendReport:
        begun = self._clock.monotonic_ns()
        check_ranks(version, shards)
        if finite:
            _check_finite(shards)
        publication = secrets.token_hex(16)
        done = _Progress(progress)
        streams = {
            rank: self._stream(version, publication, shards, rank, finite=finite, progress=done.add)
            for rank in sorted(shards)
        }
        done.total = sum(stream.total_bytes for stream in streams.values())
        loop = SendingLoop(self._listener, version, streams, self._clock, early=self._early)
        loop.run(join_s=join_s, silence_s=silence_s, cancelled=cancelled)
        return SendReport(
            version=version,
            manifest_digest=content_digest(
                {"version": version, "publication": publication, "world_size": len(shards)}
            ),
            digests={rank: stream.content_digest() for rank, stream in streams.items()},
            bytes=done.total,
            seconds=(self._clock.monotonic_ns() - begun) / 1_000_000_000,
        )

    @contextmanager
    def sending(
        self, version: str | int, shards: Mapping[int, TrainerTensors], **options: float
    ) -> Iterator[Sending]:
        """Send in a thread of its own while the caller commands the group.

        Leaving the context normally waits for the last rank; leaving it with an exception cancels what is
        still being sent. The tensors must not change meanwhile.

        Parameters
        ----------
        version, shards, **options
            As for :meth:`send`.

        Raises
        ------
        wsm.errors.WsmError
            What :meth:`send` raises, when the context is left.
        """
        sending = Sending()
        thread = threading.Thread(
            target=sending.run,
            args=(lambda cancelled: self.send(version, shards, cancelled=cancelled, **options),),  # type: ignore[arg-type]  # the deadlines and `finite` can be given so
            name=f"wsm-send-{version}",
            daemon=True,
        )
        thread.start()
        wanted = False
        try:
            yield sending
            wanted = True
        finally:
            if not wanted:
                sending.cancel()
            thread.join()
        sending.result()

    def close(self) -> None:
        """Listen no more, and let the memory of the buckets go. Idempotent.

        What another thread is sending is cancelled first; blocks until that has told the ranks.

        Raises
        ------
        RefusedError
            If it is called by what is being sent, from `progress` or `cancelled`.
        """
        with self._changed:
            if self._sends is not None and self._sends[1] == threading.get_ident():
                raise message_errors.sender_busy(address=self.address, version=self._sends[0], wanted="close")
            self._closing = True
            self._changed.wait_for(lambda: self._sends is None)
            if self._closed:
                return
            self._closed = True
        self._listener.close()
        while self._segments:
            self._segments.popitem()[1].close()

    def __enter__(self) -> BucketSender:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self, version: str) -> Iterator[None]:
        """Send nothing else, and stay open, meanwhile."""
        with self._changed:
            if self._sends is not None:
                raise message_errors.sender_busy(
                    address=self.address, version=self._sends[0], wanted=f"send version {version}"
                )
            if self._closing:
                raise message_errors.sender_closed(address=self.address, version=version)
            self._sends = (version, threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._sends = None
                self._changed.notify_all()

    def _stream(
        self,
        version: str,
        publication: str,
        shards: Mapping[int, TrainerTensors],
        rank: int,
        *,
        finite: bool,
        progress: Callable[[int], None],
    ) -> RankStream:
        """Make one rank's stream of a publication, in memory that is its own."""
        return RankStream(
            version=version,
            rank=rank,
            world_size=len(shards),
            publication=publication,
            tensors=shards[rank],
            segment=self._segment(rank),
            bucket_bytes=self._bucket_bytes,
            finite=finite,
            progress=progress,
        )

    def _segment(self, rank: int) -> OwnedSegment:
        """Return the memory of a rank's window; a rank that failed may read on in what it has."""
        old = self._segments.pop(rank, None)
        if old is not None and old.begin_writing():
            old.end_writing()
            self._segments[rank] = old
            return old
        if old is not None:
            old.close()
        made = OwnedSegment(SEGMENT_PREFIX, segment_bytes(self._window_bytes), self._memory_directory)
        self._segments[rank] = made
        return made


def _check_finite(shards: Mapping[int, TrainerTensors]) -> None:
    for tensors in shards.values():
        for spec in specs_of(tensors):
            check_finite(spec, bytes_of(tensors, spec))


class _Progress:
    """Bytes that were sent to all ranks together."""

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self.total = 0
        self._done = 0
        self._tell = progress

    def add(self, nbytes: int) -> None:
        """Count some more."""
        self._done += nbytes
        if self._tell is not None:
            self._tell(self._done, self.total)
