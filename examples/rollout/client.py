"""The other end of the request socket: ask a rollout group to generate, once or always. Needs no paddle.

One client is for one thread; any number of clients may be connected. What a lost rank took with it is
answered with an error that is `retryable`; a client that was given `retry_s` asks again by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, final

import msgspec
import numpy as np

from examples.rollout import errors
from examples.rollout.config import LoadConfig
from examples.rollout.errors import ClientTimeoutError, GenerationRefusedError, RolloutUnreachableError
from examples.rollout.request import Generation
from examples.rollout.request_socket import FrameReader, Message, encode, request_socket_path
from examples.rollout.run_directory import run_directory_path
from wsm import log
from wsm.errors import WsmError
from wsm.shared_directory import connect_socket
from wsm.typed import resolved

_READ_BYTES = 256 * 1024
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5

Answer = TypeVar("Answer")


@final
class RolloutClient:
    """A connection to the group `name`.

    Parameters
    ----------
    name : str
        The group.
    directory : path or None
        Where its segment lies; this user's private directory by default.
    retry_s : float
        For how long :meth:`generate` and :meth:`stats` connect and ask again after an error that is
        `retryable`, in seconds from the call. 0: never, the error is raised.

    Attributes
    ----------
    retries : int
        How often that was done.

    Raises
    ------
    RolloutUnreachableError
        If no process takes requests there.
    """

    def __init__(self, name: str, *, directory: str | Path | None = None, retry_s: float = 0.0) -> None:
        self.retries = 0
        self._name = name
        self._directory = directory
        self._retry_s = retry_s
        self._last_call = 0
        self._connect()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        temperature: float = 1.0,
        seed: int | None = None,
        stop_token: int | list[int] | None = None,
        timeout_s: float = 60.0,
        on_tokens: Callable[[int, list[int]], None] | None = None,
    ) -> list[Generation]:
        """Continue every prompt, and wait for all of them. Blocks while the group is cleared, too.

        Parameters
        ----------
        prompts : sequence of sequences of int
            Token ids.
        max_tokens : int
            Most tokens per answer.
        temperature : float
            0 for greedy.
        seed : int or None
            Fixes the answers, given the weights; None draws one.
        stop_token : int, list of int or None
            Ends an answer that contains it; one of several.
        timeout_s : float
            When to give up and cancel the requests.
        on_tokens : callable or None
            Called with (index of the prompt, new tokens) while answers grow.

        Returns
        -------
        list of Generation
            One per prompt, in order. An answer that a weight change has cut short says so (ABORTED).

        Raises
        ------
        GenerationRefusedError
            If the group does not take the requests; none of them was begun.
        ClientTimeoutError
            If answers are missing after `timeout_s`.
        GroupError, RolloutUnreachableError
            If a rank was lost, or the connection broke: nothing is known of the requests any more. They are
            asked again where `retry_s` allows it, all prompts from their beginning, and `on_tokens` is told
            anew.
        """
        if not prompts:
            return []
        deadline = time.monotonic() + timeout_s

        def ask() -> list[Generation]:
            call = self.submit(
                prompts,
                max_tokens,
                temperature=temperature,
                seed=seed,
                stop_token=stop_token,
                stream=on_tokens is not None,
            )
            return self._collect(call, len(prompts), deadline, on_tokens)

        return self._asked_again(ask, deadline)

    def submit(self, prompts: Sequence[Sequence[int]], max_tokens: int, **options: Any) -> int:
        """Send a generate message, return its id at once; its answers come out of :meth:`receive`."""
        tokens = [[int(token) for token in prompt] for prompt in prompts]
        return self._send({"op": "generate", "prompts": tokens, "max_tokens": max_tokens, **options})

    def cancel(self, call: int) -> None:
        """Drop the requests of a call that have no answer yet."""
        self._send({"op": "cancel", "call": call})

    def abort(self, call: int | None = None) -> None:
        """End the requests of a call, or of all, that have no answer yet: with the tokens that they have."""
        self._send({"op": "abort", "call": call})

    def stats(self, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """Return what the group is doing: running, waiting, finished, tokens per version, cache, draft model.

        Raises
        ------
        ClientTimeoutError, RolloutUnreachableError
            As :meth:`generate`.
        """
        deadline = time.monotonic() + timeout_s

        def ask() -> dict[str, Any]:
            stats: dict[str, Any] = self._next_of(self._send({"op": "stats"}), deadline)["stats"]
            return stats

        return self._asked_again(ask, deadline)

    def receive(self, timeout_s: float) -> Message:
        """Return the next message of any call.

        Raises
        ------
        ClientTimeoutError
            If none arrives in time.
        RolloutUnreachableError
            If the connection broke.
        """
        deadline = time.monotonic() + timeout_s
        while not self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ClientTimeoutError(group=self._name, seconds=timeout_s)
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                raise RolloutUnreachableError(group=self._name, reason=str(error), retryable=True) from error
            if not data:
                reason = "it closed the connection"
                raise RolloutUnreachableError(group=self._name, reason=reason, retryable=True)
            self._received += self._reader.feed(data)
        return self._received.pop(0)

    def close(self) -> None:
        """Leave; requests without an answer are dropped. Idempotent."""
        self._socket.close()

    def __enter__(self) -> RolloutClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> None:
        path = request_socket_path(self._name, self._directory)
        self._reader = FrameReader()
        self._received: list[Message] = []
        try:
            self._socket = connect_socket(path)
        except OSError as error:
            replaced = run_directory_path(self._name, self._directory).exists()
            raise RolloutUnreachableError(
                group=self._name, reason=f"{path}: {error.strerror}", retryable=replaced
            ) from error

    def _asked_again(self, ask: Callable[[], Answer], deadline: float) -> Answer:
        """Ask, and again after errors that allow it, until the client's time is over."""
        until, pause = min(deadline, time.monotonic() + self._retry_s), _FIRST_PAUSE_S
        broken = False
        while True:
            try:
                if broken:  # what was asked before is not answered
                    self._socket.close()
                    self._connect()
                return ask()
            except WsmError as error:
                if not error.retryable or time.monotonic() + pause > until:
                    raise
                broken = isinstance(error, RolloutUnreachableError)
                self.retries += 1
            # There is nothing to wait on: a group that recovers has no socket, or one that refuses.
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _collect(
        self, call: int, count: int, deadline: float, on_tokens: Callable[[int, list[int]], None] | None
    ) -> list[Generation]:
        answers: dict[int, Generation] = {}
        while len(answers) < count:
            message = self._next_of(call, deadline)
            for index, tokens, _logprobs, _versions in message.get("tokens", ()):
                if on_tokens is not None:
                    on_tokens(index, tokens)
            for result in message.get("results", ()):
                answers[result["index"]] = msgspec.convert(result, resolved(Generation))
        return [answers[index] for index in range(count)]

    def _send(self, message: Message) -> int:
        self._last_call += 1
        self._socket.settimeout(None)
        try:
            self._socket.sendall(encode({"id": self._last_call, **message}))
        except OSError as error:
            raise RolloutUnreachableError(group=self._name, reason=str(error), retryable=True) from error
        return self._last_call

    def _next_of(self, call: int, deadline: float) -> Message:
        """Return the next message of one call; what is left of calls that were given up is skipped."""
        while True:
            try:
                message = self.receive(max(deadline - time.monotonic(), 0.0))
            except ClientTimeoutError:
                self.cancel(call)
                raise
            answered = message.get("id")
            # JSON's true equals 1; only a number is the id of a call of this client.
            if type(answered) is not int or answered != call:
                continue
            if "error" in message:
                raise self._error(message["error"])
            return message

    def _error(self, problem: Message) -> WsmError:
        if problem["type"] == errors.requests_lost.__name__:
            return errors.requests_lost(group=self._name, cause=problem["message"])
        return GenerationRefusedError(group=self._name, error=problem["type"], cause=problem["message"])


_LOOK_S = 0.1
_BITS_OF_SEED = 20


class LoadGenerator:
    """Keeps ``config.concurrency`` requests open, from a thread of its own, until it is closed.

    Prompts are random but the same for the same seed. It knows nothing about weights; that requests wait, are
    cut short or frozen during an update is for the answers to tell. For a request that a lost rank took with
    it another is asked.

    Parameters
    ----------
    name : str
        The group.
    config : LoadConfig
        What to ask for.
    vocabulary : int
        Prompts are made of tokens 0 to this, exclusive.

    Attributes
    ----------
    answers : int
        Answers so far.
    tokens_by_version : Counter of str
        Generated tokens by the version that made them.
    """

    def __init__(self, name: str, config: LoadConfig, vocabulary: int) -> None:
        self._name = name
        self._config = config
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(config.seed)
        self._asked = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wsm-rollout-load", daemon=True)
        self.answers = 0
        self.tokens_by_version: Counter[str] = Counter()

    def start(self) -> LoadGenerator:
        """Begin to ask."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Ask no more, and drop what is open. Idempotent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while self._asked_until_lost():
            self._closing.wait(_LOOK_S)

    def _asked_until_lost(self) -> bool:
        """Ask through one connection until it ends; return whether another one is worth a try."""
        try:
            with RolloutClient(self._name) as client:
                for _ in range(self._config.concurrency):
                    self._ask(client)
                while not self._closing.is_set():
                    self._turn(client)
        except RolloutUnreachableError as error:
            if not error.retryable:
                log.logger("rollout.load").error("load.ended", error=str(error))
            return error.retryable and not self._closing.is_set()
        return False

    def _turn(self, client: RolloutClient) -> None:
        """Take the one message that ends a request, and ask for another."""
        with contextlib.suppress(ClientTimeoutError):
            message = client.receive(_LOOK_S)
            for result in message.get("results", ()):
                self.answers += 1
                self.tokens_by_version.update(result["versions"])
            self._ask(client)

    def _ask(self, client: RolloutClient) -> None:
        config = self._config
        prompt = self._random.integers(0, self._vocabulary, config.prompt_tokens).tolist()
        seed = config.seed << _BITS_OF_SEED | self._asked % (1 << _BITS_OF_SEED)
        self._asked += 1
        client.submit([prompt], config.max_tokens, temperature=config.temperature, seed=seed)
