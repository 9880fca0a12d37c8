"""The strategy ``ipc_async``: one rank's shard in buckets that a trainer on the same host streams.

It asks the trainer, and yields what will come as an offer whose tensors are read as their buckets arrive.
Every wait has a deadline, sees a cancellation, and sees the trainer's death: before the offer by the lock of
its lock file, then by the lock on its memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from wsm.errors import BadInputError
from wsm.strategies.buckets import wire
from wsm.strategies.buckets.source import IpcAsyncConfig, IpcAsyncSource, sockets
from wsm.strategies.conversation import Abort, Meeting, frame_of, refused
from wsm.strategies.digest import RunningDigest, digest_of, shard_digest
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.ipc.shared_segment import AttachedSegment, foreign_segment
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.peer_errors import (
    PeerDiedError,
    PeerFailedError,
    PeerSilentError,
    peer_message,
)
from wsm.strategies.promise import ShardIdentity, name_digest
from wsm.strategies.strategy import Sections, Strategy
from wsm.strategies.tensor import BEGIN_IN_PAGE, TensorSpec

if TYPE_CHECKING:
    from wsm.strategies.buckets.channel import RankSocket

# How long a wait lasts before cancellation and the trainer's life are looked at again.
_GLANCE_S = 0.02
# How long a rank that gives up waits for the trainer's answer.
_LAST_WORDS_S = 1.0


class _Receiver:
    """One stream: :meth:`ask`, :meth:`begin`, reads through the :meth:`offer`, then :meth:`finish`."""

    def __init__(self, source: IpcAsyncSource, observer: LoadObserver) -> None:
        self._source, self._observer = source, observer
        self._peer = f"the sender at {source.address}"
        self._socket: RankSocket = sockets().RankSocket(source.address)
        self._held = ExitStack()
        self._held.callback(self._socket.close)
        self._specs: tuple[TensorSpec, ...] = ()
        # The bucket that is read, and what lies in it by tensor and begin.
        self._number = -1
        self._pieces: dict[tuple[int, int], tuple[wire.Piece, str]] = {}

    def ask(self, version: str | None, *, look: bool) -> None:
        """Say who we are and what we want, and hear what will come. Blocks, ``connect_s`` at most.

        A trainer that ends before it has offered anything may come back within ``silence_s``, and is asked
        again then.
        """
        source = self._source
        hello = wire.Hello(source.rank, source.world_size, version, look)
        meeting, asked = Meeting(self._peer, source.connect_s, source.silence_s), False
        while True:
            if self._socket.look():
                asked = False
            if not asked and meeting.asks_again():
                self._say(hello)
                asked = True
            message = self._next(hello)
            if isinstance(message, wire.Init):
                self._init = message
                return
            if isinstance(message, Abort):
                meeting.told, asked = message, False
            elif message is not None:
                raise self._unusable(f"it is a {type(message).__name__}, its offer was due")
            self._observer.stop_if_cancelled(len(self._specs))
            meeting.wait(there=self._socket.lives, left=self._socket.left)

    def take_in(self, version: str | None) -> None:
        """See that what will come is what we want."""
        source, init = self._source, self._init
        identity = {"version": init.version, "publication": init.publication}
        shard = ShardIdentity(rank=init.rank, world_size=init.world_size, **identity)
        shard.require(version, source.rank, source.world_size, where=self._peer)
        self._specs = tuple(TensorSpec(*row) for row in init.tensors)
        self._digests = [digest_of(b"")] * len(self._specs)
        self._buckets = wire.cut(self._specs, init.bucket_bytes)
        self._due = next(self._buckets, None)

    def begin(self) -> None:
        """Lease the memory, say so, and wait for the first bucket, before anything is touched. Blocks."""
        init = self._init
        segment = AttachedSegment(
            init.segment,
            BEGIN_IN_PAGE + init.slots * init.bucket_bytes,
            prefixes=(wire.SEGMENT_PREFIX,),
            referrer=self._peer,
            directory=self._source.memory_directory,
        )
        self._held.callback(segment.close)
        if segment.read_at(0, len(init.publication)) != init.publication.encode():
            problem = f"{self._peer} names it, and it was not made for this stream"
            fix = "look who answers there"
            raise foreign_segment(segment=segment.path, problem=problem, fix=fix)
        self._held.callback(segment.remove_orphan)
        self._lives, self._read_segment = segment.owned, segment.read_from
        self._say(wire.Ready())
        if self._due is not None:
            self._next_bucket()

    def offer(self) -> Offer:
        """Return what comes, to be applied in its order."""
        init = self._init
        return Offer(
            version=init.version,
            tensors=tuple(
                OfferedTensor(
                    spec,
                    self._peer,
                    partial(self._read, index),
                    piece_bytes=init.bucket_bytes,
                    check_chunk=partial(self._verify, index, spec),
                    finite=init.finite,
                )
                for index, spec in enumerate(self._specs)
            ),
            files=(self._source.address,),
            manifest_digest=name_digest(init.version, init.publication, init.world_size),
            manifest_scope=ManifestScope.GROUP,
            peak_extra_bytes=BEGIN_IN_PAGE + init.slots * init.bucket_bytes,
        )

    def finish(self) -> None:
        """Say that this was all, and hear that it was. Blocks."""
        while self._due is not None:
            self._next_bucket()
        self._acknowledge()
        ours = shard_digest(zip(self._specs, self._digests, strict=True))
        self._say(wire.Done(self._number + 1, ours))
        end = self._receive("the end of the stream")
        if end != wire.End(ours):
            raise self._unusable(f"it is {end}, the end of {self._number + 1} buckets with {ours} was due")

    def give_up(self, error: BaseException) -> None:
        """Tell the trainer why this load ends; wait a moment for its answer. Never raises."""
        if isinstance(error, (PeerFailedError, PeerDiedError)):
            return
        self._say(wire.abort_of(error))
        until_s = time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < until_s:
            frame = self._socket.receive(_GLANCE_S)
            try:
                if frame is not None and isinstance(wire.from_trainer(frame, self._peer), Abort):
                    return
            except BadInputError:
                return

    def close(self) -> None:
        """Let the memory go, which the trainer takes for our end, and an orphan's name."""
        self._held.close()

    def _read(self, index: int, offset: int, destination: memoryview) -> None:
        """Copy bytes of a tensor that lie in one piece of it."""
        init = self._init
        begin = offset - offset % init.bucket_bytes
        while (index, begin) not in self._pieces:
            self._next_bucket()
        piece, _ = self._pieces[index, begin]
        place = self._number % init.slots * init.bucket_bytes + piece.offset + offset - begin
        self._read_segment(BEGIN_IN_PAGE, place, destination)

    def _verify(self, index: int, spec: TensorSpec, end: int, digest: RunningDigest) -> None:
        """Compare a complete piece with its promise."""
        begin = end - 1 - (end - 1) % self._init.bucket_bytes
        piece, expected = self._pieces[index, begin]
        if end < piece.end:
            return
        actual = digest.hexdigest()
        if actual != expected:
            origin = f"bucket {self._number} of {self._peer}"
            raise DigestMismatchError(tensor=spec.name, origin=origin, expected=expected, actual=actual)

    def _next_bucket(self) -> None:
        """Acknowledge the bucket that was read and take in the next one. Blocks."""
        self._acknowledge()
        due, number = self._due or [], self._number + 1
        bucket = self._receive(f"bucket {number}")
        rows = tuple((*self._init.tensors[piece.tensor], piece.offset) for piece in due)
        if not isinstance(bucket, wire.Bucket):
            raise self._unusable(f"it is a {type(bucket).__name__}, bucket {number} was due")
        if bucket.number != number or tuple(row[:-1] for row in bucket.tensors) != rows:
            came = f"bucket {bucket.number} of {len(bucket.tensors)} tensors"
            raise self._unusable(f"it is {came}, bucket {number} of {len(rows)} was due")
        self._number = number
        self._pieces.clear()
        for piece, row in zip(due, bucket.tensors, strict=True):
            self._pieces[piece.tensor, piece.begin] = piece, row[-1]
            self._digests[piece.tensor] = row[-1]
        self._due = next(self._buckets, None)

    def _acknowledge(self) -> None:
        if self._number >= 0:
            self._say(wire.Ack(self._number))

    def _receive(self, expected: str) -> wire.FromTrainer:
        """Return the next message. Blocks, ``silence_s`` at most."""
        begun_s = time.monotonic()
        while True:
            lived = self._lives()  # asked before: what it said last still counts
            message = self._next(None)
            if message is not None:
                return message
            if not lived:
                raise PeerDiedError(peer=self._peer, expected=expected)
            self._observer.stop_if_cancelled(len(self._specs))
            waited_s = time.monotonic() - begun_s
            if waited_s > self._source.silence_s:
                raise PeerSilentError(peer=self._peer, waited_s=waited_s, expected=expected)

    def _next(self, wanted: wire.Hello | None) -> wire.FromTrainer | None:
        """Wait for a message, a glance at most; raise what an Abort says of what was `wanted`."""
        frame = self._socket.receive(_GLANCE_S)
        if frame is None:
            return None
        message = wire.from_trainer(frame, self._peer)
        if isinstance(message, Abort) and (wanted is None or message.reason != "busy"):
            raise refused(wanted, message, self._peer)
        return message

    def _say(self, message: wire.FromRank) -> None:
        self._socket.send(frame_of(message))

    def _unusable(self, problem: str) -> BadInputError:
        return peer_message(peer=self._peer, problem=problem)


class IpcAsync(Strategy):
    """Load from buckets that a trainer streams."""

    source_type = IpcAsyncSource
    sections = (IpcAsyncConfig,)

    def source(self, sections: Sections, rank: int, ranks: int) -> IpcAsyncSource:
        """Return one rank's way to the configured trainer."""
        return IpcAsyncSource(rank=rank, world_size=ranks, **vars(sections.of(IpcAsyncConfig)))

    @contextmanager
    def open(
        self, source: IpcAsyncSource, version: str | None, observer: LoadObserver = UNOBSERVED
    ) -> Iterator[Offer]:
        """Ask the trainer for a stream. Blocks until it offers one.

        The trainer hears what became of it: that all was applied and verified, or the error.

        Parameters
        ----------
        source : IpcAsyncSource
            Where the trainer is.
        version : str or None
            The version that it must send; None for whichever it does.
        observer : LoadObserver
            Asked for cancellation while we wait for the trainer.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            If what it offers is not what was asked for. Nothing was changed.
        wsm.strategies.peer_errors.PeerSilentError, PeerDiedError, PeerFailedError, BadInputError
            If it does not answer properly, now or later; ``touched`` says whether anything was changed.
        """
        with closing(_Receiver(source, observer)) as receiver:
            receiver.ask(version, look=False)
            try:
                receiver.take_in(version)
                receiver.begin()
                yield receiver.offer()
                receiver.finish()
            except BaseException as error:
                receiver.give_up(error)
                raise

    @contextmanager
    def preview(self, source: IpcAsyncSource, version: str | None) -> Iterator[Offer]:
        """Ask to look only: the trainer says what it would send, and goes on waiting for this rank."""
        with closing(_Receiver(source, UNOBSERVED)) as receiver:
            receiver.ask(version, look=True)
            receiver.take_in(version)
            yield receiver.offer()
