"""Keeps a fleet at its target, and knows which of its replicas may get text. It has no state that must last.

Two things go on side by side. A look at all replicas comes every few seconds, and each has that long to
answer: a replica is routable while its proof is no older than three of them. Where one does not serve the
target's content, what :func:`wsm.fleet.update` does to a target that is set is done again. Two watchers do
what two callers do: the steps of a target have one name.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from wsm import log
from wsm.errors import WsmError
from wsm.fleet.replicas import Connections, Replica
from wsm.fleet.rolling import ReplicaClient, ReplicaRow, Roll, RollTerms, bring
from wsm.states.epochs import Backoff
from wsm.states.fleet import FleetState, FleetTarget, admits, is_routable
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.trainer.targets import newest_target

#: Where it is answered who is routable: of wsm's own, and for routers.
ROUTABLE: Final = ("/wsm/v1/fleet/routable", "/workers")
#: Behind rolls that did not bring all replicas to the target.
_AGAIN: Final = Backoff(first_s=1.0, longest_s=60.0)


@dataclass(frozen=True)
class _ServedProof:
    """That a replica serves what the target allows: what it said, and when it was asked (monotonic)."""

    row: ReplicaRow
    asked: float


class FleetWatch:
    """Watches one fleet. Its methods but :meth:`routable` belong to one event loop.

    Parameters
    ----------
    store : path
        Where the versions lie, and the targets beside them.
    listed : callable
        Returns the replicas as they are listed now, or raises; blocks.
    every_s : float
        Seconds from one look to the next, and those that each replica has to answer.
    deadline_s : float
        Seconds that a step of one replica may take.
    token_file, insecure
        As :class:`.replicas.Connections`.
    told : callable
        Is told each row that changes.
    connect : callable or None
        Returns what asks a replica; None: over HTTP.

    Attributes
    ----------
    terms : RollTerms
        How replicas are asked.
    replicas : tuple of Replica
        Those that are listed.
    target : FleetTarget or None
        As it was read last.
    is_held : callable
        Whether the fleet is held as a whole, so that no replica is routable.

    Raises
    ------
    BadInputError, RefusedError
        If the list, as it is now, cannot be used. Reads it, and may block.
    """

    def __init__(
        self,
        store: Path,
        listed: Callable[[], Sequence[Replica]],
        *,
        every_s: float,
        deadline_s: float = 300.0,
        token_file: Path | None = None,
        insecure: bool = False,
        told: Callable[[ReplicaRow], object] = lambda _row: None,
        connect: Callable[[Replica], ReplicaClient] | None = None,
    ) -> None:
        self._listed, self._told, self.every_s = listed, told, every_s
        self._connections = Connections(token_file=token_file, insecure=insecure)
        self.terms = RollTerms(store, connect or self._connections.client, self._tell, deadline_s)
        self.replicas: tuple[Replica, ...] = ()
        self._list()
        self.target: FleetTarget | None = None
        self.is_held: Callable[[], bool] = lambda: False
        self._proofs: dict[str, _ServedProof] = {}
        self._told_last: dict[str, tuple[object, ...]] = {}

    def routable(self) -> dict[str, Any]:
        """Return the replicas that may get text, as SGLang's router lists workers. Safe for threads."""
        now, target = time.monotonic(), self.target
        proofs = [
            proof
            for proof in (() if self.is_held() else tuple(self._proofs.values()))
            if admits(proof.row.digest, target) and is_routable(0, int((now - proof.asked) / self.every_s))
        ]
        workers = [
            {
                "id": proof.row.replica.group or proof.row.replica.url,
                "url": proof.row.replica.url,
                "worker_type": "regular",
                "is_healthy": True,
                "version": proof.row.version,
                "digest": proof.row.digest,
                "age_s": round(now - proof.asked, 3),
            }
            for proof in proofs
        ]
        return {"workers": workers, "total": len(workers)}

    async def run(self, file: Path | None = None) -> None:
        """Look, and bring, until it is cancelled; `file` lists who is routable, anew behind each look."""
        bringing: asyncio.Future[bool] | None = None
        failures, not_before = 0, 0.0
        try:
            while True:
                begun = time.monotonic()
                all_serve = await self.look(begun)
                try:
                    if file is not None:
                        await asyncio.to_thread(write_routable, file, self.routable())
                except OSError as error:  # of a full disk: the file grows old, and HTTP goes on
                    log.logger("http").warning(log.REQUEST_FAILED, operation="routable", error=str(error))
                if bringing is not None and bringing.done():
                    failures = 0 if bringing.result() else failures + 1
                    bringing, not_before = None, time.monotonic() + _AGAIN.after(failures)
                if bringing is None and not all_serve and time.monotonic() >= not_before:
                    bringing = asyncio.ensure_future(self._bring())
                await asyncio.sleep(max(begun + self.every_s - time.monotonic(), 0))
        finally:
            if bringing is not None:
                bringing.cancel()
            await self.close()

    async def close(self) -> None:
        """Let go of all connections."""
        await self._connections.close()

    async def look(self, asked: float) -> bool:
        """Ask all replicas, at the time `asked` (monotonic); whether all serve what the target names."""
        with suppress(WsmError, OSError):  # a list that cannot be read leaves the one before
            await asyncio.to_thread(self._list)
        with suppress(WsmError, OSError):  # and so does a store
            self.target = await asyncio.to_thread(newest_target, self.terms.store, self.target)
        target = self.target
        if target is None:
            return True
        roll = Roll(self.terms, target)  # looks wait for no turn
        rows = [ReplicaRow(replica) for replica in self.replicas]
        await asyncio.gather(*(roll.look(row, self.terms.connect(row.replica), self.every_s) for row in rows))
        ready = {row.replica.url: _ServedProof(row, asked) for row in rows if row.state is FleetState.READY}
        silent = {row.replica.url for row in rows if row.code is not None}
        self._proofs = {url: proof for url, proof in self._proofs.items() if url in silent} | ready
        return all(roll.serves(row) for row in rows)

    def _list(self) -> None:
        found = tuple(self._listed())
        self._connections.require_safe(found)
        if 2 * len(found) >= len(self.replicas):  # else it may not be whole
            self.replicas = found

    async def _bring(self) -> bool:
        """Bring all to the target; whether they are there."""
        target = self.target
        if target is None:
            return True
        try:
            report = await bring(replace(self.terms, at_a_time=target.at_a_time), target, self.replicas)
        except (WsmError, OSError) as error:
            log.logger("http").warning(log.REQUEST_FAILED, operation="watch", error=str(error))
            return False
        return report.exit_code == 0

    def _tell(self, row: ReplicaRow) -> None:
        said = (row.state, row.version, row.digest, row.code)
        if self._told_last.get(row.replica.url) != said:
            self._told_last[row.replica.url] = said
            self._told(row)


def write_routable(file: Path, said: dict[str, Any]) -> None:
    """Replace a file by who is routable: addresses, a line each, or JSON where its name ends so. Blocks."""
    text = json.dumps(said) if file.suffix == ".json" else _plain(said)
    replace_file(file, text.encode())


def _plain(said: dict[str, Any]) -> str:
    return "".join(f"{worker['url']}\n" for worker in said["workers"])


def routable_at(watch: FleetWatch) -> Callable[..., Awaitable[Response]]:
    """Return what answers who is routable, as JSON or a line each."""

    async def routable(request: Request, _commands: object = None) -> Response:
        said = watch.routable()
        if request.headers.get("accept", "").startswith("text/plain"):
            return PlainTextResponse(_plain(said))
        return JSONResponse(said)

    return routable


def routable_app(watch: FleetWatch) -> Starlette:
    """Return the app that says who is routable."""
    return Starlette(routes=[Route(path, routable_at(watch)) for path in ROUTABLE])
