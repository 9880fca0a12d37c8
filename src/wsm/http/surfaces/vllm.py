"""vLLM's surface, as TRL and SkyRL use it; prime-rl's and AReaL's begin with its verbs."""

from __future__ import annotations

from wsm.http.answers import HttpAnswer
from wsm.http.surface import Handler, Surface, SurfaceRoute, verb_route
from wsm.http.surfaces import _refusals
from wsm.http.surfaces._refusals import Reason, Refusal
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.http.surfaces._vllm_verbs import VllmVerbs

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


def failure_of(answer: HttpAnswer) -> HttpAnswer:
    """Return an error as vLLM's clients read it: a message and a code within ``error``."""
    error = {**answer.body["error"]}
    error["param"], error["status"] = None, answer.status
    return HttpAnswer(answer.status, {**answer.body, "error": error}, answer.headers)


def routes_of(verbs: dict[str, Handler]) -> tuple[SurfaceRoute, ...]:
    """Return routes from ``"METHOD /path"`` and handlers."""
    named = ((name.partition(" "), handler) for name, handler in verbs.items())
    return tuple(verb_route(method, path, handler) for (method, _, path), handler in named)


def surface(options: SurfaceOptions) -> Surface:
    """Return vLLM's surface."""
    made = VllmVerbs("vllm", options)
    verbs: dict[str, Handler] = {
        "POST /pause": made.pause,
        "POST /resume": made.resume,
        "GET /is_paused": made.is_paused,
        "POST /abort_requests": made.verbs.or_engine(made.abort),
        "POST /init_weight_transfer_engine": made.set_up,
        "POST /start_weight_update": made.start,
        "POST /update_weights": made.update,
        "POST /finish_weight_update": made.finish,
        "POST /update_weight_version": made.relabel,
        "GET /weight_info": made.weight_info,
        "POST /weight_checker": made.check,
        # What pushes tensors asks this first, and then waits in its own group of NCCL.
        "GET /get_world_size": made.verbs.refusing(Refusal("/get_world_size", Reason.NCCL, closes=False)),
        "POST /sleep": made.sleep,
        "POST /wake_up": made.wake,
        "GET /is_sleeping": made.is_sleeping,
        "POST /reset_prefix_cache": made.reset_prefix_cache,
        "GET /v1/models": made.verbs.models,
        **{f"POST {verb}": made.verbs.refusing(refusal) for verb, refusal in _refusals.VLLM.items()},
    }
    return Surface("vllm", routes_of(verbs), data_paths=DATA_PATHS, failed=failure_of, adopt=options.adopt)
