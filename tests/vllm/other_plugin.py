"""An endpoint plugin of somebody else, whose route calls a method that raises on rank 0 alone."""

from __future__ import annotations

import contextlib

from starlette.responses import Response


class OtherPlugin:
    name = "other"
    required_tasks = ("generate",)

    def attach_router(self, app):
        async def raises():
            with contextlib.suppress(Exception):
                await self.client.collective_rpc("other_raises")
            return Response()

        app.add_api_route("/other", raises, methods=["POST"], response_model=None)

    async def init_state(self, engine_client, state, args):
        self.client = engine_client
