"""An update in parts of one surface: begun, prepared, decided by its end. It outlives its server.

What is begun is kept with the ends of requests, for as long as the lease of what it prepares: a server that
is started again between two parts goes on with them. Where that is lost, the end is refused, and decides
nothing.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from starlette.requests import Request

from wsm.errors import RefusedError, WsmError
from wsm.http.commands import Commands, Origin
from wsm.http.surfaces import errors
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.receipt import Outcome, Receipt
from wsm.states.vocabulary import HotFallback

#: What is kept under a surface: the update in parts that it has begun.
_BEGUN = "begun"


@dataclass(frozen=True)
class _Parts:
    """An update in parts, as far as it is: begun, then prepared under a request id, for a time.

    `until` is on the monotonic clock of the host, whose boot no group of a run id outlives.
    """

    until: float
    run_id: str
    prepared: str | None = None
    source: str | None = None
    asked: str | None = None
    receipt: Receipt | None = None

    @classmethod
    def of(cls, kept: Mapping[str, Any] | None) -> _Parts | None:
        """Return what was kept; None where nothing was, or nothing that can be read."""
        try:
            if kept is None:
                return None
            receipt = kept.get("receipt")
            return cls(**{**kept, "receipt": None if receipt is None else Receipt.from_mapping(receipt)})
        except (TypeError, ValueError, KeyError):
            return None

    def kept(self) -> dict[str, Any]:
        """Return it as it is kept."""
        receipt = None if self.receipt is None else dict(self.receipt.to_mapping())
        return {**vars(self), "receipt": receipt}


@final
class UpdateInParts:
    """The update in parts of one surface.

    Parameters
    ----------
    surface : str
        Its name.
    options : SurfaceOptions
        What is configured.
    origin : callable
        ``origin(request, part)`` is where a command comes from.
    """

    def __init__(
        self, surface: str, options: SurfaceOptions, origin: Callable[[Request, str], Origin]
    ) -> None:
        self._surface = surface
        self._options = options
        self._origin = origin

    def begun(self, commands: Commands) -> bool:
        """Whether one is begun, and neither its time nor its group is over."""
        return self._known(commands) is not None

    async def begin(self, request: Request, commands: Commands) -> None:
        """Begin one; one that this surface began before, and prepared, is taken back."""
        await self.take_back(request, commands)
        await self._remember(commands, _Parts(self._lease_over(), commands.run_id))

    async def take_back(self, request: Request, commands: Commands) -> None:
        """End what is begun, and abort what is prepared, also of a server before this one."""
        await self._remember(commands, None)
        await self._abort_prepared(request, commands)

    async def forget_unless_prepared(self, commands: Commands) -> None:
        """End what is begun and brought nothing."""
        parts = self._known(commands)
        if parts is not None and parts.receipt is None:
            await self._remember(commands, None)

    async def prepare(
        self,
        request: Request,
        commands: Commands,
        version: str | None,
        *,
        source: str | None,
        asked: str | None,
    ) -> Receipt:
        """Load a version on every rank, and leave the decision to the end; asked again, say so again.

        Parameters
        ----------
        request, commands
            As every verb.
        version : str or None
            Which; None: the newest.
        source : str or None
            Names its content.
        asked : str or None
            What the trainer calls it.

        Raises
        ------
        RefusedError
            If another version is prepared already (code ``prepared-already``).
        WsmError
            As :meth:`.Commands.prepare`.
        """
        parts = self._known(commands) or _Parts(self._lease_over(), commands.run_id)
        if parts.receipt is not None:
            if parts.receipt.version == version:
                return parts.receipt
            raise errors.prepared_already(version=parts.receipt.version)
        await self._abort_prepared(request, commands)  # of a server that was killed before it could remember
        request_id = self._origin(request, "").request_id or uuid.uuid4().hex
        receipt = await commands.prepare(
            Origin(self._surface, request_id, self._origin(request, "").traceparent),
            version,
            source=source,
            hot=True,
            hot_fallback=HotFallback.IN_PLACE,
            lease_s=self._options.lease_s,
            deadline_s=self._options.deadline_s,
            wait_s=self._options.deadline_s,
        )
        prepared = request_id if receipt.outcome is Outcome.PREPARED else None
        parts = replace(parts, until=self._lease_over(), prepared=prepared, receipt=receipt)
        await self._remember(commands, replace(parts, source=source, asked=asked))
        return receipt

    async def finish(self, request: Request, commands: Commands, label: str | None, *, begin: str) -> Receipt:
        """Decide it: the group serves what it prepared.

        Parameters
        ----------
        request, commands
            As every verb.
        label : str or None
            What the trainer calls it now; it must be what it was called.
        begin : str
            The verb that begins one, for the refusal.

        Raises
        ------
        RefusedError
            If none is begun, nothing was prepared, or the label is another. What is prepared stays so.
        """
        parts, verb = self._known(commands), request.url.path
        if parts is None:
            raise errors.no_update_begun(verb=verb, begin=begin)
        if parts.receipt is None:
            raise errors.nothing_prepared(verb=verb)
        if label is not None and label not in (parts.asked, parts.receipt.version):
            raise errors.label_differs(asked=label, held=parts.receipt.version)
        if parts.prepared is None:  # it was held already, and is to be held still
            await self._remember(commands, None)
            held = (await commands.status()).version
            if held != parts.receipt.version:
                raise errors.label_differs(asked=parts.receipt.version or "", held=held)
            return parts.receipt
        try:
            receipt = await commands.commit(self._origin(request, ""), parts.prepared, source=parts.source)
        except WsmError as error:
            if not error.retryable:  # else it is open still, and the caller is told to ask again
                await self._remember(commands, None)
            raise
        await self._remember(commands, None)
        return receipt

    async def _abort_prepared(self, request: Request, commands: Commands) -> None:
        prepared = await commands.prepared_by(self._surface)
        if prepared is not None:
            try:
                await commands.abort(self._origin(request, "-abort"), prepared)
            except RefusedError as error:  # decided meanwhile, which is as well
                if error.code not in ("decided-otherwise", "not-prepared"):
                    raise

    def _known(self, commands: Commands) -> _Parts | None:
        parts = _Parts.of(commands.kept.note(_BEGUN, self._surface))
        over = parts is None or time.monotonic() >= parts.until or parts.run_id != commands.run_id
        return None if over else parts

    async def _remember(self, commands: Commands, parts: _Parts | None) -> None:
        kept = None if parts is None else parts.kept()
        await asyncio.to_thread(commands.kept.remember, _BEGUN, self._surface, kept)

    def _lease_over(self) -> float:
        return time.monotonic() + self._options.lease_s
