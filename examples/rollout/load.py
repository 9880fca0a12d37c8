"""Load that a group makes for itself: a number of requests that is always open, through the real socket.

Runs in a thread of the supervisor. Prompts are random but the same for the same seed. Knows nothing about
weights; that requests wait, are cut short or frozen during an update is for the answers to tell. Requests
that a lost rank took with it are asked again.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from examples.rollout.client import RolloutClient
from examples.rollout.config import LoadConfig
from examples.rollout.errors import ClientTimeoutError, RolloutUnreachableError
from examples.rollout.request import FinishReason, Generation
from wsm import log

_LOOK_S = 0.1
_BITS_OF_SEED = 20


class LoadGenerator:
    """Keeps ``config.concurrency`` requests open until it is closed.

    Parameters
    ----------
    name : str
        The group.
    config : LoadConfig
        What to ask for.
    vocabulary : int
        Prompts are made of tokens 0 to this, exclusive.
    directory : path or None
        Where the group's segment lies; this user's private directory by default.

    Attributes
    ----------
    answers, aborted : int
        Answers so far, and how many of them a weight change cut short.
    retries : int
        Requests that were asked again, because a rank was lost while they were open.
    tokens_by_version : Counter of str
        Generated tokens by the version that made them.
    """

    def __init__(
        self, name: str, config: LoadConfig, vocabulary: int, *, directory: str | Path | None = None
    ) -> None:
        self._name = name
        self._config = config
        self._vocabulary = vocabulary
        self._directory = directory
        self._random = np.random.default_rng(config.seed)
        self._asked = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wsm-rollout-load", daemon=True)
        self.answers = 0
        self.aborted = 0
        self.retries = 0
        self._open: dict[int, dict[str, Any]] = {}
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
        while self._connected():
            self._closing.wait(_LOOK_S)

    def _connected(self) -> bool:
        """Ask through one connection until it ends; return whether another one is worth a try."""
        try:
            with RolloutClient(self._name, directory=self._directory) as client:
                self._serve(client)
        except RolloutUnreachableError as error:
            if not error.retryable and not self._closing.is_set():
                log.logger("rollout.load").error("load.ended", error=str(error))
            return error.retryable and not self._closing.is_set()
        return False

    def _serve(self, client: RolloutClient) -> None:
        """Ask what a lost connection left open once more, then keep as many open as configured."""
        left, self._open = list(self._open.values()), {}
        for request in left:
            self._ask(client, request)
        while len(self._open) < self._config.concurrency:
            self._ask(client, self._next())
        while not self._closing.is_set():
            self._turn(client)

    def _turn(self, client: RolloutClient) -> None:
        try:
            message = client.receive(_LOOK_S)
        except ClientTimeoutError:
            return
        request = self._open.pop(message.get("id", -1), None)
        if request is None:
            return
        for result in message.get("results", ()):
            self._count(Generation.from_mapping(result))
        if "error" in message:
            self._ask(client, request)
        else:
            self._ask(client, self._next())

    def _next(self) -> dict[str, Any]:
        config = self._config
        prompt = self._random.integers(0, self._vocabulary, config.prompt_tokens).tolist()
        seed = config.seed << _BITS_OF_SEED | self._asked % (1 << _BITS_OF_SEED)
        self._asked += 1
        return {"prompts": [prompt], "seed": seed, "asked": 0}

    def _ask(self, client: RolloutClient, request: dict[str, Any]) -> None:
        self.retries += request["asked"] > 0
        request["asked"] += 1
        config = self._config
        call = client.submit(
            request["prompts"], config.max_tokens, temperature=config.temperature, seed=request["seed"]
        )
        self._open[call] = request

    def _count(self, answer: Generation) -> None:
        self.answers += 1
        self.aborted += answer.finish_reason is FinishReason.ABORTED
        self.tokens_by_version.update(answer.versions)
