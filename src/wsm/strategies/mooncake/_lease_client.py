"""The rank's end of a connection to a publisher: asks for a version, keeps the lease on it, lets it go.

Every wait has a deadline, sees a cancellation, and sees the publisher's end at once. Reads no memory.
"""

from __future__ import annotations

import threading
import time

from wsm.errors import BadInputError, WsmError
from wsm.strategies import errors as strategies_errors
from wsm.strategies.errors import LoadCancelledError, VersionMismatchError
from wsm.strategies.messages.caller import Caller, PeerPresence
from wsm.strategies.messages.errors import PeerDiedError, PeerFailedError, PeerMessageError, PeerSilentError
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake import errors as mooncake_errors
from wsm.strategies.mooncake._lease_messages import parse_address
from wsm.strategies.observer import LoadObserver

# How long a wait lasts before cancellation and deadlines are looked at again.
_GLANCE_S = 0.02
# How long to wait before a publisher that is not there, or has nothing yet, is asked again.
_AGAIN_S = 0.1
# A lease is renewed when this part of it has passed.
_RENEW_AFTER = 0.25


class RankLease:
    """One lease. :meth:`ask`, then :meth:`keep` often, then :meth:`release`; :meth:`close` in any case.

    Parameters
    ----------
    address : str
        The publisher's.
    observer : LoadObserver
        Asked for cancellation during every wait.
    silence_s : float
        How long the publisher may owe an answer.

    Attributes
    ----------
    peer : str
        What errors call the publisher.
    """

    def __init__(self, address: str, observer: LoadObserver, *, silence_s: float) -> None:
        self.peer = f"the publisher at {address}"
        self._place = parse_address(address)
        self._observer = observer
        self._silence_s = silence_s
        self._caller: Caller | None = None
        self._grant: say.Grant | None = None
        self._renewed_s = 0.0
        self._asked_s: float | None = None

    @property
    def touched(self) -> bool:
        """Whether the target's memory may have been written; part of every error from here."""
        return self._observer.touched()

    def ask(self, ask: say.Ask, connect_s: float) -> say.Grant:
        """Connect, and ask until there is something. Blocks, `connect_s` at most.

        A publisher that ends before it has granted anything may come back, and is asked again then.

        Raises
        ------
        VersionMismatchError, BadInputError
            If another version, rank or number of ranks is published.
        PeerDiedError
            If the publisher has ended, and no process took its place for ``silence_s``.
        PeerSilentError, PeerFailedError, PeerMessageError, LoadCancelledError
            If there is no proper answer.
        """
        begun_s = time.monotonic()
        deadline_s = begun_s + connect_s
        refused: say.Refuse | None = None
        met = False
        gone_s: float | None = None
        while True:
            try:
                answer = self._answer(ask, deadline_s)
            except PeerDiedError:
                self.close()
                answer, refused = None, None
                gone_s = gone_s or time.monotonic()
            if self._caller is not None and self._caller.presence is PeerPresence.HERE:
                met, gone_s = True, None
            if isinstance(answer, say.Grant):
                self._check(ask, answer)
                self._grant, self._renewed_s = answer, time.monotonic()
                return answer
            if answer is not None and (answer.reason != "empty"):
                raise self._refusal(ask, answer)
            refused = answer or refused
            now_s = time.monotonic()
            if gone_s is not None and now_s >= min(gone_s + self._silence_s, deadline_s):
                raise PeerDiedError(peer=self.peer, expected="its offer", absent_s=now_s - gone_s)
            if now_s >= deadline_s:
                if refused is not None:
                    raise PeerFailedError(peer=self.peer, error="NothingPublished", reason=refused.text)
                raise PeerSilentError(peer=self.peer, waited_s=now_s - begun_s, expected="its offer", met=met)
            self._pause(min(_AGAIN_S, deadline_s - now_s))

    def keep(self, wait_s: float = 0.0) -> None:
        """Renew the lease if it is time, and hear what the publisher says; waits `wait_s` at most for that.

        Raises
        ------
        GroupError, PeerFailedError, PeerDiedError, PeerSilentError, PeerMessageError
            If the lease holds no longer, or it is not known whether it does.
        LoadCancelledError
            If the load was cancelled.
        """
        caller, grant = self._held()
        now_s = time.monotonic()
        if self._asked_s is None and now_s - self._renewed_s > grant.lease_ms / 1000 * _RENEW_AFTER:
            caller.send(say.to_bytes(say.Renew()))
            self._asked_s = now_s
        message = self._next(caller, wait_s, "the rest of the version")
        if isinstance(message, say.Held) and self._asked_s is not None:
            self._renewed_s, self._asked_s = self._asked_s, None
        elif isinstance(message, say.Revoked):
            raise PeerFailedError(peer=self.peer, error="Revoked", reason=message.text, touched=self.touched)
        elif message is not None:
            raise self._not_due(message, "nothing")
        if self._asked_s is not None and time.monotonic() - self._asked_s > self._silence_s:
            raise self._silent("that the lease is renewed")
        self.stop_if_cancelled()

    def release(self) -> None:
        """Say that all is applied and verified, and hear that it was held until now. Blocks.

        Raises
        ------
        GroupError
            If it was not held.
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, LoadCancelledError
            If there is no proper answer.
        """
        caller, grant = self._held()
        caller.send(say.to_bytes(say.Release("", "")))
        deadline_s = time.monotonic() + self._silence_s
        while time.monotonic() < deadline_s:
            message = self._next(caller, _GLANCE_S, "its last word")
            if isinstance(message, say.Released):
                if message.held:
                    return
                raise mooncake_errors.lease_lost(
                    peer=self.peer,
                    version=grant.version,
                    lease_s=grant.lease_ms / 1000,
                    touched=self.touched,
                )
            if isinstance(message, say.Revoked):
                raise PeerFailedError(
                    peer=self.peer, error="Revoked", reason=message.text, touched=self.touched
                )
            if message is not None and not isinstance(message, say.Held):
                raise self._not_due(message, "its last word")
            self.stop_if_cancelled()
        raise self._silent("its last word")

    def stop_if_cancelled(self) -> None:
        """Raise LoadCancelledError if the load was cancelled."""
        if self._observer.cancelled():
            tensors = len(self._grant.digests) if self._grant is not None else 0
            raise LoadCancelledError(tensors_applied=0, tensors=tensors, touched=self.touched)

    def close(self) -> None:
        """Let go, whatever happened. Idempotent, never raises."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close(flush=False)

    def _answer(self, ask: say.Ask, deadline_s: float) -> say.Grant | say.Refuse | None:
        """Ask once; None if no publisher is there, or none answers before the deadline.

        Raises
        ------
        PeerDiedError
            If another process was there and has ended.
        """
        begun_s = time.monotonic()
        if self._caller is None:
            self._caller = Caller(self._place, self.peer)
        caller = self._caller
        caller.send(say.to_bytes(ask))
        while True:
            message = self._next(caller, _GLANCE_S, "its offer")
            if isinstance(message, say.Grant | say.Refuse):
                return message
            if message is not None:
                raise self._not_due(message, "its offer")
            if caller.presence is PeerPresence.ABANDONED:
                raise PeerDiedError(peer=self.peer, expected="its offer")
            now_s = time.monotonic()
            if caller.presence is PeerPresence.NOBODY_YET and now_s - begun_s > _AGAIN_S:
                self.close()
                return None
            if now_s >= deadline_s:
                return None
            self.stop_if_cancelled()

    def _next(self, caller: Caller, wait_s: float, expected: str) -> say.Message | None:
        """Return what the publisher says next; None if it says nothing within `wait_s`."""
        try:
            data = caller.receive() if caller.poll(wait_s) else None
            if data is not None:
                return say.from_bytes(data, peer=self.peer)
        except PeerMessageError as error:
            problem = error.context["problem"]
            raise PeerMessageError(peer=self.peer, problem=problem, touched=self.touched) from error
        if caller.presence is PeerPresence.GONE:
            raise PeerDiedError(peer=self.peer, expected=expected, touched=self.touched)
        return None

    def _check(self, ask: say.Ask, grant: say.Grant) -> None:
        if grant.rank != ask.rank:
            raise strategies_errors.shard_identity(
                file=self.peer, field="rank", expected=ask.rank, found=grant.rank
            )
        if ask.world_size is not None and grant.world_size != ask.world_size:
            raise self._other_world(ask.world_size, grant.world_size)
        if ask.version is not None and grant.version != ask.version:
            raise VersionMismatchError(requested=ask.version, found=grant.version, where=self.peer)

    def _refusal(self, ask: say.Ask, refuse: say.Refuse) -> WsmError:
        if refuse.reason == "version" and ask.version is not None and isinstance(refuse.found, str):
            return VersionMismatchError(requested=ask.version, found=refuse.found, where=self.peer)
        if refuse.reason == "world_size" and ask.world_size is not None and isinstance(refuse.found, int):
            return self._other_world(ask.world_size, refuse.found)
        return PeerFailedError(peer=self.peer, error=f"Refused ({refuse.reason})", reason=refuse.text)

    def _other_world(self, expected: int, found: int) -> BadInputError:
        return strategies_errors.shard_identity(
            file=self.peer, field="world size", expected=expected, found=found
        )

    def _held(self) -> tuple[Caller, say.Grant]:
        if self._caller is None or self._grant is None:
            raise PeerMessageError(peer=self.peer, problem="there is no lease", touched=self.touched)
        return self._caller, self._grant

    def _not_due(self, message: say.Message, due: str) -> PeerMessageError:
        return PeerMessageError(
            peer=self.peer,
            problem=f"it is a {type(message).__name__}, {due} was due",
            touched=self.touched,
        )

    def _silent(self, expected: str) -> PeerSilentError:
        return PeerSilentError(
            peer=self.peer, waited_s=self._silence_s, expected=expected, touched=self.touched
        )

    def _pause(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.stop_if_cancelled()
            threading.Event().wait(_GLANCE_S)
