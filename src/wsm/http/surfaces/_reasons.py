"""Why verbs of other engines are refused: each reason with a way out. Pure.

They are answered, not left unknown: a trainer that does not look at the answer must not train on with stale
weights.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from msgspec import Struct


class Reason(enum.Enum):
    """Why a verb is refused: a stable word, a sentence, and what to use instead."""

    PUSH = (
        "push-unverifiable",
        "tensors that are pushed have no version, manifest or digest: no rank can prove what it holds",
        "update_weights_from_disk, or update_weights with a path; or publish_snapshot, publish_delta",
    )
    NCCL = (
        "push-unverifiable",
        "it sets up a group of NCCL, by which tensors are pushed that have no version, manifest or digest",
        "update_weights with a path; GET /wsm/v1/status has the ranks",
    )
    PICKLE = (
        "pickled-body",
        "the body is a pickle, which runs what its sender likes, and brings no version, manifest or digest",
        "write the weights to a directory and send its path, or publish_snapshot, publish_delta",
    )
    METHOD = (
        "arbitrary-method",
        "it would run any method on the ranks",
        "the verb that means it: pause, update with a path, resume, or /wsm/v1",
    )
    ADAPTER = (
        "no-adapter-versions",
        "a group has no adapters whose versions it could prepare and decide",
        "merge the adapter into the weights, and update to the whole version",
    )
    DRAFT = (
        "no-draft-versions",
        "draft weights have no version of their own; they come with the model's",
        "put them into the same directory, and update once",
    )
    INTERNAL = (
        "engine-internal",
        "it is a step inside an engine's own update; here it is part of every update",
        "leave it out",
    )
    OFFLOAD = (
        "offload-unsupported",
        "the memory would be kept in host memory, which this group does not do",
        "sleep with level=2, or --sleep-level-1 as-2: the next wake-up loads the version that was held",
    )
    BASELINE = (
        "no-baselines",
        "weights are compared by the digests of their version, and not with a copy taken before",
        "the action checksum or compare",
    )


class UnsupportedError(Struct):
    """Why, in words that clients of SGLang and of vLLM print."""

    type: str
    code: str
    verb: str
    reason: str
    use_instead: str
    message: str


class Unsupported(Struct):
    """What a verb is answered that is refused. `held`: whether its group is held, and closed."""

    success: bool
    message: str
    error: UnsupportedError
    held: bool


class Refusal(NamedTuple):
    """What a verb returns that is refused.

    `closes`: whether a group that is held stays closed until a real update: its caller may believe that new
    weights are there, and sends a resume next.
    """

    reason: Reason
    closes: bool = True

    def answer(self, verb: str, *, held: bool) -> Unsupported:
        word, sentence, instead = self.reason.value
        message = f"{verb} is not supported: {sentence}. Instead: {instead}."
        error = UnsupportedError("Unsupported", word, verb, sentence, instead, message)
        return Unsupported(success=False, message=message, error=error, held=held)
