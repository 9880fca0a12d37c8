"""prime-rl's own verbs over vLLM's: a directory in ``weight_dir``, a set-up by files, its liveness."""

from __future__ import annotations

from starlette.requests import Request

from wsm.http.answers import HttpAnswer
from wsm.http.commands import Commands
from wsm.http.surface import Handler, Surface
from wsm.http.surfaces import _refusals
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.http.surfaces._verbs import all_live
from wsm.http.surfaces._vllm_verbs import VllmVerbs
from wsm.http.surfaces.vllm import DATA_PATHS, failure_of, routes_of


async def _liveness(request: Request, commands: Commands) -> HttpAnswer:
    del request
    if all_live(await commands.status()):
        return HttpAnswer(200, {"status": "ok"})
    return HttpAnswer(503, {"status": "engine_unresponsive"}, {"Retry-After": "1"})


def surface(options: SurfaceOptions) -> Surface:
    """Return prime-rl's surface."""
    made = VllmVerbs("prime-rl", options)
    verbs: dict[str, Handler] = {
        "POST /pause": made.pause,
        "POST /resume": made.resume,
        "GET /is_paused": made.is_paused,
        "POST /init_broadcaster": made.set_up,
        "POST /update_weights": made.update,
        "GET /liveness": _liveness,
        "GET /v1/models": made.verbs.models,
        **{
            f"POST {verb}": made.verbs.refusing(_refusals.VLLM[verb])
            for verb in (
                "/load_lora_adapter",
                "/v1/load_lora_adapter",
                "/v1/unload_lora_adapter",
                "/collective_rpc",
            )
        },
    }
    return Surface(
        "prime-rl", routes_of(verbs), data_paths=DATA_PATHS, failed=failure_of, adopt=options.adopt
    )
