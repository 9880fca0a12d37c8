"""The endpoint plugin of vLLM's API server: what vLLM calls, once, before it listens."""

from __future__ import annotations

import asyncio
import os
import secrets
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from wsm.fleet.member import FleetMember
from wsm.labels import checked_version
from wsm.vllm.api_servers import ApiServers
from wsm.vllm.fanout import EngineRanks
from wsm.vllm.gate import Gate
from wsm.vllm.options import options_of, require_known
from wsm.vllm.updates import ServerUpdates
from wsm.vllm.versions import VersionPlace


class EndpointPlugin:
    """What vLLM makes of the entry point, once in each of its API servers."""

    #: Since vLLM has started its engine; it listens only then.
    gate: Gate
    #: In the first of them, or the only one.
    updates: ServerUpdates
    #: In each other one: what asks the first.
    first: ASGIApp
    name = "wsm"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Put the gate before vLLM's app."""
        self._app = app
        app.add_middleware(self._gated)

    def _gated(self, app: ASGIApp) -> ASGIApp:
        async def gated(scope: Scope, receive: Receive, send: Send) -> None:
            await self.gate(app, scope, receive, send)

        return gated

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Say hello to the workers, and bring what was committed; vLLM listens only behind it.

        Raises
        ------
        WsmError
            If this build or command line of vLLM is none that wsm knows, or the file that should say what was
            committed does not; vLLM does not start.
        """
        del state
        require_known(args)
        options = options_of(args.additional_config)
        keys = [key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key]
        config = engine_client.vllm_config
        parallel = config.parallel_config
        servers = ApiServers() if parallel._api_process_count > 1 else None
        if servers is not None and parallel._api_process_rank > 0:
            self.first = await servers.first()
            self.gate = Gate(keys, servers.is_open, first=self.first)
            return
        model = PurePath(os.getcwd(), config.model_config.model)  # noqa: PTH109 - nothing is read here
        # A cache of Hugging Face links the files of a snapshot to those beside it.
        around = [str(model.parent.parent)] if model.parent.name == "snapshots" else []
        version = checked_version(options.version or model.name)
        server, world_size = f"{os.getpid()}-{secrets.token_hex(4)}", parallel.world_size

        async def call(question: dict[str, Any]) -> list[Any]:
            return list(await engine_client.collective_rpc("wsm_answer", args=(question,)))

        ranks = EngineRanks(call, world_size, server, answer_s=options.answer_s)
        first = VersionPlace(version, str(model), [str(model), *around])
        await ranks.hello(first, options)
        fleet = os.environ.get("WSM_FLEET")
        roots = options.roots or [str(each) for each in [model.parent] if each.name]
        options = msgspec.structs.replace(options, roots=roots, store=options.store or fleet)
        backend = getattr(config.weight_transfer_config, "backend", "")
        member = FleetMember(Path(fleet)) if fleet else None
        made = partial(ServerUpdates, fleet=member, servers=servers)
        self.updates = updates = made(engine_client, ranks, options, backend)
        self.gate = Gate(keys, updates.lets_in, updates)
        await updates.bring_committed()
        await engine_client.update_weight_version(ranks.version)
        if servers is not None:
            self._leading = asyncio.create_task(servers.lead(self._app, updates.lets_in))
