"""FastDeploy's HTTP verbs of every generation: its legacy GETs, its ``/v1`` control verbs, its health.

FastDeploy's codes stay FastDeploy's: its clients know 200, 400 and 500 of the control verbs, and 200, 400,
403 and 404 of the legacy ones, whatever a code says elsewhere.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wsm.command import VERSION_GONE
from wsm.errors import BadInputError, WsmError
from wsm.http import errors as http_errors
from wsm.http.answers import HttpAnswer, receipt_headers
from wsm.http.bodies import Label, Texts, label_of, texts_of
from wsm.http.commands import Commands
from wsm.http.surface import Handler, InHold, Surface, verb_route
from wsm.http.surfaces import errors
from wsm.http.surfaces._pausing import Pause, tags_of
from wsm.http.surfaces._refusals import Reason, Refusal
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.http.surfaces._verbs import Verbs, body_of
from wsm.labels import is_unnamed
from wsm.receipt import Receipt
from wsm.states.vocabulary import ALL_TAGS, Tag, TransferMode
from wsm.status import GroupStatus

#: Paths of the engine that ask for text.
DATA_PATHS = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/reward", "/generate"}
)


class _ControlUpdateBody(msgspec.Struct):
    version: Label | None = None
    rsync_config: dict[str, Any] | None = None
    verify_checksum: bool | None = None
    transfer_mode: TransferMode | None = None


class _AbortRequestsBody(msgspec.Struct):
    abort_all: bool = False
    req_ids: Texts = []


#: Statuses that are no engine's, and stay what they are in its envelope.
_OF_THE_SERVER = frozenset({400, 401, 403, 413, 421})


class LegacyGeneration(enum.Enum):
    """Which FastDeploy the legacy GETs answer like.

    TEXT: an empty 200, and 404 with a text for everything else. JSON: a message for each data-parallel rank,
    400 while the same runs, 403 while the opposite does, 404 for the rest. CONTROL: as JSON, and the GETs are
    sleep and wakeup (``FD_ENABLE_V1_UPDATE_WEIGHTS=1``).
    """

    TEXT = "2.4"
    JSON = "2.5"
    CONTROL = "2.6"


def generation_of(name: str) -> LegacyGeneration:
    """Return the generation of that name.

    Raises
    ------
    BadInputError
        If there is none.
    """
    try:
        return LegacyGeneration(name)
    except ValueError:
        known = ", ".join(each.value for each in LegacyGeneration)
        problem = f"it must be one of {known}, and is {name!a:.80}"
        raise http_errors.bad_body(field="fastdeploy_generation", problem=problem) from None


def envelope(
    request_id: str, *, result: object = None, problem: str | None = None, status: int = 200
) -> HttpAnswer:
    """Return an answer of a control verb: the code of HTTP is the envelope's."""
    body = {
        "request_id": request_id,
        "status": "success" if problem is None else "error",
        "error_message": problem,
        "result": result,
    }
    return HttpAnswer(status, body)


def failure_of(answer: HttpAnswer) -> HttpAnswer:
    """Return an error in FastDeploy's envelope: 400 for what cannot be read, else 500.

    A request for text that is not taken as the group is now is no control verb: its answer stays.
    """
    said: Mapping[str, Any] = answer.body
    if said["error"].get("code") in ("admission-closed", "fleet-stale", "another-version"):
        return answer
    status = answer.status if answer.status in _OF_THE_SERVER else 500
    made = envelope(
        said.get("request_id") or uuid.uuid4().hex, problem=said["error"].get("message", ""), status=status
    )
    return HttpAnswer(status, {**made.body, "error": said["error"]}, answer.headers)


def result_of(receipt: Receipt) -> dict[str, Any]:
    """Return what a control verb says of its command."""
    return {
        "outcome": receipt.outcome.value,
        "version": receipt.version,
        "manifest_digest": receipt.manifest_digest,
        "total_cost": receipt.seconds,
        "serving": receipt.serving,
        "message": receipt.sentence(),
    }


def costs_of(receipt: Receipt) -> list[dict[str, Any]]:
    """Return what FastDeploy's update says of each rank, in seconds."""
    of_all = {"total_cost": receipt.seconds, "version": receipt.version}
    told = [(each.rank, each.facts.get("sync_s"), each.facts.get("apply_s")) for each in receipt.ranks]
    return [{"sync_cost": sync, "update_cost": own, **of_all, "rank": rank} for rank, sync, own in told]


def legacy_answer(generation: LegacyGeneration, status: int, message: str) -> HttpAnswer | Response:
    """Return an answer of a legacy GET."""
    if generation is LegacyGeneration.TEXT:
        return PlainTextResponse("") if status == 200 else PlainTextResponse(message, 404)
    return HttpAnswer(status, {"dp_rank": 0, "local_dp_rank": 0, "msg": message})


def legacy_refusal(error: WsmError, *, asked: str, running: str) -> tuple[int, str]:
    """Return code and message of a legacy GET that failed.

    Parameters
    ----------
    error : WsmError
        What it ended in.
    asked : str
        ``clear`` or ``update``.
    running : str
        The operation that the group's last command asks for.
    """
    if error.code not in ("role-busy", "command-open", "server-busy"):
        return 404, str(error)
    doing = {"clear": "clearing", "update": "updating"}
    other = next((doing[name] for name in doing if name in running), "changing")
    if other == doing[asked]:
        return 400, f"worker is {other} model weight already"
    return 403, f"worker is {other} model weight, cannot {asked} now"


def health_of(status: GroupStatus) -> int:
    """Return the status of ``/health``: 304 while weights or KV cache are away, 404 without live ranks."""
    if not status.ranks or any(rank.life in ("dead", "never") for rank in status.ranks):
        return 404
    return 304 if any(rank.resident.missing for rank in status.ranks) else 200


@final
class _FastDeploy:
    """FastDeploy's verbs for one server."""

    def __init__(self, options: SurfaceOptions) -> None:
        self.verbs = Verbs(
            "fastdeploy", options, pauses="/v1/pause", resumes="/v1/resume", reads_answers=True
        )
        self.generation = generation_of(options.fastdeploy_generation)
        self.listed: list[dict[str, Any]] = []

    # Control verbs ------------------------------------------------------------------------------------------

    async def pause(self, request: Request, commands: Commands) -> HttpAnswer:
        return _enveloped(await self.verbs.pause(request, commands, Pause()))

    async def resume(self, request: Request, commands: Commands) -> HttpAnswer:
        return _enveloped(await self.verbs.resume(request, commands))

    async def is_paused(self, request: Request, commands: Commands) -> HttpAnswer:
        paused = (await commands.status()).hold is not None
        return envelope(_name_of(request), result={"is_paused": paused})

    async def sleep(self, request: Request, commands: Commands) -> HttpAnswer:
        return _enveloped(await self._asleep(request, commands))

    async def wakeup(self, request: Request, commands: Commands) -> HttpAnswer:
        return _enveloped(await self._awake(request, commands))

    async def update(self, request: Request, commands: Commands) -> HttpAnswer:
        async with self.verbs.bringing(request, commands):
            asked = await body_of(request, _ControlUpdateBody)
            said = msgspec.structs.asdict(asked)
            options = {name: value for name, value in said.items() if value is not None}
            label = label_of(options.pop("version", None))
            if (await commands.status()).hold is None:
                raise errors.not_paused()
            options["force"] = True  # what lies there now, as FastDeploy does
            receipt = await self.verbs.load(request, commands, directory=None, label=label, **options)
        answer = _enveloped(receipt)
        body = {**answer.body, "result": costs_of(receipt), "wsm": answer.body["result"]}
        return HttpAnswer(answer.status, body, answer.headers)

    async def abort(self, request: Request, commands: Commands) -> HttpAnswer:
        del commands
        asked = await body_of(request, _AbortRequestsBody)
        ids = None if asked.abort_all else texts_of(asked.req_ids)
        ended = await self.verbs.abort(request, ids)
        missed = sorted(set(ids or ()) - set(ended))
        return envelope(_name_of(request), result={"aborted": sorted(ended), "not_found": missed})

    # Legacy GETs --------------------------------------------------------------------------------------------

    async def clear_load_weight(self, request: Request, commands: Commands) -> Any:
        async def clear() -> None:
            if self.generation is LegacyGeneration.CONTROL:
                await self._asleep(request, commands)
            else:
                await self.verbs.sleep(request, commands, ALL_TAGS, wait_s=0)

        return await self._legacy(commands, "clear", "model weight is cleared", clear)

    async def update_model_weight(self, request: Request, commands: Commands) -> Any:
        async def update() -> None:
            if self.generation is LegacyGeneration.CONTROL:
                await self._awake(request, commands)
            else:
                await self._wake(request, commands, ALL_TAGS, serve=False, wait_s=0)

        return await self._legacy(commands, "update", "model weight is updated", update)

    async def _legacy(
        self, commands: Commands, asked: str, message: str, command: Callable[[], Awaitable[None]]
    ) -> Any:
        try:
            await command()
        except BadInputError:
            raise
        except WsmError as error:
            code, why = legacy_refusal(error, asked=asked, running=(await commands.status()).operation)
            return legacy_answer(self.generation, code, why)
        return legacy_answer(self.generation, 200, message)

    async def reset_scheduler(self, request: Request, commands: Commands) -> HttpAnswer:
        """Drop every request, as FastDeploy's controller port does; of an engine, its own handler."""
        del commands
        ended = await self.verbs.abort(request, None)
        return HttpAnswer(200, {"code": 0, "message": "success", "aborted": sorted(ended)})

    async def schedule(self, request: Request, commands: Commands) -> HttpAnswer:
        """Change the scheduler, which is the engine's."""
        return await self.verbs.refuse(
            commands, request, Refusal("/controller/scheduler", Reason.INTERNAL, closes=False)
        )

    # What is only told --------------------------------------------------------------------------------------

    async def health(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        status = health_of(await commands.status())
        if status == 304 and (await commands.explain()).finding == "engine-has-kv-cache":
            status = 200  # the engine serves, though its loop has not come in yet with what it has built
        return HttpAnswer(status)

    async def routes(self, request: Request, commands: Commands) -> HttpAnswer:
        del request, commands
        return HttpAnswer(200, {"routes": self.listed})

    async def _asleep(self, request: Request, commands: Commands) -> Receipt:
        tags = tags_of(request.query_params.getlist("tags"))
        await self.verbs.pause(request, commands, Pause(), "-pause")
        return await self.verbs.sleep(request, commands, tags)

    async def _wake(
        self, request: Request, commands: Commands, tags: frozenset[Tag], **how: Any
    ) -> Receipt | None:
        """Bring back what lies there now under the label served last; if that is gone, what is announced."""
        last = await self.verbs.last_version(commands)
        if last is not None and not is_unnamed(last):
            try:
                return await self.verbs.wake(request, commands, tags, version=last, force=True, **how)
            except WsmError as error:
                if error.context.get("error") not in VERSION_GONE:
                    raise
        how["part"] = "-announced"
        return await self.verbs.wake(request, commands, tags, version=None, force=True, **how)

    async def _awake(self, request: Request, commands: Commands) -> Receipt:
        tags = tags_of(request.query_params.getlist("tags"))
        receipt = await self._wake(request, commands, tags, serve=True)
        if receipt is not None and receipt.loaded:
            await commands.reopen(self.verbs.surface)
        if receipt is None or (receipt.hold is not None and not receipt.missing):
            return await self.verbs.resume(request, commands, "-resume")
        if receipt.serving:  # which ended the hold
            await self.verbs.engine_resumes(request)
        return receipt


def _name_of(request: Request) -> str:
    return request.headers.get("idempotency-key") or uuid.uuid4().hex


def _enveloped(receipt: Receipt) -> HttpAnswer:
    made = envelope(receipt.request_id, result=result_of(receipt))
    return HttpAnswer(made.status, made.body, receipt_headers(receipt))


def surface(options: SurfaceOptions) -> Surface:
    """Return FastDeploy's surface."""
    made = _FastDeploy(options)
    verbs: list[tuple[str, str, Handler]] = [
        ("GET", "/clear_load_weight", made.clear_load_weight),
        ("GET", "/update_model_weight", made.update_model_weight),
        ("POST", "/v1/pause", made.pause),
        ("POST", "/v1/resume", made.resume),
        ("GET", "/v1/is_paused", made.is_paused),
        ("POST", "/v1/sleep", made.sleep),
        ("POST", "/v1/wakeup", made.wakeup),
        ("POST", "/v1/update_weights", made.update),
        ("POST", "/v1/abort_requests", made.verbs.or_engine(made.abort)),
        ("GET", "/v1/models", made.verbs.models),
        ("GET", "/ping", made.health),
        ("POST", "/ping", made.health),
        ("GET", "/load", made.routes),
        ("POST", "/controller/reset_scheduler", made.verbs.or_engine(made.reset_scheduler)),
        ("POST", "/controller/scheduler", made.verbs.or_engine(made.schedule)),
    ]
    made.listed = [
        {"path": path, "methods": [method], "tags": []} for method, path, _ in verbs if path.startswith("/v1")
    ]
    return Surface(
        "fastdeploy",
        tuple(verb_route(*verb) for verb in verbs),
        in_hold=InHold.FAIL,
        data_paths=DATA_PATHS,
        health=made.health,
        failed=failure_of,
        adopt=options.adopt,
    )
