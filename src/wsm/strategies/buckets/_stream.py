"""The trainer's end of one rank's stream, without its socket: what to say next, given what the rank said.

It owns the memory that the rank reads, writes on where the rank needs nothing any more, and knows when all is
acknowledged. It never waits and sends nothing.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from wsm.strategies.applier.copying import copy_and_digest
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets._bucket_plan import (
    Marks,
    fewest_bytes,
    plan_buckets,
    step_bytes,
    stream_bytes,
    window_at,
    window_in,
)
from wsm.strategies.digest import RunningDigest, digest_of, running_digest, shard_digest
from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.ipc.shared_segment import OwnedSegment
from wsm.strategies.messages import errors as message_errors
from wsm.strategies.messages.errors import PeerFailedError, PeerMessageError
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.tensors import TrainerTensors, bytes_of, specs_of


class Stage(enum.Enum):
    """How far a stream is."""

    WAITING = "its Hello"
    OFFERED = "its Ready"
    STREAMING = "an acknowledgement"
    ENDED = "its Done"
    DONE = "nothing"


class RankStream:
    """One rank's stream.

    Parameters
    ----------
    version, rank, world_size, publication
        What is sent, to whom.
    tensors : mapping
        The rank's state dict.
    segment : OwnedSegment
        The memory of its window.
    bucket_bytes : int
        Size of a bucket.
    finite : bool
        Whether the rank is to refuse NaN and infinity.
    progress : callable
        ``progress(bytes)`` after each MiB at most that was copied.

    Attributes
    ----------
    stage : Stage
        How far it is.
    session : int
        The rank's own number for this stream, once it is streaming.
    refused : Abort or None
        Why another process who was offered this stream last did not take it.
    taken : int
        The place in the stream before which the rank needs nothing any more, as far as is known.
    """

    def __init__(
        self,
        *,
        version: str,
        rank: int,
        world_size: int,
        publication: str,
        tensors: TrainerTensors,
        segment: OwnedSegment,
        bucket_bytes: int,
        finite: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.rank = rank
        self.segment = segment
        self.stage = Stage.WAITING
        self.session = 0
        self.refused: say.Abort | None = None
        self.taken = 0
        self._tensors = tensors
        self._progress = progress
        self._specs: tuple[TensorSpec, ...] = tuple(specs_of(tensors))
        if not self._specs:
            raise TrainerTensorError(tensor="", problem=f"rank {rank} has none")
        fewest = fewest_bytes(self._specs)
        if bucket_bytes < fewest:
            raise message_errors.too_many_buckets(
                rank=rank, nbytes=self.total_bytes, bucket_bytes=bucket_bytes, fewest_bytes=fewest
            )
        self._buckets = plan_buckets(self._specs, bucket_bytes)
        self._init = say.Init(
            version=version,
            rank=rank,
            world_size=world_size,
            publication=publication,
            segment=segment.name,
            window_bytes=window_in(segment.nbytes),
            bucket_bytes=bucket_bytes,
            finite=finite,
            tensors=self._specs,
        )
        self._end = stream_bytes(self._buckets)
        self._window = window_in(segment.nbytes)
        self._step = step_bytes(self._window)
        self._marks: Marks | None = None
        self._offers = 0
        self._written = 0
        self._bucket = self._piece = self._begin = 0  # what is written next
        self._due: deque[say.Bucket] = deque()
        self._sent = 0
        self._acknowledged = 0
        self._current: tuple[int, memoryview, RunningDigest] = (-1, memoryview(b""), running_digest())
        self._digests = [digest_of(b"")] * len(self._specs)
        self._content_digest: str | None = None

    @property
    def name(self) -> str:
        """How errors call the rank."""
        return f"rank {self.rank}"

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.nbytes for spec in self._specs)

    def greet(self, hello: say.Hello, session: int) -> say.Init | say.Abort:
        """Answer a Hello. Any peer may say that it is this rank, so many may be offered the same stream."""
        init = self._init
        if hello.version is not None and hello.version != init.version:
            return say.Abort("version", "version-mismatch", "another version is sent", init.version)
        if hello.world_size is not None and hello.world_size != init.world_size:
            text = f"versions are sent to {init.world_size} ranks"
            return say.Abort("world_size", "shard-identity", text, init.world_size)
        if hello.look:
            return init
        if self.stage not in (Stage.WAITING, Stage.OFFERED):
            return say.Abort("busy", "rank-busy", f"rank {self.rank} receives already", None)
        self.stage = Stage.OFFERED
        # Who else says that this memory is the stream's cannot have written the stream's number into it.
        self._offers += 1
        Marks(self.segment, session).offer(self._offers)
        return init

    def claim(self, session: int) -> bool:
        """Begin with who is ready in this session; False if that is not the rank, or another has its place.

        The rank is who has a lease on the memory, and has said there which session is its own.
        """
        if self.stage is not Stage.OFFERED or not self.segment.leased():
            return False
        marks = Marks(self.segment, session)
        if marks.taken() != 0:
            return False
        self.session, self._marks, self.stage = session, marks, Stage.STREAMING
        return True

    def hear(self, message: say.Message) -> None:
        """Take in what the rank says in this stream.

        Raises
        ------
        PeerFailedError
            If it gave up.
        PeerMessageError
            If that was not due.
        """
        if isinstance(message, say.Abort):
            raise PeerFailedError(peer=self.name, error=message.error, reason=message.text)
        if (
            isinstance(message, say.Ack)
            and self.stage in (Stage.STREAMING, Stage.ENDED)
            and message.index == self._acknowledged < self._sent
        ):
            self._acknowledged += 1
        elif self._all_acknowledged() and message == say.Done(self.content_digest()):
            self.stage = Stage.DONE
        else:
            raise PeerMessageError(peer=self.name, problem=f"it is {message}, {self.stage.value} was due")

    def write(self) -> bool:
        """Write on where the rank needs nothing any more, to the bucket's end at most; whether it could.

        Raises
        ------
        BadInputError
            If the memory has been cut short.
        PeerMessageError
            If the rank's mark is where it cannot be.
        """
        if self.stage is not Stage.STREAMING or self._marks is None or self._bucket == len(self._buckets):
            return False
        self.segment.require_whole()
        before, bucket = self._written, self._bucket
        while self._bucket == bucket and self._write_step(self._marks):
            pass
        return self._written > before

    def next_message(self) -> say.Message | None:
        """Return what is to be said next: that a bucket is written, or End; None if nothing is."""
        if self._due:
            self._sent += 1
            return self._due.popleft()
        if self.stage is not Stage.STREAMING or self._sent < len(self._buckets):
            return None
        self.stage = Stage.ENDED
        return say.End(len(self._buckets), self.content_digest())

    def _all_acknowledged(self) -> bool:
        return self.stage is Stage.ENDED and self._acknowledged == len(self._buckets)

    def content_digest(self) -> str:
        """Digest of all tensors; there is none before the last bucket is written."""
        if self._content_digest is None:
            self._content_digest = shard_digest(zip(self._specs, self._digests, strict=True))
        return self._content_digest

    def _look_at_mark(self, marks: Marks) -> None:
        taken = marks.taken()
        if taken is None or taken == self.taken:
            return
        if not self.taken < taken <= self._end:
            raise PeerMessageError(
                peer=self.name, problem=f"it has taken {taken} of {self._end} bytes, and had {self.taken}"
            )
        self.taken = taken

    def _write_step(self, marks: Marks) -> bool:
        """Write a step, or up to the bucket's end, and say so; False if there is too little room."""
        before, bucket = self._written, self._bucket
        until = before + self._step
        while self._bucket == bucket and self._written < until:
            if not self._write_piece(until - self._written, marks):
                break
        if self._written == before:
            return False
        marks.set_written(self._written)
        return True

    def _write_piece(self, most: int, marks: Marks) -> bool:
        """Write up to `most` bytes of the piece that is due; False if there is too little room to begin."""
        pieces = self._buckets[self._bucket]
        piece = pieces[self._piece]
        place = piece.place + self._begin
        offset, in_a_row = window_at(place, self._window)
        length = min(piece.nbytes - self._begin, most, in_a_row)
        if self.taken + self._window < place + length:
            self._look_at_mark(marks)
            # Wait for room for all of it: a few bytes at a time would cost more in marks than they gain.
            if self.taken + self._window < place + length:
                return False
        data, digest = self._source(piece.tensor)
        begin = piece.begin + self._begin
        memory = self.segment.memory[offset : offset + length]
        copy_and_digest(data[begin : begin + length], memory, digest, self._progress)
        self._begin += length
        self._written = place + length
        if self._begin == piece.nbytes:
            self._digests[piece.tensor] = digest.hexdigest()
            self._piece, self._begin = self._piece + 1, 0
            if self._piece == len(pieces):
                self._end_bucket()
        return True

    def _end_bucket(self) -> None:
        digests = tuple(self._digests[piece.tensor] for piece in self._buckets[self._bucket])
        self._due.append(say.Bucket(self._bucket, digests))
        self._bucket, self._piece = self._bucket + 1, 0

    def _source(self, tensor: int) -> tuple[memoryview, RunningDigest]:
        """Return a tensor's bytes and its running digest; one at a time is held, as it may be a copy."""
        if self._current[0] != tensor:
            self._current = (tensor, bytes_of(self._tensors, self._specs[tensor]), running_digest())
        return self._current[1], self._current[2]
