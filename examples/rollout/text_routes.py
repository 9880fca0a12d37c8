"""``/generate`` and ``/v1/completions`` of the reference engine: text for the trainers that command it.

What a hold means for a request the surface says: it waits at the gate, or fails. A caller that disconnects
takes its request back. Streams are server-sent events; what ends one before its end is an event, too.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, final

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from examples.rollout import text_bodies
from examples.rollout.request import FinishReason, Generation
from examples.rollout.text_bodies import TextRequest
from examples.rollout.text_requests import EngineRequests, NewTokens
from wsm.errors import WsmError
from wsm.http import errors
from wsm.http.answers import HttpAnswer, failed
from wsm.http.app import admit
from wsm.http.bodies import MOST_TEXT_BYTES, object_of
from wsm.http.commands import Commands
from wsm.http.surface import InHold, Surface, SurfaceRoute

#: Of a stream, its events; of several prompts, a list.
_ANSWERS = {200: dict[str, Any] | list[dict[str, Any]]}
#: What a client that left is answered; it never sees it.
_LEFT = Response(status_code=499)

#: ``formed(index, answer, version, ended=...)`` returns an answer as its route says it.
_Formed: TypeAlias = Callable[..., dict[str, Any]]


def with_text(
    surfaces: Sequence[Surface], requests: EngineRequests, *, model: str | None = None
) -> tuple[Surface, ...]:
    """Return the surfaces of a server whose group generates text; the first one's rule for holds is theirs.

    Parameters
    ----------
    surfaces : sequence of Surface
        The primary one first.
    requests : EngineRequests
        Of the group.
    model : str or None
        What ``/v1/completions`` calls the model; None: as the group.
    """
    first, *others = surfaces or [Surface("native")]
    texts = _Texts(requests, first.in_hold, model)
    routes = (
        SurfaceRoute("POST", "/generate", texts.generate, answers=_ANSWERS),
        SurfaceRoute("PUT", "/generate", texts.generate, answers=_ANSWERS),
        SurfaceRoute("POST", "/v1/completions", texts.completions, answers=_ANSWERS),
        SurfaceRoute("POST", "/v1/chat/completions", texts.chat),
    )
    return (replace(first, routes=(*first.routes, *routes)), *others)


@final
class _Texts:
    """The two routes."""

    def __init__(self, requests: EngineRequests, in_hold: InHold, model: str | None) -> None:
        self._requests = requests
        self._in_hold = in_hold
        self._model = model

    async def generate(self, request: Request, commands: Commands) -> HttpAnswer | Response:
        """Answer SGLang's ``/generate``."""
        asked = text_bodies.sglang_request(object_of(await request.body(), most=MOST_TEXT_BYTES))
        asked = replace(asked, names=asked.names or (uuid.uuid4().hex,))
        begun = time.monotonic()

        def formed(index: int, answer: Generation, version: str | None, *, ended: bool) -> dict[str, Any]:
            said = text_bodies.sglang_answer(
                answer,
                name=asked.names[index] if index < len(asked.names) else f"{asked.names[0]}-{index}",
                prompt_tokens=len(asked.ask.prompts[index]),
                version=version,
                seconds=time.monotonic() - begun,
                word=commands.word_for,
                ended=ended,
            )
            return {**said, "index": index} if asked.stream else said

        if asked.stream:
            return self._stream(commands, asked, formed, whole=True)
        said = await self._answered(request, commands, asked, formed)
        return HttpAnswer(200, said if asked.batch else said[0]) if said else _LEFT

    async def completions(self, request: Request, commands: Commands) -> HttpAnswer | Response:
        """Answer ``/v1/completions``."""
        body = object_of(await request.body(), most=MOST_TEXT_BYTES)
        asked = text_bodies.completions_request(body)
        asked = replace(asked, names=asked.names or (f"cmpl-{uuid.uuid4().hex}",))
        head: dict[str, Any] = {
            "name": asked.names[0],
            "model": body.get("model") or self._model or commands.name,
            "created": int(time.time()),
        }

        def formed(index: int, answer: Generation, version: str | None, *, ended: bool) -> dict[str, Any]:
            prompt = asked.ask.prompts[index]
            choice = text_bodies.completion_choice(
                index, answer, prompt=prompt, version=version, word=commands.word_for, ended=ended
            )
            return text_bodies.completions_answer([choice], usage=False, **head) if asked.stream else choice

        if asked.stream:
            return self._stream(commands, asked, formed, whole=False)
        choices = await self._answered(request, commands, asked, formed)
        return HttpAnswer(200, text_bodies.completions_answer(choices, **head)) if choices else _LEFT

    async def chat(self, request: Request, commands: Commands) -> HttpAnswer:
        """Refuse ``/v1/chat/completions``: messages need a template and a tokenizer."""
        del request, commands
        problem = "this group has no tokenizer and no template: send token ids to /v1/completions"
        raise errors.bad_body(field="messages", problem=problem)

    def _asked(
        self,
        commands: Commands,
        asked: TextRequest,
        told: Callable[[NewTokens], None] | None = None,
    ) -> asyncio.Future[list[Generation]]:
        admitted = partial(admit, commands, self._in_hold)
        return asyncio.ensure_future(self._requests.generate(asked.ask, asked.names, admitted, told))

    async def _answered(
        self, request: Request, commands: Commands, asked: TextRequest, formed: _Formed
    ) -> list[dict[str, Any]]:
        """Return the answers; none if the caller left before them."""
        wait = self._asked(commands, asked)
        left: asyncio.Future[Any] = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({wait, left}, return_when=asyncio.FIRST_COMPLETED)
            answers = wait.result() if wait.done() else []
        finally:
            left.cancel()
            if not wait.done():
                wait.cancel()
                with suppress(asyncio.CancelledError, WsmError):
                    await wait
        version = await self._version(commands, answers)
        return [formed(index, answer, version, ended=True) for index, answer in enumerate(answers)]

    def _stream(self, commands: Commands, asked: TextRequest, formed: _Formed, *, whole: bool) -> Response:
        """Return a stream of events: with all tokens so far in each if `whole`, else with the new ones."""

        async def events() -> AsyncIterator[bytes]:
            news: asyncio.Queue[NewTokens | None] = asyncio.Queue()
            grown = [_NONE] * len(asked.ask.prompts)
            wait = self._asked(commands, asked, news.put_nowait)
            wait.add_done_callback(lambda _: news.put_nowait(None))
            try:
                while (new := await news.get()) is not None:
                    grown[new.prompt] = added = _added(grown[new.prompt], new)
                    part = added if whole else _added(_NONE, new)
                    yield _event(formed(new.prompt, part, None, ended=False))
                answers = wait.result()
                version = await self._version(commands, answers)
                for index, answer in enumerate(answers):
                    rest = answer if whole else _after(answer, len(grown[index].tokens))
                    yield _event(formed(index, rest, version, ended=True))
            except WsmError as error:
                yield _event(failed(error).body)
            finally:
                wait.cancel()
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _version(self, commands: Commands, answers: list[Generation]) -> str | None:
        """Return what the group serves, where an answer has no token that says it."""
        if all(answer.versions for answer in answers):
            return None
        return (await commands.status()).version


_NONE = Generation("", (), (), (), FinishReason.LENGTH)


def _added(before: Generation, new: NewTokens) -> Generation:
    return structs.replace(
        before,
        tokens=(*before.tokens, *new.tokens),
        logprobs=(*before.logprobs, *new.logprobs),
        versions=(*before.versions, *new.versions),
    )


def _after(answer: Generation, told: int) -> Generation:
    """Return what an answer has behind the tokens that were told."""
    rest = {name: getattr(answer, name)[told:] for name in ("tokens", "logprobs", "versions")}
    return structs.replace(answer, **rest)


def _event(content: object) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


async def _left(request: Request) -> None:
    """Return once the caller is gone; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
