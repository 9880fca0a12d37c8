"""The trainer's end of one rank's stream, without its socket: fills buckets, hears the rank.

It never waits and sends nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from wsm.strategies.applier.copying import copy_and_digest
from wsm.strategies.buckets import wire
from wsm.strategies.digest import RunningDigest, digest_of, running_digest, shard_digest
from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.ipc.shared_segment import OwnedSegment
from wsm.strategies.peer_errors import PeerFailedError, PeerMessageError
from wsm.strategies.tensor import BEGIN_IN_PAGE
from wsm.strategies.trainer.tensors import TrainerTensors, bytes_of, specs_of


class Stage(enum.Enum):
    """How far a stream is; the value is what the rank has to say next."""

    WAITING = "its Hello"
    OFFERED = "its Ready"
    STREAMING = "an acknowledgement"
    DONE = "nothing"


class RankStream:
    """One rank's stream of `tensors` through `segment`, whose `slots` buckets follow its first bytes.

    Attributes
    ----------
    offer : wire.Init
        What the rank hears first.
    stage : Stage
        How far it is.
    refused : wire.Abort or None
        Why the last process that was offered this stream did not take it.
    """

    def __init__(
        self,
        tensors: TrainerTensors,
        segment: OwnedSegment,
        *,
        version: str,
        rank: int,
        world_size: int,
        publication: str,
        bucket_bytes: int,
        slots: int,
        finite: bool,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.rank, self.segment, self.stage = rank, segment, Stage.WAITING
        self.refused: wire.Abort | None = None
        self._tensors, self._progress = tensors, progress
        self._specs = specs_of(tensors)
        if not self._specs:
            raise TrainerTensorError(tensor="", problem=f"rank {rank} has none")
        self.offer = wire.Init(
            version=version,
            rank=rank,
            world_size=world_size,
            publication=publication,
            segment=segment.name,
            bucket_bytes=bucket_bytes,
            slots=slots,
            finite=finite,
            tensors=tuple((spec.name, spec.dtype, spec.shape) for spec in self._specs),
        )
        segment.write_at(0, publication.encode())  # so that a rank can tell this memory from another stream's
        self._buckets = wire.cut(self._specs, bucket_bytes)
        self._due = next(self._buckets, None)
        self._sent = self._acknowledged = 0
        self._current: tuple[memoryview, RunningDigest] = memoryview(b""), running_digest()
        self._digests = [digest_of(b"")] * len(self._specs)

    @property
    def name(self) -> str:
        """How errors call the rank."""
        return f"rank {self.rank}"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.nbytes for spec in self._specs)

    @property
    def digest(self) -> str:
        """Digest of all tensors, once all are sent."""
        return shard_digest(zip(self._specs, self._digests, strict=True))

    def begin(self) -> bool:
        """Begin with who is ready; False if that process has no lease on the memory, or another has begun."""
        if self.stage is not Stage.OFFERED or not self.segment.leased():
            return False
        self.stage = Stage.STREAMING
        return True

    def hear(self, message: wire.FromRank) -> None:
        """Take in what the rank says; PeerFailedError if it gave up, PeerMessageError if that was not due."""
        if isinstance(message, wire.Abort):
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
            raise PeerMessageError(peer=self.name, problem=problem)

    def write(self) -> wire.Bucket | None:
        """Write the next bucket and return what is said of it; None if there is no room, or none left.

        Raises
        ------
        BadInputError
            If the memory has been cut short.
        TrainerTensorError
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
