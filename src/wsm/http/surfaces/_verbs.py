"""What the verbs of all surfaces come down to: a few commands of a group, given for one surface.

One object per surface and server. What outlives the server is kept with the ends of requests: the update in
parts that a trainer has begun (:mod:`._parts`), and which directory was pulled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar, final

import httpx
import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.types import ASGIApp

from wsm import log
from wsm.errors import RefusedError, WsmError
from wsm.http import errors as http_errors
from wsm.http.answers import HttpAnswer, receipt_headers, status_of
from wsm.http.bodies import Label, as_struct, object_of, without_nulls
from wsm.http.commands import AdoptedDirectory, Commands, Origin
from wsm.http.surface import Handler
from wsm.http.surfaces import errors
from wsm.http.surfaces._parts import UpdateInParts
from wsm.http.surfaces._pausing import Flush, Pause, flush_of
from wsm.http.surfaces._refusals import Refusal
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.receipt import Receipt
from wsm.states.holding import ClosedBy
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy, KVState, OnLease, Tag
from wsm.status import GroupStatus
from wsm.strategies.adopt.record import asked_label

_Body = TypeVar("_Body", bound=msgspec.Struct)

#: Seconds after which a group serves again that stood still only to have its KV cache flushed.
_FLUSH_LEASE_S = 30.0

#: Headers that an engine's handler gets of its own.
_OF_THE_CONNECTION = (b"host", b"content-length", b"transfer-encoding", b"connection", b"expect")

#: Statuses of an engine that has no such verb.
_NO_SUCH_VERB = (404, 405, 501)

#: What is kept under the directory that a pulled one is called by: what was asked for, and what was adopted.
_PULLED = "pulled"

#: Seconds between two looks at whether a flush is over.
_LOOK_S = 0.01


class FinishBody(msgspec.Struct):
    """Of the end of an update in parts."""

    weight_version: Label | None = None


class RelabelBody(msgspec.Struct):
    """Of ``/update_weight_version``."""

    new_version: Label


def told(status: int, body: Mapping[str, Any], receipt: Receipt | None = None) -> HttpAnswer:
    """Return an answer that says what the receipt does, too, where an object can carry it."""
    if receipt is None:
        return HttpAnswer(status, dict(body))
    said = {
        "request_id": receipt.request_id,
        "outcome": receipt.outcome.value,
        "version": receipt.version,
        "manifest_digest": receipt.manifest_digest,
        "serving": receipt.serving,
        "sentence": receipt.sentence(),
        "warning": receipt.warning,
    }
    return HttpAnswer(status, {**body, "wsm": said}, receipt_headers(receipt))


def missing_of(status: GroupStatus) -> frozenset[Tag]:
    """Return what a group lacks that a step needs."""
    return frozenset(tag for rank in status.ranks for tag in rank.resident.missing)


def all_live(status: GroupStatus) -> bool:
    """Whether no process of a rank is known to be stopped or gone."""
    return bool(status.ranks) and all(rank.life in ("alive", "unknown") for rank in status.ranks)


@final
class Verbs:
    """The commands of one surface.

    Parameters
    ----------
    surface : str
        Its name: the owner of its holds.
    options : SurfaceOptions
        What is configured.
    pauses, resumes : str
        The paths by which an engine behind this server has its scheduler paused and resumed.
    unsupported_status : int
        The status of a verb that cannot be honoured, unless the options say another.
    reads_answers : bool
        Whether its trainers read that an update failed: then one that touched nothing closes nothing.
    """

    def __init__(
        self,
        surface: str,
        options: SurfaceOptions,
        *,
        pauses: str,
        resumes: str,
        unsupported_status: int = 501,
        reads_answers: bool = False,
    ) -> None:
        self.surface = surface
        self.options = options
        self._engine_pauses, self._engine_resumes = pauses, resumes
        self._unsupported_status = options.unsupported_status or unsupported_status
        self._reads_answers = reads_answers
        self._pausing = 0
        self._flushing = False
        self.parts = UpdateInParts(surface, options, self.origin)

    def origin(self, request: Request, part: str = "") -> Origin:
        """Return where a command comes from; of several for one request each has a part of its name."""
        key = request.headers.get("idempotency-key")
        return Origin(self.surface, key and f"{key}{part}", request.headers.get("traceparent"))

    # Admission ----------------------------------------------------------------------------------------------

    async def pause(self, request: Request, commands: Commands, pause: Pause, part: str = "") -> Receipt:
        """Hold the group for this surface; again is a success.

        A pause begins a step: what an update in parts of this surface has left open is taken back. An
        engine's own scheduler is paused before the ranks stand, by its own handler.
        """
        await self.parts.take_back(request, commands)
        await self._no_flush()  # its release must not end what is held here
        self._pausing += 1
        try:
            await self.engine_does(request, self._engine_pauses)
            return await commands.hold(
                self.origin(request, part),
                in_flight=pause.in_flight,
                kv_policy=pause.kv_policy,
                deadline_s=self.options.deadline_s,
            )
        finally:
            self._pausing -= 1

    async def resume(self, request: Request, commands: Commands, part: str = "") -> Receipt:
        """Release what this surface holds; of an open group it is a success."""
        await self.parts.forget_unless_prepared(commands)  # its trainer is behind its end
        receipt = await commands.release(self.origin(request, part), deadline_s=self.options.deadline_s)
        await self.engine_resumes(request)
        return receipt

    async def engine_resumes(self, request: Request) -> None:
        """Have an engine's own scheduler go on, once the group does."""
        await self.engine_does(request, self._engine_resumes)

    async def engine_does(self, request: Request, path: str) -> None:
        """Have the engine behind this server do its part by its own handler; what it has none of is no fault.

        Raises
        ------
        GroupError
            If it fails (code ``engine-refused``), or does not answer in time.
        """
        engine = self.behind(request)
        if engine is None:
            return
        own = request.url.path.rstrip("/").endswith(path)  # else it is a step of another verb
        headers = [each for each in request.headers.raw if own and each[0] not in _OF_THE_CONNECTION]
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(engine, raise_app_exceptions=False),
            base_url=str(request.base_url),
            timeout=None,  # noqa: S113 - the wait has its own
        )
        async with client:
            asking = client.post(
                f"{path}?{request.url.query}" if own and request.url.query else path,
                content=await request.body() if own else b"",
                headers=headers,
            )
            try:
                answer = await asyncio.wait_for(asking, self.options.deadline_s)
            except asyncio.TimeoutError:
                why = f"no answer within {self.options.deadline_s:g} s"
                raise errors.engine_refused(path=path, why=why) from None
        if answer.status_code >= 400 and answer.status_code not in _NO_SUCH_VERB:
            raise errors.engine_refused(path=path, why=f"{answer.status_code} {answer.text[:200]!r}")

    async def flush(self, request: Request, commands: Commands) -> None:
        """Have no block left in the KV cache that a new request could read.

        Raises
        ------
        RefusedError
            If requests are open whose blocks are in use (code ``not-flushed``).
        """
        await self._no_flush()
        self._flushing = True
        try:
            await self._flush(request, commands)
        finally:
            self._flushing = False

    async def _no_flush(self) -> None:
        while self._flushing:  # noqa: ASYNC110 - an event belongs to one loop, and this object to none
            await asyncio.sleep(_LOOK_S)

    async def _flush(self, request: Request, commands: Commands) -> None:
        status = await commands.status()
        running = None if self.options.requests is None else sum(await self.options.requests.count())
        answer = flush_of(status.hold, requests_open=running)
        if answer is Flush.FLUSHED:
            return
        if answer is Flush.REQUESTS_OPEN:
            raise errors.not_flushed(why="requests are open, and their blocks are in use")
        if self._pausing:
            raise errors.not_flushed(why="the group is being paused")
        if not status.serving:
            if all(rank.resident.kv is KVState.CLEARED for rank in status.ranks):
                return
            raise errors.not_flushed(why=status.headline)
        held = await commands.hold(
            self.origin(request, "-hold"),
            in_flight=InFlightPolicy.DRAIN,
            kv_policy=KVPolicy.DROP,
            lease_s=_FLUSH_LEASE_S,
            on_lease=OnLease.SERVE,
        )
        hold_id = None if held.hold is None else held.hold.hold_id
        try:
            await commands.release(self.origin(request, "-release"), hold=hold_id)
        except RefusedError as error:
            if error.code != "hold-not-in-force":  # it was continued meanwhile
                raise

    # Memory -------------------------------------------------------------------------------------------------

    async def sleep(
        self,
        request: Request,
        commands: Commands,
        tags: frozenset[Tag],
        in_flight: InFlightPolicy | None = None,
        *,
        wait_s: float | None = None,
    ) -> Receipt:
        """Let the memory of one half or of both go."""
        return await commands.clear(
            self.origin(request, "-clear"),
            tags=tags,
            in_flight=in_flight,
            deadline_s=self.options.deadline_s,
            wait_s=self.options.deadline_s if wait_s is None else wait_s,
        )

    async def wake(
        self,
        request: Request,
        commands: Commands,
        tags: frozenset[Tag],
        *,
        version: str | None,
        serve: bool,
        wait_s: float | None = None,
        force: bool = False,
        part: str = "-update",
    ) -> Receipt | None:
        """Bring back what is missing of the tags; None: nothing was, and nothing was done.

        Parameters
        ----------
        request, commands
            As every verb.
        tags : frozenset of Tag
            What is asked for.
        version : str or None
            Of weights that are missing; None: the newest.
        serve : bool
            Whether the hold of this surface ends with it, once nothing is missing any more.
        wait_s : float or None
            Seconds to wait for another command to end; None: as long as the deadline.
        force : bool
            Whether weights are loaded whatever their label has meant before.
        part : str
            The command's part of the request's name.
        """
        missing = missing_of(await commands.status())
        wanted = tags & missing
        if not wanted:
            return None
        now, _ = await commands.hold_now()
        serves = serve and wanted == missing and (Tag.WEIGHTS in wanted or now.may_release)
        return await commands.update(
            self.origin(request, part),
            version if Tag.WEIGHTS in wanted else None,
            tags=wanted,
            force=force and Tag.WEIGHTS in wanted,
            after=After.SERVE if serves else After.AS_BEFORE,
            deadline_s=self.options.deadline_s,
            wait_s=self.options.deadline_s if wait_s is None else wait_s,
        )

    # Weights ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def bringing(self, request: Request, commands: Commands) -> AsyncIterator[None]:
        """Do a verb that brings weights: where it fails, the hold of this surface is closed.

        Else a trainer that looks at no answer, or resumes in a ``finally``, would have the old weights served
        under the new name.
        """
        before: str | None = None
        read = False
        try:
            await request.body()  # raises here where it is not whole
            read, before = True, await self.last_version(commands)
            yield
        except Exception as error:
            await self._no_flush()  # whose hold it would close
            if self._reads_answers and (not read or await self._has(commands, before)):
                raise
            await commands.fail_closed(
                self.origin(request),
                verb=request.url.path,
                reason=error.code if isinstance(error, WsmError) else "internal",
                by=ClosedBy.DELAYED if status_of(error) >= 500 else ClosedBy.FAILED,
                before=before if read else await self.last_version(commands),
            )
            raise
        if not self.parts.begun(commands):  # else it is its end that decides
            await commands.reopen(self.surface)

    async def _has(self, commands: Commands, version: str | None) -> bool:
        """Whether every rank holds the weights of a version."""
        status = await commands.status()
        return status.version == version and Tag.WEIGHTS not in missing_of(status)

    async def pull(
        self, commands: Commands, destination: str, directory: str, label: str
    ) -> AdoptedDirectory:
        """Take a directory in now, and remember that `destination` will mean it. Nothing is written there.

        Where that fails, `destination` means no pull before this one either.
        """
        await asyncio.to_thread(commands.kept.remember, _PULLED, destination, None)
        adopted = await self._adopt(commands, directory, label)
        await asyncio.to_thread(commands.kept.remember, _PULLED, destination, [directory, label, *adopted])
        return adopted

    async def load(
        self,
        request: Request,
        commands: Commands,
        *,
        directory: str | None,
        label: str | None,
        abort_requests: bool = False,
        drains: bool = False,
        keep_paused: bool = False,
        **loading: Any,
    ) -> Receipt:
        """Update the group to a directory, or to a published label; in an update in parts, prepare it.

        Parameters
        ----------
        request, commands
            As every verb.
        directory : str or None
            The trainer's; None: `label` is published already, and None for that is the newest.
        label : str or None
            What the trainer calls it.
        abort_requests : bool
            Whether running requests are ended, also those that a hold has set aside.
        drains : bool
            Whether they are waited for otherwise, where the group is not held.
        keep_paused : bool
            Whether the group is held behind the update.
        **loading
            Further keywords of :meth:`wsm.Controller.update`.
        """
        version, source, warning = label, None, None
        if directory is not None:
            version, source, warning = await self._adopted(commands, directory, label)
        if self.parts.begun(commands):
            return await self.parts.prepare(
                request, commands, version, source=source, asked=label or asked_label(version or "")
            )
        in_flight = InFlightPolicy.ABORT if abort_requests else None
        if drains and in_flight is None and (await commands.status()).hold is None:
            in_flight = InFlightPolicy.DRAIN
        receipt = await commands.update(
            self.origin(request),
            version,
            source=source,
            in_flight=in_flight,
            after=After.HELD if keep_paused else After.AS_BEFORE,
            deadline_s=self.options.deadline_s,
            wait_s=self.options.deadline_s,
            **loading,
        )
        said = [each for each in (receipt.warning, warning) if isinstance(each, str)]
        return structs.replace(receipt, warning="; ".join(said) or None)

    async def _adopted(self, commands: Commands, directory: str, label: str | None) -> AdoptedDirectory:
        pulled = commands.kept.note(_PULLED, directory)
        if pulled is None or label not in (None, pulled[1]):
            return await self._adopt(commands, directory, label)
        came_from, number, *rest = pulled
        adopted = AdoptedDirectory(*rest)
        stands = self.options.stands
        if stands is None or await asyncio.to_thread(stands, adopted):
            return adopted
        return await self.pull(commands, directory, came_from, number)

    async def _adopt(self, commands: Commands, directory: str, label: str | None) -> AdoptedDirectory:
        return await commands.take_in(self.options.adopt, directory, label)

    # What cannot be honoured --------------------------------------------------------------------------------

    async def refuse(self, commands: Commands, request: Request, refusal: Refusal) -> HttpAnswer:
        """Answer a verb that cannot be honoured, which may close the group that surfaces hold."""
        commands.counts.unsupported.add(self.surface, refusal.verb)
        if commands.counts.unsupported[self.surface, refusal.verb] == 1:
            log.logger("http").warning(
                "verb.unsupported", surface=self.surface, verb=refusal.verb, reason=refusal.reason.word
            )
        closed = refusal.closes and await self._close(commands, request, refusal)
        return HttpAnswer(self._unsupported_status, {**refusal.body(), "held": bool(closed)})

    async def _close(self, commands: Commands, request: Request, refusal: Refusal) -> bool:
        """Close the hold that the group has; one whose memory a trainer let go for this is held first.

        Else the trainer's next verb, which gets the rest of the memory back, would open the old weights.
        """
        status = await commands.status()
        if status.hold is None and not status.serving:
            await commands.hold(self.origin(request, "close"), deadline_s=self.options.deadline_s)
        return await commands.fail_closed(self.origin(request), verb=refusal.verb, reason=refusal.reason.word)

    def refusing(self, refusal: Refusal) -> Handler:
        """Return the handler of a verb that is refused, whatever its body says."""

        async def refuse(request: Request, commands: Commands) -> HttpAnswer:
            return await self.refuse(commands, request, refusal)

        return refuse

    # What is only told --------------------------------------------------------------------------------------

    async def require_label(self, commands: Commands, label: str) -> str:
        """Return a label if the group's weights have it, or are what a trainer called so last.

        Raises
        ------
        RefusedError
            If they have another (code ``label-differs``).
        """
        held = (await commands.status()).version
        if held != commands.called(label):
            raise errors.label_differs(asked=label, held=held)
        return label

    async def named_version(self, commands: Commands) -> dict[str, str | None]:
        """Return what the group has, by the trainer's word and by its label."""
        held = (await commands.status()).version
        return {"weight_version": commands.word_for(held), "wsm_version": held}

    async def models(self, request: Request, commands: Commands) -> HttpAnswer:
        """Answer ``GET /v1/models``: the one model."""
        del request
        name = self.model_name(commands)
        root = self.options.model_path or name
        model = {"id": name, "object": "model", "created": 0, "owned_by": "wsm", "root": root, "parent": None}
        return HttpAnswer(200, {"object": "list", "data": [model]})

    async def last_version(self, commands: Commands) -> str | None:
        """Return the version that the group had whole last; None: it is not known."""
        facts = await commands.facts()
        return facts.committed.version or facts.served_version

    def model_name(self, commands: Commands) -> str:
        """Return the name under which the model is served."""
        return self.options.served_model_name or commands.name

    async def abort(self, request: Request, ids: tuple[str, ...] | None) -> tuple[str, ...]:
        """End requests for text, all of them for None; return whose were ended.

        Raises
        ------
        RefusedError
            If this server has no requests (code ``unsupported``).
        """
        if self.options.requests is None:
            raise http_errors.unsupported(
                verb=request.url.path,
                reason="the requests are the engine's, and none was given to this server",
                use_instead="a pause with mode abort",
            )
        return tuple(await self.options.requests.abort(ids))

    def or_engine(self, handler: Handler) -> Handler:
        """Return the handler of a verb that the engine's app answers where requests for text are its own."""

        async def handled(request: Request, commands: Commands) -> Any:
            behind = self.behind(request)
            return await handler(request, commands) if behind is None else behind

        return handled

    def behind(self, request: Request) -> ASGIApp | None:
        """Return the engine's app if requests for text are its own, and None where they are this server's."""
        rest: ASGIApp | None = getattr(request.app.state, "rest", None)
        return rest if self.options.requests is None else None


async def body_of(request: Request, kind: type[_Body]) -> _Body:
    """Return the body of a trainer's verb: a null counts as missing, and fields of other releases pass.

    Raises
    ------
    WsmError
        As :func:`.object_of` and :func:`.as_struct`.
    """
    return as_struct(without_nulls(object_of(await request.body())), kind)
