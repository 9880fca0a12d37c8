"""SGLang's verbs, as slime, miles, AReaL and verl send them: read, answered in SGLang's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import wsm
from wsm.errors import BadInputError, RefusedError
from wsm.http import errors as http_errors
from wsm.http.answers import HttpAnswer
from wsm.http.bodies import Label, Text, Texts, label_of, texts_of
from wsm.http.commands import Commands
from wsm.http.surface import Handler, Surface, verb_route
from wsm.http.surfaces import _refusals, errors
from wsm.http.surfaces._pausing import pause_of, tags_of
from wsm.http.surfaces._refusals import Reason, Refusal
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.http.surfaces._verbs import FinishBody, RelabelBody, Verbs, all_live, body_of, told
from wsm.status import GroupStatus

#: Paths of the engine that ask for text.
DATA_PATHS = frozenset(
    {
        "/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/encode",
        "/classify",
    }
)


class _PauseModeBody(msgspec.Struct):
    mode: Text | None = None


class _FromDiskBody(msgspec.Struct):
    model_path: Text
    weight_version: Label | None = None
    abort_all_requests: bool = False
    keep_pause: bool = False


class _PullBody(msgspec.Struct):
    target_version: Annotated[int, msgspec.Meta(ge=0)]
    source_dir: Text
    local_checkpoint_dir: Text


class _MemoryBody(msgspec.Struct):
    tags: Texts | None = None


class _CheckerBody(msgspec.Struct):
    action: Text = "checksum"
    baseline: Text | None = None


class _AbortRidBody(msgspec.Struct):
    abort_all: bool = False
    rid: Texts = []


class _WorkerBody(msgspec.Struct):
    url: Text


def failure_of(answer: HttpAnswer) -> HttpAnswer:
    """Return an error as SGLang's clients read it: they print ``message``."""
    error = dict(answer.body["error"])
    body = {**answer.body, "success": False, "message": error.get("message", ""), "error": error}
    return HttpAnswer(answer.status, body, answer.headers)


def server_info(
    status: GroupStatus, *, word: str | None, model: str, path: str, version: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a server says of itself; slime compares some of it with what it would have started."""
    ranks = sum(1 for rank in status.ranks if rank.step_kind != "none")
    return {
        "model_path": path,
        "served_model_name": model,
        "tp_size": ranks,
        "pp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "num_gpus": ranks,
        "disaggregation_mode": "null",
        "enable_memory_saver": False,
        "weight_version": word,
        "wsm_version": status.version,
        "internal_states": [],
        "version": version,
        **more,
    }


def loads(running: int, waiting: int) -> dict[str, Any]:
    """Return how many requests are open, as ``/v1/loads`` says it."""
    load = {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_reqs": running + waiting,
        "num_total_reqs": running + waiting,
    }
    return {"loads": [load], "dp_rank_count": 1}


@final
class _Sglang:
    """SGLang's verbs for one server."""

    def __init__(self, options: SurfaceOptions) -> None:
        self.verbs = Verbs("sglang", options, pauses="/pause_generation", resumes="/continue_generation")

    async def pause(self, request: Request, commands: Commands) -> HttpAnswer:
        asked = await body_of(request, _PauseModeBody)
        receipt = await self.verbs.pause(request, commands, pause_of(asked.mode))
        return told(200, {"message": "Generation paused successfully.", "status": "ok"}, receipt)

    async def resume(self, request: Request, commands: Commands) -> HttpAnswer:
        receipt = await self.verbs.resume(request, commands)
        return told(200, {"message": "Generation continued successfully.", "status": "ok"}, receipt)

    async def flush(self, request: Request, commands: Commands) -> Response:
        try:
            await self.verbs.flush(request, commands)
        except RefusedError as error:
            return PlainTextResponse(f"{error}\n", 400)
        return PlainTextResponse("Cache flushed.\n")

    async def update_from_disk(self, request: Request, commands: Commands) -> HttpAnswer:
        async with self.verbs.bringing(request, commands):
            asked = await body_of(request, _FromDiskBody)
            receipt = await self.verbs.load(
                request,
                commands,
                directory=asked.model_path,
                label=label_of(asked.weight_version),
                abort_requests=asked.abort_all_requests,
                drains=True,
                keep_paused=asked.keep_pause,
            )
        body = {"success": True, "message": receipt.sentence(), "num_paused_requests": 0}
        return told(200, body, receipt)

    async def pull(self, request: Request, commands: Commands) -> HttpAnswer:
        asked = await body_of(request, _PullBody)
        number = asked.target_version
        directory = f"{asked.source_dir.rstrip('/')}/weight_v{number:06d}"
        try:
            adopted = await self.verbs.pull(commands, asked.local_checkpoint_dir, directory, str(number))
        except BadInputError as error:
            if number or error.code != "checkpoint-missing":
                raise
            raise http_errors.unsupported(
                verb="/pull_weights",
                reason="version 0 is what changes will be sent of (slime's --update-weight-mode delta), and "
                "changes of that format are not read here",
                use_instead="whole checkpoints (--update-weight-mode full)",
            ) from error
        return HttpAnswer(
            200, {"success": True, "message": f"{directory} is taken in as version {adopted.label}"}
        )

    async def begin(self, request: Request, commands: Commands) -> HttpAnswer:
        await self.verbs.parts.begin(request, commands)
        return HttpAnswer(200, {"success": True, "message": "Weight update begun."})

    async def end(self, request: Request, commands: Commands) -> HttpAnswer:
        async with self.verbs.bringing(request, commands):
            label = label_of((await body_of(request, FinishBody)).weight_version)
            receipt = await self.verbs.parts.finish(request, commands, label, begin="/begin_weight_update")
        return told(200, {"success": True, "message": receipt.sentence()}, receipt)

    async def release_memory(self, request: Request, commands: Commands) -> Response:
        tags = tags_of(texts_of((await body_of(request, _MemoryBody)).tags))
        await self.verbs.sleep(request, commands, tags)
        return Response(b"null", media_type="application/json")

    async def resume_memory(self, request: Request, commands: Commands) -> Response:
        tags = tags_of(texts_of((await body_of(request, _MemoryBody)).tags))
        version = await self.verbs.last_version(commands)
        await self.verbs.wake(request, commands, tags, version=version, serve=False)
        return Response(b"null", media_type="application/json")

    async def relabel(self, request: Request, commands: Commands) -> HttpAnswer:
        asked = await body_of(request, RelabelBody)
        held = await self.verbs.require_label(commands, str(asked.new_version))
        body = {"success": True, "message": f"The weights have version {held}.", "new_version": held}
        return HttpAnswer(200, body)

    async def version(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        return HttpAnswer(200, await self.verbs.named_version(commands))

    async def model_info(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        name = self.verbs.model_name(commands)
        path = self.verbs.options.model_path or name
        body = {
            "model_path": path,
            "tokenizer_path": path,
            "is_generation": True,
            "preferred_sampling_params": None,
            **await self.verbs.named_version(commands),
        }
        return HttpAnswer(200, body)

    async def server_info(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        name, options = self.verbs.model_name(commands), self.verbs.options
        status = await commands.status()
        body = server_info(
            status,
            word=commands.word_for(status.version),
            model=name,
            path=options.model_path or name,
            version=wsm.__version__,
            more=options.server_info,
        )
        return HttpAnswer(200, body)

    async def check(self, request: Request, commands: Commands) -> HttpAnswer:
        asked = await body_of(request, _CheckerBody)
        if asked.action not in ("checksum", "compare"):
            return await self.verbs.refuse(
                commands, request, Refusal("/weights_checker", Reason.BASELINE, closes=False)
            )
        digest = (await commands.facts()).committed.digest
        matches = asked.action == "checksum" or asked.baseline in (None, digest)
        said = "the weights have this digest" if matches else "the weights have another digest"
        body = {"success": matches, "message": said, "per_engine_checksum": digest, "ranks": []}
        return HttpAnswer(200 if matches else 400, body)

    async def loads(self, request: Request, commands: Commands) -> HttpAnswer:
        del request, commands
        requests = self.verbs.options.requests
        return HttpAnswer(200, loads(*((0, 0) if requests is None else await requests.count())))

    async def abort(self, request: Request, commands: Commands) -> Response:
        del commands
        asked = await body_of(request, _AbortRidBody)
        await self.verbs.abort(request, None if asked.abort_all else texts_of(asked.rid))
        return Response(b"", 200)

    async def health_generate(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        lives = all_live(await commands.status())
        return HttpAnswer(200 if lives else 503, None, {} if lives else {"Retry-After": "1"})

    async def workers(self, request: Request, commands: Commands) -> HttpAnswer:
        own = {
            "id": commands.name,
            "url": str(request.base_url).rstrip("/"),
            "worker_type": "regular",
            "is_healthy": True,
            "model_id": self.verbs.model_name(commands),
        }
        return HttpAnswer(200, {"workers": [own], "total": 1})

    async def register(self, request: Request, commands: Commands) -> HttpAnswer:
        url, own = (await body_of(request, _WorkerBody)).url, str(request.base_url).rstrip("/")
        if url.rstrip("/").rpartition(":")[2] != own.rpartition(":")[2]:
            raise errors.not_this_worker(url=url, own=own)
        return HttpAnswer(200, {"status": "accepted", "worker_id": commands.name, "url": own})

    async def unregister(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        message = "this server is the worker, and ends with its process"
        return HttpAnswer(200, {"status": "accepted", "worker_id": commands.name, "message": message})


def surface(options: SurfaceOptions) -> Surface:
    """Return SGLang's surface."""
    made = _Sglang(options)
    routes: list[tuple[str, str, Handler]] = [
        ("POST", "/pause_generation", made.pause),
        ("POST", "/continue_generation", made.resume),
        ("GET POST", "/flush_cache", made.flush),
        ("POST", "/update_weights_from_disk", made.update_from_disk),
        ("POST", "/pull_weights", made.pull),
        ("POST", "/begin_weight_update", made.begin),
        ("POST", "/end_weight_update", made.end),
        ("GET POST", "/release_memory_occupation", made.release_memory),
        ("GET POST", "/resume_memory_occupation", made.resume_memory),
        ("POST", "/update_weight_version", made.relabel),
        ("GET", "/get_weight_version", made.version),
        ("GET", "/weight_version", made.version),
        ("GET", "/model_info", made.model_info),
        ("GET", "/get_model_info", made.model_info),
        ("GET", "/server_info", made.server_info),
        ("GET", "/get_server_info", made.server_info),
        ("GET POST", "/weights_checker", made.check),
        ("GET", "/v1/loads", made.verbs.or_engine(made.loads)),
        ("GET", "/v1/models", made.verbs.models),
        ("POST", "/abort_request", made.verbs.or_engine(made.abort)),
        ("GET", "/health_generate", made.health_generate),
        ("GET", "/workers", made.workers),
        ("POST", "/workers", made.register),
        ("DELETE", "/workers/{worker_id:path}", made.unregister),
        *(("POST", verb, made.verbs.refusing(refusal)) for verb, refusal in _refusals.SGLANG.items()),
    ]
    return Surface(
        "sglang",
        tuple(verb_route(method, path, verb) for methods, path, verb in routes for method in methods.split()),
        data_paths=DATA_PATHS,
        failed=failure_of,
        adopt=options.adopt,
    )
