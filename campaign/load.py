"""Requests that are open while faults strike, and the account of what became of each.

Greedy, over a few fixed prompts, through the real socket. A request ends as an answer, as an error that the
group sent, or broken off with its connection; nothing else may happen to one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from examples.rollout.client import RolloutClient
from examples.rollout.errors import ClientTimeoutError, RolloutUnreachableError
from examples.rollout.request import FinishReason, Generation
from examples.rollout.request_socket import Message

#: What is asked, over and over.
PROMPTS: tuple[tuple[int, ...], ...] = ((1, 2, 3), (4, 5), (6,), (7, 8, 9, 10))
MAX_TOKENS = 8

_LOOK_S = 0.05
_RETRY_S = 0.02


@dataclass(frozen=True)
class Answered:
    """One prompt and its answer."""

    prompt: tuple[int, ...]
    generation: Generation


class CampaignLoad:
    """Keeps a request per prompt open until it is closed; reconnects for as long as it takes.

    Parameters
    ----------
    name : str
        The group.

    Attributes
    ----------
    retried : Counter of str
        Errors that requests ended with and that allow to ask again, by type.
    broken_off : int
        Requests whose connection went away before an answer; they are asked again, too.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closing = threading.Event()
        self._answers: list[Answered] = []
        self._mutex = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="campaign-load", daemon=True)
        self._problems: list[str] = []
        self.retried: Counter[str] = Counter()
        self.broken_off = 0

    def start(self) -> CampaignLoad:
        """Begin to ask."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Ask no more. Idempotent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def take(self) -> list[Answered]:
        """Return the answers since the last call."""
        with self._mutex:
            taken, self._answers = self._answers, []
        return taken

    def problems(self) -> list[str]:
        """Return the errors since the last call that a client could not have retried."""
        with self._mutex:
            taken, self._problems = self._problems, []
        return taken

    def _run(self) -> None:
        while not self._closing.is_set():
            self._connect_once()

    def _connect_once(self) -> None:
        try:
            with RolloutClient(self._name) as client:
                self._converse(client)
        except RolloutUnreachableError as error:
            if not error.context["retryable"] and not self._closing.is_set():
                with self._mutex:
                    self._problems.append(str(error))
            time.sleep(_RETRY_S)

    def _converse(self, client: RolloutClient) -> None:
        calls: dict[int, tuple[int, ...]] = {}
        try:
            for prompt in PROMPTS:
                calls[self._ask(client, prompt)] = prompt
            while not self._closing.is_set():
                message = _next_message(client)
                if message is None:
                    continue
                prompt = calls.pop(message["id"])
                if "error" in message:
                    self._count(message["error"])
                    time.sleep(_RETRY_S)
                for result in message.get("results", ()):
                    with self._mutex:
                        self._answers.append(Answered(prompt, msgspec.convert(result, Generation)))
                calls[self._ask(client, prompt)] = prompt
        finally:
            if not self._closing.is_set():
                self.broken_off += len(calls)

    def _count(self, error: dict[str, Any]) -> None:
        if error.get("retryable"):
            self.retried[error["type"]] += 1
            return
        with self._mutex:
            self._problems.append(f"a request ended with {error}, which allows no retry")

    @staticmethod
    def _ask(client: RolloutClient, prompt: Sequence[int]) -> int:
        return client.submit([prompt], MAX_TOKENS, temperature=0.0)


def _next_message(client: RolloutClient) -> Message | None:
    try:
        return client.receive(_LOOK_S)
    except ClientTimeoutError:
        return None


def shape_problem(answer: Answered) -> str | None:
    """Say what is wrong with an answer that no recomputation is needed for."""
    found = answer.generation
    if len(found.versions) != len(found.tokens):
        return f"{len(found.tokens)} tokens, {len(found.versions)} versions"
    if found.finish_reason is FinishReason.LENGTH and len(found.tokens) != MAX_TOKENS:
        return f"finished by length with {len(found.tokens)} of {MAX_TOKENS} tokens"
    if list(found.versions) != sorted(found.versions, key=int):  # labels here are numbers
        return f"versions go back: {found.versions}"
    return None
