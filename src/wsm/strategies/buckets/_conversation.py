"""What one rank and its trainer say to each other about a stream, on the rank's side.

Every wait has a deadline, sees a cancellation, and sees the trainer's death. A trainer that ends before it
has offered anything may come back, and is asked again then. Once the rank has the memory it sees the
trainer's death at once, by the lock that the trainer holds on that. Whatever goes wrong here the trainer is
told.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from wsm.clock import Clock, SystemClock
from wsm.errors import BadInputError, WsmError, error_name
from wsm.strategies import errors
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets import _bucket_socket as bucket_socket
from wsm.strategies.buckets._bucket_socket import PeerWait
from wsm.strategies.buckets.source import IpcAsyncSource
from wsm.strategies.errors import (
    LoadCancelledError,
    VersionMismatchError,
)
from wsm.strategies.messages.caller import PeerPresence
from wsm.strategies.messages.errors import (
    PeerDiedError,
    PeerFailedError,
    PeerMessageError,
    PeerSilentError,
)
from wsm.strategies.observer import LoadObserver

# How long a wait lasts before cancellation and the trainer's life are looked at again.
_GLANCE_S = 0.02

# How long what no message says goes without a look.
_LONGEST_NAP_S = 0.002


class Conversation:
    """One stream's. :meth:`ask`, then :meth:`send` and :meth:`receive`; :meth:`close` in any case.

    Parameters
    ----------
    source : IpcAsyncSource
        Where the trainer is, and which rank this is.
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
        waiting = PeerWait(self._poll, _LONGEST_NAP_S)
        while True:
            lived = self._still_there()
            if (progress := self._progress()) >= place:
                return
            if progress != seen:
                begun_s, seen = self._now_s(), progress
            # An end has its reason in what was said before it, which may still be on its way.
            over = not lived or self._now_s() - begun_s > self._source.silence_s
            if waiting.wait() or (over and self._poll(_GLANCE_S)):
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
