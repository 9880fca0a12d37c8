"""Requests for text that name the version which is to answer them; looked at once admitted, and at the end.

``X-Wsm-Version: LABEL`` is refused where the group holds another version. Every answer to it says in the same
header which version answered, and both where a commit came in between; ``X-Wsm-Version-Strict: 1`` makes that
a refusal. So an answer is sent once it is whole, but for a stream of events that is not strict: its end is a
comment that says both.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wsm.committed_record import CommittedRecord
from wsm.http import errors
from wsm.http.answers import header_text
from wsm.http.commands import Commands
from wsm.http.upstream import send_failure

VERSION: Final = "X-Wsm-Version"
_STRICT: Final = "X-Wsm-Version-Strict"

#: Where what a pinned request was admitted for stands in its scope.
_ADMITTED: Final = "wsm.admitted"


def require_pinned(commands: Commands, scope: Scope) -> None:
    """Refuse text that is pinned to another version than the group holds now (code ``another-version``)."""
    pin = Headers(scope=scope).get(VERSION)
    if pin is None:
        return
    held = commands.held_record()
    if held.version != commands.called(pin):
        raise errors.another_version(asked=pin, held=held.version)
    scope.get(_ADMITTED, []).append(held)


class PinnedTexts:
    """An ASGI app whose answers to pinned requests say what answered them.

    Parameters
    ----------
    app : ASGI app
        Answers; it calls :func:`require_pinned` once a request is admitted.
    commands : Commands
        The group.
    """

    def __init__(self, app: ASGIApp, commands: Commands) -> None:
        self._app = app
        self._commands = commands

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and VERSION in (headers := Headers(scope=scope)):
            answer = _PinnedAnswer(
                self._commands, send, strict=headers.get(_STRICT, "0") not in ("0", "false")
            )
            await self._app({**scope, _ADMITTED: answer.admitted}, receive, answer.send)
        else:
            await self._app(scope, receive, send)


class _PinnedAnswer:
    """The answer to one pinned request."""

    def __init__(self, commands: Commands, send: Send, *, strict: bool) -> None:
        self._commands = commands
        self._send = send
        self._strict = strict
        self._start: Message | None = None
        self._parts: list[Message] = []
        self.admitted: list[CommittedRecord] = []

    async def send(self, message: Message) -> None:
        """Send it on, or keep it until it is whole."""
        if not self.admitted:
            await self._send(message)
        elif message["type"] == "http.response.start":
            is_stream = (
                Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
            )
            if is_stream and not self._strict:
                await self._send(_with_versions(message, self._versions()[:1]))
            else:
                self._start = message
        elif self._start is None:
            versions = [] if message.get("more_body") else self._versions()
            if len(versions) > 1:
                told = f"\n: {VERSION}: {', '.join(versions)}\n\n".encode()
                message = {**message, "body": message.get("body", b"") + told}
            await self._send(message)
        else:
            self._parts.append(message)
            if not message.get("more_body"):
                await self._send_whole(self._start, self._versions())

    async def _send_whole(self, start: Message, versions: list[str]) -> None:
        if self._strict and len(versions) > 1:
            asked, held = versions
            await send_failure(errors.another_version(asked=asked, held=held), self._send)
            return
        for message in (_with_versions(start, versions), *self._parts):
            await self._send(message)

    def _versions(self) -> list[str]:
        """Return the version that the request was admitted for, and the one that a commit brought since."""
        admitted, now = self.admitted[0], self._commands.held_record()
        same = (admitted.version, admitted.load_sequence) == (now.version, now.load_sequence)
        return [str(each.version) for each in ([admitted] if same else [admitted, now])]


def _with_versions(start: Message, versions: list[str]) -> Message:
    said = {**start, "headers": [*start["headers"]]}
    MutableHeaders(raw=said["headers"])[VERSION] = header_text(", ".join(versions))
    return said
