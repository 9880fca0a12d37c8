"""The trainer's side of the strategy ``ipc_async``: versions in buckets, to all ranks of a group at once.

A sender listens at one address for as long as it lives and owns the memory of the buckets, which it uses
again for every version. :meth:`BucketSender.send` blocks until every rank has applied and verified its shard,
or one has failed; :meth:`BucketSender.sending` does the same beside the caller, who commands the group
meanwhile. One loop talks to all ranks of one version, keeps the deadlines and ends all streams as one: when
one rank fails, the others are told to stop.
"""

from __future__ import annotations

import enum
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta
from msgspec.structs import replace

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.errors import BadInputError, RefusedError, error_name, raise_kept
from wsm.labels import checked_version
from wsm.strategies.buckets import wire
from wsm.strategies.buckets.source import sockets
from wsm.strategies.byte_copy import copy_and_digest
from wsm.strategies.conversation import Abort, frame_of, why_not
from wsm.strategies.digest import RunningDigest, digest_of, running_digest, shard_digest
from wsm.strategies.errors import trainer_tensor
from wsm.strategies.ipc.shared_segment import OwnedSegment, sweep
from wsm.strategies.peer_errors import (
    PeerDiedError,
    PeerFailedError,
    PeerSilentError,
    peer_message,
    send_cancelled,
)
from wsm.strategies.promise import name_digest
from wsm.strategies.tensor import ALIGNMENT, BEGIN_IN_PAGE
from wsm.strategies.trainer.tensors import (
    TrainerReport,
    TrainerTensors,
    bytes_of,
    check_ranks,
    specs_of,
    specs_of_rank,
)
from wsm.typed import Seconds, Wait, typed, typed_calls

if TYPE_CHECKING:
    from wsm.strategies.buckets.channel import TrainerSocket


class Stage(enum.Enum):
    """How far a stream is; the value is what the rank has to say next."""

    WAITING = "its Hello"
    OFFERED = "its Ready"
    STREAMING = "an acknowledgement"
    DONE = "nothing"


class RankStream:
    """One rank's stream of `tensors` through `segment`, whose buckets follow its first bytes.

    Attributes
    ----------
    offer : wire.Init
        What the rank hears first; it is given without the tensors.
    stage : Stage
        How far it is.
    name, nbytes : str, int
        How errors call the rank, and the bytes of all its tensors.
    refused : Abort or None
        Why the last process that was offered this stream did not take it.
    turn_s, gone_s : float, float or None
        Since when it is the rank's turn, and since when it holds the memory no more.
    """

    def __init__(
        self,
        tensors: TrainerTensors,
        segment: OwnedSegment,
        offer: wire.Init,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.rank, self.segment, self.stage = offer.rank, segment, Stage.WAITING
        self.refused: Abort | None = None
        self.turn_s: float = 0.0
        self.gone_s: float | None = None
        self._tensors, self._progress = tensors, progress
        self._specs = specs_of_rank(offer.rank, tensors)
        self.name, self.nbytes = f"rank {offer.rank}", sum(spec.nbytes for spec in self._specs)
        rows = tuple((spec.name, spec.dtype, spec.shape) for spec in self._specs)
        self.offer = replace(offer, tensors=rows)
        segment.write_at(0, offer.publication.encode())  # so that a rank can tell this memory from another's
        self._buckets = wire.cut(self._specs, offer.bucket_bytes)
        self._due = next(self._buckets, None)
        self._sent = self._acknowledged = 0
        self._current: tuple[memoryview, RunningDigest] = memoryview(b""), running_digest()
        self._digests = [digest_of(b"")] * len(self._specs)

    @property
    def digest(self) -> str:
        """Digest of all tensors, once all are sent."""
        return shard_digest(zip(self._specs, self._digests, strict=True))

    def begin(self) -> bool:
        """Begin with who is ready; False if that process has no lease on the memory, or another has begun."""
        if self.stage is not Stage.OFFERED or not self.segment.leased():
            return False
        self.stage, self.refused = Stage.STREAMING, None
        return True

    def hear(self, message: wire.FromRank) -> None:
        """Take in what the rank says; PeerFailedError if it gave up, peer_message if that was not due."""
        if isinstance(message, Abort):
            raise PeerFailedError(peer=self.name, error=message.error, reason=message.text)
        if message == wire.Ack(self._acknowledged) and self._acknowledged < self._sent:
            self._acknowledged += 1
        elif (
            self._due is None
            and self._acknowledged == self._sent
            and message == wire.Done(self._sent, self.digest)
        ):
            self.stage = Stage.DONE
        else:
            problem = f"it is {message}, {self.stage.value} of {self._acknowledged} was due"
            raise peer_message(peer=self.name, problem=problem)

    def write(self) -> wire.Bucket | None:
        """Write the next bucket and return what is said of it; None if there is no room, or none left.

        Raises
        ------
        BadInputError
            If the memory has been cut short.
        BadInputError (``trainer-tensor``)
            If a tensor changed meanwhile.
        """
        slots = self.offer.slots
        if self._due is None or self._sent - self._acknowledged == slots:
            return None
        self.segment.require_whole()
        slot = BEGIN_IN_PAGE + self._sent % slots * self.offer.bucket_bytes
        bucket = wire.Bucket(self._sent, tuple(self._write_piece(piece, slot) for piece in self._due))
        self._due = next(self._buckets, None)
        self._sent += 1
        return bucket

    def _write_piece(self, piece: wire.Piece, slot: int) -> wire.PieceRow:
        spec = self._specs[piece.tensor]
        if piece.begin == 0:  # one tensor at a time is held, as it may be a copy
            self._current = bytes_of(self._tensors, spec), running_digest()
        data, digest = self._current
        begin = slot + piece.offset
        memory = self.segment.memory[begin : begin + piece.end - piece.begin]
        copy_and_digest(data[piece.begin : piece.end], memory, digest, self._progress)
        self._digests[piece.tensor] = digest.hexdigest()
        return spec.name, spec.dtype, spec.shape, piece.offset, self._digests[piece.tensor]


#: Size of a bucket, which is verified and acknowledged as one: large enough that messages cost little.
BUCKET_BYTES = 4 << 20
#: Bytes that may be on their way to one rank: few enough that they stay in the cache between the two.
WINDOW_BYTES = 16 << 20
# Buckets that may be on their way to one rank, however small.
_MOST_SLOTS = 64
# How long a wait lasts before cancellation, deadlines and the ranks' lives are looked at again.
_GLANCE_S = 0.02
# How long a rank's last words may take to arrive once it has let go of the memory, and a rank to let go.
_LAST_WORDS_S = 1.0
# Messages that are heard before all the rest is looked after again, however many there are.
_HEARD_AT_ONCE = 64
# Connections that may have an Init and not be ready.
_MOST_ASKING = 64
_NAP_S = 0.005

# Bytes that end on a cache line.
_Lines: TypeAlias = Annotated[int, Meta(ge=ALIGNMENT, multiple_of=ALIGNMENT)]

_log = log.logger("strategies")


@dataclass(eq=False)
class _SendingLoop:
    """Sends one version to its `streams`, one per rank; tells ranks that ask why not, if it `failed`."""

    channel: TrainerSocket
    version: str
    streams: Mapping[int, RankStream]
    clock: Clock
    failed: Abort | None = None

    def __post_init__(self) -> None:
        # By connection: those that have an Init, and those that are receiving.
        self._offered: dict[bytes, RankStream] = {}
        self._ranks: dict[bytes, RankStream] = {}
        for stream in self.streams.values():
            stream.turn_s = self._now_s()

    def run(self, *, join_s: float, silence_s: float, cancelled: Callable[[], bool]) -> None:
        """Talk until every rank is done; raise what the first rank that fails did, and tell all others."""
        try:
            while any(stream.stage is not Stage.DONE for stream in self.streams.values()):
                wrote = [self._write(who, stream) for who, stream in self._ranks.items()]
                self.listen(0.0 if any(wrote) else _GLANCE_S)
                if cancelled():
                    raise send_cancelled(address=self.channel.address, version=self.version)  # noqa: TRY301 - told to all below, like any other end
                self._look_at_deadlines(join_s, silence_s)
        except BaseException as error:
            for who in (*self._ranks, *self._offered):
                self._say(who, wire.abort_of(error))
            raise

    def listen(self, seconds: float) -> None:
        """Wait for messages; hear a turn's worth: work and deadlines do not wait for talkers."""
        for _ in range(_HEARD_AT_ONCE):
            heard = self.channel.receive(seconds)
            if heard is None:
                return
            self._hear(*heard)
            seconds = 0.0

    def _write(self, who: bytes, stream: RankStream) -> bool:
        """Write a bucket if there is room; what that took, waiting for tensors included, is our own time."""
        bucket = stream.write()
        if bucket is not None:
            stream.turn_s = self._now_s()
            self._say(who, bucket)
        return bucket is not None

    def _hear(self, who: bytes, frame: bytes) -> None:
        stream = self._ranks.get(who)
        try:
            message = wire.from_rank(frame, "another process" if stream is None else stream.name)
        except BadInputError as error:
            if stream is not None:
                raise
            _log.warning("stream.message_ignored", address=self.channel.address, what=str(error))
            return
        if stream is not None:
            stream.turn_s = self._now_s()
            stream.hear(message)
            if stream.stage is Stage.DONE:
                del self._ranks[who]
                self._say(who, wire.End(stream.digest))
        elif isinstance(message, wire.Hello):
            self._welcome(who, message)
        elif (offered := self._offered.pop(who, None)) is not None:
            if isinstance(message, wire.Ready) and offered.begin():
                self._ranks[who] = offered
                offered.turn_s = self._now_s()
                return
            if isinstance(message, Abort):
                offered.refused = message
            self._say(who, Abort("busy", "rank-busy", f"another process is {offered.name}"))

    def _welcome(self, who: bytes, hello: wire.Hello) -> None:
        stream, refusal = self.streams.get(hello.rank), why_not(hello, self.version, len(self.streams))
        other = refusal is not None and refusal.reason == "version"
        if other and not hello.look and stream is not None and stream.stage is Stage.DONE:
            self._say(who, Abort("busy", "version-mismatch", "the next version is not sent yet"))
        elif self.failed is not None and not other:
            self._say(who, self.failed)
        elif refusal is not None:
            self._say(who, refusal)
        elif stream is None or not (hello.look or stream.stage in (Stage.WAITING, Stage.OFFERED)):
            self._say(who, Abort("rank", "rank-busy", f"rank {hello.rank} receives already"))
        else:
            if not hello.look:
                stream.stage = Stage.OFFERED
                self._offered[who] = stream
                if len(self._offered) > _MOST_ASKING:
                    del self._offered[next(iter(self._offered))]
            self._say(who, stream.offer)

    def _look_at_deadlines(self, join_s: float, silence_s: float) -> None:
        now_s = self._now_s()
        for stream in self.streams.values():
            expected, waited_s = stream.stage.value, now_s - stream.turn_s
            streaming = stream.stage is Stage.STREAMING
            if streaming and not stream.segment.leased():
                stream.gone_s = now_s if stream.gone_s is None else stream.gone_s
                if now_s - stream.gone_s > _LAST_WORDS_S:
                    raise PeerDiedError(peer=stream.name, expected=expected)
            elif stream.stage is not Stage.DONE and waited_s > (silence_s if streaming else join_s):
                if (refused := stream.refused) is not None:
                    raise PeerFailedError(peer=stream.name, error=refused.error, reason=refused.text)
                raise PeerSilentError(peer=stream.name, waited_s=waited_s, expected=expected)

    def _say(self, who: bytes, message: wire.FromTrainer) -> None:
        frame = frame_of(message)
        if len(frame) > wire.MOST_TO_RANK:
            what = f"a message of {len(frame)} bytes would tell of them, {wire.MOST_TO_RANK} are the most"
            raise trainer_tensor(tensor="", problem=f"they are too many ({what})")
        self.channel.send(who, frame)

    def _now_s(self) -> float:
        return self.clock.monotonic_ns() / 1_000_000_000


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
        self._errors: list[BaseException] = []

    @typed
    def result(self, timeout_s: Wait | None = None) -> SendReport:
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
        raise_kept(self._errors)
        raise RuntimeError("nothing was sent, and the cause was raised before or is not known")

    def wait(self) -> None:
        """Wait until nothing is sent any more."""
        self._ended.wait()

    def cancel(self) -> None:
        """Send no more; ranks that are receiving are told. Does not block."""
        self._cancelled = True

    def run(
        self,
        send: Callable[[Callable[[], bool]], SendReport],
        refuse: Callable[[Abort], None] | None = None,
    ) -> None:
        """Send, in the sending thread; where that fails, tell the ranks until the caller has left."""
        failed: Abort | None = None
        try:
            self._report = send(lambda: self._cancelled)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._errors, failed = [error], wire.abort_of(error)
        finally:
            self._ended.set()
        if failed is not None and refuse is not None:
            refuse(failed)

    def explain(self, error: BaseException) -> None:
        """Make what the sending raised the cause of the error that the caller leaves with."""
        self.wait()
        own = self._errors.pop() if self._errors else None
        if own is None or error_name(own) == "send-cancelled":
            return
        while error.__cause__ is not None:
            error = error.__cause__
        error.__cause__ = own


@typed_calls
class BucketSender(AbstractContextManager["BucketSender"]):
    """Listens for ranks and streams versions to them; use it in ``with``. One version at a time.

    Parameters
    ----------
    address : str
        ``ipc:///absolute/path`` (mode 0600, in a directory of this user of mode 0700) or
        ``tcp://127.0.0.1:port``; ``*`` for any free port.
    bucket_bytes : int
        Size of a bucket, a multiple of 64; one window at most.
    window_bytes : int
        Bytes that may be on their way to one rank, a multiple of 64; as much shared memory it takes per rank.
    memory_directory : str, optional
        Where shared memory is created; in the private directory of this user by default.
    clock : Clock, optional
        For deadlines and reports.

    Attributes
    ----------
    address : str
        Where ranks find it.

    Raises
    ------
    BadInputError, RefusedError, wsm.shared_directory.ForeignPathError
        If it cannot listen there, or other users may look there.
    """

    def __init__(
        self,
        address: str,
        *,
        bucket_bytes: _Lines = BUCKET_BYTES,
        window_bytes: _Lines = WINDOW_BYTES,
        memory_directory: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._bucket_bytes = min(bucket_bytes, window_bytes)
        self._slots = min(window_bytes // self._bucket_bytes, _MOST_SLOTS)
        self._memory_directory = memory_directory
        self._clock = clock or SystemClock()
        self._segments: dict[int, OwnedSegment] = {}
        self._channel: TrainerSocket = sockets().TrainerSocket(address)
        self.address = self._channel.address
        # Which version is being sent, by which thread, and whether that is to end.
        self._changed = threading.Condition()
        self._sends: tuple[str, int] | None = None
        self._closing = self._closed = False
        # Buckets are worth nothing without their sender: whatever has no owner is a dead one's.
        sweep(wire.SEGMENT_PREFIX, memory_directory)

    def send(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        join_s: Seconds = 60.0,
        silence_s: Seconds = 10.0,
        finite: bool = False,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = bool,
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
        PeerSilentError, PeerDiedError, PeerFailedError, BadInputError
            What the first rank that failed did; the others were told to stop.
        GroupError (``send-cancelled``)
            If `cancelled` said so.
        RefusedError
            If there is no room for buckets.
        BadInputError
            If what was handed over is no version.
        RefusedError
            If another thread is sending, or it listens no more.
        """
        version = checked_version(version)
        with self._alone(version):
            begun = self._clock.monotonic_ns()
            check_ranks(version, shards)
            if finite:
                for rank, tensors in shards.items():
                    for spec in specs_of(tensors):
                        bytes_of(tensors, spec, finite=True, rank=rank)
            publication = secrets.token_hex(16)
            done = 0

            def advance(nbytes: int) -> None:
                nonlocal done
                done += nbytes
                if progress is not None:
                    progress(done, total)

            streams = {
                rank: RankStream(
                    shards[rank],
                    segment := self._segment(rank),
                    wire.Init(
                        version=version,
                        rank=rank,
                        world_size=len(shards),
                        publication=publication,
                        segment=segment.name,
                        bucket_bytes=self._bucket_bytes,
                        slots=self._slots,
                        finite=finite,
                    ),
                    advance,
                )
                for rank in sorted(shards)
            }
            total = sum(stream.nbytes for stream in streams.values())
            loop = _SendingLoop(self._channel, version, streams, self._clock)
            loop.run(join_s=join_s, silence_s=silence_s, cancelled=lambda: self._closing or cancelled())
            return SendReport(
                version=version,
                manifest_digest=name_digest(version, publication, len(shards)),
                digests={rank: stream.digest for rank, stream in streams.items()},
                bytes=total,
                seconds=(self._clock.monotonic_ns() - begun) / 1_000_000_000,
            )

    @contextmanager
    def sending(
        self, version: str | int, shards: Mapping[int, TrainerTensors], **options: float
    ) -> Iterator[Sending]:
        """Send in a thread of its own while the caller commands the group.

        Leaving the context normally waits for the last rank; leaving it with an exception cancels what is
        still being sent. If sending has failed, ranks that ask for the version hear why at once, and what the
        caller leaves with has that error as its cause. The tensors must not change meanwhile.

        Parameters
        ----------
        version, shards, **options
            As for :meth:`send`.

        Raises
        ------
        wsm.errors.WsmError
            What :meth:`send` raises, when the context is left; for what is no version's name, at once.
        """
        sending, label, left = Sending(), checked_version(version), threading.Event()

        def send(cancelled: Callable[[], bool]) -> SendReport:
            return self.send(version, shards, cancelled=cancelled, **options)  # type: ignore[arg-type]  # the deadlines and `finite` can be given so

        def refuse(failed: Abort) -> None:
            with suppress(RefusedError), self._alone(label):
                loop = _SendingLoop(self._channel, label, {}, self._clock, failed)
                while not (self._closing or left.is_set()):
                    loop.listen(_GLANCE_S)

        name = f"wsm-send-{version}"
        thread = threading.Thread(target=sending.run, args=(send, refuse), name=name, daemon=True)
        thread.start()
        try:
            yield sending
        except BaseException as error:
            sending.cancel()
            sending.explain(error)
            raise
        finally:
            sending.wait()
            left.set()
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
                raise self._busy(self._sends[0], "close")
            self._closing = True
            self._changed.wait_for(lambda: self._sends is None)
            if self._closed:
                return
            self._closed = True
        until_s = time.monotonic() + _LAST_WORDS_S
        with suppress(RefusedError):  # a forked child has no locks to look at
            while any(each.leased() for each in self._segments.values()) and time.monotonic() < until_s:
                time.sleep(_NAP_S)  # a rank lets go once it has our last words
        self._channel.close()
        while self._segments:
            self._segments.popitem()[1].close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self, version: str) -> Iterator[None]:
        """Send nothing else, and stay open, meanwhile."""
        self._channel.require_own()
        with self._changed:
            if self._sends is not None:
                raise self._busy(self._sends[0], f"send version {version}")
            if self._closing:
                raise RefusedError(
                    f"the sender at {self.address} is closed and cannot send version {version}; "
                    "make a new one",
                    code="sender-closed",
                    address=self.address,
                    version=version,
                )
            self._sends = (version, threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._sends = None
                self._changed.notify_all()

    def _busy(self, version: str, wanted: str) -> RefusedError:
        return RefusedError(
            f"the sender at {self.address} is sending version {version} and cannot {wanted} "
            "meanwhile; wait until that has returned, or cancel it",
            code="sender-busy",
            address=self.address,
            version=version,
            wanted=wanted,
            retryable=True,
        )

    def _segment(self, rank: int) -> OwnedSegment:
        """Return the memory of a rank's buckets; a rank that failed may read on in what it has."""
        old = self._segments.get(rank)
        if old is not None and old.begin_writing():
            old.end_writing()
            return old
        if old is not None:
            old.close()
        nbytes = BEGIN_IN_PAGE + self._slots * self._bucket_bytes
        made = self._segments[rank] = OwnedSegment(wire.SEGMENT_PREFIX, nbytes, self._memory_directory)
        return made
