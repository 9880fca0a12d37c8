"""The trainers' verbs once for a whole fleet: what brings weights sets a target, and rolls it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from wsm.fleet.rolling import bring_version, content_of, not_published
from wsm.fleet.watching import ROUTABLE, FleetWatch, routable_at
from wsm.http.commands import Origin
from wsm.http.errors import not_all
from wsm.http.hold_table import OWNERS
from wsm.http.many import ManyCommands, surface_of
from wsm.http.surface import SurfaceRoute
from wsm.receipt import Outcome, Receipt
from wsm.states.fleet import FleetFailure
from wsm.states.vocabulary import ALL_TAGS, After, Tag


class FleetCommands(ManyCommands):
    """Commands a fleet as one group. Belongs to the event loop of its watch.

    Parameters
    ----------
    watch : FleetWatch
        Which replicas there are, how they are asked, and which of them may get text.
    lease_s : float
        As :class:`.ManyCommands`.
    at_a_time, on_failure
        As :func:`.rolling.update_async`.
    """

    def __init__(self, watch: FleetWatch, *, lease_s: float, at_a_time: int, on_failure: str) -> None:
        self._watching = watch
        self._terms = replace(watch.terms, at_a_time=at_a_time, on_failure=FleetFailure(on_failure))
        super().__init__(
            "fleet", watch.clients, watch.is_routable, lease_s=lease_s, deadline_s=watch.terms.deadline_s
        )
        watch.is_held = lambda: self.holds
        self._rolls = 0
        self._asked: str | None = None  # the digest that a roll which failed was to bring
        self._prepared: dict[str, str] = {}

    async def keep(self) -> None:
        """Renew the hold in force, and look at all replicas, until it is cancelled."""
        try:
            while True:
                begun = time.monotonic()
                await self.renew(longer_s=self._rolls and self._terms.deadline_s)
                await self._watching.look(begun)
                await asyncio.sleep(max(begun + self._watching.every_s - time.monotonic(), 0))
        finally:
            await self._watching.close()

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
        """Set the target to a version, and roll it; a half alone is loaded where it is missing.

        Raises
        ------
        RefusedError
            With the table (code ``not-all``).
        WsmError
            As :func:`.rolling.update_async`.
        """
        del source, keywords  # a step of the roll has its own
        label = self._label(version)
        if after is After.HELD and not self.holds:
            await self.hold(origin)
        if tags == ALL_TAGS:
            await self._roll(label, f"{OWNERS}{surface_of(origin)}")
        else:
            await self.give("update", tags=tags, version=label if Tag.WEIGHTS in tags else None)
        if after is After.SERVE:
            await self.release(origin)
        return self.receipt(origin, Outcome.UPDATED, label)

    async def prepare(self, origin: Origin, version: str | int | None = None, **_: Any) -> Receipt:
        """See that the store has a version, which the commit rolls."""
        label, store = self._label(version), self._terms.store
        if await asyncio.to_thread(content_of, store, label) is None:
            raise not_published(label=label, store=str(store))
        self._prepared[origin.request_id or ""] = label
        return self.receipt(origin, Outcome.PREPARED, label)

    async def commit(self, origin: Origin, prepared: str, **_: Any) -> Receipt:
        """Update to what was prepared under that request id."""
        return await self.update(origin, self._prepared.pop(prepared))

    async def fail_closed(self, origin: Origin, **why: Any) -> bool:
        """Close the hold in force, but for replicas that have what was asked for."""
        brought, self._asked = self._asked, None
        return await super().fail_closed(origin, brought=brought, **why)

    async def _roll(self, label: str, owner: str) -> None:
        self._asked, self._rolls = None, self._rolls + 1
        try:
            await self.renew(longer_s=self._terms.deadline_s)  # a step is a command, under which none renews
            terms = replace(self._terms, owner=owner)
            report = await bring_version(terms, label, self._watching.replicas)
        finally:
            self._rolls -= 1
        if report.exit_code:
            self._asked = None if report.went_back else report.target.content.digest
            raise not_all(verb="update", table=[row.to_mapping() for row in report.rows])

    def _label(self, version: str | int | None) -> str:
        """Return a version's label; None means what the fleet is to serve."""
        target = self._watching.target
        if version is not None:
            return str(version)
        if target is None:
            raise not_published(label="that a target names", store=str(self._terms.store))
        return target.content.label


def routes(watch: FleetWatch) -> tuple[SurfaceRoute, ...]:
    """Return what a server of a fleet answers besides trainers' verbs."""
    return tuple(SurfaceRoute("GET", path, routable_at(watch), reads=True) for path in ROUTABLE)
