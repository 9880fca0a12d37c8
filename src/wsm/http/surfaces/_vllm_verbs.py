"""vLLM's verbs for one server and one owner of holds: each a few commands, answered in vLLM's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from wsm.http import errors as http_errors
from wsm.http.answers import HttpAnswer
from wsm.http.bodies import Label, Text, Texts, label_of, object_of, texts_of, without_nulls
from wsm.http.commands import Commands
from wsm.http.surfaces._pausing import pause_of, query_flag, tags_of
from wsm.http.surfaces._refusals import Reason, Refusal
from wsm.http.surfaces._surface_options import SurfaceOptions
from wsm.http.surfaces._verbs import FinishBody, RelabelBody, Verbs, body_of, told
from wsm.states.vocabulary import ALL_TAGS

#: Transfers for which nothing has to be set up.
_DISK = ("disk", "filesystem", "file", "fs")


class _UpdateInfo(msgspec.Struct):
    path: Text | None = None
    version: Label | None = None


class UpdateWeightsBody(msgspec.Struct):
    """Of ``/update_weights``: vLLM's ``update_info``, or prime-rl's ``weight_dir``."""

    update_info: _UpdateInfo | None = None
    weight_dir: Text | None = None


class _CheckBody(msgspec.Struct):
    action: Text = "checksum"
    baseline: dict[str, Any] = {}


class _AbortIdsBody(msgspec.Struct):
    request_ids: Texts | None = None


@dataclass(frozen=True)
class WeightSource:
    """What an update names.

    Parameters
    ----------
    directory : str or None
        A trainer's directory.
    label : str or None
        What it is called; without a directory: a published version.
    refused : Reason or None
        Why it cannot be loaded.
    """

    directory: str | None = None
    label: str | None = None
    refused: Reason | None = None


def source_of(asked: UpdateWeightsBody) -> WeightSource:
    """Return what ``/update_weights`` names; what names neither path nor version describes pushed tensors."""
    info = asked.update_info or _UpdateInfo(asked.weight_dir)
    if info.path is None and info.version is None:
        return WeightSource(refused=Reason.PUSH)
    return WeightSource(info.path, label_of(info.version))


def needs_no_setup(asked: Mapping[str, Any]) -> bool:
    """Whether ``/init_weight_transfer_engine`` or ``/init_broadcaster`` asks for a transfer by files.

    Raises
    ------
    BadInputError
        If ``init_info`` is no object.
    """
    info = asked.get("init_info", asked)
    if not isinstance(info, Mapping):
        raise http_errors.bad_body(field="init_info", problem="it must be an object")
    kinds = [info[name] for name in ("backend", "type") if name in info]
    return all(kind in _DISK for kind in kinds) if kinds else not info.keys() - {"timeout", "session_id"}


@final
class VllmVerbs:
    """vLLM's verbs for one server, with the holds of the surface that is named."""

    def __init__(
        self, surface: str, options: SurfaceOptions, *, pauses: str = "/pause", resumes: str = "/resume"
    ) -> None:
        self.verbs = Verbs(surface, options, pauses=pauses, resumes=resumes, unsupported_status=400)

    async def pause(self, request: Request, commands: Commands) -> HttpAnswer:
        query = request.query_params
        given = query.get("clear_cache")
        clears = None if given is None else query_flag(given, "clear_cache", otherwise=True)
        receipt = await self.verbs.pause(request, commands, pause_of(query.get("mode"), clear_cache=clears))
        return told(200, {"status": "paused"}, receipt)

    async def resume(self, request: Request, commands: Commands) -> HttpAnswer:
        return told(200, {"status": "resumed"}, await self.verbs.resume(request, commands))

    async def is_paused(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        return HttpAnswer(200, {"is_paused": (await commands.status()).hold is not None})

    async def set_up(self, request: Request, commands: Commands) -> HttpAnswer:
        if not needs_no_setup(without_nulls(object_of(await request.body()))):
            return await self.verbs.refuse(commands, request, Refusal(request.url.path, Reason.PUSH))
        return HttpAnswer(200, {"message": "Weight transfer initialized", "status": "ok"})

    async def start(self, request: Request, commands: Commands) -> HttpAnswer:
        await self.verbs.parts.begin(request, commands)
        return HttpAnswer(200, {"message": "Weight update started"})

    async def update(self, request: Request, commands: Commands) -> HttpAnswer:
        async with self.verbs.bringing(request, commands):
            source = source_of(await body_of(request, UpdateWeightsBody))
            if source.refused is None:
                receipt = await self.verbs.load(
                    request, commands, directory=source.directory, label=source.label
                )
        if source.refused is not None:
            return await self.verbs.refuse(commands, request, Refusal(request.url.path, source.refused))
        return told(200, {"message": "Weights updated", "status": "ok"}, receipt)

    async def finish(self, request: Request, commands: Commands) -> HttpAnswer:
        async with self.verbs.bringing(request, commands):
            label = label_of((await body_of(request, FinishBody)).weight_version)
            receipt = await self.verbs.parts.finish(request, commands, label, begin="/start_weight_update")
        return told(200, {"message": "Weight update finished"}, receipt)

    async def relabel(self, request: Request, commands: Commands) -> HttpAnswer:
        asked = await body_of(request, RelabelBody)
        held = await self.verbs.require_label(commands, str(asked.new_version))
        return HttpAnswer(200, {"success": True, "new_version": held})

    async def weight_info(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        return HttpAnswer(200, await self.verbs.named_version(commands))

    async def check(self, request: Request, commands: Commands) -> HttpAnswer:
        asked = await body_of(request, _CheckBody)
        digest = (await commands.facts()).committed.digest
        if asked.action == "checksum":
            return HttpAnswer(200, {"checksums": {"manifest": digest}})
        if asked.action == "compare":
            differ = [each for each in asked.baseline.items() if each != ("manifest", digest)]
            said = {"match": bool(asked.baseline) and not differ, "mismatches": [name for name, _ in differ]}
            return HttpAnswer(200, said)
        return await self.verbs.refuse(
            commands, request, Refusal("/weight_checker", Reason.BASELINE, closes=False)
        )

    async def sleep(self, request: Request, commands: Commands) -> Any:
        query = request.query_params
        level = query.get("level", "1")
        mode = pause_of(query.get("mode")).in_flight
        if level not in ("0", "1", "2"):
            raise http_errors.bad_body(field="level", problem=f"it is {level!r}, and must be 0, 1 or 2")
        if level == "0":
            return told(200, {}, await self.verbs.pause(request, commands, pause_of(query.get("mode"))))
        lets_go = self.verbs.options.sleep_level_1_as_2
        if level == "1" and not (self.verbs.surface == "areal" if lets_go is None else lets_go):
            return await self.verbs.refuse(commands, request, Refusal("/sleep", Reason.OFFLOAD, closes=False))
        held = (await commands.status()).hold is not None
        await self.verbs.sleep(request, commands, ALL_TAGS, None if held else mode)
        return Response(b"", 200)

    async def wake(self, request: Request, commands: Commands) -> Response:
        tags = tags_of(request.query_params.getlist("tags"))
        version = await self.verbs.last_version(commands)
        await self.verbs.wake(request, commands, tags, version=version, serve=False)
        return Response(b"", 200)

    async def is_sleeping(self, request: Request, commands: Commands) -> HttpAnswer:
        del request
        status = await commands.status()
        return HttpAnswer(200, {"is_sleeping": any(rank.resident.missing for rank in status.ranks)})

    async def reset_prefix_cache(self, request: Request, commands: Commands) -> Response:
        await self.verbs.flush(request, commands)
        return Response(b"", 200)

    async def abort(self, request: Request, commands: Commands) -> HttpAnswer:
        del commands
        ids = (await body_of(request, _AbortIdsBody)).request_ids
        ended = await self.verbs.abort(request, texts_of(ids))
        return HttpAnswer(200, {"status": "aborted", "aborted": len(ended)})
