"""The rank's end of one stream of buckets: asks, maps the memory, takes buckets, verifies them, answers.

Every wait has a deadline, sees a cancellation, and sees the trainer's death at once by the lock that it holds
on the memory. Whatever goes wrong here the trainer is told. Knows no targets.
"""

from __future__ import annotations

import secrets
from functools import partial

from wsm.clock import Clock, SystemClock
from wsm.errors import WsmError
from wsm.strategies.buckets import bucket_socket
from wsm.strategies.buckets import messages as say
from wsm.strategies.buckets.plan import Piece, bucket_begin, plan_buckets, segment_bytes
from wsm.strategies.buckets.source import IpcAsyncSource
from wsm.strategies.digest import RunningDigest, digest_of, shard_digest
from wsm.strategies.documents.sealed_json import content_digest
from wsm.strategies.errors import (
    DigestMismatchError,
    EmptySnapshotError,
    LoadCancelledError,
    ShardIdentityError,
    VersionMismatchError,
)
from wsm.strategies.ipc.shared_segment import AttachedSegment
from wsm.strategies.messages.errors import (
    PeerDiedError,
    PeerFailedError,
    PeerMessageError,
    PeerSilentError,
)
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor

# How long a wait lasts before cancellation and the trainer's life are looked at again.
_GLANCE_S = 0.02


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
        self._observer = observer
        self._clock = clock or SystemClock()
        self._peer = f"the sender at {source.address}"
        self._stream = secrets.randbits(64)
        self._socket = bucket_socket.connect(source.address)
        self._segment: AttachedSegment | None = None
        self._memory = memoryview(b"")
        self._buckets: tuple[tuple[Piece, ...], ...] = ()
        self._digests: list[tuple[str, ...]] = []
        self._acknowledged = 0
        self._touched = False
        self._answered = False

    def ask(self, version: int | None, *, look: bool) -> say.Init:
        """Say who we are and what we want; return what will come. Blocks until the trainer answers.

        Raises
        ------
        VersionMismatchError, ShardIdentityError, EmptySnapshotError
            If it is not what we want.
        PeerSilentError, PeerFailedError, PeerMessageError, LoadCancelledError
            If there is no proper answer.
        """
        source = self._source
        self._send(say.Hello(source.rank, source.world_size, version, look))
        init = self._receive(say.Init, "its offer", source.connect_s, version=version)
        if init.rank != source.rank:
            raise ShardIdentityError(file=self._peer, field="rank", expected=source.rank, found=init.rank)
        if source.world_size is not None and init.world_size != source.world_size:
            raise self._other_world(init.world_size)
        if version is not None and init.version != version:
            raise VersionMismatchError(requested=version, found=init.version, where=self._peer)
        if not init.tensors:
            raise EmptySnapshotError(where=self._peer)
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
            referrer=self._peer,
            directory=self._source.memory_directory,
        )
        self._memory = self._segment.shared_memory()
        self._buckets = plan_buckets(init.tensors, init.bucket_bytes)
        self._send(say.Ready())
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
                self._peer,
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
        end = self._receive(say.End, "the end of the stream", self._source.silence_s)
        ours = self._content_digest()
        if end != say.End(len(self._buckets), ours):
            raise self._unusable(
                f"it ended {end.buckets} buckets of digest {end.content_digest}, "
                f"{len(self._buckets)} of digest {ours} came"
            )
        self._send(say.Done(ours))

    def give_up(self, error: BaseException) -> None:
        """Tell the trainer why this load ends. Does not block, and never raises."""
        if not isinstance(error, PeerFailedError):
            reason = "cancelled" if isinstance(error, LoadCancelledError) else "failed"
            text = str(error) if isinstance(error, WsmError) else repr(error)
            self._send(say.Abort(reason, type(error).__name__, text[:2000]))

    def close(self) -> None:
        """Let the last message leave, then the memory go: the trainer takes its end for ours. Idempotent."""
        self._socket.close(flush=self._answered)
        self._memory = memoryview(b"")
        if self._segment is not None:
            self._segment.remove_orphan()
            self._segment.close()

    def _read(self, places: list[tuple[int, int]], offset: int, destination: memoryview) -> None:
        bucket, position = places[offset // self._init.bucket_bytes]
        piece = self._buckets[bucket][position]
        self._arrive(bucket)
        self._touched = True
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
                origin=f"bucket {bucket} of {self._peer}",
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
            bucket = self._receive(say.Bucket, f"bucket {due}", self._source.silence_s)
            if bucket.index != due or len(bucket.digests) != len(self._buckets[due]):
                raise self._unusable(
                    f"bucket {bucket.index} of {len(bucket.digests)} pieces came, bucket {due} of "
                    f"{len(self._buckets[due])} was due"
                )
            self._digests.append(bucket.digests)
            if self._segment is not None:
                self._segment.require_whole(touched=self._touched)

    def _acknowledge(self, count: int) -> None:
        while self._acknowledged < count:
            self._send(say.Ack(self._acknowledged))
            self._acknowledged += 1

    def _content_digest(self) -> str:
        last = [digest_of(b"")] * len(self._init.tensors)
        for pieces, digests in zip(self._buckets, self._digests, strict=True):
            for piece, digest in zip(pieces, digests, strict=True):
                last[piece.tensor] = digest
        return shard_digest(zip(self._init.tensors, last, strict=True))

    def _send(self, message: say.Message) -> None:
        self._socket.send(say.to_bytes(message, self._stream))

    def _receive(
        self, kind: type[say.MessageT], expected: str, deadline_s: float, *, version: int | None = None
    ) -> say.MessageT:
        begun = self._clock.monotonic_ns()
        while True:
            # Whether it lived is asked before whether it spoke: what it said last still counts.
            lives = self._segment is None or self._segment.owned()
            if self._socket.poll(_GLANCE_S):
                message = self._heard(version)
                if isinstance(message, kind):
                    return message
                if message is not None:
                    raise self._unusable(f"it is a {type(message).__name__}, {expected} was due")
            elif not lives:
                raise PeerDiedError(peer=self._peer, expected=expected, touched=self._touched)
            if self._observer.cancelled():
                raise LoadCancelledError(tensors_applied=0, tensors=len(self._buckets), touched=self._touched)
            waited_s = (self._clock.monotonic_ns() - begun) / 1_000_000_000
            if waited_s > deadline_s:
                raise PeerSilentError(
                    peer=self._peer, waited_s=waited_s, expected=expected, touched=self._touched
                )

    def _heard(self, version: int | None) -> say.Message | None:
        parts = self._socket.receive()
        if not parts:
            return None
        self._answered = True
        if len(parts) != 1:
            raise self._unusable(f"it has {len(parts)} parts instead of one")
        try:
            stream, message = say.from_bytes(parts[0], peer=self._peer)
        except PeerMessageError as error:
            raise self._unusable(error.context["problem"]) from error
        if stream != self._stream:
            raise self._unusable("it belongs to another stream")
        if isinstance(message, say.Abort):
            raise self._refusal(message, version)
        return message

    def _unusable(self, problem: str) -> PeerMessageError:
        return PeerMessageError(peer=self._peer, problem=problem, touched=self._touched)

    def _refusal(self, abort: say.Abort, version: int | None) -> WsmError:
        if abort.reason == "version" and version is not None and abort.found is not None:
            return VersionMismatchError(requested=version, found=abort.found, where=self._peer)
        if abort.reason == "world_size" and abort.found is not None:
            return self._other_world(abort.found)
        return PeerFailedError(peer=self._peer, error=abort.error, reason=abort.text, touched=self._touched)

    def _other_world(self, found: int) -> ShardIdentityError:
        return ShardIdentityError(
            file=self._peer, field="world size", expected=self._source.world_size or 0, found=found
        )
