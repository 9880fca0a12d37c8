"""The verbs of other engines that a group cannot honour: each with its reason and a way out. Pure.

They are answered, not left unknown: a trainer that does not look at the answer must not train on with stale
weights. One that is refused inside a pause leaves the group held and closed (`closes`), so that the resume
that such a trainer sends next is refused as well.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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

    def __init__(self, word: str, sentence: str, instead: str) -> None:
        self.word, self.sentence, self.instead = word, sentence, instead


@dataclass(frozen=True)
class Refusal:
    """A verb that is refused.

    Parameters
    ----------
    verb : str
        Its path.
    reason : Reason
        Why.
    closes : bool
        Whether a group that is held stays closed until a real update: its caller may believe that new weights
        are there.
    """

    verb: str
    reason: Reason
    closes: bool = True

    @property
    def message(self) -> str:
        """What a client prints."""
        return f"{self.verb} is not supported: {self.reason.sentence}. Instead: {self.reason.instead}."

    def body(self) -> dict[str, Any]:
        """Return the answer's body, in which clients of SGLang and of vLLM find what they print."""
        return {
            "success": False,
            "message": self.message,
            "error": {
                "type": "Unsupported",
                "code": self.reason.word,
                "verb": self.verb,
                "reason": self.reason.sentence,
                "use_instead": self.reason.instead,
                "message": self.message,
            },
        }


def _refused(reason: Reason, *verbs: str, closes: bool = True) -> dict[str, Refusal]:
    return {verb: Refusal(verb, reason, closes) for verb in verbs}


#: Of SGLang, with what slime, miles and AReaL add.
SGLANG: Mapping[str, Refusal] = {
    **_refused(
        Reason.PUSH,
        "/init_weights_update_group",
        "/update_weights_from_distributed",
        "/send_weights_to_remote_instance",
        "/init_weights_send_group_for_remote_instance",
    ),
    **_refused(Reason.PUSH, "/destroy_weights_update_group", closes=False),
    **_refused(Reason.PICKLE, "/update_weights_from_tensor", "/update_weights_from_ipc"),
    **_refused(Reason.INTERNAL, "/post_process_weights"),
    **_refused(Reason.ADAPTER, "/load_lora_adapter", "/load_lora_adapter_from_tensors"),
    **_refused(Reason.ADAPTER, "/unload_lora_adapter", closes=False),
}
#: Of vLLM, with what TRL and SkyRL add.
VLLM: Mapping[str, Refusal] = {
    **_refused(Reason.METHOD, "/collective_rpc"),
    **_refused(Reason.PUSH, "/init_communicator", "/update_named_param", "/batch_update_named_params"),
    **_refused(Reason.PUSH, "/close_communicator", closes=False),
    **_refused(Reason.DRAFT, "/start_draft_weight_update"),
    **_refused(Reason.ADAPTER, "/v1/load_lora_adapter", "/load_lora_adapter"),
    **_refused(Reason.ADAPTER, "/v1/unload_lora_adapter", "/unload_lora_adapter", closes=False),
    **_refused(Reason.INTERNAL, "/fetch_weights"),
}
#: Of AReaL's own server.
AREAL: Mapping[str, Refusal] = {
    **_refused(
        Reason.PUSH,
        "/areal_init_weights_update_group",
        "/areal_set_update_weight_meta",
        "/areal_update_weights_xccl",
    ),
    **_refused(
        Reason.ADAPTER,
        "/areal_update_weights_lora",
        "/areal_set_update_weight_meta_lora",
        "/areal_update_weights_lora_xccl",
    ),
}
