"""The updates of one vLLM server, one at a time, whether its gate is open, and what is said of them.

Theory of operation
-------------------
What runs in an update waits in vLLM's pause (:mod:`.pauses`). A version that is prepared is an update that
waits before its pause, while vLLM serves: it holds its place among updates until it is committed, aborted, or
its lease is over.

A replica of a fleet (``WSM_FLEET``) reads the fleet's target itself: what serves and is not allowed closes
the gate, and an update that is not the fleet's is refused, by its label at first, and by its digest before a
byte of it is loaded.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import msgspec

from wsm.errors import BadInputError, GroupError, RefusedError, WsmError
from wsm.fleet.member import FleetMember
from wsm.labels import checked_version
from wsm.shared_directory import read_ours
from wsm.states.fleet import admits
from wsm.status.facts import STOPPED
from wsm.strategies.files.atomic_file import replace_file
from wsm.typed import Seconds, resolved
from wsm.vllm.api_servers import ApiServers
from wsm.vllm.engine import PREFIX, START
from wsm.vllm.extension import error_value
from wsm.vllm.fanout import EngineRanks, SentVerb, UpdateEnd
from wsm.vllm.options import ServerOptions
from wsm.vllm.pauses import EnginePause, NamedHold, Standing, standing_of
from wsm.vllm.update_journal import GROUP, UpdateJournal
from wsm.vllm.versions import VersionPlace

_NOT_COMMITTED = {
    "aborted": "it was taken back before anything was loaded",
    "lease-over": "its caller did not decide in time; prepare it again, with a longer lease",
}


class UpdateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an update. `path`: a directory below the roots; else `version` is one of the store.

    `in_flight` and what follows is what the native API says of a load in place: ``drain`` is vLLM's ``wait``,
    and of the others only what a vLLM does is taken.
    """

    path: str | None = None
    version: str | None = None
    digest: str | None = None
    mode: Literal["keep", "wait", "abort"] = "keep"
    in_flight: Literal["drain", "abort"] | None = None
    hot: Literal[False] = False
    hot_fallback: Literal["refuse"] = "refuse"
    force: bool = True
    partial: Literal[False] = False
    tags: Annotated[list[Literal["kv_cache", "weights"]], msgspec.Meta(min_length=2)] | None = None
    kv_policy: Literal["drop"] = "drop"
    after: Literal["as-before"] = "as-before"
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=0)] = 0.0
    deadline_s: Seconds = 600.0

    def what(self) -> dict[str, Any]:
        """Return what is asked; when, and in how many steps, makes no other request of it."""
        said = msgspec.structs.asdict(self)
        return {name: said[name] for name in ("path", "version", "digest", "mode", "in_flight", "force")}


class PrepareRequest(UpdateRequest, forbid_unknown_fields=True):
    """The body of a prepare: as of an update that stages beside what serves. `lease_s`: as `deadline_s`."""

    hot: Literal[True] = True  # type: ignore[assignment] # the other of both
    lease_s: Seconds | None = None


class Preparation:
    """A version that every rank has voted for, under a request id, while its caller decides.

    `update`: the task of the update, which ends with its receipt. `lease_s`: seconds from the votes to the
    decision.
    """

    update: asyncio.Task[dict[str, Any]]

    def __init__(self, request_id: str, lease_s: float) -> None:
        self.request_id, self.lease_s = request_id, lease_s
        self._verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._voted = asyncio.Event()
        self._over_s = 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the lease is over; None: no decision is awaited, not yet or not any more."""
        undecided = self._voted.is_set() and not self._verdict.done()
        return max(self._over_s - time.monotonic(), 0.0) if undecided else None

    async def await_votes(self) -> bool:
        """Wait until all ranks have voted; False: the update has ended before."""
        return await _comes_first(self._voted, self.update)

    async def await_commit(self, end: UpdateEnd) -> bool:
        """Say that all ranks have voted, and wait for the decision; if it is no commit, `end` says why."""
        self._over_s = time.monotonic() + self.lease_s
        self._voted.set()
        done, _ = await asyncio.wait({self._verdict}, timeout=self.lease_s)
        self._verdict.cancel()
        if done and self._verdict.result():
            return True
        end.errors.append(error_value(self._not_committed("aborted" if done else "lease-over")))
        return False

    def _not_committed(self, code: str) -> RefusedError:
        return RefusedError(f"{self.request_id} is not committed: {_NOT_COMMITTED[code]}", code=code)

    async def decide(self, *, commit: bool) -> dict[str, Any]:
        """Commit it or take it back, and return the receipt.

        Raises
        ------
        RefusedError
            If it is decided otherwise (``decided-otherwise``), its lease is over (``lease-over``), or not all
            ranks have voted yet (``not-prepared``).
        """
        if commit and not self._voted.is_set():
            refused = self.update.result()["error"] if self.update.done() else None
            if refused is None:
                problem = f"the ranks still prepare {self.request_id}; commit it once that is answered"
                raise RefusedError(problem, code="not-prepared", retryable=True)
            problem = f"{self.request_id} was refused ({refused['code']}: {refused['message']})"
            fix = "prepare it again, under another request id"
            raise RefusedError(f"{problem}; {fix}", code="not-prepared", refused=refused["code"])
        if not self._verdict.done():
            self._verdict.set_result(commit)
        if self._verdict.cancelled():
            raise self._not_committed("lease-over")
        if self._verdict.result() is not commit:
            problem = f"{self.request_id} was decided otherwise; ask for a new update"
            raise RefusedError(problem, code="decided-otherwise")
        return await asyncio.shield(self.update)


class ServerUpdates:
    """What one server knows of its engine. `backend`: by which trainers push, as vLLM was told.

    `servers`: the other API servers of this vLLM, which are told whether the gate is open.
    """

    def __init__(
        self,
        client: Any,
        ranks: EngineRanks,
        options: ServerOptions,
        backend: str,
        *,
        fleet: FleetMember | None,
        servers: ApiServers | None,
    ) -> None:
        self.ranks, self.journal = ranks, UpdateJournal(ranks)
        self.is_open, self.is_updating = True, False
        self.pause = EnginePause(client, ranks)
        self.named_hold = NamedHold(self.pause, ranks, self.require_not_loading, self._serves)
        self._options, self._backend, self._fleet, self._servers = options, backend, fleet, servers
        self._asking = asyncio.Lock()
        self._pushing: asyncio.Task[dict[str, Any]] | None = None
        self._prepared: Preparation | None = None
        self._owed: str | None = None  # what was committed before this start
        self._runs, self._request_id = "an update", ""  # the update that runs, in words

    async def bring_committed(self) -> None:
        """Bring what was committed before this start, or what the fleet allows.

        Raises
        ------
        BadInputError (``bad-record``)
            If the file that should say what was committed does not.
        """
        wanted = await asyncio.to_thread(self._wanted_at_start)
        if wanted is not None:
            with suppress(RefusedError):  # the fleet's target is another by now
                await self.update(wanted, "start")

    def _wanted_at_start(self) -> UpdateRequest | None:
        """Return what must serve, by the fleet or else by the file, if it is not what vLLM was started with.

        Blocks. A version that the file owes is brought by an update, or none serves until one was.
        """
        digest, file = self.ranks.digest, self._options.committed
        if self._fleet is not None:
            target = self._fleet.look()
            if target is None or admits(digest, target):
                return None
            return UpdateRequest(version=target.content.label, digest=target.content.digest)
        if file is None or not Path(file).exists():
            return None
        try:
            wanted = msgspec.json.decode(read_ours(Path(file)), type=resolved(UpdateRequest))
            label = _label(wanted)
        except (msgspec.DecodeError, BadInputError) as error:
            problem = f"{file} does not say what was committed: {error}"
            raise BadInputError(f"{problem}; correct it, or remove it", code="bad-record") from error
        if wanted.digest is not None and wanted.digest == digest:
            return None
        self._owed, self.is_open = label, False
        return wanted

    def _record(self) -> str | None:
        """Store what was committed, for the next start; return why that fails. Blocks."""
        file, ranks = self._options.committed, self.ranks
        if file is None or self._fleet is not None or ranks.place is None:
            return None
        said = {"version": ranks.version, "path": ranks.place.path, "digest": ranks.digest}
        try:
            replace_file(Path(file), msgspec.json.encode(said))
        except OSError as error:
            return f"{file} does not say that it is committed: {error}; a restart brings another version"
        return None

    def require_not_loading(self) -> None:
        """See that no update has paused vLLM itself, or soon does (code ``update-in-progress``)."""
        if self.is_loading:
            raise self._in_progress()

    def _in_progress(self) -> RefusedError:
        left_s = None if self._prepared is None else self._prepared.left_s
        waits = "" if left_s is None else f", and waits for its commit or abort for {left_s:.0f} s more"
        problem = f"{self._runs} runs{waits}; ask again once it has ended"
        named, code = self._request_id, "update-in-progress"
        return RefusedError(problem, code=code, retryable=True, request_id=named, left_s=left_s)

    @property
    def takes_pushes(self) -> bool:
        """Whether vLLM was started with one of its engines under wsm's name."""
        return bool(self._backend.startswith(PREFIX))

    @property
    def is_pushing(self) -> bool:
        """Whether a trainer has begun to push, and its update has not ended."""
        return self._pushing is not None and not self._pushing.done()

    @property
    def is_loading(self) -> bool:
        """Whether an update runs that does not wait for its caller's decision."""
        return self.is_updating and (self._prepared is None or self._prepared.left_s is None)

    async def connect(self, verb: str, given: list[Any]) -> None:
        """Have the ranks' engines meet their trainer, or part with it.

        Raises
        ------
        GroupError
            If one fails in it.
        RefusedError
            If an update runs (``update-in-progress``).
        """
        self.require_idle()
        async with self._asking:
            await self.ranks.connect(verb, given, self._options.push_s)

    async def prepare(self, asked: PrepareRequest, request_id: str) -> dict[str, Any]:
        """Have a version staged and voted for while vLLM serves; return the receipt.

        Raises as :meth:`update`. The same request again is answered as the first.
        """
        prepared = self._prepared
        self.journal.require_same(request_id, asked.what())
        if prepared is None or prepared.request_id != request_id or prepared.update.done():
            lease_s = asked.deadline_s if asked.lease_s is None else asked.lease_s
            prepared = Preparation(request_id, lease_s)
            prepared.update = asyncio.ensure_future(self.update(asked, request_id, prepared=prepared))
        if await prepared.await_votes():
            return self.journal.known(request_id) or {}
        return prepared.update.result()

    async def decide(self, request_id: str | None, *, commit: bool) -> dict[str, Any]:
        """Commit or abort what is prepared, under that request id or, to abort, any; return the receipt.

        Raises
        ------
        RefusedError
            If that is not prepared (``not-prepared``, ``lease-over``), or decided otherwise.
        """
        prepared, known = self._prepared, self.journal.known(request_id) if request_id else None
        if commit and known is not None and known["outcome"] == "committed":
            return known
        if prepared is None or request_id not in (None, prepared.request_id):
            raise RefusedError(f"{request_id or 'nothing'} is not prepared; prepare it", code="not-prepared")
        return await prepared.decide(commit=commit)

    async def push(self, verb: str, given: list[Any], version: str | None = None) -> dict[str, Any] | None:
        """Hand the ranks a trainer's verb; return the receipt once the push has ended, None before.

        Raises
        ------
        RefusedError
            If another update runs (``update-in-progress``); or none has begun (``no-push``).
        """
        pushing, sent = self._pushing, SentVerb(verb, given, version)
        if verb == START:
            self.require_idle()
            self._pushes = asyncio.Queue[SentVerb]()
            asked = UpdateRequest(version="pushed", deadline_s=self._options.push_s)
            update = self.update(asked, uuid.uuid4().hex, pushes=self._pushes)
            self._pushing = pushing = asyncio.create_task(update)
        elif pushing is None or pushing.done():
            raise RefusedError(
                "no push has begun, or it has failed; POST /start_weight_update", code="no-push"
            )
        self._pushes.put_nowait(sent)
        return None if await _comes_first(sent.done, pushing) else pushing.result()

    async def update(
        self,
        asked: UpdateRequest,
        request_id: str,
        *,
        pushes: asyncio.Queue[SentVerb] | None = None,
        prepared: Preparation | None = None,
    ) -> dict[str, Any]:
        """Bring a version, or keep the one before; return the receipt. A request that committed is over.

        `pushes`: what a trainer sends, if it is pushed. `prepared`: what asks the caller, once all ranks have
        voted.

        Raises
        ------
        RefusedError
            If another update runs (``update-in-progress``), it is not the fleet's (``not-the-fleets``), or
            the request id names another request (``request-id-used``).
        """
        ranks, options, known = self.ranks, self._options, self.journal.known(request_id)
        self.journal.require_same(request_id, asked.what())
        if known is not None and known["outcome"] == "committed":
            return known
        label = _label(asked)
        await self._require_the_fleets(label, None)
        self.require_idle(of_push=pushes is not None)
        place = VersionPlace(label, asked.path, options.roots or [], options.store, asked.digest)
        if pushes is not None:
            place = VersionPlace(label, pushed=True, over=self._base())
        self.is_updating, self._prepared, end = True, prepared, UpdateEnd()
        self._request_id = request_id
        self._runs = f"{'a push' if pushes else f'the update to version {label}'} (request {request_id})"
        told: dict[str, Any] = {"request_id": request_id, "version": label, "pushed": pushes is not None}
        told |= {"previous_version": ranks.version, "warning": None}
        told |= {"hot": prepared is not None, "lease_s": prepared and prepared.lease_s}
        digest_before = ranks.digest
        self.journal.begin(request_id, asked.what())
        mode = "wait" if asked.in_flight == "drain" else asked.in_flight or asked.mode
        try:
            async with self._asking:
                may_load, pause = partial(self._may_load, told), partial(self.pause.begin_update, mode)
                await ranks.update(place, may_load, pause, end, deadline_s=asked.deadline_s, pushes=pushes)
                if ranks.serving():
                    told["warning"] = await asyncio.to_thread(self._record)
                    await self.pause.end_update()
        except GroupError as error:
            end.errors.append(error_value(error))
        finally:
            if end.committed:
                self.named_hold.see_committed(ranks.version, other=ranks.digest != digest_before)
            self.is_updating = False
            self._look_whether_open()
        told["version"] = end.version or label
        return self.journal.end(told, end, is_open=self.is_open, serving=self._serves())

    def _look_whether_open(self) -> None:
        self.is_open = self.ranks.serving() and not self._owes
        if self._servers is not None:
            self._servers.say(is_open=self.lets_in())

    @property
    def _owes(self) -> bool:
        return self._owed is not None and self.ranks.place is None

    def require_idle(self, *, of_push: bool = False) -> None:
        """See that no update runs, and no trainer pushes, but that which asks for it (`of_push`).

        Raises
        ------
        RefusedError (``update-in-progress``)
            Else.
        """
        if self.is_updating or (self.is_pushing and not of_push):
            raise self._in_progress()

    def _base(self) -> str | None:
        """Return the content that a push changes; None: it brings all."""
        if not (self._options.partial_pushes or self._backend == f"{PREFIX}sparse_nccl"):
            return None
        self.require_open()
        return self.ranks.digest or ""

    async def _may_load(self, told: dict[str, Any], end: UpdateEnd) -> bool:
        if self._prepared is not None:
            self.journal.receipt(told, end, "prepared", is_open=self.is_open, serving=self._serves())
            if not await self._prepared.await_commit(end):
                return False
        try:
            await self._require_the_fleets(end.votes[0]["version"], end.votes[0]["digest"])
        except RefusedError as error:
            end.errors.append(error_value(error))
        return not end.errors

    async def _require_the_fleets(self, label: str, digest: str | None) -> None:
        if self._fleet is not None:
            await asyncio.to_thread(self._fleet.require_own, label, digest)

    def require_open(self) -> None:
        """See that requests may reach what serves.

        Raises
        ------
        RefusedError
            If no whole version is proved (``weights-not-whole``), or the fleet does not allow it
            (``fleet-stale``).
        """
        if self.is_open:
            if self._fleet is not None:
                self._fleet.require_admitted(GROUP, self.ranks.digest)
            return
        fault, failures = (
            self.ranks.fault,
            [each["errors"] for each in self.journal.receipts if "error" in each],
        )
        found = [error_value(fault)] if fault else failures[-1] if failures else []
        names = [[f"{name} {each[name]}, " for name in ("rank", "tensor") if name in each] for each in found]
        why = ["".join([*where, each["message"]]) for where, each in zip(names, found, strict=True)]
        todo = "Update to a whole version, which opens the gate, or restart vLLM."
        what = "No whole version is proved"
        if self._owes:
            what = f"Version {self._owed} was committed before this start, and is not brought"
        text = f"{what}, and nothing is served. {'; '.join(why)}. {todo}"
        raise RefusedError(text, code="weights-not-whole", errors=found)

    def lets_in(self) -> bool:
        """Whether requests may reach what serves."""
        return self.standing().open

    def _serves(self) -> bool:
        return self.standing().serving

    async def look(self) -> None:
        """Look whether vLLM is paused, or dead."""
        await self.pause.look()
        self.is_open = self.is_open and self.ranks.fault is None

    def standing(self) -> Standing:
        """Say what serves, and if nothing does, why, and what to do; the engine as it was seen last."""
        closed, pause = None, self.pause
        try:
            self.require_open()
        except RefusedError as error:
            closed = error
        serves = f"Version {self.ranks.version}, whole on {self.ranks.ranks} ranks,"
        loads = self._runs if pause.is_an_updates else None
        hold = self.named_hold.hold
        return standing_of(serves, closed=closed, loads=loads, hold=hold, is_paused=pause.is_seen)

    def collect(self) -> list[Any]:
        """Return the families of a scrape, as ``prometheus_client`` asks a collector."""
        return self.journal.families(self.standing().hold, loads=self.pause.is_an_updates)

    async def status(self) -> dict[str, Any]:
        """Say where each rank is; the ranks are asked, unless an update runs."""
        ranks = self.ranks
        if not self.is_updating:
            async with self._asking:
                with suppress(WsmError):  # said by explain
                    await ranks.look()
                self._look_whether_open()
        await self.look()
        prepared, left_s = self._prepared, self._prepared and self._prepared.left_s
        hold = self.named_hold.hold
        step = prepared.request_id if prepared and left_s is not None else None
        standing = self._fleet and partial(
            self._fleet.standing, ranks.digest, serving=self.is_open, step=step
        )
        fleet = standing and msgspec.to_builtins(await asyncio.to_thread(standing))
        stopped = ranks.stopped
        said = self.standing()  # by the target that was read now
        return {
            "request_id": step,
            "decision_left_s": left_s,
            "fleet": fleet,
            "name": GROUP,
            "headline": said.text,
            "serving": said.serving,
            "hold": hold and hold.facts(),
            "over": not self.pause.is_an_updates,
            "manifest_digest": ranks.digest if self.is_open else None,
            "open": said.open,
            "updating": self.is_updating,
            "version": ranks.version if self.is_open else None,
            "restorable": ranks.is_restorable,
            "memory": {"bytes": self._options.memory_bytes, "keep_previous": self._options.keep_previous},
            "paused": self.pause.is_an_updates or self.pause.is_seen,
            "ranks": [
                each | ({"life": STOPPED} if rank in stopped else {})
                for rank, each in enumerate(ranks.answers)
            ],
        }


def _label(asked: UpdateRequest) -> str:
    if asked.path is None and asked.version is None:
        raise BadInputError("an update needs a path, or a version of the store", code="no-place")
    return checked_version(asked.version or PurePath(asked.path or "").name)


async def _comes_first(event: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Wait for an event, or the end of the task that would set it; return whether the task goes on."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return not task.done()
