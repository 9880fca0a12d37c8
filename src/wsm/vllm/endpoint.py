"""The endpoint plugin of vLLM's API server: updates, and what is said of them.

Theory of operation
-------------------
One update at a time; what runs in it waits in vLLM's pause. A pause that another has given is given back as
it was.

A replica of a fleet (``WSM_FLEET``) reads the fleet's target itself: what serves and is not allowed closes
the gate, and an update that is not the fleet's is refused, by its label at first, and by its digest before a
byte of it is loaded.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import uuid
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import msgspec
from starlette.types import ASGIApp

from wsm.errors import BadInputError, GroupError, RefusedError, WsmError, described
from wsm.fleet.member import FleetMember
from wsm.labels import checked_version
from wsm.shared_directory import read_ours
from wsm.states.fleet import admits
from wsm.strategies.files.atomic_file import replace_file
from wsm.vllm.api_servers import ApiServers
from wsm.vllm.engine import PREFIX, START
from wsm.vllm.extension import error_value
from wsm.vllm.fanout import EngineRanks, SentVerb, UpdateEnd
from wsm.vllm.gate import Gate
from wsm.vllm.named_hold import NamedHold
from wsm.vllm.preparation import Preparation, comes_first
from wsm.vllm.update_journal import GROUP, UpdateJournal
from wsm.vllm.verbs import PrepareRequest, UpdateRequest
from wsm.vllm.versions import EngineTerms, VersionPlace

#: Releases of vLLM that this is tested with.
SUPPORTED = ("0.31.", "0.32.")


class ServerOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What ``--additional-config '{"wsm": {...}}'`` says.

    `roots`: below which versions may lie; without it, the directory that the model lies in. `store`: where
    they are published. `version`: what vLLM was started with; else the name of its directory. `answer_s`:
    in which the ranks answer whatever they are asked; they do between two steps. `memory_bytes`,
    `keep_previous`, `fingerprints`: as :class:`.EngineTerms`. `committed`: the file that says what was
    committed last, as the body of an update. `push_s`: seconds for each verb of a trainer that pushes, and
    between two. `partial_pushes`: whether it may push a part of the tensors.
    """

    roots: list[str] | None = None
    store: str | None = None
    version: str | None = None
    answer_s: float = 60.0
    memory_bytes: int | None = None
    keep_previous: bool = False
    fingerprints: bool = False
    committed: str | None = None
    push_s: float = 300.0
    partial_pushes: bool = False


class EndpointPlugin:
    """What vLLM makes of the entry point, once in its API server."""

    #: Since vLLM has started its engine; it listens only then.
    ranks: EngineRanks
    journal: UpdateJournal
    client: Any
    _options: ServerOptions
    _fleet: FleetMember | None = None
    #: The API server that has all this, where this process is another one.
    first: ASGIApp | None = None
    _servers: ApiServers | None = None
    name = "wsm"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.is_open, self.is_updating = True, False
        self._asking = asyncio.Lock()
        self._pushing: asyncio.Task[dict[str, Any]] | None = None
        self._holds, self._was_paused = False, False
        self.named_hold = NamedHold(self)
        self._prepared: Preparation | None = None
        self._owed: str | None = None  # what was committed before this start
        self._recorded: str | None = None

    def attach_router(self, app: Any) -> None:
        """Put the gate before vLLM's app."""
        self._app = app
        app.add_middleware(Gate, plugin=self)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Say hello to the workers, and bring what was committed; vLLM listens only behind it.

        Raises
        ------
        WsmError
            If this build or command line of vLLM is none that wsm knows, or the file that should say what was
            committed does not; vLLM does not start.
        """
        del state
        _require_known(args)
        said = (args.additional_config or {}).get("wsm", {})
        self._options = options = msgspec.convert(said, ServerOptions)
        self.keys = [key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key]
        self.client, config = engine_client, engine_client.vllm_config
        parallel = config.parallel_config
        if parallel._api_process_count > 1:
            self._servers = ApiServers()
            if parallel._api_process_rank > 0:
                self.first = await self._servers.first()
                return
        self._backend = getattr(config.weight_transfer_config, "backend", "")
        model = PurePath(os.getcwd(), config.model_config.model)  # noqa: PTH109 - nothing is read here
        # A cache of Hugging Face links the files of a snapshot to those beside it.
        around = [str(model.parent.parent)] if model.parent.name == "snapshots" else []
        options.roots = options.roots or [str(each) for each in [model.parent] if each.name]
        version = checked_version(options.version or model.name)
        server, world_size = f"{os.getpid()}-{secrets.token_hex(4)}", parallel.world_size
        self.ranks = EngineRanks(self._call, world_size, server, answer_s=options.answer_s)
        self.journal = UpdateJournal(self.ranks)
        first = VersionPlace(version, str(model), [str(model), *around])
        terms = EngineTerms(options.memory_bytes, options.keep_previous, options.fingerprints)
        await self.ranks.hello(first, terms)
        if store := os.environ.get("WSM_FLEET"):
            self._fleet, options.store = FleetMember(Path(store)), options.store or store
        wanted = await asyncio.to_thread(self._wanted_at_start)
        if wanted is not None:
            with suppress(RefusedError):  # the fleet's target is another by now
                await self.update(wanted, "start")
        await engine_client.update_weight_version(self.ranks.version)
        if self._servers is not None:
            leading = self._servers.lead(Gate(self._app, self), self.lets_in)
            self._leading = asyncio.create_task(leading)

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
            wanted = msgspec.json.decode(read_ours(Path(file)), type=UpdateRequest)
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
        if file is None or self._fleet is not None or ranks.place is None or ranks.digest == self._recorded:
            return None
        said = {"version": ranks.version, "path": ranks.place.path, "digest": ranks.digest}
        try:
            replace_file(Path(file), msgspec.json.encode(said))
        except OSError as error:
            return f"{file} does not say that it is committed: {error}; a restart brings another version"
        self._recorded = ranks.digest
        return None

    async def _call(self, question: dict[str, Any]) -> list[Any]:
        return list(await self.client.collective_rpc("wsm_answer", args=(question,)))

    async def _pause(self, mode: str) -> None:
        if not self._holds:
            self._was_paused, self._holds = await self._of_engine(self.client.is_paused()), True
        await self._of_engine(self.client.pause_generation(mode=mode, clear_cache=True))

    async def is_paused(self) -> bool:
        """Whether somebody else than an update has paused vLLM."""
        return self._was_paused if self._holds else bool(await self._of_engine(self.client.is_paused()))

    async def pause(self, mode: str) -> None:
        """Pause vLLM until :meth:`resume`, updates or not.

        Raises
        ------
        RefusedError (``update-in-progress``)
            If an update loads.
        """
        self.require_not_loading()
        self._was_paused = True  # where nothing serves, it is paused as it is
        if not self._holds:
            await self._of_engine(self.client.pause_generation(mode=mode, clear_cache=False))

    async def resume(self) -> None:
        """Resume vLLM, or let the update do so that loads, or that ends well at last."""
        self._was_paused = False
        if not self._holds:
            await self._of_engine(self.client.resume_generation())

    def require_not_loading(self) -> None:
        """See that no update has paused vLLM itself, or soon does (code ``update-in-progress``)."""
        if self.is_loading:
            raise RefusedError("an update runs, and resumes the engine itself", code="update-in-progress")

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
        return None if await comes_first(sent.done, pushing) else pushing.result()

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
            If another update runs (``update-in-progress``), or it is not the fleet's (``not-the-fleets``).
        """
        ranks, options, known = self.ranks, self._options, self.journal.known(request_id)
        if known is not None and known["outcome"] == "committed":
            return known
        label, warning = _label(asked), None
        await self._require_the_fleets(label, None)
        self.require_idle(of_push=pushes is not None)
        place = VersionPlace(label, asked.path, options.roots or [], options.store, asked.digest)
        if pushes is not None:
            place = VersionPlace(label, pushed=True, over=self._base())
        self.is_updating, self._prepared, end = True, prepared, UpdateEnd()
        told: dict[str, Any] = {"request_id": request_id, "version": label, "pushed": pushes is not None}
        told |= {"previous_version": ranks.version, "warning": None}
        digest_before = ranks.digest
        if prepared is not None:
            told |= {"hot": True, "lease_s": prepared.lease_s}
        self.journal.begin(request_id)
        mode = "wait" if asked.in_flight == "drain" else asked.in_flight or asked.mode
        try:
            async with self._asking:
                may_load, pause = partial(self._may_load, told), partial(self._pause, mode)
                late_s = asked.deadline_s
                await ranks.update(place, may_load, pause, end, pushes=pushes, deadline_s=late_s)
                if ranks.serving():
                    warning = await asyncio.to_thread(self._record)
                    await self._go_on()
        except GroupError as error:
            end.errors.append(error_value(error))
        finally:
            if end.committed:
                self.named_hold.see_committed(ranks.version, other=ranks.digest != digest_before)
            self.is_updating = False
            self._look_whether_open()
        told |= {"version": end.version or label, "warning": warning}
        return self.journal.end(told, end, is_open=self.is_open)

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
            raise RefusedError("another update runs; ask again once it has ended", code="update-in-progress")

    def _base(self) -> str | None:
        """Return the content that a push changes; None: it brings all."""
        if not (self._options.partial_pushes or self._backend == f"{PREFIX}sparse_nccl"):
            return None
        self.require_open()
        return self.ranks.digest or ""

    async def _go_on(self) -> None:
        if not self._holds:
            return
        await self._of_engine(self.client.update_weight_version(self.ranks.version))
        if not self._was_paused:
            await self._of_engine(self.client.resume_generation())
        self._holds = False

    async def _of_engine(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except Exception as error:
            raise self.ranks.lost("engine-lost", described(error)) from error

    async def _may_load(self, told: dict[str, Any], end: UpdateEnd) -> bool:
        if self._prepared is not None:
            self.journal.receipt(told, end, "prepared", is_open=self.is_open)
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
        if self.first is not None and self._servers is not None:
            return self._servers.is_open
        return bool(self.explain()["open"])

    def explain(self) -> dict[str, Any]:
        """Say what serves, and if nothing does, why, and what to do."""
        try:
            self.require_open()
        except RefusedError as error:
            return {"open": False, "text": str(error), "errors": error.context.get("errors", [])}
        text = f"Version {self.ranks.version} serves, whole on {self.ranks.ranks} ranks."
        return {"open": True, "text": text, "errors": []}

    def collect(self) -> list[Any]:
        """Return the families of a scrape, as ``prometheus_client`` asks a collector."""
        said = self.explain()
        return self.journal.families(None if said["open"] else said["text"])

    async def status(self) -> dict[str, Any]:
        """Say where each rank is; the ranks are asked, unless an update runs."""
        ranks = self.ranks
        if not self.is_updating:
            async with self._asking:
                with suppress(WsmError):  # said by explain
                    await ranks.look()
                self._look_whether_open()
        prepared, left_s = self._prepared, self._prepared and self._prepared.left_s
        hold = self.named_hold.hold
        step = prepared.request_id if prepared and left_s is not None else None
        standing = self._fleet and partial(
            self._fleet.standing, ranks.digest, serving=self.is_open, step=step
        )
        return {
            "request_id": step,
            "decision_left_s": left_s,
            "fleet": standing and msgspec.to_builtins(await asyncio.to_thread(standing)),
            "name": GROUP,
            "serving": self.is_open and hold is None,
            "hold": hold and hold.facts(),
            "over": not self._holds,
            "manifest_digest": ranks.digest if self.is_open else None,
            "open": self.explain()["open"],
            "updating": self.is_updating,
            "version": ranks.version if self.is_open else None,
            "restorable": ranks.is_restorable,
            "memory": {"bytes": self._options.memory_bytes, "keep_previous": self._options.keep_previous},
            "paused": self._holds,
            "ranks": ranks.answers,
        }


def _label(asked: UpdateRequest) -> str:
    if asked.path is None and asked.version is None:
        raise BadInputError("an update needs a path, or a version of the store", code="no-place")
    return checked_version(asked.version or PurePath(asked.path or "").name)


def _require_known(args: Any) -> None:
    version = importlib.import_module("vllm").__version__
    known = ", ".join(f"{release}*" for release in SUPPORTED)
    problems = {
        f"vLLM is {version}, and wsm knows {known}": not version.startswith(SUPPORTED),
        "--worker-extension-cls wsm.vllm.Worker is missing": not args.worker_extension_cls,
        "--data-parallel-size is more than 1": (args.data_parallel_size or 1) > 1,
        "--grpc has no gate": getattr(args, "grpc", False),
    }
    found = [problem for problem, there in problems.items() if there]
    if found:
        raise RefusedError(f"wsm cannot keep this vLLM whole: {'; '.join(found)}", code="unsupported-vllm")
