"""vLLM's pause, an update's, a trainer's, or one with an owner and a lease, and what is served behind it.

An update gives a pause that another has given back as it was. What becomes of a request for a hold is said by
:mod:`wsm.states.holding`; a pause that vLLM's own verbs have given is a hold of another owner.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from wsm.errors import GroupError, RefusedError, described
from wsm.http.hold_table import OWNERS
from wsm.http.native.routes import NATIVE
from wsm.receipt import Outcome, Receipt
from wsm.states import holding
from wsm.states.holding import Answer, ClosedBy, ClosedHold, Hold
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, OnLease
from wsm.typed import Seconds
from wsm.vllm.fanout import EngineRanks
from wsm.vllm.update_journal import GROUP

#: The hold that a pause by vLLM's own verbs is.
_TRAINERS = Hold("", f"{OWNERS}{GROUP}")
_MODES = {InFlightPolicy.ABORT: "abort", InFlightPolicy.DRAIN: "wait", InFlightPolicy.KEEP: "keep"}
#: Seconds after which a hold ends that says no other lease.
_LEASE_S = 60.0
#: Seconds that whoever asks what serves waits for an engine, which answers between two steps.
_LOOK_S = 1.0


class Standing(msgspec.Struct, frozen=True):
    """What a server says of itself.

    `open`: whether the gate lets requests in. `serving`: whether vLLM answers them now. `hold`: in which they
    wait. `errors`: of what has closed the gate.
    """

    open: bool
    serving: bool
    text: str
    hold: Hold | None = None
    errors: list[dict[str, Any]] = []


def standing_of(
    serves: str, *, closed: RefusedError | None, loads: str | None, hold: Hold | None, is_paused: bool
) -> Standing:
    """Say whether text is answered, and if not, why, and what to do. Pure; the first reason counts.

    Parameters
    ----------
    serves : str
        What serves, if nothing stops it.
    closed : RefusedError or None
        Why the gate is closed.
    loads : str or None
        Which update has paused vLLM.
    hold : Hold or None
        The named one.
    is_paused : bool
        Whether vLLM is.
    """
    if closed is not None:
        failed = ClosedHold(GROUP, "update", str(closed), by=ClosedBy.FAILED)
        held = msgspec.structs.replace(hold or Hold(GROUP, GROUP), closed=failed)
        return Standing(False, False, str(closed), held, closed.context.get("errors", []))
    if loads is not None:
        why = f"{loads} loads under vLLM's pause; they are answered at its end"
    elif hold is not None and hold.closed is not None:
        why = f"{hold.owner} holds vLLM, closed since {hold.closed}; update it, or release it by force"
    elif hold is not None:
        lease = ", or with its lease" if hold.on_lease is OnLease.SERVE else ""
        why = f"{hold.owner} holds vLLM; it ends by POST /wsm/v1/release{lease}"
    elif is_paused:
        hold, why = _TRAINERS, "vLLM is paused or asleep; POST /resume, or /wake_up"
    else:
        return Standing(True, True, f"{serves} serves.")
    return Standing(True, False, f"{serves} is there, and requests wait: {why}.", hold)


class EnginePause:
    """The pause of one engine. `is_an_updates`: whether an update has given it, and not ended it.

    `is_seen`: whether vLLM was paused when it was looked at last.
    """

    def __init__(self, client: Any, ranks: EngineRanks) -> None:
        self.is_an_updates = self.is_seen = False
        self._looking: asyncio.Future[bool] | None = None
        self._is_anothers = False  # while it is an update's
        self._client, self._ranks = client, ranks

    async def begin_update(self, mode: str) -> None:
        """Let no step begin, and forget what the old weights have computed."""
        if not self.is_an_updates:
            self._is_anothers, self.is_an_updates = await self.is_there(), True
        await self._of_engine(self._client.pause_generation(mode=mode, clear_cache=True))

    async def end_update(self) -> None:
        """Let vLLM name what serves now, and go on, unless another has paused it."""
        if self.is_an_updates:
            await self._of_engine(self._client.update_weight_version(self._ranks.version))
            if not self._is_anothers:
                await self._of_engine(self._client.resume_generation())
            self.is_an_updates = False
            self._see(paused=self._is_anothers)

    async def is_there(self) -> bool:
        """Whether vLLM is paused."""
        self._see(paused=bool(await self._of_engine(self._client.is_paused())))
        return self.is_seen

    async def look(self) -> None:
        """See whether vLLM is paused, unless it does not say so at once: then it is as it was seen last."""
        if self.is_an_updates or self._ranks.fault is not None:
            return
        looking = self._looking = self._looking or asyncio.ensure_future(self._client.is_paused())
        done, _ = await asyncio.wait({looking}, timeout=_LOOK_S)
        with suppress(GroupError):  # which the gate says
            if done and looking is self._looking:
                self._see(paused=bool(await self._of_engine(looking)))

    def _see(self, *, paused: bool) -> None:
        self.is_seen, self._looking = paused, None  # what was asked before may be answered as it was

    async def is_given(self) -> bool:
        """Whether somebody else than an update has paused vLLM."""
        return self._is_anothers if self.is_an_updates else await self.is_there()

    async def give(self, mode: str, *, clear_cache: bool = False) -> None:
        """Pause vLLM until :meth:`end`, updates or not."""
        self._is_anothers = True
        if not self.is_an_updates or mode == "abort":  # where nothing serves, it is paused as it is
            await self._of_engine(self._client.pause_generation(mode=mode, clear_cache=clear_cache))
            self._see(paused=True)

    async def end(self) -> None:
        """Resume vLLM, or let the update do so that loads, or that ends well at last."""
        self._is_anothers = False
        if not self.is_an_updates:
            await self._of_engine(self._client.resume_generation())
            self._see(paused=False)

    async def _of_engine(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except Exception as error:
            raise self._ranks.lost("engine-lost", described(error)) from error


class _AdmissionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`surface`: whose the hold is. `deadline_s`: in which vLLM's pause is there."""

    surface: str = NATIVE
    deadline_s: Seconds = 60.0
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=0)] = 0.0


class HoldRequest(_AdmissionRequest, forbid_unknown_fields=True):
    """The body of a hold: what the native API takes, but that it ends with its lease unless it says else."""

    lease_s: Seconds | None = None
    on_lease: OnLease = OnLease.SERVE
    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    kv_policy: KVPolicy = KVPolicy.KEEP
    closed: ClosedHold | None = None


class ReleaseRequest(_AdmissionRequest, forbid_unknown_fields=True):
    """The body of a release. `hold`: the id of the one that is meant. `force`: also another's, or closed."""

    hold: str | None = None
    force: bool = False


class NamedHold:
    """The hold of one server. `hold`: the one in force.

    `may_pause`: raises where an update loads. `serves`: whether vLLM answers text.
    """

    def __init__(
        self,
        pause: EnginePause,
        ranks: EngineRanks,
        may_pause: Callable[[], None],
        serves: Callable[[], bool],
    ) -> None:
        self.hold: Hold | None = None
        self._pause, self._ranks, self._may_pause, self._serves = pause, ranks, may_pause, serves
        self._lease: asyncio.Task[None] | None = None

    async def take(self, asked: HoldRequest, request_id: str) -> Mapping[str, Any]:
        """Pause vLLM for an owner, or let the lease of its hold begin anew.

        Raises
        ------
        RefusedError
            If another has paused it (``held-by-another``), an update loads (``update-in-progress``), or what
            runs has not ended in time (``deadline``).
        """
        hold, owner = await self._in_force(), f"{OWNERS}{asked.surface}"
        answer = holding.asked_to_hold(hold, held=hold is not None, owner=owner)
        _require(answer, hold)
        if hold is None:
            hold = Hold(uuid.uuid4().hex, owner, asked.in_flight, asked.kv_policy)
            self._may_pause()
            drops = asked.kv_policy is KVPolicy.DROP
            giving = self._pause.give(_MODES[asked.in_flight], clear_cache=drops)
            try:
                await asyncio.wait_for(giving, asked.deadline_s)
            except asyncio.TimeoutError:
                await self._pause.end()
                problem = f"vLLM is not held: what runs has not ended in {asked.deadline_s:g} s"
                raise RefusedError(f"{problem}; give it longer, or abort it", code="deadline") from None
        on_lease, closed = asked.on_lease, asked.closed or hold.closed
        lease_s = asked.lease_s or (_LEASE_S if on_lease is OnLease.SERVE else None)
        terms = {"lease_s": lease_s, "on_lease": on_lease, "closed": closed}
        self.hold = msgspec.structs.replace(hold, renewed_ns=time.monotonic_ns(), **terms)
        if self._lease is not None:
            self._lease.cancel()
        self._lease = None if lease_s is None else asyncio.create_task(self._end_with_lease(lease_s))
        return self._receipt(request_id, Outcome.HOLD_RENEWED if answer is Answer.RENEW else Outcome.HELD)

    async def release(self, asked: ReleaseRequest, request_id: str) -> Mapping[str, Any]:
        """Resume vLLM, which an owner has paused.

        Raises
        ------
        RefusedError
            If another has paused it (``held-by-another``), the hold is closed (``hold-closed``), or not in
            force (``hold-not-in-force``).
        """
        hold, owner = await self._in_force(), f"{OWNERS}{asked.surface}"
        held, forced = hold is not None, asked.force
        if not holding.is_in_force(hold, asked.hold, held=held):
            raise RefusedError(f"hold {asked.hold} is no longer in force", code="hold-not-in-force")
        answer = holding.asked_to_release(hold, held=held, owner=owner, forced=forced, missing=())
        _require(answer, hold)
        if answer is Answer.NOTHING:
            return self._receipt(request_id, Outcome.ALREADY_OPEN)
        self.hold = None
        await self._pause.end()
        return self._receipt(request_id, Outcome.RELEASED)

    def require_none(self) -> None:
        """See that vLLM's own verbs may pause and resume it (code ``held-by-another``)."""
        if self.hold is not None:
            _require(Answer.NOT_THE_OWNER, self.hold)

    def see_committed(self, version: str | None, *, other: bool) -> None:
        """Take in a commit, of `other` content than was there before or of the same."""
        if self.hold is not None:
            closed = holding.keeps_closed(self.hold, version, loads=True, restores=False, other=other)
            self.hold = msgspec.structs.replace(self.hold, closed=closed)

    def _receipt(self, request_id: str, outcome: Outcome) -> Mapping[str, Any]:
        ranks = self._ranks
        said = (ranks.version, ranks.version, ranks.digest, False, 0.0, 0.0, ())
        receipt = Receipt(request_id, outcome, 0, 0, *said, serving=self._serves(), hold=self.hold)
        return {"receipt": receipt.to_mapping()}

    async def _in_force(self) -> Hold | None:
        return self.hold or (_TRAINERS if await self._pause.is_given() else None)

    async def _end_with_lease(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.hold and self.hold.closed is None and self.hold.on_lease is OnLease.SERVE:
            self.hold = None
            await self._pause.end()


def _require(answer: Answer, hold: Hold | None) -> None:
    if hold is not None and answer is Answer.NOT_THE_OWNER:
        problem = f"vLLM is paused by {hold.owner}; wait for its release"
        raise RefusedError(problem, code="held-by-another", owner=hold.owner)
    if hold is not None and answer is Answer.CLOSED:
        problem = f"vLLM stays paused, since {hold.closed}, and no other weights came after it"
        raise RefusedError(f"{problem}; update it, or release it by force", code="hold-closed")
