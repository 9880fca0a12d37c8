"""The trainers' verbs once for a whole fleet: what brings weights sets a target, and rolls it.

A command is given to all replicas at once. Each hold has a lease, which the fleet's server renews: its death
ends them. A hold that a failed verb closes is closed in each replica itself, where no lease ends it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import structs

from wsm.committed_record import CommittedRecord
from wsm.errors import WsmError
from wsm.fleet.rolling import MOST_REQUESTS, ReplicaClient, bring_version, not_published
from wsm.fleet.watching import ROUTABLE, FleetWatch, routable_at
from wsm.http import errors
from wsm.http.commands import Commands, Origin
from wsm.http.hold_table import OWNERS, HoldState, Meaning, meaning
from wsm.http.kept import KeptRequests
from wsm.http.surface import SurfaceRoute
from wsm.metrics.history import ServerCounts
from wsm.payload import PayloadError, convert
from wsm.receipt import Outcome, Receipt
from wsm.states.holding import ClosedBy, ClosedHold, Hold
from wsm.states.vocabulary import ALL_TAGS, After, InFlightPolicy, KVPolicy, OnLease, Tag
from wsm.status import GroupStatus
from wsm.status.facts import RankStatus

#: Seconds that a status may take, and that a renewal waits for another command of the group.
_LOOK_S: Final = 10.0
_RENEWAL_S: Final = 1.0

_Ask: TypeAlias = Callable[[str, ReplicaClient], Awaitable[Any]]


class _RankOfGroup(msgspec.Struct, frozen=True):
    rank: int
    life: str
    weights: str
    kv: str


class _ToldGroup(msgspec.Struct, frozen=True):
    """What is read of a replica's status."""

    version: str | None
    manifest_digest: str | None
    hold: Hold | None
    ranks: tuple[_RankOfGroup, ...]


class FleetCommands(Commands):
    """Commands a fleet as one group. Belongs to the event loop of its watch.

    Parameters
    ----------
    watch : FleetWatch
        Which replicas there are, how they are asked, and which of them may get text. One that does not
        answer, and gets none, stands in the way of nothing.
    lease_s : float
        Seconds after which replicas release what was held for this process, once it has died.
    at_a_time, on_failure
        As :func:`.rolling.update_async`.
    """

    def __init__(self, watch: FleetWatch, *, lease_s: float, at_a_time: int, on_failure: str) -> None:
        self.name, self.fleet, self.counts, self.kept = "fleet", None, ServerCounts(), KeptRequests(None)
        self._watching, self._lease_s, self._run_id = watch, lease_s, uuid.uuid4().hex
        self._terms = replace(watch.terms, at_a_time=at_a_time, on_failure=on_failure)
        self._turn = asyncio.Lock()  # of what holds and releases
        self._held: dict[str, Any] | None = None  # the terms of the hold in force
        self._prepared: dict[str, str] = {}
        self._brought: str | None = None  # the digest that some may have, and not all
        self._rolls = 0
        watch.is_held = lambda: self._held is not None

    async def keep(self) -> None:
        """Renew the hold in force, and look at all replicas, until it is cancelled."""
        try:
            while True:
                begun = time.monotonic()
                await self._renew(longer_s=self._rolls and self._terms.deadline_s)
                await self._watching.look(begun)
                await asyncio.sleep(max(begun + self._watching.every_s - time.monotonic(), 0))
        finally:
            await self._watching.close()

    # What is known ------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """Names the server's start."""
        return self._run_id

    async def catch_up(self) -> None:
        """Do nothing: no other server keeps anything for this one."""

    async def is_held(self) -> bool:
        """Return False: no text comes here that could wait."""
        return False

    async def hold_now(self) -> tuple[Meaning, ClosedHold | None]:
        """Return that a release may be asked for: each replica says itself whether it may be."""
        return meaning(HoldState.OPEN), None

    async def status(self) -> GroupStatus:
        """Ask all, and return them as one group, whose version is what all have that answer."""
        found = await self._ask_all(_told, _LOOK_S)
        told = [said for said in found.values() if isinstance(said, _ToldGroup)]
        if not told:
            raise errors.not_all(verb="status", table=_table(found))
        held = {(each.version, each.manifest_digest) for each in told}
        committed = CommittedRecord(0, *(held.pop() if len(held) == 1 else ()))
        if all(each.hold is not None for each in told):
            committed = structs.replace(committed, hold=told[0].hold)
        ranks = tuple(RankStatus(**structs.asdict(rank)) for each in told for rank in each.ranks)
        return GroupStatus(self.name, committed=committed, ranks=ranks)

    async def facts(self) -> GroupStatus:
        """As :meth:`status`."""
        return await self.status()

    async def prepared_by(self, surface: str) -> str | None:
        """Return None: what is prepared here waits in no replica."""
        del surface
        return None

    # Commands -----------------------------------------------------------------------------------------------

    async def hold(
        self,
        origin: Origin,
        *,
        in_flight: InFlightPolicy = InFlightPolicy.ABORT,
        kv_policy: KVPolicy = KVPolicy.KEEP,
        **_: Any,
    ) -> Receipt:
        """Hold all, or none: where one cannot be held, what this has held is released again.

        Raises
        ------
        RefusedError
            With what each said (code ``not-all``).
        """
        surface = _surface_of(origin)
        terms = {"surface": surface, "in_flight": in_flight, "kv_policy": kv_policy}
        async with self._turn:
            asked = self._leased(terms)
            found = await self._ask_all(lambda _, client: client.command("hold", **asked))
            begun = {
                url: receipt.hold.hold_id
                for url, receipt in found.items()
                if isinstance(receipt, Receipt) and receipt.hold and receipt.outcome is Outcome.HELD
            }

            async def undo(url: str, client: ReplicaClient) -> object:
                if url not in begun:
                    return None
                return await client.command("release", surface=surface, hold=begun[url])

            try:
                self._require_all("hold", found)
            except WsmError:
                await self._ask_all(undo)
                raise
            self._held = terms
        return self._receipt(origin, Outcome.HELD)

    async def release(self, origin: Origin, *, force: bool = False, **_: Any) -> Receipt:
        """Release what this surface holds; a hold that is closed stays so. Raises as :meth:`hold`."""
        async with self._turn:
            if self._held is not None and self._held["surface"] == _surface_of(origin):
                self._held = None
            await self._give("release", surface=_surface_of(origin), force=force)
        return self._receipt(origin, Outcome.RELEASED)

    async def update(
        self,
        origin: Origin,
        version: str | int | None = None,
        *,
        tags: frozenset[Tag] = ALL_TAGS,
        after: After = After.AS_BEFORE,
        **_: Any,
    ) -> Receipt:
        """Set the target to a version, and roll it; a half alone is loaded where it is missing.

        Raises
        ------
        RefusedError
            With the table (code ``not-all``).
        WsmError
            As :func:`.rolling.update_async`.
        """
        label = self._label_of(version)
        if after is After.HELD and self._held is None:
            await self.hold(origin)
        if tags == ALL_TAGS:
            await self._bring(label, f"{OWNERS}{_surface_of(origin)}")
        else:
            await self._give("update", tags=tags, version=label if Tag.WEIGHTS in tags else None)
        if after is After.SERVE:
            await self.release(origin)
        return self._receipt(origin, Outcome.UPDATED, label)

    async def prepare(self, origin: Origin, version: str | int | None = None, **_: Any) -> Receipt:
        """Keep in mind which version the commit is to bring."""
        label = self._prepared[origin.request_id or ""] = self._label_of(version)
        return self._receipt(origin, Outcome.PREPARED, label)

    async def commit(self, origin: Origin, prepared: str, **_: Any) -> Receipt:
        """Bring what was prepared under that request id to all; raises as :meth:`update`."""
        return await self.update(origin, self._prepared.pop(prepared))

    async def clear(self, origin: Origin, **asked: Any) -> Receipt:
        """Let all release weights, KV cache or both; raises as :meth:`hold`."""
        await self._give("clear", **asked)
        return self._receipt(origin, Outcome.CLEARED)

    async def reopen(self, surface: str) -> None:
        """Do nothing: the commit of other weights makes a closed hold an ordinary one, in each replica."""

    async def fail_closed(
        self,
        origin: Origin,
        *,
        verb: str,
        reason: str,
        by: ClosedBy = ClosedBy.REFUSED,
        **_: Any,
    ) -> bool:
        """Close the hold in force, but where what was to be brought is there; whether there is one."""
        brought, self._brought = self._brought, None
        if self._held is None:
            return False
        held = self._leased(self._held)

        async def close(url: str, client: ReplicaClient) -> object:
            said = await _told(url, client)
            if brought is not None and said.manifest_digest == brought:
                return None
            closed = msgspec.to_builtins(ClosedHold(origin.surface, verb, reason, said.version, by))
            return await client.command("hold", **held, closed=closed)

        async with self._turn:
            await self._ask_all(close)
        return True

    # The parts ----------------------------------------------------------------------------------------------

    async def _renew(self, *, longer_s: float) -> None:
        """Let the lease of the hold in force begin anew; it lasts for so much longer. Waits for seconds."""
        async with self._turn:
            if self._held is not None:
                asked = {**self._leased(self._held, longer_s), "wait_s": _RENEWAL_S}
                await self._ask_all(lambda _, client: client.command("hold", **asked), 2 * _RENEWAL_S)

    async def _bring(self, label: str, owner: str) -> None:
        """Set the target to a version, and roll it under holds of `owner`."""
        self._brought, self._rolls = None, self._rolls + 1
        try:
            await self._renew(longer_s=self._terms.deadline_s)  # a step is a command, under which none renews
            report = await bring_version(replace(self._terms, owner=owner), label, self._watching.replicas)
        finally:
            self._rolls -= 1
        if report.exit_code:
            self._brought = None if report.went_back else report.target.content.digest
            raise errors.not_all(verb="update", table=[row.to_mapping() for row in report.rows])

    def _label_of(self, version: str | int | None) -> str:
        """Return the label of a version; None: of the target's."""
        target = self._watching.target
        if version is None and target is None:
            raise not_published(label="that a target names", store=str(self._terms.store))
        return target.content.label if version is None and target is not None else str(version)

    def _receipt(self, origin: Origin, outcome: Outcome, version: str | None = None) -> Receipt:
        """Return the receipt of a command that all have done."""
        said = (0, 0, version, None, None, outcome is Outcome.UPDATED, 0.0, 0.0, ())
        return Receipt(origin.request_id or "", outcome, *said, serving=self._held is None)

    def _leased(self, terms: Mapping[str, Any], longer_s: float = 0.0) -> dict[str, Any]:
        return {**terms, "lease_s": self._lease_s + longer_s, "on_lease": OnLease.SERVE}

    async def _give(self, verb: str, **asked: Any) -> None:
        """Give one command to all; raises as :meth:`hold`."""
        self._require_all(verb, await self._ask_all(lambda _, client: client.command(verb, **asked)))

    async def _ask_all(self, ask: _Ask, seconds: float | None = None) -> dict[str, Any]:
        """Ask all at once; return what each answered, or its error."""
        places, limit_s = asyncio.Semaphore(MOST_REQUESTS), seconds or self._terms.deadline_s

        async def answer(url: str, client: ReplicaClient) -> Any:
            async with places:
                try:
                    return await asyncio.wait_for(ask(url, client), limit_s)
                except asyncio.TimeoutError:
                    return errors.upstream_unreachable(url=url, reason=f"no answer within {limit_s:g} s")
                except WsmError as error:
                    return error

        replicas = {each.url: self._terms.connect(each) for each in self._watching.replicas}
        answers = await asyncio.gather(*(answer(*each) for each in replicas.items()))
        return dict(zip(replicas, answers, strict=True))

    def _require_all(self, verb: str, found: Mapping[str, Any]) -> None:
        """Refuse what was not done by all; one that does not answer, and takes no text, need not do it."""
        routable = {worker["url"] for worker in self._watching.routable()["workers"]}
        failed = {url: said.code for url, said in found.items() if isinstance(said, WsmError)}
        if any(code != "upstream-unreachable" or url in routable for url, code in failed.items()):
            raise errors.not_all(verb=verb, table=_table(found))


def _surface_of(origin: Origin) -> str:
    """Return whose the holds are in each replica: never those of a trainer that asks there itself."""
    return f"fleet-{origin.surface}"


async def _told(url: str, client: ReplicaClient) -> _ToldGroup:
    try:
        return convert(_ToldGroup, await client.status())
    except PayloadError as error:
        raise errors.upstream_unreachable(url=url, reason=str(error)) from None


def _table(found: Mapping[str, object]) -> list[dict[str, Any]]:
    said = {url: each if isinstance(each, WsmError) else None for url, each in found.items()}
    return [
        {"replica": url, "code": error and error.code, "error": error and str(error)}
        for url, error in said.items()
    ]


def routes(watch: FleetWatch) -> tuple[SurfaceRoute, ...]:
    """Return what a server of a fleet answers besides trainers' verbs."""
    return tuple(SurfaceRoute("GET", path, routable_at(watch), reads=True) for path in ROUTABLE)
