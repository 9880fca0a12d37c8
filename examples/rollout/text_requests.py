"""The requests for text that a server has taken for a group, over one connection to it.

Each has the caller's name, passes the gate of a held group, and is ended by that name wherever it is: at the
gate with no token, in the group with those that it has. One connection is shared by all requests of an event
loop, and made anew once it breaks; a request of which nothing was told yet is asked again for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import msgspec

from examples.rollout import errors as rollout_errors
from examples.rollout.errors import FrameError, GenerationRefusedError, RolloutUnreachableError
from examples.rollout.request import FinishReason, Generation
from examples.rollout.request_socket import FrameReader, Message, encode, request_socket_path
from examples.rollout.run_directory import run_directory_path
from wsm.errors import BadInputError, RefusedError, WsmError
from wsm.shared_directory import connect_socket
from wsm.typed import resolved

_READ_BYTES = 1 << 18
_COUNT_S = 5.0  # for a rank 0 that may be stopped
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
#: For how long a request of which nothing was told yet is asked again after an error that is `retryable`: a
#: rank was lost, and is being replaced.
_RETRY_S = 60.0


class NewTokens(NamedTuple):
    """What a prompt's answer has grown by."""

    prompt: int
    tokens: list[int]
    logprobs: list[float]
    versions: list[str]


@dataclass(frozen=True)
class TextAsk:
    """What is asked for, whatever route it came by.

    Parameters
    ----------
    prompts : tuple of tuple of int
        Token ids.
    max_tokens : int
        Most tokens of each answer.
    temperature : float
        0 for greedy.
    seed : int or None
        Fixes the answers, given the weights.
    stop_tokens : tuple of int
        Each ends an answer that contains it.
    """

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()


@dataclass(eq=False)
class _Open:
    """One request of a caller: its names, whether it was ended by one, and which call of the group it is."""

    names: frozenset[str]
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    call: int | None = None


class _EngineConnection:
    """One connection to rank 0, whose messages are handed to the calls that they answer."""

    def __init__(self, group: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.loop = asyncio.get_running_loop()
        self.broken = False
        self._group = group
        self._writer = writer
        self._last_call = 0
        self._calls: dict[int, asyncio.Queue[Message | WsmError]] = {}
        self._task = self.loop.create_task(self._receive(reader))

    @classmethod
    async def made(cls, group: str) -> _EngineConnection:
        """Connect.

        Raises
        ------
        RolloutUnreachableError
            If no process takes requests (yet).
        """
        path = request_socket_path(group)
        try:
            made = await asyncio.to_thread(connect_socket, path)  # it waits where its queue is full
        except OSError as error:
            lives = run_directory_path(group).exists()
            raise RolloutUnreachableError(
                group=group, reason=f"{path}: {error.strerror}", retryable=lives
            ) from error
        return cls(group, *await asyncio.open_connection(sock=made))

    def call(self, message: Message) -> tuple[int, asyncio.Queue[Message | WsmError]]:
        """Send a message whose answers come out of the queue."""
        self._last_call += 1
        call = self._last_call
        self._calls[call] = asyncio.Queue()
        self.send({"id": call, **message})
        return call, self._calls[call]

    def tell(self, message: Message) -> None:
        """Send a message that has no answer of its own."""
        self._last_call += 1
        self.send({"id": self._last_call, **message})

    def send(self, message: Message) -> None:
        """Send what is encoded; a connection that breaks tells every call."""
        if self.broken:
            raise self._lost("it closed the connection")
        self._writer.write(encode(message))

    def forget(self, call: int) -> None:
        """Let a call go: what comes for it is dropped."""
        self._calls.pop(call, None)

    def close(self) -> None:
        """Leave. Idempotent."""
        self.broken = True
        if not self.loop.is_closed():
            self._task.cancel()
        with suppress(RuntimeError):  # of a loop that is closed
            self._writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        frames, reason = FrameReader(), "it closed the connection"
        try:
            while data := await reader.read(_READ_BYTES):
                for message in frames.feed(data):
                    queue = self._calls.get(message.get("id", 0))
                    if queue is not None:
                        queue.put_nowait(message)
        except (OSError, FrameError) as error:
            reason = str(error)
        finally:
            self.broken = True
            self._writer.close()
            for queue in self._calls.values():
                queue.put_nowait(self._lost(reason))

    def _lost(self, reason: str) -> WsmError:
        return RolloutUnreachableError(group=self._group, reason=reason, retryable=True)


@final
class EngineRequests:
    """The open requests of one server.

    Parameters
    ----------
    group : str
        The group.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._open: set[_Open] = set()
        self._connection: _EngineConnection | None = None

    async def generate(
        self,
        ask: TextAsk,
        names: Collection[str],
        admitted: Callable[[], Awaitable[None]],
        told: Callable[[NewTokens], None] | None = None,
    ) -> list[Generation]:
        """Continue every prompt, once the gate lets the request pass. Cancelled, it drops the request.

        Parameters
        ----------
        ask : TextAsk
            What is asked for.
        names : collection of str
            What the caller calls it; any of them ends it.
        admitted : callable
            ``await admitted()`` returns once the group takes requests, or raises.
        told : callable, optional
            Told what answers have grown by.

        Returns
        -------
        list of Generation
            One per prompt, in order; ABORTED ones have the tokens that there were.

        Raises
        ------
        BadInputError, RefusedError
            If the group does not take it.
        GroupError
            If the group lost it, and does not come back in time.
        """
        opened = _Open(frozenset(names))
        self._open.add(opened)
        until, pause = time.monotonic() + _RETRY_S, _FIRST_PAUSE_S
        spoke = False

        def heard(news: NewTokens) -> None:
            nonlocal spoke
            spoke = True
            if told is not None:
                told(news)

        try:
            while True:
                if not await self._passed(opened, admitted):
                    return [_nothing(index) for index in range(len(ask.prompts))]
                try:
                    return await self._asked(ask, opened, None if told is None else heard)
                except WsmError as error:
                    if not error.retryable or spoke or time.monotonic() + pause > until:
                        raise
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(opened.aborted.wait(), pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            self._open.discard(opened)

    async def abort(self, request_ids: Collection[str] | None) -> Collection[str]:
        """End requests, all of them for None; each is answered with the tokens that it has. Return whose."""
        wanted = None if request_ids is None else set(request_ids)
        ended = [each for each in self._open if wanted is None or each.names & wanted]
        for each in ended:
            each.aborted.set()
            self._tell_abort(each)
        return sorted(name for each in ended for name in each.names)

    async def count(self) -> tuple[int, int]:
        """Return how many requests run, and how many wait; of a group that cannot be asked, all wait."""
        at_the_gate = sum(1 for each in self._open if each.call is None)
        try:
            connection = await self._connected()
            call, answers = connection.call({"op": "stats"})
            try:
                message = _raised(self._group, await asyncio.wait_for(answers.get(), _COUNT_S))
            finally:
                connection.forget(call)
        except (WsmError, asyncio.TimeoutError):
            return 0, len(self._open)
        stats = message["stats"]
        return stats["running"], stats["waiting"] + at_the_gate

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _passed(self, opened: _Open, admitted: Callable[[], Awaitable[None]]) -> bool:
        """Wait at the gate; False if the request is ended there."""
        gate = asyncio.ensure_future(admitted())
        ended = asyncio.ensure_future(opened.aborted.wait())
        try:
            await asyncio.wait({gate, ended}, return_when=asyncio.FIRST_COMPLETED)
            if opened.aborted.is_set():
                return False
            gate.result()
            return True
        finally:
            gate.cancel()
            ended.cancel()

    async def _asked(
        self, ask: TextAsk, opened: _Open, told: Callable[[NewTokens], None] | None
    ) -> list[Generation]:
        connection = await self._connected()
        message: dict[str, Any] = {
            "op": "generate",
            "prompts": ask.prompts,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stop_token": list(ask.stop_tokens),
            "stream": told is not None,
        }
        opened.call, answers = connection.call(message)
        if opened.aborted.is_set():  # while we connected
            self._tell_abort(opened)
        found: dict[int, Generation] = {}
        try:
            while len(found) < len(ask.prompts):
                answer = _raised(self._group, await answers.get())
                if told is not None:
                    for row in answer.get("tokens", ()):
                        told(NewTokens(*row))
                for result in answer.get("results", ()):
                    found[result["index"]] = msgspec.convert(result, resolved(Generation))
        finally:
            if len(found) < len(ask.prompts) and not connection.broken:
                connection.tell({"op": "cancel", "call": opened.call})
            connection.forget(opened.call)
            opened.call = None
        return [found[index] for index in range(len(ask.prompts))]

    def _tell_abort(self, opened: _Open) -> None:
        connection = self._connection
        if opened.call is not None and connection is not None and not connection.broken:
            connection.tell({"op": "abort", "call": opened.call})

    async def _connected(self) -> _EngineConnection:
        kept = self._connection
        if kept is not None and (kept.broken or kept.loop is not asyncio.get_running_loop()):
            kept.close()
            kept = None
        if kept is None:
            made = await _EngineConnection.made(self._group)
            standing = self._connection
            if standing is not None and not standing.broken and standing.loop is made.loop:
                made.close()  # another request has connected while this one did
                return standing
            kept = self._connection = made
        return kept


def _nothing(index: int) -> Generation:
    return Generation(str(index), (), (), (), FinishReason.ABORTED)


def _raised(group: str, message: Message | WsmError) -> Message:
    """Return a message; raise what it says instead of an answer."""
    if isinstance(message, WsmError):
        raise message
    problem = message.get("error")
    if problem is None:
        return message
    if problem["type"] == "bad-request":
        raise BadInputError(problem["message"], code="bad-request")
    if problem["type"] == rollout_errors.requests_lost.__name__:
        raise rollout_errors.requests_lost(group=group, cause=problem["message"])
    if problem["type"] == "queue-full":
        raise RefusedError(problem["message"], code="server-busy")
    raise GenerationRefusedError(group=group, error=problem["type"], cause=problem["message"])
