"""FastDeploy's HTTP verbs of every generation: its legacy GETs, its ``/v1`` control verbs, its health.

FastDeploy's codes stay FastDeploy's: its clients know 200, 400 and 500 of the control verbs, and 200, 400,
403 and 404 of the legacy ones, whatever a code says elsewhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from typing import Any, Generic, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType, structs
from starlette.responses import PlainTextResponse, Response

from wsm.command import VERSION_GONE
from wsm.errors import BadInputError, RefusedError, WsmError
from wsm.http.answers import HttpAnswer, ToldError
from wsm.http.bodies import Label, Texts, label_of, texts_of
from wsm.http.surface import InHold
from wsm.http.surfaces._call import Call, tags_of
from wsm.http.surfaces._verbs import Reason, TagsQuery, VerbTable
from wsm.labels import is_unnamed
from wsm.receipt import Receipt
from wsm.states.vocabulary import ALL_TAGS, Tag, TransferMode

_Result = TypeVar("_Result")

#: Statuses that are no engine's, and stay what they are in its envelope.
_OF_THE_SERVER = frozenset({400, 401, 403, 413, 421})

#: Requests for text that are not taken as the group is now: they are no control verbs.
_OF_TEXT = ("admission-closed", "fleet-stale", "another-version")


class Envelope(Struct, Generic[_Result]):
    """An answer of a control verb."""

    request_id: str
    result: _Result
    status: Literal["success", "error"] = "success"
    error_message: str | None = None


class EnvelopedFailure(Envelope[None]):
    """A control verb that failed."""

    error: ToldError | UnsetType = UNSET


def failure_of(answer: HttpAnswer) -> HttpAnswer:
    """Return an error in FastDeploy's envelope: 400 for what cannot be read, else 500."""
    error = answer.body["error"]
    if error.get("code") in _OF_TEXT:
        return answer
    status = answer.status if answer.status in _OF_THE_SERVER else 500
    name = answer.body.get("request_id") or uuid.uuid4().hex
    told = {"request_id": name, "result": None, "status": "error", "error_message": error["message"]}
    return HttpAnswer(status, {**told, "error": error}, answer.headers)


FASTDEPLOY = VerbTable(
    "fastdeploy",
    data_paths=frozenset(
        {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/reward", "/generate"}
    ),
    failed=failure_of,
    failure=EnvelopedFailure,
    pauses="/v1/pause",
    resumes="/v1/resume",
    reads_answers=True,
    in_hold=InHold.FAIL,
)

# Control verbs ----------------------------------------------------------------------------------------------


class CommandResult(Struct):
    """What a control verb says of its command."""

    outcome: str
    version: str | None
    manifest_digest: str | None
    total_cost: float
    serving: bool
    message: str


def _result(receipt: Receipt) -> CommandResult:
    said = (receipt.outcome.value, receipt.version, receipt.manifest_digest, receipt.seconds, receipt.serving)
    return CommandResult(*said, receipt.sentence())


def _enveloped(receipt: Receipt) -> Envelope[CommandResult]:
    return Envelope(receipt.request_id, _result(receipt))


def _name_of(call: Call) -> str:
    return call.request.headers.get("idempotency-key") or uuid.uuid4().hex


@FASTDEPLOY("POST /v1/pause")
async def pause(call: Call) -> Envelope[CommandResult]:
    """Hold the group."""
    return _enveloped(await call.pause())


@FASTDEPLOY("POST /v1/resume")
async def resume(call: Call) -> Envelope[CommandResult]:
    """Release the group."""
    return _enveloped(await call.resume())


class PausedResult(Struct):
    """The result of ``/v1/is_paused``."""

    is_paused: bool


@FASTDEPLOY("GET /v1/is_paused")
async def is_paused(call: Call) -> Envelope[PausedResult]:
    """Answer whether the group is held."""
    return Envelope(_name_of(call), PausedResult((await call.commands.status()).hold is not None))


@FASTDEPLOY("POST /v1/sleep")
async def sleep(call: Call, query: TagsQuery) -> Envelope[CommandResult]:
    """Hold the group, and let its memory go."""
    tags = tags_of(query.tags)
    await call.pause(part="-pause")
    return _enveloped(await call.sleep(tags))


async def _wake(call: Call, tags: frozenset[Tag], *, serve: bool = False) -> Receipt | None:
    """Bring back what lies there now under the label served last; if that is gone, what is announced."""
    last = await call.last_version()
    if last is not None and not is_unnamed(last):
        try:
            return await call.wake(tags, last, force=True, serve=serve)
        except WsmError as error:
            if error.context.get("error") not in VERSION_GONE:
                raise
    return await call.wake(tags, None, force=True, serve=serve)


async def _awake(call: Call, query: TagsQuery) -> Receipt:
    receipt = await _wake(call, tags_of(query.tags), serve=True)
    if receipt is not None and receipt.loaded:
        await call.commands.reopen(call.surface)
    if receipt is None or (receipt.hold is not None and not receipt.missing):
        return await call.resume("-resume")
    if receipt.serving:  # which ended the hold
        await call.engine_resumes()
    return receipt


@FASTDEPLOY("POST /v1/wakeup")
async def wakeup(call: Call, query: TagsQuery) -> Envelope[CommandResult]:
    """Bring back what is missing, and release the group."""
    return _enveloped(await _awake(call, query))


class ControlUpdateBody(Struct):
    """Of ``/v1/update_weights``."""

    version: Label | None = None
    rsync_config: dict[str, Any] | None = None
    verify_checksum: bool | None = None
    transfer_mode: TransferMode | None = None


class RankCost(Struct):
    """What an update cost a rank, in seconds."""

    rank: int
    version: str | None
    total_cost: float
    sync_cost: float | None
    update_cost: float | None


class UpdateEnvelope(Envelope[list[RankCost]], kw_only=True):
    """The answer of ``/v1/update_weights``."""

    wsm: CommandResult


@FASTDEPLOY("POST /v1/update_weights", brings=True)
async def update(call: Call, asked: ControlUpdateBody) -> UpdateEnvelope:
    """Load what lies there now, as FastDeploy does."""
    options = {name: value for name, value in structs.asdict(asked).items() if value is not None}
    label = label_of(options.pop("version", None))
    if (await call.commands.status()).hold is None:
        raise RefusedError(
            "Pause LLM Engine first before calling updating weights: POST /v1/pause", code="not-paused"
        )
    receipt = await call.load(None, label, force=True, **options)
    costs = [
        RankCost(
            each.rank, receipt.version, receipt.seconds, each.facts.get("sync_s"), each.facts.get("apply_s")
        )
        for each in receipt.ranks
    ]
    return UpdateEnvelope(receipt.request_id, costs, wsm=_result(receipt))


class AbortRequestsBody(Struct):
    """Of ``/v1/abort_requests``."""

    abort_all: bool = False
    req_ids: Texts = []


class AbortedResult(Struct):
    """The result of ``/v1/abort_requests``."""

    aborted: list[str]
    not_found: list[str]


@FASTDEPLOY("POST /v1/abort_requests", of_engine=True)
async def abort(call: Call, asked: AbortRequestsBody) -> Envelope[AbortedResult]:
    """End requests for text."""
    ids = None if asked.abort_all else texts_of(asked.req_ids)
    ended = await call.abort(ids)
    return Envelope(_name_of(call), AbortedResult(sorted(ended), sorted(set(ids or ()) - set(ended))))


# Legacy GETs ------------------------------------------------------------------------------------------------


class LegacyAnswer(Struct):
    """An answer of a legacy GET."""

    msg: str
    dp_rank: int = 0
    local_dp_rank: int = 0


_Legacy = LegacyAnswer | HttpAnswer | Response


@FASTDEPLOY("GET /clear_load_weight", changes=True, also=(400, 403, 404))
async def clear_load_weight(call: Call) -> _Legacy:
    """Let weights and KV cache go."""
    is_control = call.options.fastdeploy_generation == "2.6"
    clears: Awaitable[object] = sleep(call, TagsQuery()) if is_control else call.sleep(ALL_TAGS)
    return await _legacy(call, "clear", clears)


@FASTDEPLOY("GET /update_model_weight", changes=True, also=(400, 403, 404))
async def update_model_weight(call: Call) -> _Legacy:
    """Bring weights and KV cache back."""
    is_control = call.options.fastdeploy_generation == "2.6"
    updates = _awake(call, TagsQuery()) if is_control else _wake(call, ALL_TAGS)
    return await _legacy(call, "update", updates)


async def _legacy(call: Call, asked: str, command: Awaitable[object]) -> _Legacy:
    generation, status = call.options.fastdeploy_generation, 200
    message = f"model weight is {'cleared' if asked == 'clear' else 'updated'}"
    call.wait_s = call.wait_s if generation == "2.6" else 0.0
    try:
        await command
    except BadInputError:
        raise
    except WsmError as error:
        running = (await call.commands.status()).operation
        status, message = legacy_refusal(error, asked=asked, running=running)
    if generation == "2.4":
        return PlainTextResponse("") if status == 200 else PlainTextResponse(message, 404)
    return HttpAnswer(status, LegacyAnswer(message))


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


class ResetAnswer(Struct):
    """The answer of ``/controller/reset_scheduler``."""

    aborted: list[str]
    code: int = 0
    message: str = "success"


@FASTDEPLOY("POST /controller/reset_scheduler", of_engine=True)
async def reset_scheduler(call: Call) -> ResetAnswer:
    """Drop every request, as FastDeploy's controller port does; of an engine, its own handler."""
    return ResetAnswer(sorted(await call.abort(None)))


FASTDEPLOY.refuse(Reason.INTERNAL, "POST /controller/scheduler", closes=False, of_engine=True)

# What is only told ------------------------------------------------------------------------------------------


@FASTDEPLOY("GET /ping", "POST /ping", "GET /health", also=(304, 404))
async def health(call: Call) -> Response:
    """Answer 304 while weights or KV cache are away, and 404 without live ranks."""
    ranks = (await call.commands.status()).ranks
    if not ranks or any(rank.life in ("dead", "never") for rank in ranks):
        return Response(status_code=404)
    away = any(rank.resident.missing for rank in ranks)
    # Else the engine serves, though its loop has not come in yet with what it has built.
    away = away and (await call.commands.explain()).finding != "engine-has-kv-cache"
    return Response(status_code=304 if away else 200)


class ListedRoute(Struct):
    """A control verb that there is."""

    path: str
    methods: list[str]
    tags: list[str] = []


class RoutesAnswer(Struct):
    """The answer of ``/load``."""

    routes: list[ListedRoute]


@FASTDEPLOY("GET /load")
async def routes(_call: Call) -> RoutesAnswer:
    """Answer the control verbs that there are."""
    named = [name.split(" ") for name in FASTDEPLOY.rows]
    return RoutesAnswer([ListedRoute(path, [method]) for method, path in named if path.startswith("/v1")])
