"""What happens to a group, as server-sent events: the lines of all journals, as its segment keeps them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from wsm.http import errors
from wsm.http.commands import Commands
from wsm.journal.entry import LineRing

#: Streams at once; each costs a look at the rings.
MOST_STREAMS: Final = 32

#: Seconds between two looks, and between two signs of life.
_LOOK_S = 0.1
_ALIVE_S = 15.0

#: Returns what is new since what was seen, which it takes in: bytes of each ring, by the run of its group.
Look: TypeAlias = Callable[[dict[str, list[int]]], Awaitable[list[bytes]]]

_open_streams: set[_EventStream] = set()


class _EventStream(StreamingResponse):
    """A stream that has a place among those that are open, from before its first byte to its end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _open_streams.discard(self)


async def events(request: Request, commands: Commands) -> Response:
    """Answer journal lines from now on, one event each; with ``?from=oldest`` those that are kept, first."""

    def new(seen: dict[str, list[int]]) -> list[bytes]:
        segment = commands.segment()
        return new_events(segment.run_id, segment.journals, seen)

    return event_stream(request, lambda seen: commands.read(lambda: new(seen)))


def event_stream(request: Request, look: Look) -> Response:
    """Answer with what `look` finds."""
    if len(_open_streams) >= MOST_STREAMS:
        raise errors.server_busy(running=len(_open_streams))
    oldest = request.query_params.get("from") == "oldest"
    kind = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = _EventStream(_lines(look, oldest=oldest), media_type="text/event-stream", headers=kind)
    _open_streams.add(stream)
    return stream


async def _lines(look: Look, *, oldest: bool) -> AsyncIterator[bytes]:
    seen: dict[str, list[int]] = {}
    if not oldest:  # before a client is told that it listens
        await look(seen)
    yield b": the journals of a group\n\n"
    said = time.monotonic()
    while True:
        parts = await look(seen)
        for part in parts:
            yield part
        if parts or time.monotonic() - said > _ALIVE_S:
            said = time.monotonic()
            if not parts:
                yield b": still here\n\n"
        await asyncio.sleep(_LOOK_S)


def new_events(run_id: str, rings: Sequence[LineRing], seen: dict[str, list[int]]) -> list[bytes]:
    """Return what was written since the last look, each line as an event of its kind, in order of time."""
    positions = seen.setdefault(run_id, [0] * len(rings))
    found = []
    for place, ring in enumerate(rings):
        lines, positions[place], lost = ring.lines_since(positions[place])
        for line in lines[1:] if lost else lines:
            try:
                entry = json.loads(line)
                found.append((int(entry["at_ns"]), f"event: {entry['kind']}\ndata: {json.dumps(entry)}\n\n"))
            except (ValueError, KeyError, TypeError):  # noqa: PERF203 - a line that its writer has not ended
                continue
    return [text.encode() for _, text in sorted(found)]
