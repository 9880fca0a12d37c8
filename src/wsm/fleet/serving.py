"""The trainers' verbs once for a whole fleet: what brings weights sets a target, and rolls it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from wsm.fleet.rolling import bring_version, not_published
from wsm.fleet.watching import ROUTABLE, FleetWatch, routable_at
from wsm.http.errors import not_all
from wsm.http.many import ManyCommands
from wsm.http.surface import SurfaceRoute


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
        self._terms = replace(watch.terms, at_a_time=at_a_time, on_failure=on_failure)
        connect, deadline_s = watch.terms.connect, watch.terms.deadline_s
        super().__init__(
            "fleet",
            lambda: {each.url: connect(each) for each in watch.replicas},
            lambda url: any(worker["url"] == url for worker in watch.routable()["workers"]),
            lease_s=lease_s,
            deadline_s=deadline_s,
        )
        watch.is_held = lambda: self.holds
        self._rolls = 0

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

    def label_of(self, version: str | int | None) -> str:
        """Return the label of a version; None: of the target's."""
        target = self._watching.target
        if version is None and target is None:
            raise not_published(label="that a target names", store=str(self._terms.store))
        return target.content.label if version is None and target is not None else str(version)

    async def bring(self, label: str, owner: str) -> None:
        """Set the target to a version, and roll it.

        Raises
        ------
        RefusedError
            With the table (code ``not-all``).
        WsmError
            As :func:`.rolling.update_async`.
        """
        self.brought, self._rolls = None, self._rolls + 1
        try:
            await self.renew(longer_s=self._terms.deadline_s)  # a step is a command, under which none renews
            report = await bring_version(replace(self._terms, owner=owner), label, self._watching.replicas)
        finally:
            self._rolls -= 1
        if report.exit_code:
            self.brought = None if report.went_back else report.target.content.digest
            raise not_all(verb="update", table=[row.to_mapping() for row in report.rows])


def routes(watch: FleetWatch) -> tuple[SurfaceRoute, ...]:
    """Return what a server of a fleet answers besides trainers' verbs."""
    return tuple(SurfaceRoute("GET", path, routable_at(watch), reads=True) for path in ROUTABLE)
