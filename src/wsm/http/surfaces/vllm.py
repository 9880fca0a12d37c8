"""vLLM's verbs, as TRL and SkyRL send them; and what AReaL and prime-rl have over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from wsm.http import errors
from wsm.http.answers import HttpAnswer, ToldError
from wsm.http.bodies import Label, Text, Texts, label_of, texts_of
from wsm.http.surfaces import sglang
from wsm.http.surfaces._call import Call, PauseMode, missing_of, tags_of
from wsm.http.surfaces._verbs import (
    DoneAnswer,
    FinishBody,
    Reason,
    Refusal,
    RelabelBody,
    TagsQuery,
    ToldReceipt,
    VerbTable,
    named_version,
)
from wsm.states.vocabulary import ALL_TAGS, InFlightPolicy

#: Transfers for which nothing has to be set up.
_DISK = ("disk", "filesystem", "file", "fs")

#: Paths of the engine that ask for text.
DATA_PATHS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/inference/v1/generate",
        "/pooling",
        "/classify",
    }
)


class VllmError(ToldError, kw_only=True):
    """An error, with what vLLM's clients look for."""

    param: None = None
    status: int


class VllmFailure(Struct):
    """An error as vLLM's clients read it: a message and a code within ``error``."""

    error: VllmError
    request_id: str | None


def failure_of(answer: HttpAnswer) -> HttpAnswer:
    """Return an error as vLLM's clients read it."""
    error = {**answer.body["error"], "param": None, "status": answer.status}
    return HttpAnswer(answer.status, {**answer.body, "error": error}, answer.headers)


VLLM = VerbTable(
    "vllm",
    data_paths=DATA_PATHS,
    failed=failure_of,
    failure=VllmFailure,
    pauses="/pause",
    resumes="/resume",
    unsupported=400,
)


class PauseQuery(Struct):
    """Of ``/pause``."""

    mode: PauseMode | None = None
    clear_cache: bool | None = None


class StateAnswer(Struct):
    """Whether requests are paused, or just were, or go on."""

    status: str
    wsm: ToldReceipt | UnsetType = UNSET


@VLLM("POST /pause")
async def pause(call: Call, query: PauseQuery) -> StateAnswer:
    """Hold the group."""
    await call.pause(query.mode, clear_cache=query.clear_cache)
    return StateAnswer("paused")


@VLLM("POST /resume")
async def resume(call: Call) -> StateAnswer:
    """Release the group."""
    await call.resume()
    return StateAnswer("resumed")


class IsPausedAnswer(Struct):
    """The answer of ``/is_paused``."""

    is_paused: bool


@VLLM("GET /is_paused")
async def is_paused(call: Call) -> IsPausedAnswer:
    """Answer whether the group is held."""
    return IsPausedAnswer((await call.commands.status()).hold is not None)


@VLLM("POST /init_weight_transfer_engine")
async def set_up(call: Call, asked: dict[str, Any]) -> DoneAnswer | Refusal:
    """Set up nothing where weights come by files, and refuse what pushes them."""
    del call
    return (
        DoneAnswer("Weight transfer initialized", status="ok") if is_by_files(asked) else Refusal(Reason.PUSH)
    )


def is_by_files(asked: Mapping[str, Any]) -> bool:
    """Whether a set-up asks for a transfer by files.

    Raises
    ------
    BadInputError
        If ``init_info`` is no object.
    """
    info = asked.get("init_info", asked)
    if not isinstance(info, Mapping):
        raise errors.bad_body(field="init_info", problem="it must be an object")
    kinds = [info[name] for name in ("backend", "type") if name in info]
    return all(kind in _DISK for kind in kinds) if kinds else not info.keys() - {"timeout", "session_id"}


@VLLM("POST /start_weight_update")
async def start(call: Call) -> DoneAnswer:
    """Begin an update in parts."""
    await call.begin()
    return DoneAnswer("Weight update started")


class UpdateInfo(Struct):
    """What vLLM's update names."""

    path: Text | None = None
    version: Label | None = None


class UpdateWeightsBody(Struct):
    """Of ``/update_weights``: vLLM's ``update_info``, or prime-rl's ``weight_dir``."""

    update_info: UpdateInfo | None = None
    weight_dir: Text | None = None


@VLLM("POST /update_weights", brings=True)
async def update(call: Call, asked: UpdateWeightsBody) -> DoneAnswer | Refusal:
    """Update to a directory or a version; inside an update in parts, prepare it."""
    info = asked.update_info or UpdateInfo(asked.weight_dir)
    if info.path is None and info.version is None:
        return Refusal(Reason.PUSH)  # what names neither describes tensors
    await call.load(info.path, label_of(info.version))
    return DoneAnswer("Weights updated", status="ok")


@VLLM("POST /finish_weight_update", brings=True)
async def finish(call: Call, asked: FinishBody) -> DoneAnswer:
    """Decide an update in parts."""
    await call.finish(asked.weight_version, begin="/start_weight_update")
    return DoneAnswer("Weight update finished")


@VLLM("POST /update_weight_version")
async def relabel(call: Call, asked: RelabelBody) -> sglang.RelabelledAnswer:
    """Confirm the trainer's word for the weights."""
    return sglang.RelabelledAnswer(await call.require_label(str(asked.new_version)))


VLLM("GET /weight_info")(named_version)


class CheckBody(Struct):
    """Of ``/weight_checker``."""

    action: Text = "checksum"
    baseline: dict[str, Any] = {}


class CheckAnswer(Struct):
    """The answer of ``/weight_checker``."""

    checksums: dict[str, str | None] | UnsetType = UNSET
    match: bool | UnsetType = UNSET
    mismatches: list[str] | UnsetType = UNSET


@VLLM("POST /weight_checker")
async def check(call: Call, asked: CheckBody) -> CheckAnswer | Refusal:
    """Answer or compare the digest of the weights."""
    digest = (await call.commands.facts()).committed.digest
    if asked.action == "checksum":
        return CheckAnswer({"manifest": digest})
    if asked.action != "compare":
        return Refusal(Reason.BASELINE, closes=False)
    differ = [name for name, said in asked.baseline.items() if (name, said) != ("manifest", digest)]
    return CheckAnswer(match=bool(asked.baseline) and not differ, mismatches=differ)


class SleepQuery(Struct):
    """Of ``/sleep``."""

    level: Literal["0", "1", "2"] = "1"
    mode: PauseMode | None = None


@VLLM("POST /sleep")
async def sleep(call: Call, query: SleepQuery) -> StateAnswer | Response | Refusal:
    """Let the memory of the group go."""
    if query.level == "0":
        await call.pause(query.mode)
        return StateAnswer("paused")
    lets_go = call.options.sleep_level_1_as_2
    if query.level == "1" and not (call.surface == "areal" if lets_go is None else lets_go):
        return Refusal(Reason.OFFLOAD, closes=False)
    await call.sleep(ALL_TAGS, query.mode or "abort")
    return Response()


@VLLM("POST /wake_up")
async def wake(call: Call, query: TagsQuery) -> Response:
    """Bring back what is missing, in the version that was held."""
    await call.wake(tags_of(query.tags), await call.last_version())
    return Response()


class IsSleepingAnswer(Struct):
    """The answer of ``/is_sleeping``."""

    is_sleeping: bool


@VLLM("GET /is_sleeping")
async def is_sleeping(call: Call) -> IsSleepingAnswer:
    """Answer whether memory is away."""
    return IsSleepingAnswer(bool(missing_of(await call.commands.status())))


@VLLM("POST /reset_prefix_cache")
async def reset_prefix_cache(call: Call) -> Response:
    """Leave no block in the KV cache that older weights computed."""
    await call.flush()
    return Response()


class AbortIdsBody(Struct):
    """Of ``/abort_requests``."""

    request_ids: Texts | None = None


class AbortedAnswer(Struct):
    """The answer of ``/abort_requests``."""

    aborted: int
    status: str = "aborted"


@VLLM("POST /abort_requests", of_engine=True)
async def abort(call: Call, asked: AbortIdsBody) -> AbortedAnswer:
    """End requests for text."""
    return AbortedAnswer(len(await call.abort(texts_of(asked.request_ids))))


# What pushes tensors asks for the world size first, and then waits in its own group of NCCL.
VLLM.refuse(Reason.NCCL, "GET /get_world_size", closes=False)
# With what TRL and SkyRL add.
VLLM.refuse(Reason.METHOD, "POST /collective_rpc")
VLLM.refuse(
    Reason.PUSH, "POST /init_communicator", "POST /update_named_param", "POST /batch_update_named_params"
)
VLLM.refuse(Reason.PUSH, "POST /close_communicator", closes=False)
VLLM.refuse(Reason.DRAFT, "POST /start_draft_weight_update")
VLLM.refuse(Reason.ADAPTER, "POST /v1/load_lora_adapter", "POST /load_lora_adapter")
VLLM.refuse(Reason.ADAPTER, "POST /v1/unload_lora_adapter", "POST /unload_lora_adapter", closes=False)
VLLM.refuse(Reason.INTERNAL, "POST /fetch_weights")

# AReaL's own verbs; on SGLang it sends SGLang's -------------------------------------------------------------

AREAL = VerbTable(
    "areal",
    data_paths=DATA_PATHS,
    failed=sglang.failure_of,
    failure=sglang.SglangFailure,
    pauses="/areal_pause_generation",
    resumes="/areal_continue_generation",
    unsupported=400,
)
AREAL.take(VLLM, "POST /sleep", "POST /wake_up")


@AREAL("POST /areal_pause_generation")
async def areal_pause(call: Call) -> DoneAnswer:
    """Hold the group, and end all requests."""
    await call.pause()
    return DoneAnswer("Generation paused and all requests aborted", success=True)


@AREAL("POST /areal_continue_generation")
async def areal_resume(call: Call) -> DoneAnswer:
    """Release the group."""
    await call.resume()
    return DoneAnswer("Generation continued", success=True)


class LoadBody(Struct):
    """Of ``/areal_update_weights``."""

    model_path: Text


@AREAL("POST /areal_update_weights", brings=True)
async def areal_update(call: Call, asked: LoadBody) -> DoneAnswer:
    """Update to a directory."""
    receipt = await call.load(asked.model_path, None, in_flight=InFlightPolicy.ABORT)
    return DoneAnswer(receipt.sentence(), success=True)


AREAL.refuse(
    Reason.PUSH,
    "POST /areal_init_weights_update_group",
    "POST /areal_set_update_weight_meta",
    "POST /areal_update_weights_xccl",
)
AREAL.refuse(
    Reason.ADAPTER,
    "POST /areal_update_weights_lora",
    "POST /areal_set_update_weight_meta_lora",
    "POST /areal_update_weights_lora_xccl",
)

# prime-rl's: a directory in ``weight_dir``, a set-up by files, its liveness ---------------------------------

PRIME_RL = replace(VLLM, name="prime-rl")
PRIME_RL.take(
    VLLM,
    *("POST /pause", "POST /resume", "GET /is_paused", "POST /update_weights", "POST /collective_rpc"),
    *("POST /load_lora_adapter", "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"),
)
PRIME_RL("POST /init_broadcaster")(set_up)


@PRIME_RL("GET /liveness", also=(503,))
async def liveness(call: Call) -> StateAnswer | HttpAnswer:
    """Answer whether all ranks live."""
    if await call.is_live():
        return StateAnswer("ok")
    return HttpAnswer(503, StateAnswer("engine_unresponsive"), {"Retry-After": "1"})
