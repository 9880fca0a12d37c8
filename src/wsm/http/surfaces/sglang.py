"""SGLang's verbs, as slime, miles, AReaL and verl send them, answered in SGLang's shape."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import PlainTextResponse, Response

import wsm
from wsm.errors import BadInputError, RefusedError
from wsm.http.answers import HttpAnswer, ToldError
from wsm.http.bodies import Label, Text, Texts, label_of, texts_of
from wsm.http.errors import unsupported
from wsm.http.surfaces._call import Call, PauseMode, tags_of
from wsm.http.surfaces._verbs import (
    DoneAnswer,
    FinishBody,
    NamedVersion,
    Reason,
    Refusal,
    RelabelBody,
    VerbTable,
    named_version,
)
from wsm.states.vocabulary import After, InFlightPolicy


class SglangFailure(Struct):
    """An error as SGLang's clients read it: they print ``message``."""

    error: ToldError
    request_id: str | None
    message: str
    success: bool = False


def failure_of(answer: HttpAnswer) -> HttpAnswer:
    """Return an error as SGLang's clients read it."""
    body = {**answer.body, "message": answer.body["error"].get("message", ""), "success": False}
    return HttpAnswer(answer.status, body, answer.headers)


SGLANG = VerbTable(
    "sglang",
    data_paths=frozenset(
        {
            "/generate",
            "/v1/completions",
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/messages",
            "/encode",
            "/classify",
        }
    ),
    failed=failure_of,
    failure=SglangFailure,
    pauses="/pause_generation",
    resumes="/continue_generation",
)


class PauseModeBody(Struct):
    """Of ``/pause_generation``."""

    mode: PauseMode | None = None


@SGLANG("POST /pause_generation")
async def pause(call: Call, asked: PauseModeBody) -> DoneAnswer:
    """Hold the group."""
    await call.pause(asked.mode)
    return DoneAnswer("Generation paused successfully.", status="ok")


@SGLANG("POST /continue_generation")
async def resume(call: Call) -> DoneAnswer:
    """Release the group."""
    await call.resume()
    return DoneAnswer("Generation continued successfully.", status="ok")


@SGLANG("GET /flush_cache", "POST /flush_cache", changes=True, also=(400,))
async def flush(call: Call) -> PlainTextResponse:
    """Leave no block in the KV cache that older weights computed."""
    try:
        await call.flush()
    except RefusedError as error:
        return PlainTextResponse(f"{error}\n", 400)
    return PlainTextResponse("Cache flushed.\n")


class FromDiskBody(Struct):
    """Of ``/update_weights_from_disk``."""

    model_path: Text
    weight_version: Label | None = None
    abort_all_requests: bool = False
    keep_pause: bool = False


class FromDiskAnswer(DoneAnswer):
    """The answer of ``/update_weights_from_disk``."""

    num_paused_requests: int = 0


@SGLANG("POST /update_weights_from_disk", brings=True)
async def update_from_disk(call: Call, asked: FromDiskBody) -> FromDiskAnswer:
    """Update to a directory; inside an update in parts, prepare it."""
    ends = asked.abort_all_requests
    in_flight = InFlightPolicy.ABORT if ends else await call.if_open(InFlightPolicy.DRAIN)
    after = After.HELD if asked.keep_pause else After.AS_BEFORE
    label = label_of(asked.weight_version)
    receipt = await call.load(asked.model_path, label, in_flight=in_flight, after=after)
    return FromDiskAnswer(receipt.sentence(), success=True)


class PullBody(Struct):
    """Of ``/pull_weights``."""

    target_version: Annotated[int, Meta(ge=0)]
    source_dir: Text
    local_checkpoint_dir: Text


@SGLANG("POST /pull_weights")
async def pull(call: Call, asked: PullBody) -> DoneAnswer:
    """Take a directory in now, under the name of another."""
    number = asked.target_version
    directory = f"{asked.source_dir.rstrip('/')}/weight_v{number:06d}"
    try:
        adopted = await call.pull(asked.local_checkpoint_dir, directory, str(number))
    except BadInputError as error:
        if number or error.code != "checkpoint-missing":
            raise
        raise unsupported(
            verb="/pull_weights",
            reason="version 0 is what changes will be sent of (slime's --update-weight-mode delta), and "
            "changes of that format are not read here",
            use_instead="whole checkpoints (--update-weight-mode full)",
        ) from error
    return DoneAnswer(f"{directory} is taken in as version {adopted.label}", success=True)


@SGLANG("POST /begin_weight_update")
async def begin(call: Call) -> DoneAnswer:
    """Begin an update in parts."""
    await call.begin()
    return DoneAnswer("Weight update begun.", success=True)


@SGLANG("POST /end_weight_update", brings=True)
async def end(call: Call, asked: FinishBody) -> DoneAnswer:
    """Decide an update in parts."""
    receipt = await call.finish(asked.weight_version, begin="/begin_weight_update")
    return DoneAnswer(receipt.sentence(), success=True)


class MemoryBody(Struct):
    """Of the verbs that release and resume memory."""

    tags: Texts | None = None


@SGLANG("GET /release_memory_occupation", "POST /release_memory_occupation", changes=True)
async def release_memory(call: Call, asked: MemoryBody) -> None:
    """Let the memory of one half or both go."""
    await call.sleep(tags_of(asked.tags))


@SGLANG("GET /resume_memory_occupation", "POST /resume_memory_occupation", changes=True)
async def resume_memory(call: Call, asked: MemoryBody) -> None:
    """Bring back what is missing, in the version that was held."""
    await call.wake(tags_of(asked.tags), await call.last_version())


class RelabelledAnswer(Struct):
    """The answer of ``/update_weight_version``."""

    new_version: str
    success: bool = True
    message: str | UnsetType = UNSET


@SGLANG("POST /update_weight_version")
async def relabel(call: Call, asked: RelabelBody) -> RelabelledAnswer:
    """Confirm the trainer's word for the weights."""
    held = await call.require_label(str(asked.new_version))
    return RelabelledAnswer(held, message=f"The weights have version {held}.")


SGLANG("GET /get_weight_version", "GET /weight_version")(named_version)


class ModelInfo(NamedVersion, kw_only=True):
    """The answer of ``/model_info``."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True
    preferred_sampling_params: None = None


@SGLANG("GET /model_info", "GET /get_model_info")
async def model_info(call: Call) -> ModelInfo:
    """Answer the model, and the version that the group has."""
    said, name = await named_version(call), call.model
    return ModelInfo(said.weight_version, said.wsm_version, model_path=name, tokenizer_path=name)


@SGLANG("GET /server_info", "GET /get_server_info")
async def server_info(call: Call) -> dict[str, Any]:
    """Answer what a server says of itself; slime compares some of it with what it would have started."""
    status = await call.commands.status()
    ranks = sum(1 for rank in status.ranks if rank.step_kind != "none")
    return {
        "model_path": call.model,
        "served_model_name": call.model,
        "tp_size": ranks,
        "pp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "num_gpus": ranks,
        "disaggregation_mode": "null",
        "enable_memory_saver": False,
        "weight_version": call.commands.word_for(status.version),
        "wsm_version": status.version,
        "internal_states": [],
        "version": wsm.__version__,
        **call.options.server_info,
    }


class CheckerBody(Struct):
    """Of ``/weights_checker``."""

    action: Text = "checksum"
    baseline: Text | None = None


class CheckerAnswer(Struct):
    """The answer of ``/weights_checker``."""

    success: bool
    message: str
    per_engine_checksum: str | None
    ranks: list[None] = []


@SGLANG("GET /weights_checker", "POST /weights_checker", also=(400,))
async def check(call: Call, asked: CheckerBody) -> CheckerAnswer | HttpAnswer | Refusal:
    """Answer or compare the digest of the weights."""
    if asked.action not in ("checksum", "compare"):
        return Refusal(Reason.BASELINE, closes=False)
    digest = (await call.commands.facts()).committed.digest
    same = asked.action == "checksum" or asked.baseline in (None, digest)
    said = CheckerAnswer(same, f"the weights have {'this' if same else 'another'} digest", digest)
    return said if same else HttpAnswer(400, said)


class Load(Struct):
    """How many requests are open."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_reqs: int
    num_total_reqs: int
    dp_rank: int = 0


class LoadsAnswer(Struct):
    """The answer of ``/v1/loads``."""

    loads: list[Load]
    dp_rank_count: int = 1


@SGLANG("GET /v1/loads", of_engine=True)
async def loads(call: Call) -> LoadsAnswer:
    """Answer how many requests are open."""
    requests = call.options.requests
    running, waiting = (0, 0) if requests is None else await requests.count()
    return LoadsAnswer([Load(running, waiting, running + waiting, running + waiting)])


class AbortRidBody(Struct):
    """Of ``/abort_request``."""

    abort_all: bool = False
    rid: Texts = []


@SGLANG("POST /abort_request", of_engine=True)
async def abort(call: Call, asked: AbortRidBody) -> Response:
    """End requests for text."""
    await call.abort(None if asked.abort_all else texts_of(asked.rid))
    return Response()


@SGLANG("GET /health_generate", also=(503,))
async def health_generate(call: Call) -> Response:
    """Answer whether all ranks live."""
    lives = await call.is_live()
    return Response(status_code=200 if lives else 503, headers={} if lives else {"Retry-After": "1"})


class WorkerCard(Struct):
    """A worker, as a router lists it: this server."""

    id: str
    url: str
    model_id: str
    worker_type: str = "regular"
    is_healthy: bool = True


class WorkersAnswer(Struct):
    """The answer of ``/workers``."""

    workers: list[WorkerCard]
    total: int = 1


class WorkerBody(Struct):
    """Of a worker that is to be registered."""

    url: Text


class RegisteredAnswer(Struct):
    """The answer to who registers a worker, or takes one off."""

    worker_id: str
    status: str = "accepted"
    url: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


def _own_url(call: Call) -> str:
    return str(call.request.base_url).rstrip("/")


@SGLANG("GET /workers")
async def workers(call: Call) -> WorkersAnswer:
    """Answer the one worker, which this server is."""
    return WorkersAnswer([WorkerCard(call.commands.name, _own_url(call), call.model)])


@SGLANG("POST /workers")
async def register(call: Call, asked: WorkerBody) -> RegisteredAnswer:
    """Register this server, and no other."""
    url, own = asked.url, _own_url(call)
    if url.rstrip("/").rpartition(":")[2] != own.rpartition(":")[2]:
        raise RefusedError(
            f"this server is the one worker {own} and routes to no other; {url} is not registered",
            code="not-this-worker",
            url=url,
        )
    return RegisteredAnswer(call.commands.name, url=own)


@SGLANG("DELETE /workers/{worker_id:path}")
async def unregister(call: Call) -> RegisteredAnswer:
    """Leave the worker, which is this server."""
    message = "this server is the worker, and ends with its process"
    return RegisteredAnswer(call.commands.name, message=message)


# With what slime, miles and AReaL add.
SGLANG.refuse(
    Reason.PUSH,
    "POST /init_weights_update_group",
    "POST /update_weights_from_distributed",
    "POST /send_weights_to_remote_instance",
    "POST /init_weights_send_group_for_remote_instance",
)
SGLANG.refuse(Reason.PUSH, "POST /destroy_weights_update_group", closes=False)
SGLANG.refuse(Reason.PICKLE, "POST /update_weights_from_tensor", "POST /update_weights_from_ipc")
SGLANG.refuse(Reason.INTERNAL, "POST /post_process_weights")
SGLANG.refuse(Reason.ADAPTER, "POST /load_lora_adapter", "POST /load_lora_adapter_from_tensors")
SGLANG.refuse(Reason.ADAPTER, "POST /unload_lora_adapter", closes=False)
