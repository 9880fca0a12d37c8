"""The trainer's end of one rank's stream, without its socket: what to say next, given what the rank said.

It owns the memory that the rank reads, fills a bucket when its slot is free, and knows when all is
acknowledged. It waits for nobody and sends nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from wsm.strategies.applier.copying import copy_and_digest
from wsm.strategies.buckets import messages as say
from wsm.strategies.buckets.plan import bucket_begin, fewest_bytes, plan_buckets, slots_in
from wsm.strategies.digest import RunningDigest, digest_of, running_digest, shard_digest
from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.ipc.shared_segment import OwnedSegment
from wsm.strategies.messages.errors import ManyBucketsError, PeerFailedError, PeerMessageError
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
        The memory of its buckets.
    bucket_bytes : int
        Size of one.
    finite : bool
        Whether the rank is to refuse NaN and infinity.
    progress : callable
        ``progress(bytes)`` after each MiB at most that was copied.

    Attributes
    ----------
    stage : Stage
        How far it is.
    session : int
        The rank's own number for this stream.
    identity : bytes
        Where the rank is reached.
    """

    def __init__(
        self,
        *,
        version: int,
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
        self.identity = b""
        self._tensors = tensors
        self._progress = progress
        self._specs: tuple[TensorSpec, ...] = tuple(specs_of(tensors))
        if not self._specs:
            raise TrainerTensorError(tensor="", problem=f"rank {rank} has none")
        fewest = fewest_bytes(self._specs)
        if bucket_bytes < fewest:
            raise ManyBucketsError(
                rank=rank, nbytes=self.total_bytes, bucket_bytes=bucket_bytes, fewest_bytes=fewest
            )
        self._buckets = plan_buckets(self._specs, bucket_bytes)
        self._init = say.Init(
            version=version,
            rank=rank,
            world_size=world_size,
            publication=publication,
            segment=segment.name,
            slots=slots_in(segment.nbytes, bucket_bytes),
            bucket_bytes=bucket_bytes,
            finite=finite,
            tensors=self._specs,
        )
        self._filled = 0
        self._acknowledged = 0
        self._current: tuple[int, memoryview, RunningDigest] = (-1, memoryview(b""), running_digest())
        self._digests = [digest_of(b"")] * len(self._specs)

    @property
    def name(self) -> str:
        """How errors call the rank."""
        return f"rank {self.rank}"

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.nbytes for spec in self._specs)

    def forget(self) -> None:
        """Let another process be this rank: the one that asked is gone and had not begun."""
        self.identity, self.session, self.stage = b"", 0, Stage.WAITING

    def greet(self, hello: say.Hello, identity: bytes, session: int) -> say.Message:
        """Answer a rank's Hello; one that only looks, or comes too late, changes nothing."""
        init = self._init
        if hello.version is not None and hello.version != init.version:
            return say.Abort("version", "VersionMismatchError", "another version is sent", init.version)
        if hello.world_size is not None and hello.world_size != init.world_size:
            text = f"versions are sent to {init.world_size} ranks"
            return say.Abort("world_size", "ShardIdentityError", text, init.world_size)
        if hello.look:
            return init
        if self.stage not in (Stage.WAITING, Stage.OFFERED):
            return say.Abort("busy", "RankBusyError", f"rank {self.rank} receives already", None)
        self.identity, self.session, self.stage = identity, session, Stage.OFFERED
        return init

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
        if isinstance(message, say.Ready) and self.stage is Stage.OFFERED:
            self.stage = Stage.STREAMING
        elif (
            isinstance(message, say.Ack)
            and self.stage is Stage.STREAMING
            and message.index == self._acknowledged < self._filled
        ):
            self._acknowledged += 1
        elif message == say.Done(self.content_digest()) and self.stage is Stage.ENDED:
            self.stage = Stage.DONE
        else:
            raise PeerMessageError(peer=self.name, problem=f"it is {message}, {self.stage.value} was due")

    def next_message(self) -> say.Message | None:
        """Fill the next bucket if its slot is free; what says so, or End; None if we must wait."""
        if self.stage is not Stage.STREAMING:
            return None
        if self._filled < len(self._buckets):
            if self._filled - self._acknowledged >= self._init.slots:
                return None
            return self._fill()
        if self._acknowledged < len(self._buckets):
            return None
        self.stage = Stage.ENDED
        return say.End(len(self._buckets), self.content_digest())

    def content_digest(self) -> str:
        """Digest of all tensors, once all are filled."""
        return shard_digest(zip(self._specs, self._digests, strict=True))

    def _fill(self) -> say.Bucket:
        index = self._filled
        slot = bucket_begin(index, self._init.slots, self._init.bucket_bytes)
        digests = []
        for piece in self._buckets[index]:
            data, digest = self._source(piece.tensor)
            begin = slot + piece.offset
            memory = self.segment.memory[begin : begin + piece.nbytes]
            copy_and_digest(data[piece.begin : piece.end], memory, digest, self._progress)
            self._digests[piece.tensor] = digest.hexdigest()
            digests.append(self._digests[piece.tensor])
        self._filled += 1
        return say.Bucket(index, tuple(digests))

    def _source(self, tensor: int) -> tuple[memoryview, RunningDigest]:
        """Return a tensor's bytes and its running digest; one at a time is held, as it may be a copy."""
        if self._current[0] != tensor:
            self._current = (tensor, bytes_of(self._tensors, self._specs[tensor]), running_digest())
        return self._current[1], self._current[2]
