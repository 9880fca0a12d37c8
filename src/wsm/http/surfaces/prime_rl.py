"""prime-rl's own verbs over vLLM's: a directory in ``weight_dir``, a set-up by files, its liveness."""

from __future__ import annotations

from wsm.http.answers import HttpAnswer
from wsm.http.surfaces import vllm
from wsm.http.surfaces._call import Call
from wsm.http.surfaces._verbs import VerbTable

PRIME_RL = VerbTable(
    "prime-rl",
    data_paths=vllm.DATA_PATHS,
    failed=vllm.failure_of,
    failure=vllm.VllmFailure,
    pauses="/pause",
    resumes="/resume",
    unsupported=400,
)
PRIME_RL.take(
    vllm.VLLM,
    *("POST /pause", "POST /resume", "GET /is_paused", "POST /update_weights", "POST /collective_rpc"),
    *("POST /load_lora_adapter", "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"),
)
PRIME_RL("POST /init_broadcaster")(vllm.set_up)


@PRIME_RL("GET /liveness", also=(503,))
async def liveness(call: Call) -> vllm.StateAnswer | HttpAnswer:
    """Answer whether all ranks live."""
    if await call.is_live():
        return vllm.StateAnswer("ok")
    return HttpAnswer(503, vllm.StateAnswer("engine_unresponsive"), {"Retry-After": "1"})
