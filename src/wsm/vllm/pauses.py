"""vLLM's pause: an update's, a trainer's, or one with an owner and a lease, as a fleet's server gives it.

An update gives a pause that another has given back as it was. What becomes of a request for a hold is said by
:mod:`wsm.states.holding`; a pause that vLLM's own verbs have given is a hold of another owner.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from wsm.errors import RefusedError, described
from wsm.http.hold_table import OWNERS
from wsm.receipt import Outcome, Receipt
from wsm.states import holding
from wsm.states.holding import Answer, ClosedHold, Hold
from wsm.states.vocabulary import InFlightPolicy
from wsm.vllm.fanout import EngineRanks
from wsm.vllm.update_journal import GROUP

#: The hold that a pause by vLLM's own verbs is.
_TRAINERS = Hold("", f"{OWNERS}{GROUP}")
_MODES = {InFlightPolicy.ABORT: "abort", InFlightPolicy.DRAIN: "wait", InFlightPolicy.KEEP: "keep"}


class EnginePause:
    """The pause of one engine. `is_an_updates`: whether an update has given it, and not ended it."""

    def __init__(self, client: Any, ranks: EngineRanks) -> None:
        self.is_an_updates = False
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

    async def is_there(self) -> bool:
        """Whether vLLM is paused."""
        return bool(await self._of_engine(self._client.is_paused()))

    async def is_given(self) -> bool:
        """Whether somebody else than an update has paused vLLM."""
        return self._is_anothers if self.is_an_updates else await self.is_there()

    async def give(self, mode: str, *, clear_cache: bool = False) -> None:
        """Pause vLLM until :meth:`end`, updates or not."""
        self._is_anothers = True
        if not self.is_an_updates or mode == "abort":  # where nothing serves, it is paused as it is
            await self._of_engine(self._client.pause_generation(mode=mode, clear_cache=clear_cache))

    async def end(self) -> None:
        """Resume vLLM, or let the update do so that loads, or that ends well at last."""
        self._is_anothers = False
        if not self.is_an_updates:
            await self._of_engine(self._client.resume_generation())

    async def _of_engine(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except Exception as error:
            raise self._ranks.lost("engine-lost", described(error)) from error


class HoldRequest(msgspec.Struct):
    """The body of a hold, or of a release, which has `surface`, `hold` and `force`.

    A hold ends with its lease; what else the native API says of one makes no difference here.
    """

    surface: str
    lease_s: float = 60.0
    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    closed: ClosedHold | None = None
    hold: str | None = None
    force: bool = False


class NamedHold:
    """The hold of one server. `hold`: the one in force.

    `may_pause`: raises where an update loads. `lets_in`: whether requests may reach what serves.
    """

    def __init__(
        self,
        pause: EnginePause,
        ranks: EngineRanks,
        may_pause: Callable[[], None],
        lets_in: Callable[[], bool],
    ) -> None:
        self.hold: Hold | None = None
        self._pause, self._ranks, self._may_pause, self._lets_in = pause, ranks, may_pause, lets_in
        self._lease: asyncio.Task[None] | None = None

    async def take(self, asked: HoldRequest, request_id: str) -> Mapping[str, Any]:
        """Pause vLLM for an owner, or let the lease of its hold begin anew.

        Raises
        ------
        RefusedError
            If another has paused it (``held-by-another``), or an update loads (``update-in-progress``).
        """
        hold, owner = await self._in_force(), f"{OWNERS}{asked.surface}"
        answer = holding.asked_to_hold(hold, held=hold is not None, owner=owner)
        _require(answer, hold)
        if hold is None:
            hold = Hold(uuid.uuid4().hex, owner, asked.in_flight)
            self._may_pause()
            await self._pause.give(_MODES[asked.in_flight])
        terms = {"lease_s": asked.lease_s, "closed": asked.closed or hold.closed}
        self.hold = msgspec.structs.replace(hold, renewed_ns=time.monotonic_ns(), **terms)
        if self._lease is not None:
            self._lease.cancel()
        self._lease = asyncio.create_task(self._end_with_lease(asked.lease_s))
        return self._receipt(request_id, Outcome.HOLD_RENEWED if answer is Answer.RENEW else Outcome.HELD)

    async def release(self, asked: HoldRequest, request_id: str) -> Mapping[str, Any]:
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
        ranks, serving = self._ranks, self.hold is None and self._lets_in()
        said = (ranks.version, ranks.version, ranks.digest, False, 0.0, 0.0, ())
        receipt = Receipt(request_id, outcome, 0, 0, *said, serving=serving, hold=self.hold)
        return {"receipt": receipt.to_mapping()}

    async def _in_force(self) -> Hold | None:
        return self.hold or (_TRAINERS if await self._pause.is_given() else None)

    async def _end_with_lease(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.hold is not None and self.hold.closed is None:
            self.hold = None
            await self._pause.end()


def _require(answer: Answer, hold: Hold | None) -> None:
    if hold is not None and answer is Answer.NOT_THE_OWNER:
        problem = f"vLLM is paused by {hold.owner}; wait for its release"
        raise RefusedError(problem, code="held-by-another", owner=hold.owner)
    if hold is not None and answer is Answer.CLOSED:
        problem = f"vLLM stays paused, since {hold.closed}, and no other weights came after it"
        raise RefusedError(f"{problem}; update it, or release it by force", code="hold-closed")
