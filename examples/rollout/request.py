"""One generation request and what becomes of it. Knows no scheduler and no transport."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from examples.rollout import errors
from examples.rollout.block_pool import ROOT_CHAIN
from examples.rollout.model.shape import ModelShape

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3


class FinishReason(enum.Enum):
    """Why a request ended."""

    LENGTH = "length"
    STOP = "stop"
    ABORTED = "aborted"


@dataclass(eq=False)  # two requests are the same only if they are one object; comparing fields is slow
class GenerationRequest:
    """A prompt that is being continued.

    Parameters
    ----------
    request_id : str
        The submitter's name for it.
    prompt : tuple of int
        Token ids, at least one.
    max_tokens : int
        Most tokens to generate.
    temperature : float
        0 for greedy.
    seed : int
        Fixes the tokens, given the weights.
    stop_tokens : frozenset of int
        Each ends the request when it is generated; it is part of the result.

    Attributes
    ----------
    tokens, logprobs, versions : list
        Generated so far: id, log probability, and the version of the weights that made it.
    blocks : list of int
        KV blocks held; empty unless the request runs.
    generation : int
        The pool's generation in which they were taken.
    computed : int
        Tokens whose keys and values are in the blocks.
    cached_tokens : int
        How many of them were found instead of computed, when it was last admitted.
    crossed_tokens : int
        How many of those another version had computed than the one that admitted it.
    kv_versions : set of str
        Whose weights computed what is in the blocks.
    mixed : list of int
        Indices of the generated tokens that were chosen from keys and values of more than their own version.
    chain : int or None
        Prefix chain that ends with the last published block; None once a block could not be published.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    seed: int = 0
    stop_tokens: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    generation: int = -1
    computed: int = 0
    cached_tokens: int = 0
    crossed_tokens: int = 0
    kv_versions: set[str] = field(default_factory=set)
    mixed: list[int] = field(default_factory=list)
    chain: int | None = ROOT_CHAIN

    @property
    def known(self) -> list[int]:
        """Every token of the sequence: prompt, then what was generated."""
        return [*self.prompt, *self.tokens]

    @property
    def remaining(self) -> int:
        """Tokens that still have to go through the model before the next one can be chosen."""
        return len(self.prompt) + len(self.tokens) - self.computed

    def check(self, shape: ModelShape) -> None:
        """Check the request against the model.

        Raises
        ------
        BadInputError
            If a field is out of range; the message names it.
        """
        self._require("prompt", holds=len(self.prompt) >= 1, reason="is empty")
        self._require(
            "prompt",
            holds=all(0 <= token < shape.vocabulary for token in self.prompt),
            reason=f"has a token outside 0..{shape.vocabulary - 1}",
        )
        self._require(
            "max_tokens",
            holds=1 <= self.max_tokens <= shape.context,
            reason=f"must be within 1..{shape.context}",
        )
        self._require(
            "max_tokens",
            holds=len(self.prompt) + self.max_tokens <= shape.context,
            reason=f"and prompt need {len(self.prompt) + self.max_tokens} positions of {shape.context}",
        )
        self._require(
            "temperature",
            holds=self.temperature == 0 or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE,
            reason=f"must be 0 or within {MIN_TEMPERATURE}..{MAX_TEMPERATURE}",
        )
        self._require("seed", holds=0 <= self.seed <= MAX_SEED, reason=f"must be within 0..{MAX_SEED}")

    def leave_cache(self) -> None:
        """Forget everything about KV blocks, which the caller has released; generated tokens stay."""
        self.blocks = []
        self.generation = -1
        self.computed = 0
        self.cached_tokens = 0
        self.crossed_tokens = 0
        self.kv_versions = set()
        self.chain = ROOT_CHAIN

    def _require(self, field_name: str, *, holds: bool, reason: str) -> None:
        if not holds:
            raise errors.bad_request(field=field_name, reason=reason)


class Generation(msgspec.Struct, frozen=True):
    """The answer to one request, as it travels to who asked.

    Parameters
    ----------
    request_id : str
        The submitter's name for it.
    tokens, logprobs, versions : tuple
        One entry per generated token: id, log probability when it was chosen, version of the weights.
    finish_reason : FinishReason
        ABORTED answers keep what had been generated.
    cached_tokens : int
        Prompt tokens whose keys and values were reused.
    crossed_tokens : int
        Those of them that another version had computed; only the KV policy keep allows any.
    mixed : tuple of int
        Indices of the tokens that were chosen from keys and values of more versions than their own. No single
        version would have said them, so a trainer that corrects for versions must not trust their
        log probabilities to be any version's.
    routing : list or None
        Mixture of experts with routing replay: expert ids per position, layer and choice; empty for a
        position whose keys and values were reused. The last token never went through the model.
    """

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[str, ...]
    finish_reason: FinishReason
    cached_tokens: int = 0
    crossed_tokens: int = 0
    mixed: tuple[int, ...] = ()
    routing: list[list[list[int]]] | None = None
