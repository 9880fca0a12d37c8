"""AReaL's own verbs over vLLM's; on SGLang it sends SGLang's."""

from __future__ import annotations

from typing import final

import msgspec
from starlette.requests import Request

from wsm.http.answers import HttpAnswer
from wsm.http.bodies import Text
from wsm.http.commands import Commands
from wsm.http.surface import Handler, Surface
from wsm.http.surfaces import _refusals
from wsm.http.surfaces._pausing import pause_of
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.http.surfaces._verbs import Verbs, body_of, told
from wsm.http.surfaces._vllm_verbs import VllmVerbs
from wsm.http.surfaces.sglang import failure_of
from wsm.http.surfaces.vllm import DATA_PATHS, routes_of


class _LoadBody(msgspec.Struct):
    model_path: Text


@final
class _Areal:
    """AReaL's verbs for one server."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def pause(self, request: Request, commands: Commands) -> HttpAnswer:
        receipt = await self._verbs.pause(request, commands, pause_of("abort"))
        return told(200, {"success": True, "message": "Generation paused and all requests aborted"}, receipt)

    async def resume(self, request: Request, commands: Commands) -> HttpAnswer:
        receipt = await self._verbs.resume(request, commands)
        return told(200, {"success": True, "message": "Generation continued"}, receipt)

    async def update(self, request: Request, commands: Commands) -> HttpAnswer:
        async with self._verbs.bringing(request, commands):
            asked = await body_of(request, _LoadBody)
            receipt = await self._verbs.load(
                request, commands, directory=asked.model_path, label=None, abort_requests=True
            )
        return told(200, {"success": True, "message": receipt.sentence()}, receipt)


def surface(options: SurfaceOptions) -> Surface:
    """Return the surface of AReaL with vLLM."""
    shared = VllmVerbs(
        "areal", options, pauses="/areal_pause_generation", resumes="/areal_continue_generation"
    )
    made = _Areal(shared.verbs)
    verbs: dict[str, Handler] = {
        "POST /areal_pause_generation": made.pause,
        "POST /areal_continue_generation": made.resume,
        "POST /areal_update_weights": made.update,
        "POST /sleep": shared.sleep,
        "POST /wake_up": shared.wake,
        "GET /v1/models": shared.verbs.models,
        **{f"POST {verb}": shared.verbs.refusing(refusal) for verb, refusal in _refusals.AREAL.items()},
    }
    return Surface("areal", routes_of(verbs), data_paths=DATA_PATHS, failed=failure_of, adopt=options.adopt)
