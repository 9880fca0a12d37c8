"""How versions arrive in a trainer's buckets, and peers that say something else, or nothing."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from peer_arrival import AddressArrival
from wrongs import Expected, State, Wrong

from wsm.shared_directory import private_directory
from wsm.strategies import errors
from wsm.strategies import peer_errors as stream_errors
from wsm.strategies.buckets import wire
from wsm.strategies.buckets.channel import TrainerSocket
from wsm.strategies.buckets.sender import BucketSender, RankStream, Sending
from wsm.strategies.buckets.source import IpcAsyncSource
from wsm.strategies.conversation import Abort, frame_of
from wsm.strategies.ipc.shared_segment import OwnedSegment
from wsm.strategies.tensor import BEGIN_IN_PAGE

BUCKET_BYTES = 1 << 18
WINDOW_BYTES = 1 << 19

# A trainer that is killed when some of its buckets have been applied.
_DYING_SENDER = """
import os, signal, sys
from wsm.strategies.buckets.sender import BucketSender
from wrongs import make_state
def kill_later(done, total):
    if done > 2 << 20:
        os.kill(os.getpid(), signal.SIGKILL)
with BucketSender(sys.argv[1], bucket_bytes=1 << 18, window_bytes=1 << 19) as sender:
    print("listening", flush=True)
    sender.send(3, {0: make_state(seed=1), 1: make_state(seed=2)}, progress=kill_later)
"""


class RawPeer:
    """Listens in a sender's place, and answers what a rank says with whatever frames a test wants."""

    def __init__(self, address: str, answer: Callable[[wire.FromRank | None], Iterable[bytes]]) -> None:
        self._socket = TrainerSocket(address)
        self._answer = answer
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        rank = b""
        while not self._stopped:
            heard = self._socket.receive(0.01)
            if heard is not None:
                rank = heard[0]
            message = None if heard is None else wire.from_rank(heard[1], "the rank under test")
            if isinstance(message, Abort):  # a rank that has failed waits for an answer as a sender's
                self._socket.send(rank, frame_of(message))
            for frame in self._answer(message) if rank else ():
                if self._stopped:
                    break
                self._socket.send(rank, frame)

    def close(self) -> None:
        self._stopped = True
        self._thread.join()
        self._socket.close()


class StreamArrival(AddressArrival):
    strategy, _called = "ipc_async", "sender"
    impossible: Mapping[Wrong, str] = {}

    def __init__(self, directory: Path) -> None:
        super().__init__(f"ipc://{directory}/buckets")
        self.place = ""  # the address or the segment; each test says which
        self._sender: BucketSender | None = None
        self._sending: tuple[Sending, threading.Thread] | None = None
        self._peer: RawPeer | None = None
        self._segment: OwnedSegment | None = None

    def source(self) -> IpcAsyncSource:
        return IpcAsyncSource(self._address, 0, world_size=2, connect_s=self._connect_s)

    def close(self) -> None:
        self._end_sending()
        if self._sender is not None:
            self._sender.close()
        self._end_peer()

    def _hand_over(self, version: int, shards: Mapping[int, State], *, finite: bool = False) -> None:
        self._connect_s = 60.0
        self._end_sending()
        self._end_peer()
        if self._sender is None:
            self._sender = BucketSender(self._address, bucket_bytes=BUCKET_BYTES, window_bytes=WINDOW_BYTES)
        sender, sending = self._sender, Sending()
        thread = threading.Thread(
            target=sending.run,
            args=(lambda cancelled: sender.send(version, shards, finite=finite, cancelled=cancelled),),
        )
        thread.start()
        self._sending = (sending, thread)

    def _end_sending(self) -> None:
        if self._sending is not None:
            sending, thread = self._sending
            sending.cancel()
            thread.join()
            self._sending = None

    def _end_peer(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._end_process()

    def _stream(self, version: int, state: State) -> RankStream:
        slots = WINDOW_BYTES // BUCKET_BYTES
        self._segment = OwnedSegment(wire.SEGMENT_PREFIX, BEGIN_IN_PAGE + WINDOW_BYTES)
        offer = wire.Init(
            version=str(version),
            rank=0,
            world_size=2,
            publication="p",
            segment=self._segment.name,
            bucket_bytes=BUCKET_BYTES,
            slots=slots,
            finite=False,
        )
        return RankStream(state, self._segment, offer)

    def _described(self, version: int, state: State) -> bytes:
        return frame_of(self._stream(version, state).offer)

    def _answer(self, *data: bytes) -> None:
        self._peer = RawPeer(self._address, lambda said: data if isinstance(said, wire.Hello) else ())

    def _send_until(
        self, version: int, state: State, bucket: int, harm: Callable[[RankStream, int], None]
    ) -> RankStream:
        """Send properly, but call ``harm(stream, place)`` when bucket `bucket` is written at that place."""
        stream = self._stream(version, state)

        def answer(message: wire.FromRank | None) -> Iterable[bytes]:
            if isinstance(message, wire.Hello):
                yield frame_of(stream.offer)
            elif isinstance(message, (wire.Ack, wire.Done)):
                stream.hear(message)
            if message is None or not stream.segment.leased():
                return
            with contextlib.suppress(errors.BadInputError):
                while (written := stream.write()) is not None:
                    if written.number == bucket:
                        offset = bucket % stream.offer.slots * BUCKET_BYTES + written.tensors[-1][3]
                        harm(stream, BEGIN_IN_PAGE + offset)
                    yield frame_of(written)

        self._peer = RawPeer(self._address, answer)
        return stream

    def _peer_endless(self, version: int, state: State) -> Expected:
        offer = self._described(version, state)

        def endless(message: wire.FromRank | None) -> Iterable[bytes]:
            while True:
                yield offer
                time.sleep(0.001)

        self._peer = RawPeer(self._address, endless)
        return Expected(stream_errors.peer_message, (self._address, "it is a Init, bucket 0 was due"))

    def _peer_dies(self, version: int, state: State) -> Expected:
        self._start_dying(_DYING_SENDER, self._address)
        return Expected(stream_errors.PeerDiedError, (self._address, "has ended"), may_touch=True)

    def _changed(self, version: int, state: State, **fields: object) -> None:
        offer = self._stream(version, state).offer
        self._answer(frame_of(msgspec.structs.replace(offer, **fields)))

    def _duplicate_name(self, version: int, state: State) -> Expected:
        rows = self._rows(state)
        self._changed(version, state, tensors=(*rows, rows[0]))
        return Expected(errors.not_covered, (self._address, "1 duplicate: 'embed.weight'"))

    @staticmethod
    def _rows(state: State) -> list[wire.SpecRow]:
        return [(spec.name, spec.dtype, spec.shape) for spec, _ in state.values()]

    def _other_rank(self, version: int, state: State) -> Expected:
        self._changed(version, state, rank=1)
        return Expected(errors.shard_identity, (self._address, "rank 1", "rank 0"))

    def _flipped_bit(self, version: int, state: State) -> Expected:
        def flip(stream: RankStream, place: int) -> None:
            stream.segment.memory[place] ^= 1

        self._send_until(version, state, 3, flip)
        return Expected(
            errors.DigestMismatchError, ("'large.weight'", "bucket 3", self._address), may_touch=True
        )

    def _truncated(self, version: int, state: State) -> Expected:
        self._answer(self._described(version, state))
        assert self._segment is not None
        path = f"{private_directory()}/{self._segment.name}"
        os.truncate(path, BUCKET_BYTES)
        return Expected(errors.bad_file_size, (path, "truncated"))

    def _truncated_on_the_way(self, version: int, state: State) -> Expected:
        def cut(_stream: RankStream, _place: int) -> None:
            os.truncate(path, 0)

        stream = self._send_until(version, state, 3, cut)
        path = f"{private_directory()}/{stream.segment.name}"
        return Expected(errors.bad_file_size, (path, "truncated"), may_touch=True)

    def _empty(self, version: int, state: State) -> Expected:
        self._changed(version, state, tensors=())
        return Expected(errors.empty_snapshot, (self._address,))
