"""Many groups behind servers of their own, commanded as one: for the surfaces of trainers.

A command is given to all of them at once. Each hold has a lease, which whoever serves this renews: its death
ends them. A hold that a failed verb closes is closed in each group itself, where no lease ends it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from wsm.committed_record import CommittedRecord
from wsm.errors import WsmError
from wsm.http import errors
from wsm.http.commands import Commands, Origin
from wsm.http.hold_table import OWNERS, HoldState, Meaning, meaning
from wsm.http.kept import KeptRequests
from wsm.metrics.history import ServerCounts
from wsm.payload import PayloadError, convert
from wsm.receipt import Outcome, Receipt
from wsm.states.holding import ClosedBy, ClosedHold, Hold
from wsm.states.vocabulary import ALL_TAGS, After, InFlightPolicy, KVPolicy, OnLease, Tag
from wsm.status import GroupStatus
from wsm.status.facts import RankStatus

#: Requests that are open at once.
MOST_REQUESTS: Final = 64
#: Seconds that a status may take, and that a renewal waits for another command of the group.
_LOOK_S: Final = 10.0
_RENEWAL_S: Final = 1.0


class GroupClient(Protocol):
    """What asks one group; :class:`.client.AsyncClient` does."""

    async def status(self) -> dict[str, Any]:
        """Return what ``wsm status --json`` prints."""

    async def command(self, operation: str, request_id: str | None = None, **keywords: Any) -> Receipt:
        """Give one command."""


Ask: TypeAlias = Callable[[str, GroupClient], Awaitable[Any]]


class _RankOfGroup(msgspec.Struct, frozen=True):
    rank: int
    life: str
    weights: str
    kv: str


class _ToldGroup(msgspec.Struct, frozen=True):
    """What is read of a group's status."""

    version: str | None
    manifest_digest: str | None
    hold: Hold | None
    ranks: tuple[_RankOfGroup, ...]


class ManyCommands(Commands):
    """Commands many groups as one. Belongs to one event loop.

    Parameters
    ----------
    name : str
        What they are called together.
    groups : callable
        Returns what asks each of them now, by its address.
    takes_text : callable
        ``takes_text(address)``: whether text may be sent there now. A group that does not answer, and takes
        none, stands in the way of nothing.
    lease_s : float
        Seconds after which groups release what was held for this process, once it has died.
    deadline_s : float
        Seconds that a command of one group may take.

    Attributes
    ----------
    brought : str or None
        The digest that was to be brought to all and is not, where some may have it.
    """

    def __init__(
        self,
        name: str,
        groups: Callable[[], Mapping[str, GroupClient]],
        takes_text: Callable[[str], bool],
        *,
        lease_s: float,
        deadline_s: float,
    ) -> None:
        self.name, self.fleet, self.counts, self.kept = name, None, ServerCounts(), KeptRequests(None)
        self._groups, self._takes_text, self._run_id = groups, takes_text, uuid.uuid4().hex
        self._lease_s, self._deadline_s = lease_s, deadline_s
        self._turn = asyncio.Lock()  # of what holds and releases
        self._held: dict[str, Any] | None = None  # the terms of the hold in force
        self._prepared: dict[str, str] = {}
        self.brought: str | None = None

    # What is known ------------------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether all are held by this process."""
        return self._held is not None

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
        """Return that a release may be asked for: each group says itself whether it may be."""
        return meaning(HoldState.OPEN), None

    async def status(self) -> GroupStatus:
        """Ask all, and return them as one group, whose version is what all have that answer."""
        found = await self._ask_all(_told, _LOOK_S)
        told = [said for said in found.values() if isinstance(said, _ToldGroup)]
        if not told:
            raise errors.not_all(verb="status", table=[_row(url, said) for url, said in found.items()])
        held = {(each.version, each.manifest_digest) for each in told}
        committed = CommittedRecord(0, *(held.pop() if len(held) == 1 else ()))
        if all(each.hold is not None for each in told):
            committed = msgspec.structs.replace(committed, hold=told[0].hold)
        ranks = tuple(RankStatus(**msgspec.structs.asdict(rank)) for each in told for rank in each.ranks)
        return GroupStatus(self.name, committed=committed, ranks=ranks)

    async def facts(self) -> GroupStatus:
        """As :meth:`status`."""
        return await self.status()

    async def prepared_by(self, surface: str) -> str | None:
        """Return None: what is prepared here waits in no group."""
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
        surface = surface_of(origin)
        terms = {"surface": surface, "in_flight": in_flight, "kv_policy": kv_policy}
        async with self._turn:
            asked = self._leased(terms)
            found = await self._ask_all(lambda _, client: client.command("hold", **asked))
            begun = {
                url: receipt.hold.hold_id
                for url, receipt in found.items()
                if isinstance(receipt, Receipt) and receipt.hold and receipt.outcome is Outcome.HELD
            }

            async def undo(url: str, client: GroupClient) -> object:
                if url not in begun:
                    return None
                return await client.command("release", surface=surface, hold=begun[url])

            try:
                self._require_all("hold", found)
            except WsmError:
                await self._ask_all(undo)
                raise
            self._held = terms
        return self.receipt(origin, Outcome.HELD)

    async def release(self, origin: Origin, *, force: bool = False, **_: Any) -> Receipt:
        """Release what this surface holds; a hold that is closed stays so. Raises as :meth:`hold`."""
        async with self._turn:
            if self._held is not None and self._held["surface"] == surface_of(origin):
                self._held = None
            await self.give("release", surface=surface_of(origin), force=force)
        return self.receipt(origin, Outcome.RELEASED)

    async def update(
        self,
        origin: Origin,
        version: str | int | None = None,
        *,
        source: str | None = None,
        tags: frozenset[Tag] = ALL_TAGS,
        after: After = After.AS_BEFORE,
        **keywords: Any,
    ) -> Receipt:
        """Bring a version to all; a half alone is loaded where it is missing. Raises as :meth:`hold`."""
        del source, keywords  # what brings it has its own
        label = self.label_of(version)
        if after is After.HELD and not self.holds:
            await self.hold(origin)
        if tags == ALL_TAGS:
            await self.bring(label, f"{OWNERS}{surface_of(origin)}")
        else:
            await self.give("update", tags=tags, version=label if Tag.WEIGHTS in tags else None)
        if after is After.SERVE:
            await self.release(origin)
        return self.receipt(origin, Outcome.UPDATED, label)

    async def prepare(self, origin: Origin, version: str | int | None = None, **_: Any) -> Receipt:
        """Keep in mind which version the commit is to bring."""
        label = self._prepared[origin.request_id or ""] = self.label_of(version)
        return self.receipt(origin, Outcome.PREPARED, label)

    async def commit(self, origin: Origin, prepared: str, **_: Any) -> Receipt:
        """Bring what was prepared under that request id to all; raises as :meth:`hold`."""
        return await self.update(origin, self._prepared.pop(prepared))

    def label_of(self, version: str | int | None) -> str:
        """Return the label of a version; None: of the one that all are to have."""
        raise NotImplementedError

    async def bring(self, label: str, owner: str) -> None:
        """Bring a version to all, which may stand under a hold of `owner`; raises as :meth:`hold`."""
        raise NotImplementedError

    async def clear(self, origin: Origin, **asked: Any) -> Receipt:
        """Let all release weights, KV cache or both; raises as :meth:`hold`."""
        await self.give("clear", **asked)
        return self.receipt(origin, Outcome.CLEARED)

    async def reopen(self, surface: str) -> None:
        """Do nothing: the commit of other weights makes a closed hold an ordinary one, in each group."""

    async def fail_closed(
        self,
        origin: Origin,
        *,
        verb: str,
        reason: str,
        by: ClosedBy = ClosedBy.REFUSED,
        **_: Any,
    ) -> bool:
        """Close the hold in force, but for groups that have what was to be brought; whether there is one."""
        brought, self.brought = self.brought, None
        if self._held is None:
            return False
        held = self._leased(self._held)

        async def close(url: str, client: GroupClient) -> object:
            said = await _told(url, client)
            if brought is not None and said.manifest_digest == brought:
                return None
            closed = msgspec.to_builtins(ClosedHold(origin.surface, verb, reason, said.version, by))
            return await client.command("hold", **held, closed=closed)

        async with self._turn:
            await self._ask_all(close)
        return True

    async def renew(self, *, longer_s: float = 0.0) -> None:
        """Let the lease of the hold in force begin anew; it lasts for so much longer. Waits for seconds."""
        async with self._turn:
            if self._held is not None:
                asked = {**self._leased(self._held, longer_s), "wait_s": _RENEWAL_S}
                await self._ask_all(lambda _, client: client.command("hold", **asked), 2 * _RENEWAL_S)

    async def give(self, verb: str, **asked: Any) -> None:
        """Give one command to all; raises as :meth:`hold`."""
        self._require_all(verb, await self._ask_all(lambda _, client: client.command(verb, **asked)))

    def receipt(self, origin: Origin, outcome: Outcome, version: str | None = None) -> Receipt:
        """Return the receipt of a command that all have done."""
        said = (0, 0, version, None, None, outcome is Outcome.UPDATED, 0.0, 0.0, ())
        return Receipt(origin.request_id or "", outcome, *said, serving=self._held is None)

    # The parts ----------------------------------------------------------------------------------------------

    def _leased(self, terms: Mapping[str, Any], longer_s: float = 0.0) -> dict[str, Any]:
        return {**terms, "lease_s": self._lease_s + longer_s, "on_lease": OnLease.SERVE}

    async def _ask_all(self, ask: Ask, seconds: float | None = None) -> dict[str, Any]:
        """Ask all at once; return what each answered, or its error."""
        places, limit_s = asyncio.Semaphore(MOST_REQUESTS), seconds or self._deadline_s

        async def answer(url: str, client: GroupClient) -> Any:
            async with places:
                try:
                    return await asyncio.wait_for(ask(url, client), limit_s)
                except asyncio.TimeoutError:
                    return errors.upstream_unreachable(url=url, reason=f"no answer within {limit_s:g} s")
                except WsmError as error:
                    return error

        groups = self._groups()
        answers = await asyncio.gather(*(answer(*each) for each in groups.items()))
        return dict(zip(groups, answers, strict=True))

    def _require_all(self, verb: str, found: Mapping[str, Any]) -> None:
        """Refuse what was not done by all; one that does not answer, and takes no text, need not do it."""
        failed = {url: said.code for url, said in found.items() if isinstance(said, WsmError)}
        if any(code != "upstream-unreachable" or self._takes_text(url) for url, code in failed.items()):
            raise errors.not_all(verb=verb, table=[_row(url, said) for url, said in found.items()])


async def _told(url: str, client: GroupClient) -> _ToldGroup:
    try:
        return convert(_ToldGroup, await client.status())
    except PayloadError as error:
        raise errors.upstream_unreachable(url=url, reason=str(error)) from None


def surface_of(origin: Origin) -> str:
    """Return whose the holds are in each group: never those of a trainer that asks there itself."""
    return f"fleet-{origin.surface}"


def _row(url: str, said: object) -> dict[str, Any]:
    error = said if isinstance(said, WsmError) else None
    return {"replica": url, "code": error and error.code, "error": error and str(error)}
