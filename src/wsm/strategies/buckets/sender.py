"""The trainer's side of the strategy ``ipc_async``: versions in buckets, to all ranks of a group at once.

A sender listens at one address for as long as it lives and owns the memory of the buckets, which it uses
again for every version. :meth:`BucketSender.send` blocks until every rank has applied and verified its shard,
or one has failed; :meth:`BucketSender.sending` does the same beside the caller, who commands the group
meanwhile. Ranks come when they are told to load; what they ask for is held against what is sent.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.buckets import bucket_socket
from wsm.strategies.buckets.plan import ALIGNMENT, SEGMENT_PREFIX, segment_bytes
from wsm.strategies.buckets.sending import Early, SendingLoop
from wsm.strategies.buckets.stream import RankStream
from wsm.strategies.documents import content_digest
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY, OwnedSegment, sweep
from wsm.strategies.messages import errors as message_errors
from wsm.strategies.observer import never_cancelled
from wsm.strategies.trainer.report import TrainerReport
from wsm.strategies.trainer.tensors import TrainerTensors, bytes_of, check_ranks, specs_of

#: Size of a bucket, which is verified as one: large enough that messages cost little.
BUCKET_BYTES = 64 << 20
#: Bytes that may be on their way to one rank: few enough that they stay in the cache between the two.
WINDOW_BYTES = 4 << 20


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
        self._error: BaseException | None = None

    def result(self, timeout_s: float | None = None) -> SendReport:
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
        error, self._error = self._error, None
        try:
            raise error or RuntimeError("nothing was sent, and the cause was raised before or is not known")
        finally:
            del error

    def cancel(self) -> None:
        """Send no more; ranks that are receiving are told. Does not block."""
        self._cancelled = True

    def run(self, send: Callable[[Callable[[], bool]], SendReport]) -> None:
        """Send, in the sending thread; remember how it ended."""
        try:
            self._report = send(lambda: self._cancelled)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        finally:
            self._ended.set()


class BucketSender:
    """Listens for ranks and streams versions to them; use it in ``with``. One version at a time.

    Parameters
    ----------
    address : str
        ``ipc:///absolute/path`` (mode 0600) or ``tcp://127.0.0.1:port``; ``*`` for any free port.
    bucket_bytes : int
        Size of a bucket, a multiple of 64.
    window_bytes : int
        Bytes that may be on their way to one rank, a multiple of 64; as much shared memory it takes per rank.
    memory_directory : str
        Where shared memory is created.
    clock : Clock, optional
        For deadlines and reports.

    Attributes
    ----------
    address : str
        Where ranks find it.

    Raises
    ------
    BadInputError, RefusedError
        If it cannot listen there.
    BadInputError
        If buckets or a window have no bytes, or would not end on cache lines.
    """

    def __init__(
        self,
        address: str,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        window_bytes: int = WINDOW_BYTES,
        memory_directory: str = MEMORY_DIRECTORY,
        clock: Clock | None = None,
    ) -> None:
        if any(size < 1 or size % ALIGNMENT for size in (bucket_bytes, window_bytes)):
            raise message_errors.bad_bucket_size(bucket_bytes=bucket_bytes, window_bytes=window_bytes)
        self._bucket_bytes = bucket_bytes
        self._window_bytes = window_bytes
        self._memory_directory = memory_directory
        self._clock = clock or SystemClock()
        self._segments: dict[int, OwnedSegment] = {}
        self._early: Early = {}
        self._listener = bucket_socket.listen(address)
        self.address = self._listener.address
        # Which version is being sent, by which thread, and whether that is to end.
        self._changed = threading.Condition()
        self._sends: tuple[str, int] | None = None
        self._closing = self._closed = False
        # Buckets are worth nothing without their sender: whatever has no owner is a dead one's.
        sweep(SEGMENT_PREFIX, memory_directory)

    def send(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        join_s: float = 60.0,
        silence_s: float = 10.0,
        finite: bool = False,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = never_cancelled,
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
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError
            What the first rank that failed did; the others were told to stop.
        SendCancelledError
            If `cancelled` said so.
        RefusedError
            If there is no room for buckets.
        BadInputError, TrainerTensorError
            If what was handed over is no version.
        BadInputError
            If it is too large for buckets of this size.
        RefusedError
            If another thread is sending, or it listens no more.
        """
        version = checked_version(version)
        with self._alone(version):
            return self._send(
                version,
                shards,
                join_s=join_s,
                silence_s=silence_s,
                finite=finite,
                progress=progress,
                cancelled=lambda: self._closing or cancelled(),
            )

    def _send(
        self,
        version: str,
        shards: Mapping[int, TrainerTensors],
        *,
        join_s: float,
        silence_s: float,
        finite: bool,
        progress: Callable[[int, int], None] | None,
        cancelled: Callable[[], bool],
    ) -> SendReport:
        begun = self._clock.monotonic_ns()
        check_ranks(version, shards)
        if finite:
            _check_finite(shards)
        publication = secrets.token_hex(16)
        done = _Progress(progress)
        streams = {
            rank: self._stream(version, publication, shards, rank, finite=finite, progress=done.add)
            for rank in sorted(shards)
        }
        done.total = sum(stream.total_bytes for stream in streams.values())
        loop = SendingLoop(self._listener, version, streams, self._clock, early=self._early)
        loop.run(join_s=join_s, silence_s=silence_s, cancelled=cancelled)
        return SendReport(
            version=version,
            manifest_digest=content_digest(
                {"version": version, "publication": publication, "world_size": len(shards)}
            ),
            digests={rank: stream.content_digest() for rank, stream in streams.items()},
            bytes=done.total,
            seconds=(self._clock.monotonic_ns() - begun) / 1_000_000_000,
        )

    @contextmanager
    def sending(
        self, version: str | int, shards: Mapping[int, TrainerTensors], **options: float
    ) -> Iterator[Sending]:
        """Send in a thread of its own while the caller commands the group.

        Leaving the context normally waits for the last rank; leaving it with an exception cancels what is
        still being sent. The tensors must not change meanwhile.

        Parameters
        ----------
        version, shards, **options
            As for :meth:`send`.

        Raises
        ------
        wsm.errors.WsmError
            What :meth:`send` raises, when the context is left.
        """
        sending = Sending()
        thread = threading.Thread(
            target=sending.run,
            args=(lambda cancelled: self.send(version, shards, cancelled=cancelled, **options),),  # type: ignore[arg-type]  # the deadlines and `finite` can be given so
            name=f"wsm-send-{version}",
            daemon=True,
        )
        thread.start()
        wanted = False
        try:
            yield sending
            wanted = True
        finally:
            if not wanted:
                sending.cancel()
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
                raise message_errors.sender_busy(address=self.address, version=self._sends[0], wanted="close")
            self._closing = True
            self._changed.wait_for(lambda: self._sends is None)
            if self._closed:
                return
            self._closed = True
        self._listener.close()
        while self._segments:
            self._segments.popitem()[1].close()

    def __enter__(self) -> BucketSender:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self, version: str) -> Iterator[None]:
        """Send nothing else, and stay open, meanwhile."""
        with self._changed:
            if self._sends is not None:
                raise message_errors.sender_busy(
                    address=self.address, version=self._sends[0], wanted=f"send version {version}"
                )
            if self._closing:
                raise message_errors.sender_closed(address=self.address, version=version)
            self._sends = (version, threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._sends = None
                self._changed.notify_all()

    def _stream(
        self,
        version: str,
        publication: str,
        shards: Mapping[int, TrainerTensors],
        rank: int,
        *,
        finite: bool,
        progress: Callable[[int], None],
    ) -> RankStream:
        """Make one rank's stream of a publication, in memory that is its own."""
        return RankStream(
            version=version,
            rank=rank,
            world_size=len(shards),
            publication=publication,
            tensors=shards[rank],
            segment=self._segment(rank),
            bucket_bytes=self._bucket_bytes,
            finite=finite,
            progress=progress,
        )

    def _segment(self, rank: int) -> OwnedSegment:
        """Return the memory of a rank's window; a rank that failed may read on in what it has."""
        old = self._segments.pop(rank, None)
        if old is not None and old.begin_writing():
            old.end_writing()
            self._segments[rank] = old
            return old
        if old is not None:
            old.close()
        made = OwnedSegment(SEGMENT_PREFIX, segment_bytes(self._window_bytes), self._memory_directory)
        self._segments[rank] = made
        return made


def _check_finite(shards: Mapping[int, TrainerTensors]) -> None:
    for tensors in shards.values():
        for spec in specs_of(tensors):
            check_finite(spec, bytes_of(tensors, spec))


class _Progress:
    """Bytes that were sent to all ranks together."""

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self.total = 0
        self._done = 0
        self._tell = progress

    def add(self, nbytes: int) -> None:
        """Count some more."""
        self._done += nbytes
        if self._tell is not None:
            self._tell(self._done, self.total)
