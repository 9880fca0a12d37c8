"""How versions arrive in a trainer's buckets, and peers that say something else, or nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from peer_arrival import AddressArrival
from wrongs import Expected, State, Wrong

from wsm.errors import BadInputError
from wsm.strategies import errors
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets import _bucket_socket as bucket_socket
from wsm.strategies.buckets._bucket_plan import (
    SEGMENT_PREFIX,
    Marks,
    plan_buckets,
    segment_bytes,
    step_bytes,
    window_at,
)
from wsm.strategies.buckets._stream import RankStream
from wsm.strategies.buckets.sender import BucketSender, Sending
from wsm.strategies.buckets.source import IpcAsyncSource
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY, OwnedSegment
from wsm.strategies.messages import errors as stream_errors
from wsm.strategies.messages.connection import Connection

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


class _HarmDoneError(Exception):
    """Ends a write halfway."""


class RawPeer:
    """Listens in a sender's place, and answers each message with whatever bytes a test wants.

    `work` is what it does and says besides, again and again once a rank has spoken.
    """

    def __init__(
        self,
        address: str,
        answer: Callable[[say.Message, int], Iterable[bytes]],
        work: Callable[[], Iterable[bytes]] = tuple,
    ) -> None:
        self._socket = bucket_socket.listen(address)
        self._answer = answer
        self._work = work
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        identity: Connection | None = None
        while not self._stopped:
            replies: Iterable[bytes] = self._work() if identity is not None else ()
            heard = self._socket.receive() if self._socket.poll(0.01) else None
            if heard is not None and heard[1] is not None:
                identity, data = heard
                session, message = say.from_bytes(data, peer="the rank under test")
                replies = chain(replies, self._answer(message, session))
            for reply in replies:
                if self._stopped or not self._socket.send(identity, reply):
                    break

    def close(self) -> None:
        self._stopped = True
        self._thread.join()
        self._socket.close()


class StreamArrival(AddressArrival):
    strategy = "ipc_async"
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

    def _stream(
        self, version: int, state: State, progress: Callable[[int], None] | None = None
    ) -> RankStream:
        self._segment = OwnedSegment(SEGMENT_PREFIX, segment_bytes(WINDOW_BYTES))
        return RankStream(
            version=str(version),
            rank=0,
            world_size=2,
            publication="p",
            tensors=state,
            segment=self._segment,
            bucket_bytes=BUCKET_BYTES,
            progress=progress,
        )

    def _send_until(
        self, version: int, state: State, bucket: int, harm: Callable[[RankStream, int], None]
    ) -> RankStream:
        """Send properly, but call ``harm(stream, place)`` when the last byte of a bucket is written there."""
        specs = [spec for spec, _ in state.values()]
        pieces = [piece for each in plan_buckets(specs, BUCKET_BYTES)[: bucket + 1] for piece in each]
        rest = sum(piece.nbytes for piece in pieces)

        def progress(nbytes: int) -> None:
            nonlocal rest
            rest -= nbytes
            if rest == 0:
                harm(stream, pieces[-1].place + pieces[-1].nbytes - 1)

        stream = self._stream(version, state, progress)

        def answer(message: say.Message, session: int) -> Iterable[bytes]:
            if isinstance(message, say.Hello):
                yield say.to_bytes(stream.greet(message, session), session)
            elif isinstance(message, say.Ready):
                assert stream.claim(session)
            elif not isinstance(message, say.Abort):
                stream.hear(message)

        def work() -> Iterable[bytes]:
            with suppress(_HarmDoneError, BadInputError):
                stream.write()
            while (message := stream.next_message()) is not None:
                yield say.to_bytes(message, stream.session)

        self._peer = RawPeer(self._address, answer, work)
        return stream

    def _offer(self, version: int, state: State, change: Callable[[say.Init, int], Iterable[bytes]]) -> None:
        """Answer the rank's Hello with what `change` makes of the right Init, and nothing else."""
        stream = self._stream(version, state)

        def answer(message: say.Message, session: int) -> Iterable[bytes]:
            if not isinstance(message, say.Hello):
                return []
            init = stream.greet(message, session)
            assert isinstance(init, say.Init)
            return change(init, session)

        self._peer = RawPeer(self._address, answer)

    def _peer_silent(self, version: int, state: State) -> Expected:
        self._connect_s = 0.3
        self._offer(version, state, lambda init, session: [])
        return Expected(stream_errors.PeerSilentError, (self._address, "its offer was due"))

    def _peer_endless(self, version: int, state: State) -> Expected:
        def endless(init: say.Init, session: int) -> Iterable[bytes]:
            while True:
                yield say.to_bytes(init, session)

        self._offer(version, state, endless)
        return Expected(stream_errors.PeerMessageError, (self._address, "it is a Init, bucket 0 was due"))

    def _peer_dies(self, version: int, state: State) -> Expected:
        self._start_dying(_DYING_SENDER, self._address)
        return Expected(stream_errors.PeerDiedError, (self._address, "has ended"), may_touch=True)

    def _duplicate_name(self, version: int, state: State) -> Expected:
        def twice(init: say.Init, session: int) -> Iterable[bytes]:
            return [say.to_bytes(replace(init, tensors=(*init.tensors, init.tensors[0])), session)]

        self._offer(version, state, twice)
        return Expected(stream_errors.PeerMessageError, (self._address, "'embed.weight' twice"))

    def _other_rank(self, version: int, state: State) -> Expected:
        self._offer(version, state, lambda init, session: [say.to_bytes(replace(init, rank=1), session)])
        return Expected(errors.shard_identity, (self._address, "rank 1", "rank 0"))

    def _flipped_bit(self, version: int, state: State) -> Expected:
        def flip(stream: RankStream, place: int) -> None:
            stream.segment.memory[window_at(place, WINDOW_BYTES)[0]] ^= 1

        self._send_until(version, state, 3, flip)
        return Expected(
            errors.DigestMismatchError, ("'large.weight'", "bucket 3", self._address), may_touch=True
        )

    def _flipped_bit_in_description(self, version: int, state: State) -> Expected:
        def flipped(init: say.Init, session: int) -> Iterable[bytes]:
            data = bytearray(say.to_bytes(init, session))
            data[99] ^= 1
            return [bytes(data)]

        self._offer(version, state, flipped)
        return Expected(stream_errors.PeerMessageError, (self._address, "damaged on the way"))

    def _truncated(self, version: int, state: State) -> Expected:
        self._offer(version, state, lambda init, session: [say.to_bytes(init, session)])
        assert self._segment is not None
        path = f"{MEMORY_DIRECTORY}/{self._segment.name}"
        os.truncate(path, BUCKET_BYTES)
        return Expected(errors.bad_file_size, (path, "truncated"))

    def _truncated_on_the_way(self, version: int, state: State) -> Expected:
        def cut(stream: RankStream, place: int) -> None:
            # Not while the rank copies from it: that is the signal which no check can come before.
            marks = Marks(stream.segment, stream.session)
            until = time.monotonic() + 60
            while (marks.written() or 0) - (marks.taken() or 0) >= step_bytes(WINDOW_BYTES):
                assert time.monotonic() < until, "the rank does not go on"
            os.truncate(path, 0)
            raise _HarmDoneError

        stream = self._send_until(version, state, 3, cut)
        path = f"{MEMORY_DIRECTORY}/{stream.segment.name}"
        return Expected(errors.bad_file_size, (path, "truncated"), may_touch=True)

    def _truncated_description(self, version: int, state: State) -> Expected:
        self._offer(version, state, lambda init, session: [say.to_bytes(init, session)[:-7]])
        return Expected(stream_errors.PeerMessageError, (self._address, "announces"))

    def _garbage(self, version: int, state: State) -> Expected:
        self._offer(version, state, lambda init, session: [b"no weights today, and no message either"])
        return Expected(stream_errors.PeerMessageError, (self._address, "begins with"))

    def _empty(self, version: int, state: State) -> Expected:
        self._offer(version, state, lambda init, session: [say.to_bytes(replace(init, tensors=()), session)])
        return Expected(errors.empty_snapshot, (self._address,))
