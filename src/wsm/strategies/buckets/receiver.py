"""The rank's end of one stream of buckets: asks, maps the memory, takes buckets, verifies them, answers.

Once it has the memory it sees the trainer's death at once, by the lock that the trainer holds on that.
Whatever goes wrong here the trainer is told. Knows no targets, and no sockets.
"""

from __future__ import annotations

from functools import partial

from wsm.clock import Clock
from wsm.strategies.buckets import messages as say
from wsm.strategies.buckets.conversation import Conversation
from wsm.strategies.buckets.plan import Piece, bucket_begin, plan_buckets, segment_bytes
from wsm.strategies.buckets.source import IpcAsyncSource
from wsm.strategies.digest import RunningDigest, digest_of, shard_digest
from wsm.strategies.documents.sealed_json import content_digest
from wsm.strategies.errors import (
    DigestMismatchError,
    EmptySnapshotError,
    ShardIdentityError,
    VersionMismatchError,
)
from wsm.strategies.ipc.shared_segment import AttachedSegment
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor


class BucketReceiver:
    """One stream. :meth:`ask`, then :meth:`begin`, then reads through the offer, then :meth:`finish`.

    Parameters
    ----------
    source : IpcAsyncSource
        Where the trainer is, and who we are.
    observer : LoadObserver
        Asked for cancellation during every wait.
    clock : Clock, optional
        For deadlines.

    Raises
    ------
    AddressError, PyzmqMissingError
        If there is no way to talk.
    """

    def __init__(self, source: IpcAsyncSource, observer: LoadObserver, clock: Clock | None = None) -> None:
        self._source = source
        self._trainer = Conversation(source, observer, clock)
        self._segment: AttachedSegment | None = None
        self._memory = memoryview(b"")
        self._buckets: tuple[tuple[Piece, ...], ...] = ()
        self._digests: list[tuple[str, ...]] = []
        self._acknowledged = 0

    def ask(self, version: int | None, *, look: bool) -> say.Init:
        """Say who we are and what we want; return what will come. Blocks until the trainer answers.

        Raises
        ------
        VersionMismatchError, ShardIdentityError, EmptySnapshotError
            If it is not what we want.
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            If there is no proper answer.
        """
        source, peer = self._source, self._trainer.peer
        init = self._trainer.ask(say.Hello(source.rank, source.world_size, version, look))
        if init.rank != source.rank:
            raise ShardIdentityError(file=peer, field="rank", expected=source.rank, found=init.rank)
        if source.world_size is not None and init.world_size != source.world_size:
            raise self._trainer.other_world(init.world_size)
        if version is not None and init.version != version:
            raise VersionMismatchError(requested=version, found=init.version, where=peer)
        if not init.tensors:
            raise EmptySnapshotError(where=peer)
        self._init = init
        return init

    def begin(self) -> None:
        """Map the memory, say so, and wait for the first bucket, before anything is touched. Blocks.

        Raises
        ------
        SegmentMissingError, FileSizeError, ForeignSegmentError, SegmentBusyError, UnreadableFileError
            If the memory that the trainer names cannot be mapped.
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            If no bucket comes.
        """
        init = self._init
        self._segment = AttachedSegment(
            init.segment,
            segment_bytes(init.slots, init.bucket_bytes),
            referrer=self._trainer.peer,
            directory=self._source.memory_directory,
        )
        self._memory = self._segment.shared_memory()
        self._buckets = plan_buckets(init.tensors, init.bucket_bytes)
        self._trainer.send(say.Ready())
        self._arrive(min(len(self._buckets), 1) - 1)

    def offer(self) -> Offer:
        """Return what comes, to be applied in its order."""
        init = self._init
        places: dict[int, list[tuple[int, int]]] = {index: [] for index in range(len(init.tensors))}
        for bucket, pieces in enumerate(self._buckets):
            for position, piece in enumerate(pieces):
                places[piece.tensor].append((bucket, position))
        tensors = tuple(
            OfferedTensor(
                spec,
                self._trainer.peer,
                partial(self._read, places[index]),
                piece_bytes=init.bucket_bytes if spec.nbytes > init.bucket_bytes else 0,
                witness=partial(self._verify, places[index]),
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
            peak_extra_bytes=segment_bytes(init.slots, init.bucket_bytes),
        )

    def finish(self) -> None:
        """Hear that this was all, agree on its digest, and say so. Blocks.

        Raises
        ------
        PeerMessageError
            If the trainer sees it differently.
        PeerSilentError, PeerDiedError, PeerFailedError, LoadCancelledError
            If there is no proper answer.
        """
        self._arrive(len(self._buckets) - 1)
        self._acknowledge(len(self._buckets))
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
        self._memory = memoryview(b"")
        if self._segment is not None:
            self._segment.remove_orphan()
            self._segment.close()

    def _read(self, places: list[tuple[int, int]], offset: int, destination: memoryview) -> None:
        bucket, position = places[offset // self._init.bucket_bytes]
        piece = self._buckets[bucket][position]
        self._arrive(bucket)
        self._trainer.touched = True
        begin = self._slot(bucket) + piece.offset + offset - piece.begin
        destination[:] = self._memory[begin : begin + len(destination)]

    def _verify(self, places: list[tuple[int, int]], end: int, digest: RunningDigest) -> None:
        bucket, position = places[(end - 1) // self._init.bucket_bytes]
        piece = self._buckets[bucket][position]
        if end != piece.end:
            return
        expected, actual = self._digests[bucket][position], digest.hexdigest()
        if actual != expected:
            raise DigestMismatchError(
                tensor=self._init.tensors[piece.tensor].name,
                origin=f"bucket {bucket} of {self._trainer.peer}",
                expected=expected,
                actual=actual,
            )
        if position + 1 == len(self._buckets[bucket]):
            self._acknowledge(bucket + 1)

    def _slot(self, bucket: int) -> int:
        return bucket_begin(bucket, self._init.slots, self._init.bucket_bytes)

    def _arrive(self, wanted: int) -> None:
        """Take buckets until `wanted` is there; those in between were left out, and are given back."""
        while len(self._digests) <= wanted:
            due = len(self._digests)
            self._acknowledge(due)
            bucket = self._receive(say.Bucket, f"bucket {due}")
            if bucket.index != due or len(bucket.digests) != len(self._buckets[due]):
                raise self._trainer.unusable(
                    f"bucket {bucket.index} of {len(bucket.digests)} pieces came, bucket {due} of "
                    f"{len(self._buckets[due])} was due"
                )
            self._digests.append(bucket.digests)
            if self._segment is not None:
                self._segment.require_whole(touched=self._trainer.touched)

    def _acknowledge(self, count: int) -> None:
        while self._acknowledged < count:
            self._trainer.send(say.Ack(self._acknowledged))
            self._acknowledged += 1

    def _content_digest(self) -> str:
        last = [digest_of(b"")] * len(self._init.tensors)
        for pieces, digests in zip(self._buckets, self._digests, strict=True):
            for piece, digest in zip(pieces, digests, strict=True):
                last[piece.tensor] = digest
        return shard_digest(zip(self._init.tensors, last, strict=True))

    def _receive(self, kind: type[say.MessageT], expected: str) -> say.MessageT:
        return self._trainer.receive(kind, expected, lives=self._trainer_lives)

    def _trainer_lives(self) -> bool:
        return self._segment is None or self._segment.owned()
