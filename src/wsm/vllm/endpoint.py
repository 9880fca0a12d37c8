"""The endpoint plugin of vLLM's API server: what vLLM calls, once, before it listens."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from wsm.errors import BadInputError, RefusedError
from wsm.fleet.member import FleetMember
from wsm.http.bodies import as_struct
from wsm.labels import checked_version
from wsm.vllm.api_servers import ApiServers
from wsm.vllm.fanout import EngineRanks
from wsm.vllm.gate import Gate
from wsm.vllm.updates import ServerOptions, ServerUpdates
from wsm.vllm.versions import VersionPlace

#: Releases of vLLM that this is tested with.
SUPPORTED = ("0.31.", "0.32.")


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
        _require_known(args)
        options = _options(args.additional_config)
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


def check_words(words: Sequence[str], *, is_vllm: bool) -> None:
    """Refuse what ``vllm serve`` is told and wsm cannot keep, before a model is loaded.

    `is_vllm`: whether this process is vLLM, where the words are all that it gets but for a file of them.

    Raises
    ------
    WsmError
        As :meth:`EndpointPlugin.init_state`, as far as words say it.
    """
    said = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        said[name.replace("_", "-")] = value if equals else following
    with suppress(ValueError):  # of what is no JSON vLLM says so itself
        _options(json.loads(said.get("--additional-config", "{}")))
    if is_vllm and not said.keys() & {"--help", "-h", "--config"}:
        groups = said.get("--data-parallel-size", said.get("-dp", ""))
        _require_known(
            SimpleNamespace(
                worker_extension_cls=said.get("--worker-extension-cls"),
                data_parallel_size=int(groups) if groups.isdigit() else 1,
                grpc="--grpc" in said,
            )
        )


def _options(additional: Any) -> ServerOptions:
    """Return what is said to wsm; what is not known is named, beside what is."""
    said = additional.get("wsm", {}) if isinstance(additional, dict) else {}
    try:
        return as_struct(said, ServerOptions)
    except BadInputError as error:
        problem = f"--additional-config: of wsm: {error}"
        raise BadInputError(problem, code="bad-vllm-option", **error.context) from None


def _require_known(args: Any) -> None:
    version = importlib.import_module("vllm").__version__
    known = ", ".join(f"{release}*" for release in SUPPORTED)
    problems = {
        f"vLLM is {version}, and wsm knows {known}": not version.startswith(SUPPORTED),
        "--worker-extension-cls wsm.vllm.Worker is missing": not args.worker_extension_cls,
        "--data-parallel-size is more than 1": (args.data_parallel_size or 1) > 1,
        "--grpc has no gate": getattr(args, "grpc", False),
    }
    found = [problem for problem, there in problems.items() if there]
    if found:
        raise RefusedError(f"wsm cannot keep this vLLM whole: {'; '.join(found)}", code="unsupported-vllm")
