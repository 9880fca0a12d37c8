"""Requests for text that name the version which is to answer them; looked at once admitted, and at the end.

``X-Wsm-Version: LABEL`` is refused where the group holds another version. Every answer to it says in the same
header which version answered, and both where a commit came in between; ``X-Wsm-Version-Strict: 1`` makes that
a refusal. So an answer is sent once it is whole, but for a stream of events that is not strict: its end is a
comment that says both.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from wsm.committed_record import CommittedRecord
from wsm.http import errors
from wsm.http.answers import header_text, send_failure
from wsm.http.commands import Commands

VERSION: Final = "X-Wsm-Version"
_STRICT: Final = "X-Wsm-Version-Strict"


def pinned(commands: Commands, scope: Scope, send: Send) -> Send:
    """Return how the answer to a text is sent that is admitted now; refuse one that is pinned elsewhere.

    Raises
    ------
    RefusedError
        If the group holds another version than the text is pinned to (code ``another-version``).
    """
    headers = Headers(scope=scope)
    pin = headers.get(VERSION)
    if pin is None:
        return send
    held = commands.held_record()
    if held.version != commands.called(pin):
        raise errors.another_version(asked=pin, held=held.version)
    return _PinnedAnswer(commands, held, send, strict=headers.get(_STRICT, "0") not in ("0", "false")).send


class _PinnedAnswer:
    """The answer to one pinned request."""

    def __init__(self, commands: Commands, admitted: CommittedRecord, send: Send, *, strict: bool) -> None:
        self._commands, self._admitted, self._send, self._strict = commands, admitted, send, strict
        self._start: Message | None = None
        self._parts: list[Message] = []

    async def send(self, message: Message) -> None:
        """Send it on, or keep it until it is whole."""
        if message["type"] == "http.response.start":
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
        admitted, now = self._admitted, self._commands.held_record()
        same = (admitted.version, admitted.load_sequence) == (now.version, now.load_sequence)
        return [str(each.version) for each in ([admitted] if same else [admitted, now])]


def _with_versions(start: Message, versions: list[str]) -> Message:
    said = {**start, "headers": [*start["headers"]]}
    MutableHeaders(raw=said["headers"])[VERSION] = header_text(", ".join(versions))
    return said
