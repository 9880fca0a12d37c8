"""The strategy ``ipc_async``: one rank's shard in buckets that a trainer on the same host streams.

It asks the trainer, and yields what will come as an offer whose tensors are read as their buckets arrive. The
messages go over ZMQ (:mod:`._conversation`), the bytes through shared memory (:mod:`._incoming_window`). It
applies nothing. Bytes are ahead of what is said of them: a bucket may be verified while the next one is being
applied; all are before the stream ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import TypeAlias

from wsm.clock import Clock
from wsm.errors import GroupError
from wsm.strategies import errors
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets._bucket_plan import (
    Piece,
    plan_buckets,
    segment_bytes,
    step_bytes,
    stream_bytes,
)
from wsm.strategies.buckets._conversation import Conversation
from wsm.strategies.buckets._incoming_window import IncomingWindow
from wsm.strategies.buckets.source import IpcAsyncConfig, IpcAsyncSource
from wsm.strategies.digest import RunningDigest, digest_of, shard_digest
from wsm.strategies.documents import content_digest
from wsm.strategies.errors import (
    DigestMismatchError,
    NotFiniteError,
    TiedTensorsDifferError,
    VersionMismatchError,
)
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.sections import Sections
from wsm.strategies.strategy import Strategy

# Bucket and position in it of each piece of a tensor.
_Places: TypeAlias = list[tuple[int, int]]


class BucketReceiver:
    """One stream. :meth:`ask`, then :meth:`begin`, then reads through the offer, then :meth:`finish`.

    Parameters
    ----------
    source : IpcAsyncSource
        Where the trainer is, and which rank this is.
    observer : LoadObserver
        Asked for cancellation during every wait.
    clock : Clock, optional
        For deadlines.

    Raises
    ------
    BadInputError
        If there is no way to talk.
    """

    def __init__(self, source: IpcAsyncSource, observer: LoadObserver, clock: Clock | None = None) -> None:
        self._source = source
        self._trainer = Conversation(source, observer, clock)
        self._held = ExitStack()
        self._buckets: tuple[tuple[Piece, ...], ...] = ()
        self._promised: list[tuple[str, ...]] = []
        self._found: dict[int, dict[int, str]] = {}
        self._reading = self._closed = 0

    def ask(self, version: str | None, *, look: bool) -> say.Init:
        """Say who we are and what we want; return what will come. Blocks until the trainer answers.

        Raises
        ------
        VersionMismatchError, BadInputError
            If it is not what we want.
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            If there is no proper answer.
        """
        source, peer = self._source, self._trainer.peer
        init = self._trainer.ask(say.Hello(source.rank, source.world_size, version, look))
        if init.rank != source.rank:
            raise errors.shard_identity(file=peer, field="rank", expected=source.rank, found=init.rank)
        if source.world_size is not None and init.world_size != source.world_size:
            raise self._trainer.other_world(init.world_size)
        if version is not None and init.version != version:
            raise VersionMismatchError(requested=version, found=init.version, where=peer)
        if not init.tensors:
            raise errors.empty_snapshot(where=peer)
        self._init = init
        return init

    def begin(self) -> None:
        """Map the memory, say so, and wait for the first bytes, before anything is touched. Blocks.

        Raises
        ------
        SharedMemoryGoneError, BadInputError, SharedMemoryBusyError, UnreadableFileError
            If the memory that the trainer names cannot be mapped.
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            If nothing comes.
        """
        init = self._init
        self._buckets = plan_buckets(init.tensors, init.bucket_bytes)
        end = stream_bytes(self._buckets)
        window = IncomingWindow(
            init.segment,
            init.window_bytes,
            end,
            self._trainer.session,
            referrer=self._trainer.peer,
            directory=self._source.memory_directory,
        )
        self._window = self._held.enter_context(closing(window))
        window.claim()
        self._trainer.follow(self._window.owned, self._look)
        self._trainer.send(say.Ready())
        self._await_written(min(end, 1))

    def offer(self) -> Offer:
        """Return what comes, to be applied in its order."""
        init = self._init
        places: dict[int, _Places] = {index: [] for index in range(len(init.tensors))}
        for bucket, pieces in enumerate(self._buckets):
            for position, piece in enumerate(pieces):
                places[piece.tensor].append((bucket, position))
        # Digested at a time: what two steps bring is still in the cache.
        digested = 2 * step_bytes(init.window_bytes)
        piece_bytes = init.bucket_bytes if init.bucket_bytes % digested else digested
        tensors = tuple(
            OfferedTensor(
                spec,
                self._trainer.peer,
                partial(self._read, places[index]),
                piece_bytes=piece_bytes,
                check_chunk=partial(self._verify, places[index]),
                finite=init.finite,
            )
            for index, spec in enumerate(init.tensors)
        )
        return Offer(
            version=init.version,
            tensors=tensors,
            files=(self._source.address,),
            manifest_digest=content_digest(
                {"version": init.version, "publication": init.publication, "world_size": init.world_size}
            ),
            manifest_scope=ManifestScope.GROUP,
            peak_extra_bytes=segment_bytes(init.window_bytes),
        )

    def verify(self) -> None:
        """See that what was read came as it was sent: damage may look like a trainer's fault. Blocks.

        Raises
        ------
        DigestMismatchError
            If it did not.
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            If the trainer does not say what it has sent.
        """
        self._close_buckets(max(self._found, default=-1) + 1)

    def finish(self) -> None:
        """Hear that this was all, agree on its digest, and say so. Blocks.

        Raises
        ------
        PeerMessageError
            If the trainer sees it differently.
        PeerSilentError, PeerDiedError, PeerFailedError, LoadCancelledError
            If there is no proper answer.
        """
        self._close_buckets(len(self._buckets))
        end = self._receive(say.End, "the end of the stream")
        ours = self._content_digest()
        if end != say.End(len(self._buckets), ours):
            raise self._trainer.unusable(
                f"it ended {end.buckets} buckets of digest {end.content_digest}, "
                f"{len(self._buckets)} of digest {ours} came"
            )
        self._trainer.send(say.Done(ours))

    def give_up(self, error: BaseException) -> None:
        """Tell the trainer why this load ends. Does not block, and never raises."""
        self._trainer.give_up(error)

    def close(self) -> None:
        """Let the last message leave, then the memory go: the trainer takes its end for ours. Idempotent."""
        self._trainer.close()
        self._held.close()

    def _read(self, places: _Places, offset: int, destination: memoryview) -> None:
        """Copy bytes of a tensor that lie in one piece of it."""
        bucket, position = places[offset // self._init.bucket_bytes]
        piece = self._buckets[bucket][position]
        self._reading = bucket
        self._close_buckets(bucket - 1)
        self._window.read(piece.place + offset - piece.begin, destination, self._await_written)

    def _verify(self, places: _Places, end: int, digest: RunningDigest) -> None:
        """Remember the digest of a complete piece; after a bucket's last one, see what it should be.

        Where the trainer has not said so yet, we go on with the next bucket meanwhile.
        """
        bucket, position = places[(end - 1) // self._init.bucket_bytes]
        pieces = self._buckets[bucket]
        if end == pieces[position].end:
            self._found.setdefault(bucket, {})[position] = digest.hexdigest()
            if position + 1 == len(pieces):
                self._hear_of_buckets()
                self._close_buckets(min(bucket + 1, len(self._promised)))

    def _close_buckets(self, until: int) -> None:
        """See that what was read of the buckets before `until` came as it was sent; say so. Blocks."""
        while self._closed < until:
            bucket = self._closed
            pieces = self._buckets[bucket]
            self._window.take(pieces[-1].place + pieces[-1].nbytes)
            while len(self._promised) <= bucket:
                self._take_in(self._receive(say.Bucket, f"bucket {bucket}"))
            for position, actual in self._found.pop(bucket, {}).items():
                expected = self._promised[bucket][position]
                if actual != expected:
                    raise DigestMismatchError(
                        tensor=self._init.tensors[pieces[position].tensor].name,
                        origin=f"bucket {bucket} of {self._trainer.peer}",
                        expected=expected,
                        actual=actual,
                    )
            self._closed += 1
            self._trainer.send(say.Ack(bucket))

    def _await_written(self, place: int) -> None:
        """Wait until all bytes before `place` are written, and hear meanwhile what the trainer says."""
        if self._look() < place:
            self._window.tell()
            self._trainer.until(place, self._hear, f"bucket {self._reading}")

    def _look(self) -> int:
        """Return how far the trainer is."""
        try:
            return self._window.look(touched=self._trainer.touched)
        except ValueError as error:
            raise self._trainer.unusable(str(error)) from error

    def _hear_of_buckets(self) -> None:
        """Take in what the trainer has said of buckets already."""
        while len(self._promised) < len(self._buckets) and self._hear():
            pass

    def _hear(self) -> bool:
        """Take in what the trainer says of the next bucket; False if it says nothing."""
        bucket = self._trainer.heard(say.Bucket, f"bucket {len(self._promised)}")
        if bucket is not None:
            self._take_in(bucket)
        return bucket is not None

    def _take_in(self, bucket: say.Bucket) -> None:
        due = len(self._promised)
        pieces = len(self._buckets[due]) if due < len(self._buckets) else 0
        if bucket.index != due or len(bucket.digests) != pieces:
            came = f"bucket {bucket.index} of {len(bucket.digests)} pieces came"
            raise self._trainer.unusable(f"{came}, bucket {due} of {pieces} was due")
        self._promised.append(bucket.digests)

    def _content_digest(self) -> str:
        last = [digest_of(b"")] * len(self._init.tensors)
        for pieces, digests in zip(self._buckets, self._promised, strict=True):
            for piece, digest in zip(pieces, digests, strict=True):
                last[piece.tensor] = digest
        return shard_digest(zip(self._init.tensors, last, strict=True))

    def _receive(self, kind: type[say.MessageT], expected: str) -> say.MessageT:
        self._window.tell()
        return self._trainer.receive(kind, expected)


class IpcAsync(Strategy):
    """Load from buckets that a trainer streams."""

    source_type = IpcAsyncSource
    sections = (IpcAsyncConfig,)

    def source(self, sections: Sections, rank: int, ranks: int) -> IpcAsyncSource:
        """Return one rank's way to the configured trainer."""
        section = sections.of(IpcAsyncConfig)
        return IpcAsyncSource(
            section.address,
            rank=rank,
            world_size=ranks,
            connect_s=section.connect_s,
            silence_s=section.silence_s,
            memory_directory=section.memory_directory,
        )

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
        wsm.strategies.messages.errors.PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError
            If it does not answer properly, now or later; ``touched`` says whether anything was changed.
        """
        with closing(BucketReceiver(source, observer)) as receiver:
            try:
                receiver.ask(version, look=False)
                receiver.begin()
                try:
                    yield receiver.offer()
                except (NotFiniteError, TiedTensorsDifferError):
                    with suppress(GroupError):
                        receiver.verify()
                    raise
                receiver.finish()
            except BaseException as error:
                receiver.give_up(error)
                raise

    @contextmanager
    def preview(self, source: IpcAsyncSource, version: str | None) -> Iterator[Offer]:
        """Ask to look only: the trainer says what it would send, and goes on waiting for this rank."""
        with closing(BucketReceiver(source, UNOBSERVED)) as receiver:
            receiver.ask(version, look=True)
            yield receiver.offer()
