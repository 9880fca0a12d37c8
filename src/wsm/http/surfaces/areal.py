"""AReaL's own verbs over vLLM's; on SGLang it sends SGLang's."""

from __future__ import annotations

from msgspec import Struct

from wsm.http.bodies import Text
from wsm.http.surfaces._call import Call
from wsm.http.surfaces._reasons import Reason
from wsm.http.surfaces._verbs import DoneAnswer, VerbTable
from wsm.http.surfaces.sglang import SglangFailure, failure_of
from wsm.http.surfaces.vllm import DATA_PATHS, VLLM

AREAL = VerbTable(
    "areal",
    data_paths=DATA_PATHS,
    failed=failure_of,
    failure=SglangFailure,
    pauses="/areal_pause_generation",
    resumes="/areal_continue_generation",
    unsupported=400,
)
AREAL.take(VLLM, "POST /sleep", "POST /wake_up")


@AREAL("POST /areal_pause_generation")
async def pause(call: Call) -> DoneAnswer:
    """Hold the group, and end all requests."""
    await call.pause()
    return DoneAnswer("Generation paused and all requests aborted", success=True)


@AREAL("POST /areal_continue_generation")
async def resume(call: Call) -> DoneAnswer:
    """Release the group."""
    await call.resume()
    return DoneAnswer("Generation continued", success=True)


class LoadBody(Struct):
    """Of ``/areal_update_weights``."""

    model_path: Text


@AREAL("POST /areal_update_weights", brings=True)
async def update(call: Call, asked: LoadBody) -> DoneAnswer:
    """Update to a directory."""
    receipt = await call.load(directory=asked.model_path, label=None, abort_requests=True)
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
