"""One request to a verb of a surface, and what all verbs come down to: a few commands of a group.

What outlives the server is kept with the ends of requests: which directory was pulled, and the update in
parts that a trainer has begun, for as long as the lease of what it prepares. So a server that is started
again between two parts goes on with them. Where that is lost, the end is refused, and decides nothing.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import httpx
import msgspec
from msgspec import structs
from starlette.requests import Request

from wsm.errors import GroupError, RefusedError, WsmError
from wsm.http import errors
from wsm.http.answers import status_of
from wsm.http.commands import AdoptedDirectory, Commands, Origin
from wsm.http.surface import SurfaceOptions
from wsm.http.upstream import passed_on
from wsm.receipt import Outcome, Receipt
from wsm.states.holding import ClosedBy
from wsm.states.vocabulary import (
    ALL_TAGS,
    After,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    KVState,
    OnLease,
    Tag,
)
from wsm.status import GroupStatus
from wsm.strategies.adopt.record import asked_label
from wsm.typed import resolved

#: Seconds after which a group serves again that stood still only to have its KV cache flushed.
_FLUSH_LEASE_S = 30.0

#: Statuses of an engine that has no such verb.
_NO_SUCH_VERB = (404, 405, 501)

#: What is kept: under a surface the update in parts that it has begun; under the directory that a pulled one
#: is called by, what was asked for, and what was adopted.
_BEGUN, _PULLED = "begun", "pulled"

#: Seconds between two looks at whether a flush is over.
_LOOK_S = 0.01

#: What trainers call the two halves; what lives and dies with either has no tag of its own here.
_TAGS = {
    "weight": {Tag.WEIGHTS},
    "weights": {Tag.WEIGHTS},
    "kv_cache": {Tag.KV_CACHE},
    "cuda_graph": set[Tag](),
}

#: SGLang's and vLLM's words for a pause. ``retract`` computes what is kept anew after it.
PauseMode: TypeAlias = Literal["abort", "wait", "keep", "in_place", "retract"]
_PAUSES = {
    "abort": (InFlightPolicy.ABORT, KVPolicy.DROP),
    "wait": (InFlightPolicy.DRAIN, KVPolicy.DROP),
    "keep": (InFlightPolicy.KEEP, KVPolicy.DROP),
    "in_place": (InFlightPolicy.KEEP, KVPolicy.KEEP),
    "retract": (InFlightPolicy.KEEP, KVPolicy.DROP),
}


def tags_of(words: Iterable[str] | None) -> frozenset[Tag]:
    """Return the tags that a trainer names, one by one or joined by commas; None, or none at all: both.

    ``cuda_graph`` alone names nothing: captured graphs go and come with weights and KV cache.

    Raises
    ------
    BadInputError
        If a word names no half of a group.
    """
    words = [words] if isinstance(words, str) else words or ()
    named = [word.strip() for each in words for word in each.split(",") if word.strip()]
    for word in named:
        if word not in _TAGS:
            problem = f"{word!r} is no tag; tags are {', '.join(sorted(_TAGS))}"
            raise errors.bad_body(field="tags", problem=problem)
    return frozenset[Tag]().union(*(_TAGS[word] for word in named)) if named else ALL_TAGS


def missing_of(status: GroupStatus) -> frozenset[Tag]:
    """Return what a group lacks that a step needs."""
    return frozenset(tag for rank in status.ranks for tag in rank.resident.missing)


class UpdateInParts(msgspec.Struct):
    """An update in parts, as far as it is: begun, then prepared under a request id, for a time.

    `until` is on the monotonic clock of the host, whose boot no group of a run id outlives.
    """

    until: float
    run_id: str
    prepared: str | None = None
    source: str | None = None
    asked: str | None = None
    receipt: Receipt | None = None


@dataclass
class ServedSurface:
    """One surface of one server: what its requests share.

    `pauses`, `resumes`: the paths by which an engine behind this server has its scheduler paused and resumed.
    `reads_answers`: whether its trainers read that an update failed; then one that touched nothing closes
    nothing.
    """

    name: str
    options: SurfaceOptions
    pauses: str
    resumes: str
    reads_answers: bool
    pausing: int = 0
    flushing: bool = False


@final
class Call:
    """One request to a verb of a surface.

    Attributes
    ----------
    receipt : Receipt or None
        Of the last command that its verb has given; its answer says it, too.
    wait_s : float
        Seconds that its commands wait for another to end.
    """

    def __init__(self, served: ServedSurface, request: Request, commands: Commands) -> None:
        self.served, self.request, self.commands = served, request, commands
        self.surface, self.options = served.name, served.options
        self.path = request.url.path.rstrip("/")
        self.receipt: Receipt | None = None
        self.wait_s = self.options.deadline_s

    def origin(self, part: str = "") -> Origin:
        """Return where a command comes from; of several for one request each has a part of its name."""
        key = self.request.headers.get("idempotency-key")
        return Origin(self.surface, key and f"{key}{part}", self.request.headers.get("traceparent"))

    @property
    def _times(self) -> dict[str, Any]:
        return {"deadline_s": self.options.deadline_s, "wait_s": self.wait_s}

    async def _give(self, operation: str, part: str, **asked: Any) -> Receipt:
        """Give one command of this request, of which its answer will tell."""
        command = getattr(self.commands, operation)
        receipt: Receipt = await command(self.origin(part), **{**self._times, **asked})
        self.receipt = receipt
        return receipt

    # Admission ----------------------------------------------------------------------------------------------

    async def pause(
        self, mode: PauseMode | None = None, *, clear_cache: bool | None = None, part: str = ""
    ) -> Receipt:
        """Hold the group for this surface; again is a success. Without a mode it ends running requests.

        `clear_cache`: whether blocks in the KV cache are forgotten; None: as the mode says.

        A pause begins a step: what an update in parts of this surface has left open is taken back. An
        engine's own scheduler is paused before the ranks stand, by its own handler.
        """
        in_flight, kv_policy = _PAUSES[mode or "abort"]
        if clear_cache is not None:
            kv_policy = KVPolicy.DROP if clear_cache else KVPolicy.KEEP
        await self._take_back()
        await self._no_flush()  # its release must not end what is held here
        self.served.pausing += 1
        try:
            await self._engine_does(self.served.pauses)
            return await self._give("hold", part, in_flight=in_flight, kv_policy=kv_policy)
        finally:
            self.served.pausing -= 1

    async def resume(self, part: str = "") -> Receipt:
        """Release what this surface holds; of an open group it is a success."""
        parts = self.begun()
        if parts is not None and parts.receipt is None:  # its trainer is behind its end, and brought nothing
            await self._remember(None)
        receipt = await self._give("release", part)
        await self.engine_resumes()
        return receipt

    async def engine_resumes(self) -> None:
        """Have an engine's own scheduler go on, once the group does."""
        await self._engine_does(self.served.resumes)

    async def _engine_does(self, path: str) -> None:
        """Have the engine behind this server do its part by its own handler; what it has none of is no fault.

        Raises
        ------
        GroupError
            If it fails (code ``engine-refused``), or does not answer in time.
        """
        engine, request = getattr(self.request.app.state, "rest", None), self.request
        if engine is None or self.options.requests is not None:  # requests for text are this server's
            return
        asked: dict[str, Any] = {"url": path}
        if self.path.endswith(path):  # else it is a step of another verb
            url = f"{path}?{request.url.query}" if request.url.query else path
            asked = {"url": url, "content": await request.body(), "headers": passed_on(request.headers.raw)}
        through = httpx.ASGITransport(engine, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=through, base_url=str(request.base_url)) as client:
            try:
                answer = await asyncio.wait_for(client.post(**asked), self.options.deadline_s)
                done = answer.status_code < 400 or answer.status_code in _NO_SUCH_VERB
                why = f"{answer.status_code} {answer.text[:200]!r}"
            except asyncio.TimeoutError:
                done, why = False, f"no answer within {self.options.deadline_s:g} s"
        if not done:
            message = f"the engine does not do its part, {path}: {why}; see the engine's log, and ask again"
            raise GroupError(message, code="engine-refused", path=path, why=why)

    async def flush(self) -> None:
        """Have no block left in the KV cache that a new request could read.

        Raises
        ------
        RefusedError
            If requests are open whose blocks are in use (code ``not-flushed``).
        """
        await self._no_flush()
        self.served.flushing = True
        try:
            await self._flush()
        finally:
            self.served.flushing = False

    async def _no_flush(self) -> None:
        while self.served.flushing:  # noqa: ASYNC110 - an event belongs to one loop, and this object to none
            await asyncio.sleep(_LOOK_S)

    async def _flush(self) -> None:
        status, requests = await self.commands.status(), self.options.requests
        hold, running = status.hold, 0 if requests is None else sum(await requests.count())
        if hold is not None and hold.kv_policy is KVPolicy.DROP:
            return  # the hold has dropped them, and no step has computed any since
        why, in_use = "", running > 0 if hold is None else hold.in_flight is InFlightPolicy.KEEP
        if in_use:
            why = "requests are open, and their blocks are in use"
        elif self.served.pausing:
            why = "the group is being paused"
        elif not status.serving:
            if all(rank.resident.kv is KVState.CLEARED for rank in status.ranks):
                return
            why = status.headline
        if why:
            message = f"the KV cache is not flushed: {why}; ask again later"
            raise RefusedError(message, code="not-flushed", why=why)
        held = await self.commands.hold(
            self.origin("-hold"),
            in_flight=InFlightPolicy.DRAIN,
            kv_policy=KVPolicy.DROP,
            lease_s=_FLUSH_LEASE_S,
            on_lease=OnLease.SERVE,
        )
        hold_id = None if held.hold is None else held.hold.hold_id
        try:
            await self.commands.release(self.origin("-release"), hold=hold_id)
        except RefusedError as error:
            if error.code != "hold-not-in-force":  # it was continued meanwhile
                raise

    # Memory -------------------------------------------------------------------------------------------------

    async def if_open(self, in_flight: InFlightPolicy) -> InFlightPolicy | None:
        """Return what becomes of requests that run; None: a hold has said that already."""
        return in_flight if (await self.commands.status()).hold is None else None

    async def sleep(self, tags: frozenset[Tag], mode: PauseMode | None = None) -> Receipt:
        """Let the memory of one half or of both go; `mode`: what becomes of requests that no hold has."""
        in_flight = None if mode is None else await self.if_open(_PAUSES[mode][0])
        return await self._give("clear", "-clear", tags=tags, in_flight=in_flight)

    async def wake(
        self, tags: frozenset[Tag], version: str | None, *, force: bool = False, serve: bool = False
    ) -> Receipt | None:
        """Bring back what is missing of the tags; None: nothing was, and nothing was done.

        Parameters
        ----------
        tags : frozenset of Tag
            What is asked for.
        version : str or None
            Of weights that are missing; None: the newest.
        force : bool
            Whether weights are loaded whatever their label has meant before.
        serve : bool
            Whether the hold of this surface ends with it, once nothing is missing any more.
        """
        missing = missing_of(await self.commands.status())
        wanted = tags & missing
        if not wanted:
            return None
        weights = Tag.WEIGHTS in wanted
        serves = serve and wanted == missing and (weights or (await self.commands.hold_now())[0].may_release)
        part = "-announced" if force and version is None else "-update"
        version, force = version if weights else None, force and weights
        after = After.SERVE if serves else After.AS_BEFORE
        return await self._give("update", part, version=version, tags=wanted, force=force, after=after)

    # Weights ------------------------------------------------------------------------------------------------

    async def bringing(self, verb: Callable[[], Awaitable[Any]]) -> Any:
        """Do a verb that brings weights: where it fails, the hold of this surface is closed.

        Else a trainer that looks at no answer, or resumes in a ``finally``, would have the old weights served
        under the new name. A verb that gives no command is refused.
        """
        read, before = False, None
        try:
            await self.request.body()  # raises here where it is not whole
            read, before = True, await self.last_version()
            answer = await verb()
        except Exception as error:
            await self._no_flush()  # whose hold it would close
            if self.served.reads_answers and (not read or await self._has(before)):
                raise
            await self.commands.fail_closed(
                self.origin(),
                verb=self.path,
                reason=error.code if isinstance(error, WsmError) else "internal",
                by=ClosedBy.DELAYED if status_of(error) >= 500 else ClosedBy.FAILED,
                before=before if read else await self.last_version(),
            )
            raise
        if self.receipt is not None and self.begun() is None:  # else it is its end that decides
            await self.commands.reopen(self.surface)
        return answer

    async def _has(self, version: str | None) -> bool:
        """Whether every rank holds the weights of a version."""
        status = await self.commands.status()
        return status.version == version and Tag.WEIGHTS not in missing_of(status)

    async def pull(self, destination: str, directory: str, label: str) -> AdoptedDirectory:
        """Take a directory in now, and remember that `destination` will mean it. Nothing is written there.

        Where that fails, `destination` means no pull before this one either.
        """
        remember = self.commands.kept.remember
        await asyncio.to_thread(remember, _PULLED, destination, None)
        adopted = await self.commands.take_in(self.options.adopt, directory, label)
        await asyncio.to_thread(remember, _PULLED, destination, [directory, label, *adopted])
        return adopted

    async def load(self, directory: str | None, label: str | None, **how: Any) -> Receipt:
        """Update the group to a directory, or to a published label; in an update in parts, prepare it.

        Parameters
        ----------
        directory : str or None
            The trainer's; None: `label` is published already, and None for that is the newest.
        label : str or None
            What the trainer calls it.
        **how
            Further keywords of :meth:`wsm.Controller.update`.
        """
        version, source, warning = label, None, None
        if directory is not None:
            version, source, warning = await self._adopted(directory, label)
        parts = self.begun()
        if parts is not None:
            asked = label or asked_label(version or "")
            self.receipt = await self._prepare(parts, version, source=source, asked=asked)
            return self.receipt
        how = {"version": version, "source": source, "after": After.AS_BEFORE, **how}
        receipt = await self._give("update", "", **how)
        said = [each for each in (receipt.warning, warning) if isinstance(each, str)]
        self.receipt = structs.replace(receipt, warning="; ".join(said) or None)
        return self.receipt

    async def _adopted(self, directory: str, label: str | None) -> AdoptedDirectory:
        pulled = self.commands.kept.note(_PULLED, directory)
        if pulled is None or label not in (None, pulled[1]):
            return await self.commands.take_in(self.options.adopt, directory, label)
        came_from, number, *rest = pulled
        adopted = AdoptedDirectory(*rest)
        stands = self.options.stands
        if stands is None or await asyncio.to_thread(stands, adopted):
            return adopted
        return await self.pull(directory, came_from, number)

    # An update in parts -------------------------------------------------------------------------------------

    def begun(self) -> UpdateInParts | None:
        """Return the one that is begun; None: there is none, or its time or its group is over."""
        try:
            parts = msgspec.convert(self.commands.kept.note(_BEGUN, self.surface), resolved(UpdateInParts))
        except msgspec.ValidationError:
            return None
        over = time.monotonic() >= parts.until or parts.run_id != self.commands.run_id
        return None if over else parts

    async def begin(self) -> None:
        """Begin one; one that this surface began before, and prepared, is taken back."""
        await self._take_back()
        await self._remember(UpdateInParts(self._lease_over(), self.commands.run_id))

    async def _take_back(self) -> None:
        """End what is begun, and abort what is prepared, also of a server before this one."""
        await self._remember(None)
        await self._abort_prepared()

    async def _abort_prepared(self) -> None:
        prepared = await self.commands.prepared_by(self.surface)
        if prepared is not None:
            try:
                await self.commands.abort(self.origin("-abort"), prepared)
            except RefusedError as error:  # decided meanwhile, which is as well
                if error.code not in ("decided-otherwise", "not-prepared"):
                    raise

    async def _prepare(
        self, parts: UpdateInParts, version: str | None, *, source: str | None, asked: str
    ) -> Receipt:
        """Load a version on every rank, and leave the decision to the end; asked again, say so again."""
        if parts.receipt is not None:
            if parts.receipt.version == version:
                return parts.receipt
            held = parts.receipt.version
            todo = "this update is to be finished, or begun anew, before another"
            message = f"version {held} is prepared, and {todo}"
            raise RefusedError(message, code="prepared-already", version=held)
        await self._abort_prepared()  # of a server that was killed before it could remember
        origin = self.origin()
        name = origin.request_id or uuid.uuid4().hex
        receipt = await self.commands.prepare(
            Origin(self.surface, name, origin.traceparent),
            version,
            source=source,
            hot=True,
            hot_fallback=HotFallback.IN_PLACE,
            lease_s=self.options.lease_s,
            **self._times,
        )
        prepared = name if receipt.outcome is Outcome.PREPARED else None
        await self._remember(
            UpdateInParts(self._lease_over(), parts.run_id, prepared, source, asked, receipt)
        )
        return receipt

    async def finish(self, label: str | int | None, *, begin: str) -> Receipt:
        """Decide it: the group serves what it prepared.

        Parameters
        ----------
        label : str or int or None
            What the trainer calls it now; it must be what it was called.
        begin : str
            The verb that begins one, for the refusal.

        Raises
        ------
        RefusedError
            If none is begun, nothing is prepared, or the label is another. What is prepared stays so.
        """
        parts = self.begun()
        if parts is None:
            raise RefusedError(
                f"{self.path} belongs to an update that {begin} begins, and none is begun here; nothing was "
                "changed",
                code="no-update-begun",
                verb=self.path,
            )
        receipt = parts.receipt
        if receipt is None:
            raise RefusedError(
                f"{self.path} has nothing to decide: since the update was begun no weights were accepted, so "
                "the group serves what it did; send them by path first",
                code="nothing-prepared",
                verb=self.path,
            )
        if label is not None and str(label) not in (parts.asked, receipt.version):
            raise _label_differs(str(label), receipt.version)
        try:
            if parts.prepared is not None:
                receipt = await self.commands.commit(self.origin(), parts.prepared, source=parts.source)
            elif (held := (await self.commands.status()).version) != receipt.version:
                raise _label_differs(receipt.version or "", held)  # it was held, and was to be held still
        except WsmError as error:
            if not error.retryable:  # else it is open still, and the caller is told to ask again
                await self._remember(None)
            raise
        await self._remember(None)
        self.receipt = receipt
        return receipt

    async def _remember(self, parts: UpdateInParts | None) -> None:
        receipt = parts and parts.receipt and dict(parts.receipt.to_mapping())
        said = None if parts is None else {**structs.asdict(parts), "receipt": receipt}
        await asyncio.to_thread(self.commands.kept.remember, _BEGUN, self.surface, said)

    def _lease_over(self) -> float:
        return time.monotonic() + self.options.lease_s

    # What is only told --------------------------------------------------------------------------------------

    async def require_label(self, label: str) -> str:
        """Return a label if the group's weights have it, or are what a trainer called so last.

        Raises
        ------
        RefusedError
            If they have another (code ``label-differs``): none is changed without its content.
        """
        held = (await self.commands.status()).version
        if held != self.commands.called(label):
            raise _label_differs(label, held)
        return label

    async def last_version(self) -> str | None:
        """Return the version that the group had whole last; None: it is not known."""
        facts = await self.commands.facts()
        return facts.committed.version or facts.served_version

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return self.options.served_model_name or self.commands.name

    async def is_live(self) -> bool:
        """Whether no process of a rank is known to be stopped or gone."""
        ranks = (await self.commands.status()).ranks
        return bool(ranks) and all(rank.life in ("alive", "unknown") for rank in ranks)

    async def abort(self, ids: Iterable[str] | None) -> tuple[str, ...]:
        """End requests for text, all of them for None; return whose were ended.

        Raises
        ------
        RefusedError
            If this server has no requests (code ``unsupported``).
        """
        if self.options.requests is None:
            raise errors.unsupported(
                verb=self.path,
                reason="the requests are the engine's, and none was given to this server",
                use_instead="a pause with mode abort",
            )
        return tuple(await self.options.requests.abort(None if ids is None else tuple(ids)))


def _label_differs(asked: str, held: str | None) -> RefusedError:
    held_text = "no version" if held is None else f"version {held!r}"
    return RefusedError(
        f"the group has {held_text}, not {asked!r}, and a label is not changed without its content; "
        f"update to {asked!r}",
        code="label-differs",
        asked=asked,
        held=held,
    )
