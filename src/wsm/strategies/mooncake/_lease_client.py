"""The rank's end of a connection to a publisher, which is its lease on the version.

Every wait has a deadline, sees a cancellation, and sees the publisher's end at once. Reads no memory.
"""

from __future__ import annotations

import errno
import select
import socket
import stat
import time
from pathlib import Path

from wsm.shared_directory import require
from wsm.strategies import errors
from wsm.strategies.conversation import Meeting, refused, socket_for
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.observer import LoadObserver
from wsm.strategies.peer_errors import PeerDiedError, PeerFailedError, PeerSilentError, peer_message

# How long a wait lasts before cancellation and deadlines are looked at again.
_GLANCE_S = 0.02
# How long to wait before a publisher that is not there, or has nothing yet, is asked again.
_AGAIN_S = 0.1
# How long one attempt to connect may take, in which no cancellation is seen.
_CONNECT_S = 1.0


class RankLease:
    """One lease. :meth:`ask`, then :meth:`keep` often; :meth:`close` in any case, which lets go.

    Attributes
    ----------
    peer : str
        What errors call the publisher.
    """

    def __init__(self, address: str, observer: LoadObserver, *, silence_s: float) -> None:
        self.peer = f"the publisher at {address}"
        self._place = say.place_of(address)
        self._observer = observer
        self._silence_s = silence_s
        self._socket: socket.socket | None = None
        self._heard = bytearray()
        self._asked = False
        self._again_s = 0.0
        self._tensors = 0

    def ask(self, ask: say.Ask, connect_s: float) -> say.Grant:
        """Connect, and ask until there is something. Blocks, `connect_s` at most.

        A publisher that ends before it has granted anything may come back, and is asked again then.

        Raises
        ------
        VersionMismatchError, BadInputError
            If another version, rank or number of ranks is published, or no tensor.
        PeerDiedError
            If the publisher has ended, and no process took its place for ``silence_s``.
        PeerSilentError, PeerFailedError, BadInputError, LoadCancelledError
            If there is no proper answer.
        """
        meeting = Meeting(self.peer, connect_s, self._silence_s)
        nothing: say.Refuse | None = None
        while True:
            self._observer.stop_if_cancelled(self._tensors)
            answer, left = None, False
            try:
                answer = self._answer(ask)
            except PeerDiedError:
                self.close()
                left = True
            if isinstance(answer, say.Grant):
                answer.promise.require(ask.version, ask.rank, ask.world_size, where=self.peer)
                say.check_grant(answer, self.peer)
                if not answer.promise.rows:
                    raise errors.empty_snapshot(where=self.peer)
                self._tensors = len(answer.promise.rows)
                return answer
            nothing = answer or nothing
            try:
                meeting.wait(there=self._socket is not None, left=left)
            except PeerSilentError:
                if nothing is None:
                    raise
                text = nothing.text
                raise PeerFailedError(peer=self.peer, error="NothingPublished", reason=text) from None

    def _answer(self, ask: say.Ask) -> say.Grant | say.Refuse | None:
        """Ask where it is time to, and wait a glance for an answer; raise it if it is a lasting refusal."""
        if time.monotonic() >= self._again_s:
            self._again_s = time.monotonic() + _AGAIN_S
            if self._socket is None:
                self._socket = self._connected()
            if self._socket is not None and not self._asked:
                try:
                    self._socket.sendall(say.to_bytes(ask))
                except OSError as error:
                    raise PeerDiedError(peer=self.peer, expected="its offer") from error
                self._asked = True
        if self._socket is None:
            time.sleep(_GLANCE_S)
            return None
        answer = self._next(_GLANCE_S, "its offer")
        if isinstance(answer, say.Revoked):
            raise peer_message(peer=self.peer, problem="it is a Revoked, its offer was due")
        if isinstance(answer, say.Refuse):
            self._asked = False
            if answer.reason != "empty":
                why = f"Refused ({answer.reason})"
                raise refused(ask, answer.reason, answer.found, peer=self.peer, error=why, text=answer.text)
        return answer

    def keep(self, wait_s: float = 0.0) -> None:
        """Hear whether the lease holds; waits `wait_s` at most for news.

        Raises
        ------
        PeerFailedError, PeerDiedError, BadInputError
            If it does not.
        LoadCancelledError
            If the load was cancelled.
        """
        message = self._next(wait_s, "the rest of the version")
        if isinstance(message, say.Revoked):
            raise PeerFailedError(peer=self.peer, error="Revoked", reason=message.text)
        if message is not None:
            problem = f"it is a {type(message).__name__}, nothing was due"
            raise peer_message(peer=self.peer, problem=problem)
        self._observer.stop_if_cancelled(self._tensors)

    def close(self) -> None:
        """Let go, whatever happened. Idempotent, never raises."""
        made, self._socket, self._asked = self._socket, None, False
        self._heard.clear()
        if made is not None:
            made.close()

    def _connected(self) -> socket.socket | None:
        """Return a connection; None if no process has been there, PeerDiedError if one left its socket."""
        place = self._place
        if isinstance(place, Path):
            try:
                require(place, place.lstat(), stat.S_IFSOCK)
            except FileNotFoundError:
                return None
        made = socket_for(place)
        made.settimeout(min(self._silence_s, _CONNECT_S))
        failed = made.connect_ex(str(place) if isinstance(place, Path) else place)
        if failed == 0 and not _is_own(made):
            return made
        if failed == 0:  # the port must be free again for the process that is to listen there
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        made.close()
        if failed == errno.ECONNREFUSED and isinstance(place, Path):
            raise PeerDiedError(peer=self.peer, expected="its offer")
        return None

    def _next(self, wait_s: float, expected: str) -> say.FromPublisher | None:
        """Return what the publisher says next; None if it says nothing within `wait_s`."""
        made = self._socket
        if made is None:
            raise PeerDiedError(peer=self.peer, expected=expected)
        message = self._whole()
        poll = select.poll()
        poll.register(made, select.POLLIN)
        if message is None and poll.poll(wait_s * 1000):
            try:
                data = made.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                raise PeerDiedError(peer=self.peer, expected=expected)
            self._heard += data
            message = self._whole()
        return message

    def _whole(self) -> say.FromPublisher | None:
        """Return the message that was heard whole, if there is one."""
        length = bytes(self._heard[: say.LENGTH_BYTES])
        if len(length) < say.LENGTH_BYTES:
            return None
        end = say.LENGTH_BYTES + say.frame_bytes(length, say.MOST_TO_RANK, self.peer)
        if len(self._heard) < end:
            return None
        frame = bytes(self._heard[say.LENGTH_BYTES : end])
        del self._heard[:end]
        return say.answer_of(frame, self.peer)


def _is_own(connected: socket.socket) -> bool:
    """Whether a TCP socket has met itself, as happens at ports that the kernel gives to callers."""
    try:
        return connected.family != socket.AF_UNIX and connected.getsockname() == connected.getpeername()
    except OSError:
        return True  # it has gone again
