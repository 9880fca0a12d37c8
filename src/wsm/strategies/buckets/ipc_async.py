"""The strategy ``ipc_async``: one rank's shard in buckets that a trainer on the same host streams.

It asks the trainer, and yields what will come as an offer whose tensors are read as their buckets arrive. The
messages go over ZMQ, the bytes through shared memory. It applies nothing. From the bytes up:

The window's memory is one that a sender of this user made for this very stream, and no other, whatever a peer
says: its name begins as theirs do, its file is ours alone, and the stream's number, which we drew, stands in
it. It is seen to be whole before it is read.

In the conversation every wait has a deadline, sees a cancellation, and sees the trainer's death. A trainer
that ends before it has offered anything may come back, and is asked again then. Once the rank has the memory
it sees the trainer's death at once, by the lock that the trainer holds on that. Whatever goes wrong here the
trainer is told. Bytes are ahead of what is said of them: a bucket may be verified while the next one is being
applied; all are before the stream ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import TypeAlias

from wsm.clock import Clock, SystemClock
from wsm.errors import BadInputError, GroupError, WsmError, error_name
from wsm.strategies import errors
from wsm.strategies.buckets import bucket_messages as say
from wsm.strategies.buckets import bucket_socket
from wsm.strategies.buckets.bucket_plan import (
    SEGMENT_PREFIX,
    Marks,
    Piece,
    plan_buckets,
    segment_bytes,
    step_bytes,
    stream_bytes,
    window_at,
)
from wsm.strategies.buckets.bucket_socket import PeerWait
from wsm.strategies.buckets.source import IpcAsyncConfig, IpcAsyncSource
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.digest import RunningDigest, digest_of, shard_digest
from wsm.strategies.documents import content_digest
from wsm.strategies.errors import (
    DigestMismatchError,
    LoadCancelledError,
    NotFiniteError,
    TiedTensorsDifferError,
    VersionMismatchError,
)
from wsm.strategies.ipc import errors as ipc_errors
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY, AttachedSegment
from wsm.strategies.messages.caller import PeerPresence
from wsm.strategies.messages.errors import (
    PeerDiedError,
    PeerFailedError,
    PeerMessageError,
    PeerSilentError,
)
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.sections import Sections
from wsm.strategies.strategy import Strategy

# Bytes are given back when they make up this part of the window: more often is not worth the system calls.
_GIVEN_BACK = 8


class IncomingWindow:
    """The memory that a trainer's stream comes through, leased until :meth:`close`.

    Parameters
    ----------
    name : str
        Name of the memory.
    window_bytes : int
        Size of the window.
    end : int
        Where the stream ends.
    session : int
        The stream's number.
    referrer : str
        Who named the memory, for messages.
    directory : str
        Where it lies.

    Attributes
    ----------
    written : int
        The place in the stream up to which the trainer has written, as far as is known.

    Raises
    ------
    SharedMemoryGoneError, BadInputError, SharedMemoryBusyError, UnreadableFileError
        If the memory cannot be mapped.
    """

    def __init__(
        self,
        name: str,
        window_bytes: int,
        end: int,
        session: int,
        *,
        referrer: str,
        directory: str = MEMORY_DIRECTORY,
    ) -> None:
        self.written = 0
        self._window_bytes = window_bytes
        self._end = end
        self._taken = self._told = 0
        self._step = step_bytes(window_bytes)
        size = segment_bytes(window_bytes)
        self._segment = AttachedSegment(
            name,
            size,
            prefixes=(SEGMENT_PREFIX,),
            referrer=referrer,
            directory=directory,
            answering=True,
        )
        self._marks = Marks(self._segment, session)
        try:
            if not self._marks.offered():
                problem = f"{referrer} names it, and it was not made for this stream"
                raise ipc_errors.foreign_segment(  # noqa: TRY301 - closed below, like after any error
                    segment=self._segment.path, problem=problem, fix="look who answers there"
                )
            self._memory = self._segment.shared_memory()
        except BaseException:
            self._segment.close()
            raise

    def claim(self) -> None:
        """Let the trainer see in the memory itself which stream will read it, before it is told so.

        Only who may write there can; messages may come from any process.
        """
        self._marks.set_taken(0)

    def read(self, place: int, destination: memoryview, await_written: Callable[[int], None]) -> None:
        """Copy what lies from `place` on in the stream, and need nothing before its end any more. Blocks.

        Parameters
        ----------
        place : int
            Where in the stream; not before what was read already.
        destination : memoryview
            Flat, of as many bytes.
        await_written : callable
            ``await_written(place)`` returns once all bytes before that are written.
        """
        self.take(place)
        end = place + len(destination)
        done = 0
        while place < end:
            begin, in_a_row = window_at(place, self._window_bytes)
            length = min(end - place, in_a_row, self._step)
            if self.written < place + length:
                await_written(place + length)
            copy_bytes(self._memory[begin : begin + length], destination[done : done + length])
            place += length
            done += length
            self.take(place)

    def take(self, place: int) -> None:
        """Need nothing before `place` any more."""
        self._taken = max(self._taken, place)
        if self._taken - self._told >= self._window_bytes // _GIVEN_BACK:
            self.tell()

    def tell(self) -> None:
        """Let the trainer know what is not needed any more. Before each wait: it may wait for that."""
        if self._told < self._taken:
            self._marks.set_taken(self._taken)
            self._told = self._taken

    def look(self, *, touched: bool) -> int:
        """Return :attr:`written` after a look at the trainer's mark.

        Parameters
        ----------
        touched : bool
            Whether the target was; part of the error.

        Raises
        ------
        BadInputError
            If the memory has been cut short.
        ValueError
            If the mark is where it cannot be; says so in words.
        """
        self._segment.require_whole(touched=touched)
        written = self._marks.written()
        if written is not None and written != self.written:
            most = min(self._end, self._taken + self._window_bytes)
            if not self.written < written <= most:
                raise ValueError(f"it has written {written} bytes, after {self.written}, of {most} at most")
            self.written = written
        return self.written

    def owned(self) -> bool:
        """Whether the trainer lives: it holds a lock on the memory."""
        return self._segment.owned()

    def close(self) -> None:
        """Let the memory go, which the trainer takes for our end, and an orphan's name. Idempotent."""
        self._memory = memoryview(b"")
        self._segment.remove_orphan()
        self._segment.close()


# How long a wait lasts before cancellation and the trainer's life are looked at again.
_GLANCE_S = 0.02
# How long what no message says goes without a look.
_LONGEST_NAP_S = 0.002


class Conversation:
    """One stream's. :meth:`ask`, then :meth:`send` and :meth:`receive`; :meth:`close` in any case.

    Parameters
    ----------
    source : IpcAsyncSource
        Where the trainer is, and who we are.
    observer : LoadObserver
        Asked for cancellation during every wait.
    clock : Clock, optional
        For deadlines.

    Attributes
    ----------
    peer : str
        How errors call the trainer.
    session : int
        The stream's number, drawn by us.

    Raises
    ------
    BadInputError
        If there is no way to talk.
    """

    def __init__(self, source: IpcAsyncSource, observer: LoadObserver, clock: Clock | None = None) -> None:
        self.peer = f"the sender at {source.address}"
        self._source = source
        self._observer = observer
        self._clock = clock or SystemClock()
        self.session = secrets.randbits(64)
        self._answered = False
        self._tensors = 0
        self._lives: Callable[[], bool] = lambda: True
        self._progress: Callable[[], int] = lambda: 0
        self._socket = bucket_socket.connect(source.address)

    @property
    def touched(self) -> bool:
        """Whether the target's memory may have been written; part of every error from here."""
        return self._observer.touched()

    def ask(self, hello: say.Hello) -> say.Init:
        """Say who we are and what we want; return what will come. Blocks, ``connect_s`` at most.

        Raises
        ------
        VersionMismatchError, BadInputError, PeerFailedError
            If the trainer refuses.
        PeerDiedError
            If it has ended, and no process took its place for ``silence_s``.
        PeerSilentError, PeerMessageError, LoadCancelledError
            If there is no proper answer.
        """
        begun_s = self._now_s()
        gone_s: float | None = None
        met = False
        self.send(hello)
        while True:
            message = self._next(hello.version)
            if isinstance(message, say.Init):
                self._tensors = len(message.tensors)
                return message
            if message is not None:
                raise self.unusable(f"it is a {type(message).__name__}, its offer was due")
            now_s = self._now_s()
            presence = self._socket.presence
            if presence is PeerPresence.HERE:
                met, gone_s = True, None
            elif presence is PeerPresence.GONE:
                gone_s = now_s
                self._socket.close(flush=False)
                self._socket = bucket_socket.connect(self._source.address)
                self.send(hello)
            elif presence is PeerPresence.ABANDONED and gone_s is None and not met:
                gone_s = now_s
            self._stop_if_cancelled()
            waited_s = now_s - begun_s
            expired = waited_s > self._source.connect_s
            if gone_s is not None and (expired or now_s - gone_s > self._source.silence_s):
                raise PeerDiedError(peer=self.peer, expected="its offer", absent_s=now_s - gone_s)
            if expired:
                raise PeerSilentError(peer=self.peer, waited_s=waited_s, expected="its offer", met=met)

    def follow(self, lives: Callable[[], bool], progress: Callable[[], int]) -> None:
        """Take in how else to see whether the trainer lives, and how far it is: work is no silence."""
        self._lives, self._progress = lives, progress

    def send(self, message: say.Message) -> None:
        """Say something; a trainer that is gone does not hear it. Does not block."""
        self._socket.send(say.to_bytes(message, self.session))

    def receive(self, kind: type[say.MessageT], expected: str) -> say.MessageT:
        """Return the next message, which must be of `kind`. Blocks, ``silence_s`` without progress at most.

        Parameters
        ----------
        kind : type
            What is due.
        expected : str
            What errors call that.

        Raises
        ------
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            If something else comes, or nothing.
        """
        begun_s, seen = self._now_s(), self._progress()
        while True:
            # Whether it lived is asked before whether it spoke: what it said last still counts.
            lived = self._still_there()
            message = self._next(None)
            if message is not None:
                return self._as(kind, message, expected)
            if (progress := self._progress()) != seen:
                begun_s, seen = self._now_s(), progress
            self._go_on_waiting(begun_s, lived, expected)

    def heard(self, kind: type[say.MessageT], expected: str) -> say.MessageT | None:
        """Return the message that is there, which must be of `kind`; None if none is. Does not block.

        Raises
        ------
        PeerFailedError, PeerMessageError
            If it is something else.
        """
        message = self._next(None, 0)
        return None if message is None else self._as(kind, message, expected)

    def until(self, place: int, hear: Callable[[], object], expected: str) -> None:
        """Wait until the trainer is as far as `place`, which no message says.

        Blocks, ``silence_s`` without progress or a message at most.

        Parameters
        ----------
        place : int
            What the progress that we :meth:`follow` must reach.
        hear : callable
            Called when a message is there, to take it with :meth:`heard`; raises if none was due.
        expected : str
            As in :meth:`receive`.

        Raises
        ------
        PeerSilentError, PeerDiedError, LoadCancelledError
            If it does not come so far.
        """
        begun_s, seen = self._now_s(), -1
        patience = PeerWait(self._poll, _LONGEST_NAP_S)
        while True:
            lived = self._still_there()
            if (progress := self._progress()) >= place:
                return
            if progress != seen:
                begun_s, seen = self._now_s(), progress
            # An end has its reason in what was said before it, which may still be on its way.
            over = not lived or self._now_s() - begun_s > self._source.silence_s
            if patience.wait() or (over and self._poll(_GLANCE_S)):
                hear()
                begun_s = self._now_s()
            else:
                self._go_on_waiting(begun_s, lived, expected)

    def give_up(self, error: BaseException) -> None:
        """Tell the trainer why this load ends. Does not block, and never raises."""
        if not isinstance(error, PeerFailedError):
            reason = "cancelled" if isinstance(error, LoadCancelledError) else "failed"
            text = str(error) if isinstance(error, WsmError) else repr(error)
            self.send(say.Abort(reason, error_name(error), text[:2000]))

    def close(self) -> None:
        """Let the last message leave, if the peer still listens. Idempotent."""
        self._socket.close(flush=self._answered)

    def unusable(self, problem: str) -> PeerMessageError:
        """Return the error that says what is wrong with a message."""
        return PeerMessageError(peer=self.peer, problem=problem, touched=self.touched)

    def other_world(self, found: int) -> BadInputError:
        """Return the error that says that it is a version for another number of ranks."""
        return errors.shard_identity(
            file=self.peer, field="world size", expected=self._source.world_size or 0, found=found
        )

    def _as(self, kind: type[say.MessageT], message: say.Message, expected: str) -> say.MessageT:
        if isinstance(message, kind):
            return message
        raise self.unusable(f"it is a {type(message).__name__}, {expected} was due")

    def _go_on_waiting(self, begun_s: float, lived: bool, expected: str) -> None:
        """Raise if there is no reason to."""
        if not lived:
            raise PeerDiedError(peer=self.peer, expected=expected, touched=self.touched)
        self._stop_if_cancelled()
        waited_s = self._now_s() - begun_s
        if waited_s > self._source.silence_s:
            raise PeerSilentError(peer=self.peer, waited_s=waited_s, expected=expected, touched=self.touched)

    def _next(self, version: str | None, glance_s: float = _GLANCE_S) -> say.Message | None:
        """Wait for a message, a glance at most; `version` is what was asked for."""
        data = self._socket.receive() if self._poll(glance_s) else None
        if data is None:
            return None
        self._answered = True
        try:
            stream, message = say.from_bytes(data, peer=self.peer)
        except PeerMessageError as error:
            raise self.unusable(error.context["problem"]) from error
        if stream != self.session:
            raise self.unusable("it belongs to another stream")
        if isinstance(message, say.Abort):
            raise self._refusal(message, version)
        return message

    def _poll(self, seconds: float) -> bool:
        """Wait for a message, `seconds` at most; whether there is one."""
        try:
            return self._socket.poll(seconds)
        except PeerMessageError as error:
            raise self.unusable(error.context["problem"]) from error

    def _still_there(self) -> bool:
        return self._lives() and self._socket.presence is not PeerPresence.GONE

    def _refusal(self, abort: say.Abort, version: str | None) -> WsmError:
        if abort.reason == "version" and version is not None and isinstance(abort.found, str):
            return VersionMismatchError(requested=version, found=abort.found, where=self.peer)
        if abort.reason == "world_size" and isinstance(abort.found, int):
            return self.other_world(abort.found)
        return PeerFailedError(peer=self.peer, error=abort.error, reason=abort.text, touched=self.touched)

    def _stop_if_cancelled(self) -> None:
        if self._observer.cancelled():
            raise LoadCancelledError(tensors_applied=0, tensors=self._tensors, touched=self.touched)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1_000_000_000


# Bucket and position in it of each piece of a tensor.
_Places: TypeAlias = list[tuple[int, int]]


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
