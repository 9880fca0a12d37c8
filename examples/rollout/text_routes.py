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
from typing import Any, final

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
_CLIENT_CLOSED = 499


def with_text(
    surfaces: Sequence[Surface], requests: EngineRequests, *, model: str | None = None
) -> tuple[Surface, ...]:
    """Return the surfaces of a server whose group generates text; the first one's rule for holds is theirs.

    Parameters
    ----------
    surfaces : sequence of Surface
        The primary one first.
    requests, model
        As for :func:`data_routes`.
    """
    first, *others = surfaces or [Surface("native")]
    routes = data_routes(requests, first.in_hold, model=model)
    return (replace(first, routes=(*first.routes, *routes)), *others)


def data_routes(
    requests: EngineRequests, in_hold: InHold, *, model: str | None = None
) -> tuple[SurfaceRoute, ...]:
    """Return the routes that ask a group for text.

    Parameters
    ----------
    requests : EngineRequests
        Of the group.
    in_hold : InHold
        What becomes of a request that arrives while the group is held.
    model : str or None
        What ``/v1/completions`` calls the model; None: as the group.
    """
    texts = _Texts(requests, in_hold, model)
    return (
        SurfaceRoute("POST", "/generate", texts.generate, answers=_ANSWERS),
        SurfaceRoute("PUT", "/generate", texts.generate, answers=_ANSWERS),
        SurfaceRoute("POST", "/v1/completions", texts.completions, answers=_ANSWERS),
        SurfaceRoute("POST", "/v1/chat/completions", texts.chat),
    )


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
        name = asked.names[0] if asked.names else uuid.uuid4().hex
        begun = time.monotonic()

        def formed(index: int, answer: Generation, version: str | None, *, ended: bool) -> dict[str, Any]:
            own = asked.names[index] if index < len(asked.names) else f"{name}-{index}" if index else name
            facts: dict[str, Any] = {"name": own, "prompt_tokens": len(asked.ask.prompts[index])}
            facts.update(seconds=time.monotonic() - begun, word=commands.word_for)
            if not ended:
                return {**text_bodies.sglang_part(answer, **facts), "index": index}
            said = text_bodies.sglang_answer(answer, version=version, **facts)
            return {**said, "index": index} if asked.stream else said

        if asked.stream:
            return self._stream(commands, asked, (name,), formed, whole=True)
        answers = await self._answered(request, commands, asked, (name,))
        if isinstance(answers, Response):
            return answers
        version = await self._version(commands, answers)
        said = [formed(index, answer, version, ended=True) for index, answer in enumerate(answers)]
        return HttpAnswer(200, said if asked.batch else said[0])

    async def completions(self, request: Request, commands: Commands) -> HttpAnswer | Response:
        """Answer ``/v1/completions``."""
        body = object_of(await request.body(), most=MOST_TEXT_BYTES)
        asked = text_bodies.completions_request(body)
        name = asked.names[0] if asked.names else f"cmpl-{uuid.uuid4().hex}"
        model = body.get("model") or self._model or commands.name
        created = int(time.time())

        def choice(index: int, answer: Generation, version: str | None, *, ended: bool) -> dict[str, Any]:
            prompt = asked.ask.prompts[index]
            return text_bodies.completion_choice(
                index, answer, prompt=prompt, version=version, word=commands.word_for, ended=ended
            )

        def formed(index: int, answer: Generation, version: str | None, *, ended: bool) -> dict[str, Any]:
            choices = [choice(index, answer, version, ended=ended)]
            return text_bodies.completions_answer(
                choices, name=name, model=model, created=created, usage=False
            )

        if asked.stream:
            return self._stream(commands, asked, (name,), formed, whole=False)
        answers = await self._answered(request, commands, asked, (name,))
        if isinstance(answers, Response):
            return answers
        version = await self._version(commands, answers)
        choices = [choice(index, answer, version, ended=True) for index, answer in enumerate(answers)]
        return HttpAnswer(
            200, text_bodies.completions_answer(choices, name=name, model=model, created=created)
        )

    async def chat(self, request: Request, commands: Commands) -> HttpAnswer:
        """Refuse ``/v1/chat/completions``: messages need a template and a tokenizer."""
        del request, commands
        problem = "this group has no tokenizer and no template: send token ids to /v1/completions"
        raise errors.bad_body(field="messages", problem=problem)

    async def _answered(
        self, request: Request, commands: Commands, asked: TextRequest, names: tuple[str, ...]
    ) -> list[Generation] | Response:
        """Return the answers; an empty response if the caller left before them."""
        wait = asyncio.ensure_future(
            self._requests.generate(asked.ask, asked.names or names, lambda: admit(commands, self._in_hold))
        )
        left = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({wait, left}, return_when=asyncio.FIRST_COMPLETED)
            return wait.result() if wait.done() else Response(status_code=_CLIENT_CLOSED)
        finally:
            left.cancel()
            if not wait.done():
                wait.cancel()
                with suppress(asyncio.CancelledError, WsmError):
                    await wait

    def _stream(
        self,
        commands: Commands,
        asked: TextRequest,
        names: tuple[str, ...],
        formed: Callable[..., dict[str, Any]],
        *,
        whole: bool,
    ) -> Response:
        """Return a stream of events: with all tokens so far in each if `whole`, else with the new ones."""

        async def events() -> AsyncIterator[bytes]:
            news: asyncio.Queue[NewTokens | None] = asyncio.Queue()
            grown = [_NONE] * len(asked.ask.prompts)
            wait = asyncio.ensure_future(
                self._requests.generate(
                    asked.ask,
                    asked.names or names,
                    lambda: admit(commands, self._in_hold),
                    news.put_nowait,
                )
            )
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
