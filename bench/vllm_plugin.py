"""vLLM's own verbs around a reload by path, in one route: what an update by wsm is held against.

With wsm in a server its gate refuses these verbs over HTTP; another plugin may call what they call.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse


class VerbsPlugin:
    """An endpoint plugin: ``POST /bench/reload?path=...``."""

    name = "bench"
    required_tasks = ("generate",)
    _client: Any

    def attach_router(self, app: Any) -> None:
        """Add the route."""
        app.add_api_route("/bench/reload", self.reload, methods=["POST"], response_model=None)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Take the engine."""
        del state, args
        self._client = engine_client

    async def reload(self, request: Request) -> JSONResponse:
        """Pause, let every worker reload from a path, and resume, as the verbs do."""
        await self._client.pause_generation(mode="keep", clear_cache=True)
        path = {"weights_path": request.query_params["path"]}
        await self._client.collective_rpc("reload_weights", kwargs=path)
        await self._client.resume_generation()
        return JSONResponse({})
