"""What the messages on the request socket mean: generate, cancel, abort, stats.

Between the socket and the scheduler of rank 0. Whatever a client gets wrong is answered with an error
that has a type; nothing that a client sends can stop the group.

====================================================================== ==================================
client sends                                                           client receives
====================================================================== ==================================
``{id, op: generate, prompts, max_tokens, temperature?, seed?,``       ``{id, tokens: [[index, tokens,``
``stop_token?, stream?}``; one stop token or a list                    ``logprobs, versions]]}``,
                                                                       ``{id, results: [..], done}``
``{id, op: cancel, call}``                                             nothing
``{id, op: abort, call?}``; without a call all of this connection      the results of those calls
``{id, op: stats}``                                                    ``{id, stats}``
anything else                                                          ``{id, error: {type, message,``
                                                                       ``retryable}}``
====================================================================== ==================================
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from examples.rollout import errors
from examples.rollout.request import Generation, GenerationRequest
from examples.rollout.request_socket import ClientConnection, Message, RequestSocket
from examples.rollout.scheduler import Scheduler
from wsm.errors import WsmError, error_name
from wsm.payload import PayloadError, convert

#: Bits of a request's seed that tell the prompts of one call apart.
_INDEX_BITS = 20
#: Keeps messages of very long answers below the bound of a frame.
_RESULTS_PER_MESSAGE = 32
MAX_CALL_SEED = (1 << (63 - _INDEX_BITS)) - 1


class _AskedTokens(msgspec.Struct):
    """What a generate message asks for."""

    prompts: Annotated[list[list[int]], Meta(min_length=1, max_length=(1 << _INDEX_BITS) - 1)]
    max_tokens: int
    temperature: float = 1.0
    seed: Annotated[int, Meta(ge=0, le=MAX_CALL_SEED)] | None = None
    stop_token: int | list[int] | None = None


@dataclass(eq=False)
class Call:
    """One generate message: its requests by id, as (index, request, tokens already streamed)."""

    connection: ClientConnection
    call_id: int
    stream: bool
    open: dict[str, tuple[int, GenerationRequest]] = field(default_factory=dict)
    streamed: dict[str, int] = field(default_factory=dict)


class RequestService:
    """Answers clients.

    Parameters
    ----------
    scheduler : Scheduler
        Where requests go.
    requests : RequestSocket
        Where messages come from.
    stats : callable
        Further facts for ``stats``.
    """

    def __init__(
        self, scheduler: Scheduler, requests: RequestSocket, stats: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._scheduler = scheduler
        self._socket = requests
        self._stats = stats
        self._calls: dict[str, Call] = {}
        self._next_request = 0
        self._finished = 0
        self._tokens_by_version: Counter[str] = Counter()

    def turn(self, timeout_s: float = 0.0) -> None:
        """Answer what is finished, take what has arrived; wait up to `timeout_s` if nothing has."""
        self._deliver()
        self._give_up_lost()
        for connection, message in self._socket.exchange(timeout_s):
            if message is None:
                self._forget(connection)
            else:
                self._obey(connection, message)

    def _obey(self, connection: ClientConnection, message: Message) -> None:
        call_id = message.get("id")
        try:
            if type(call_id) is not int:
                raise errors.bad_request(field="id", reason="must be an integer")
            operation = message.get("op")
            if operation == "generate":
                self._generate(connection, call_id, message)
            elif operation == "cancel":
                self._forget(connection, message.get("call"))
            elif operation == "abort":
                self._scheduler.abort(self._open_of(connection, message.get("call")))
            elif operation == "stats":
                self._socket.send(connection, {"id": call_id, "stats": self._all_stats()})
            else:
                raise errors.bad_request(field="op", reason="must be generate, cancel, abort or stats")
        except WsmError as error:
            problem = {"type": error_name(error), "message": str(error), "retryable": error.retryable}
            self._socket.send(connection, {"id": call_id, "error": problem})

    def _generate(self, connection: ClientConnection, call_id: int, message: Message) -> None:
        """Submit every prompt of a call, or none."""
        requests = self._requests_of(message)
        if len(requests) > self._scheduler.room():
            raise errors.queue_full(asked=len(requests), room=self._scheduler.room())
        for request in requests:
            self._scheduler.check(request)
        call = Call(connection, call_id, message.get("stream") is True)
        for index, request in enumerate(requests):
            call.open[request.request_id] = (index, request)
            self._calls[request.request_id] = call
            self._scheduler.submit(request)

    def _requests_of(self, message: Message) -> list[GenerationRequest]:
        try:
            said = convert(_AskedTokens, message)
        except PayloadError as error:
            raise errors.bad_request(field="what was asked", reason=f"cannot be read: {error}") from None
        stop_tokens = [said.stop_token] if isinstance(said.stop_token, int) else said.stop_token or []
        base = secrets.randbelow(MAX_CALL_SEED + 1) if said.seed is None else said.seed
        requests = []
        for index, prompt in enumerate(said.prompts):
            self._next_request += 1
            name, own_seed = f"{self._next_request}", base << _INDEX_BITS | index
            requests.append(
                GenerationRequest(
                    name, tuple(prompt), said.max_tokens, said.temperature, own_seed, frozenset(stop_tokens)
                )
            )
        return requests

    def _deliver(self) -> None:
        """Send streamed tokens, and the answers of finished requests, call by call."""
        finished: dict[Call, list[Message]] = {}
        for answer in self._scheduler.take_finished():
            self._count(answer)
            call = self._calls.pop(answer.request_id, None)
            if call is not None:
                index, _ = call.open.pop(answer.request_id)
                finished.setdefault(call, []).append({**msgspec.to_builtins(answer), "index": index})
        for call in {call for call in self._calls.values() if call.stream}:
            self._stream(call)
        for call, results in finished.items():
            for start in range(0, len(results), _RESULTS_PER_MESSAGE):
                some = results[start : start + _RESULTS_PER_MESSAGE]
                last = start + len(some) == len(results)
                message = {"id": call.call_id, "results": some, "done": last and not call.open}
                self._socket.send(call.connection, message)

    def _give_up_lost(self) -> None:
        """End every call that lost a request, as a whole, with an error that can be retried."""
        for name in self._scheduler.take_lost():
            call = self._calls.get(name)
            if call is None:
                continue
            self._forget(call.connection, call.call_id)
            problem = {
                "type": errors.requests_lost.__name__,
                "message": "a rank was lost while they ran, the group is being recovered",
                "retryable": True,
            }
            self._socket.send(call.connection, {"id": call.call_id, "error": problem})

    def _stream(self, call: Call) -> None:
        news = []
        for name, (index, request) in call.open.items():
            sent = call.streamed.get(name, 0)
            if len(request.tokens) > sent:
                said = (request.tokens, request.logprobs, request.versions)
                news.append([index, *(each[sent:] for each in said)])
                call.streamed[name] = len(request.tokens)
        if news:
            self._socket.send(call.connection, {"id": call.call_id, "tokens": news})

    def _forget(self, connection: ClientConnection, call_id: object = None) -> None:
        """Drop a client's requests: those of one call, or all."""
        dropped = self._open_of(connection, call_id)
        for name in dropped:
            del self._calls[name]
        self._scheduler.cancel(dropped)

    def _open_of(self, connection: ClientConnection, call_id: object) -> set[str]:
        """Return a client's requests that have no answer: those of one call, or all."""
        return {
            name
            for name, call in self._calls.items()
            if call.connection is connection and call_id in (None, call.call_id)
        }

    def _count(self, answer: Generation) -> None:
        self._finished += 1
        self._tokens_by_version.update(answer.versions)

    def _all_stats(self) -> Message:
        return {
            "running": self._scheduler.in_flight(),
            "waiting": self._scheduler.waiting(),
            "finished": self._finished,
            "tokens_by_version": dict(sorted(self._tokens_by_version.items())),
            "kv_reuse": self._scheduler.kv_statistics(),
            **self._stats(),
        }
