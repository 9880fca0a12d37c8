"""Brings all replicas of a fleet to one version: prepared, committed so many at a time, and proved.

Every step has a request id of its own, ``fleet-GENERATION-GROUP-STEP``. So a lost answer is asked for by the
same call, and the next caller finds what the last one left: what stands prepared for this target is
committed, what stands for an older one is taken back. A caller that finds a higher generation ends.

A replica that does not answer the first look fails in its own row and stops no other: no text goes there. Any
step that fails behind that stops the rest, or takes all back to the version before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from wsm.errors import BadInputError, GroupError, RefusedError, WsmError, coded, error_name
from wsm.fleet.replicas import Connections, Replica, fleet_shrinks
from wsm.labels import checked_version
from wsm.payload import PayloadError, convert
from wsm.receipt import Outcome, Receipt
from wsm.states.fleet import (
    FleetEvent,
    FleetFailure,
    FleetState,
    FleetTarget,
    LookAnswer,
    NamedContent,
    after,
    drains,
    generation_of,
    is_settled,
    may_step,
    next_target,
    passes,
    seen,
    step_name,
    way_back,
)
from wsm.states.holding import Hold
from wsm.strategies.snapshot.store import content_of
from wsm.strategies.trainer.targets import newest_target, set_target

#: Requests that are open at once.
MOST_REQUESTS: Final = 64
#: Seconds that a look may take, and between two tries of a step.
_LOOK_S: Final = 10.0
_AGAIN_S: Final = 0.2
#: Seconds that a replica stands prepared at most. Fixed: a request that is asked again asks for the same.
_LEASE_S: Final = 900.0
#: Exit codes of the command line, and of reports.
ALL_SERVE, SOME_DO_NOT, SUPERSEDED = 0, 1, 3

_Answer = TypeVar("_Answer")


class ReplicaClient(Protocol):
    """What a replica answers; :class:`wsm.http.AsyncClient` asks it over HTTP."""

    async def status(self) -> dict[str, Any]:
        """Return what ``wsm status --json`` prints."""

    async def command(self, operation: str, request_id: str | None = None, **keywords: Any) -> Receipt:
        """Give one command."""

    async def request(self, request_id: str) -> dict[str, Any]:
        """Return what became of a request."""


class _ReadTarget(msgspec.Struct, frozen=True):
    """Whether text reaches what a replica holds, by the target of its fleet that it has read."""

    admits: bool
    generation: int | None


class _Status(msgspec.Struct, frozen=True):
    """What is read of a replica's status."""

    name: str
    serving: bool
    version: str | None
    manifest_digest: str | None
    request_id: str | None = None
    decision_left_s: float | None = None
    over: bool = True
    operation: str | None = None
    fleet: _ReadTarget | None = None
    hold: Hold | None = None
    missing: tuple[str, ...] = ()

    def takes_text(self, owner: str | None) -> bool:
        """Whether text would reach what it holds now; of a group that drains for a load in place it waits.

        `owner`: whose hold is no matter, since it is released with those of all others.
        """
        stops = drains(self.operation, over=self.over)
        waits = self.hold is not None and self.hold.owner == owner and not self.missing
        return (self.serving or waits) and not stops and (self.fleet is None or self.fleet.admits)


@dataclass
class ReplicaRow:
    """What is known of one replica: a row of the answer.

    Parameters
    ----------
    replica : Replica
        Which.
    version, digest : str or None
        What it holds, as it said last.
    state : FleetState
        What it counts as.
    seconds : float
        How long it took.
    error, code : str or None
        Why it is not at the target.
    """

    replica: Replica
    version: str | None = None
    digest: str | None = None
    state: FleetState = FleetState.STALE
    seconds: float = 0.0
    error: str | None = None
    code: str | None = None
    looks: int = field(default=0, repr=False)

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON has it; without any token."""
        said = {"replica": self.replica.url, "version": self.version, "digest": self.digest}
        took = {"state": self.state.value, "seconds": round(self.seconds, 3)}
        return {**said, **took, "error": self.error, "code": self.code}


@dataclass(frozen=True)
class FleetReport:
    """What became of a fleet.

    Parameters
    ----------
    target : FleetTarget
        What it is to serve: the version before, where it went back.
    rows : tuple of ReplicaRow
        One per replica, in the list's order.
    exit_code : int
        0: all serve what was asked for; 1: some do not; 3: another caller has set a newer target.
    went_back : bool
        Whether a step failed, and the fleet was taken back.
    """

    target: FleetTarget
    rows: tuple[ReplicaRow, ...]
    exit_code: int
    went_back: bool = False


@coded("not-published")
def not_published(*, label: str, store: str) -> BadInputError:
    """A store has no such version."""
    return BadInputError(f"{store} has no whole version {label}; publish it there first")


@coded("other-content")
def other_content(*, found: str | None, wanted: str) -> GroupError:
    """A replica has loaded other content than the target's."""
    return GroupError(
        f"it has loaded digest {found}, and the target's is {wanted}; its label means another content"
    )


class _SupersededError(Exception):
    """Another caller has set a newer target."""


class _RollStoppedError(Exception):
    """A step of another replica has failed."""


def update(store: Path | str, version: str | int, replicas: Sequence[Replica], **options: Any) -> FleetReport:
    """As :func:`update_async`; blocks."""
    return asyncio.run(update_async(store, version, replicas, **options))


async def update_async(
    store: Path | str,
    version: str | int,
    replicas: Sequence[Replica],
    *,
    strict: bool = False,
    force: bool = False,
    token_file: Path | None = None,
    insecure: bool = False,
    connect: Callable[[Replica], ReplicaClient] | None = None,
    **terms: Any,
) -> FleetReport:
    """Bring all replicas to a version of a store; the same call again goes on where it stopped.

    Parameters
    ----------
    store : path
        Where the versions lie, and the targets beside them.
    version : str or int
        Which.
    replicas : sequence of Replica
        All of the fleet.
    strict : bool
        Whether the version before is allowed no longer, from now on.
    force : bool
        Take a list that is less than half as long as the last one.
    token_file, insecure
        As :class:`.replicas.Connections`.
    connect : callable or None
        Returns what asks a replica; None: over HTTP.
    **terms
        How, as :class:`RollTerms`.

    Raises
    ------
    RefusedError
        If the list shrinks (code ``fleet-shrinks``), a token would go in the clear (``token-in-the-clear``),
        or there is no way back (``no-way-back``). Nothing was changed.
    BadInputError
        If the version is not there (code ``not-published``), or the list is no list.
    """
    connections = Connections(token_file=token_file, insecure=insecure)
    connections.require_safe(replicas)
    rolls = RollTerms(Path(store), connections.client if connect is None else connect, **terms)
    try:
        return await bring_version(rolls, version, replicas, strict=strict, force=force)
    finally:
        await connections.close()


@dataclass(frozen=True)
class RollTerms:
    """How replicas are brought to a target.

    Parameters
    ----------
    store : path
        Where the versions lie, and the targets beside them.
    connect : callable
        Returns what asks a replica.
    told : callable
        Is told each row that changes.
    deadline_s : float
        Seconds that a step of one replica may take.
    at_a_time : int
        How many are committed at once; 1: the first is a canary.
    stage_ahead : int or None
        How many stand prepared at most; None: twice as many as are committed at once.
    on_failure : FleetFailure or str
        ``stop``, or ``back`` to the version before.
    owner : str or None
        Whose hold a replica may stand under meanwhile.
    """

    store: Path
    connect: Callable[[Replica], ReplicaClient]
    told: Callable[[ReplicaRow], object] = lambda _row: None
    deadline_s: float = 300.0
    at_a_time: int = 1
    stage_ahead: int | None = None
    on_failure: FleetFailure | str = FleetFailure.STOP
    owner: str | None = None


async def bring_version(
    terms: RollTerms, version: str | int, replicas: Sequence[Replica], **asked: bool
) -> FleetReport:
    """Set a version as the target, and bring all replicas to it; `asked`: as of :func:`update_async`."""
    label = checked_version(version)
    content = await asyncio.to_thread(content_of, terms.store, label)
    if content is None:
        raise not_published(label=label, store=str(terms.store))
    target = await asyncio.to_thread(_announced, terms, content, len(replicas), **asked)
    return await bring(terms, target, replicas)


async def bring(terms: RollTerms, target: FleetTarget, replicas: Sequence[Replica]) -> FleetReport:
    """Bring all replicas to a target that is set, as far as it goes; once all serve it, nothing else may."""
    rows = tuple(ReplicaRow(replica) for replica in replicas)
    asked: dict[str, Any] = {"at_a_time": terms.at_a_time, "replicas": len(replicas)}
    roll = Roll(terms, target)
    await roll.bring(rows)
    while roll.superseded:
        newest = None
        with contextlib.suppress(WsmError, OSError):
            newest = await asyncio.to_thread(newest_target, terms.store, target)
        if newest is None or not is_settled(target, newest):
            return FleetReport(target, rows, SUPERSEDED)
        target, roll = newest, Roll(terms, newest)
        await roll.bring(rows)
    if roll.failed and terms.on_failure == FleetFailure.BACK:
        with contextlib.suppress(WsmError, OSError):  # out of a store that cannot be used is no way back
            label = target.before.label if target.before else ""
            before = way_back(target, await asyncio.to_thread(content_of, terms.store, label))
            if before is not None:
                back = next_target(target, before, **asked)
                if not await asyncio.to_thread(set_target, terms.store, back):
                    return FleetReport(target, rows, SUPERSEDED)
                roll = Roll(terms, back)
                await roll.bring(rows)
                return FleetReport(back, rows, SUPERSEDED if roll.superseded else SOME_DO_NOT, went_back=True)
    if not all(roll.serves(row) for row in rows):
        return FleetReport(target, rows, SOME_DO_NOT)
    if len(target.allowed) > 1:  # all serve it: the version before is allowed no longer
        settled = next_target(target, target.content, strict=True, on_failure=target.on_failure, **asked)
        with contextlib.suppress(OSError):  # else the same call again says so
            await asyncio.to_thread(set_target, terms.store, settled)
    return FleetReport(target, rows, ALL_SERVE)


def _announced(
    terms: RollTerms, content: NamedContent, replicas: int, *, strict: bool = False, force: bool = False
) -> FleetTarget:
    """Set the target of a content, unless it is the newest already. Blocks."""
    asked: dict[str, Any] = {"at_a_time": terms.at_a_time, "on_failure": FleetFailure(terms.on_failure)}
    while True:
        newest = newest_target(terms.store)
        if newest is not None and 2 * replicas < newest.replicas and not force:
            raise fleet_shrinks(replicas=replicas, before=newest.replicas)
        target = next_target(newest, content, strict=strict, replicas=replicas, **asked)
        if terms.on_failure == FleetFailure.BACK:
            label = None if target.before is None else target.before.label
            if way_back(target, None if label is None else content_of(terms.store, label)) is None:
                lacks = f"the version before ({label}) is not in the store with its digest"
                todo = "nothing was changed: publish it again, or say on_failure=stop"
                message = f"{lacks}, so there is no way back; {todo}"
                raise RefusedError(message, code="no-way-back", label=label)
        if target is newest or set_target(terms.store, target):
            return target


#: What says that nothing can be prepared beside what serves: nothing does, or the server knows update alone.
_IN_PLACE: Final = frozenset({"nothing-served", "not-found"})


class Roll:
    """One pass over all replicas, for one target."""

    def __init__(self, terms: RollTerms, target: FleetTarget) -> None:
        self._terms, self._target, self._told = terms, target, terms.told
        self._requests = asyncio.Semaphore(MOST_REQUESTS)
        ahead = 2 * terms.at_a_time if terms.stage_ahead is None else max(terms.stage_ahead, terms.at_a_time)
        self._staging, self._turns = asyncio.Semaphore(ahead), asyncio.Semaphore(terms.at_a_time)
        self.failed = self.superseded = False

    async def bring(self, rows: Sequence[ReplicaRow]) -> None:
        """Bring every replica to the target, as far as it goes."""
        for row in rows:
            row.state = after(row.state, FleetEvent.TARGET)
        await asyncio.gather(*map(self._bring, rows))

    def serves(self, row: ReplicaRow) -> bool:
        """Whether a replica has proved that it serves the target's content."""
        return row.state is FleetState.READY and row.digest == self._target.content.digest

    async def _bring(self, row: ReplicaRow) -> None:
        begun, replica = time.monotonic(), self._terms.connect(row.replica)
        try:
            async with self._staging:
                said = await self.look(row, replica)
                if said is not None and not self.serves(row):
                    await self._step(row, replica, said)
                    await self._patiently(lambda _left_s: self._prove(row, replica))
        except _SupersededError:
            self.superseded = True
        except _RollStoppedError:
            pass
        except (WsmError, OSError) as error:
            self.failed = True
            self._tell_error(row, FleetEvent.FAILED, error)
        finally:
            row.seconds += time.monotonic() - begun
            self._told(row)

    @staticmethod
    def _tell_error(row: ReplicaRow, event: FleetEvent, error: WsmError | OSError) -> None:
        row.state = after(row.state, event)
        row.error, row.code = str(error), error_name(error)

    async def look(
        self, row: ReplicaRow, replica: ReplicaClient, seconds: float | None = None
    ) -> _Status | None:
        """Ask a replica what it holds; None: it has not answered, which is told in its row."""
        row.looks += 1
        try:
            said = convert(_Status, await self._within(seconds or _LOOK_S, "look", replica.status()))
        except (WsmError, PayloadError) as error:
            if isinstance(error, PayloadError):
                why = f"what it answers is no status of a group: {error}; is it a server of wsm?"
                error = GroupError(why, code="no-status", problem=str(error))
            self._tell_error(row, FleetEvent.SILENT, error)
            return None
        serving, generation = said.takes_text(self._terms.owner), self._target.generation
        answer = LookAnswer(row.looks, generation, said.manifest_digest, serving)
        row.state = after(row.state, seen(answer, self._target, row.looks))
        row.version, row.digest = said.version, said.manifest_digest
        if self.serves(row):
            row.error = row.code = None
        self._told(row)
        return said

    async def _prove(self, row: ReplicaRow, replica: ReplicaClient) -> None:
        """See that a replica serves the target."""
        said = await self.look(row, replica)
        if said is None or self.serves(row):
            return
        if row.digest != self._target.content.digest:
            raise other_content(found=row.digest, wanted=self._target.content.digest)
        newest = self._target.generation
        by = said.fleet.generation if said.fleet else newest
        by = by if said.over else None  # as where a hold just ends
        raise GroupError(
            f"it has loaded what target {newest} names and does not serve it, by target {by}; see what holds "
            "it (wsm explain), and whether its server reads the same store",
            code="not-serving",
            generation=by,
            newest=newest,
        )

    async def _step(self, row: ReplicaRow, replica: ReplicaClient, said: _Status) -> None:
        """Prepare a replica and commit it in its turn; in place where it has no room for both versions."""
        named = step_name(self._target.generation, said.name)
        pending = said.request_id if said.decision_left_s is not None else None
        if pending is not None and pending.startswith(f"{named}-prepare"):
            request_id = pending  # a caller before this one left it
        else:
            if pending is not None and generation_of(pending) is not None:
                await self._require_turn()
                await self._ask(replica, "abort", pending)
            request_id = await self._free(replica, f"{named}-prepare")
            digest = await self._prepare(row, replica, request_id, named, held=said.hold is not None)
            if digest is None:
                return
            if digest != self._target.content.digest:
                await self._ask(replica, "abort", request_id)
                raise other_content(found=digest, wanted=self._target.content.digest)
        row.state = after(row.state, FleetEvent.PREPARED)
        self._told(row)
        async with self._turns:
            try:
                await self._require_turn()
            except _RollStoppedError:
                await self._ask(replica, "abort", request_id)
                row.state = after(row.state, FleetEvent.OTHER)
                await self.look(row, replica)
                raise
            await self._ask(replica, "commit", request_id)

    async def _prepare(
        self, row: ReplicaRow, replica: ReplicaClient, request_id: str, named: str, *, held: bool
    ) -> str | None:
        """Return the digest of what stands prepared; None: nothing does, and nothing is left to be done."""
        label = self._target.content.label
        try:
            await self._require_turn()
            terms = {"hot": True, "hot_fallback": "refuse", "lease_s": _LEASE_S}
            receipt = await self._ask(replica, "prepare", request_id, version=label, **terms)
        except WsmError as error:
            if not (error.context.get("no_room") or error.code in _IN_PLACE):
                raise
            row.error, row.code = str(error), error.code
            self._told(row)
            async with self._turns:
                await self._require_turn()
                row.state = after(row.state, FleetEvent.OTHER)  # drained first, it takes no text
                self._told(row)
                ends = {} if held else {"in_flight": "drain"}  # what a hold has set aside is not drained
                request_id = await self._free(replica, f"{named}-update{'-held' * held}")
                terms = {"hot": False, "force": True, **ends}
                await self._ask(replica, "update", request_id, version=label, **terms)
            return None
        return (receipt.manifest_digest or "") if receipt.outcome is Outcome.PREPARED else None

    async def _require_turn(self) -> None:
        """End where another step has failed, or a newer target is there."""
        if self.failed:
            raise _RollStoppedError
        newest = await self._patiently(
            lambda _left_s: asyncio.to_thread(newest_target, self._terms.store, self._target)
        )
        if self.superseded or not may_step(self._target.generation, newest):
            raise _SupersededError

    async def _free(self, replica: ReplicaClient, name: str) -> str:
        """Return the first request id of a step whose command is not over: done again, it answers anew."""
        number, request_id = 1, name
        while True:
            try:
                known = await self._within(_LOOK_S, "look", replica.request(request_id))
            except WsmError as error:
                if error.code == "request-unknown":
                    return request_id
                raise
            if known.get("state") != "succeeded":
                return request_id
            number += 1
            request_id = f"{name}.{number}"

    async def _ask(self, replica: ReplicaClient, operation: str, request_id: str, **keywords: Any) -> Receipt:
        """Give a command until it is answered: under its request id it is done once."""
        limits = {} if operation in ("commit", "abort") else {"deadline_s": self._terms.deadline_s}
        return await self._patiently(
            lambda left_s: self._within(
                left_s, operation, replica.command(operation, request_id, **limits, **keywords)
            )
        )

    async def _patiently(self, ask: Callable[[float], Awaitable[_Answer]]) -> _Answer:
        """Ask until it is answered, or what stands in its way stays; for a step's deadline at most."""
        until, met = time.monotonic() + self._terms.deadline_s, None
        while True:
            left_s = until - time.monotonic()
            try:
                return await ask(max(left_s, 0.01))
            except (WsmError, OSError) as error:
                if error_name(error) == "step-timeout" and met is not None:
                    raise met from None  # of which there was less time to be told again
                if not self._passes(error) or left_s <= _AGAIN_S:
                    raise
                met = error
            await asyncio.sleep(_AGAIN_S)

    def _passes(self, error: WsmError | OSError) -> bool:
        seen = error.context.get("generation") if isinstance(error, WsmError) else None
        return passes(error_name(error), seen, self._target.generation) or not isinstance(error, WsmError)

    async def _within(self, seconds: float, step: str, asked: Awaitable[_Answer]) -> _Answer:
        async with self._requests:
            try:
                return await asyncio.wait_for(asked, seconds)
            except asyncio.TimeoutError:
                message = f"it has not answered its {step} within {seconds:g} s"
                raise GroupError(message, code="step-timeout", step=step, seconds=seconds) from None
