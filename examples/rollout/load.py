"""Load that a group makes for itself: a number of requests that is always open, through the real socket.

Runs in a thread of the supervisor. Prompts are random but the same for the same seed. Knows nothing about
weights; that requests wait, are cut short or frozen during an update is for the answers to tell. For a
request that a lost rank took with it another is asked.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import numpy as np

from examples.rollout.client import RolloutClient
from examples.rollout.config import LoadConfig
from examples.rollout.errors import ClientTimeoutError, RolloutUnreachableError
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
