"""The bodies and answers of the native API as structs; its OpenAPI document is made of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from wsm.command import checked_tags
from wsm.http.answers import ToldError
from wsm.http.bodies import Label, Text
from wsm.receipt import Receipt
from wsm.states.fleet import FleetState
from wsm.states.holding import ClosedHold, Hold
from wsm.states.vocabulary import (
    After,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    OnFailure,
    OnLease,
    Tag,
    TransferMode,
    UnknownTensors,
)
from wsm.status.culprits import Wait
from wsm.status.facts import ActionFacts, FailureFacts

Seconds: TypeAlias = Annotated[float, Meta(ge=0, lt=1e9)]
_Tags: TypeAlias = Annotated[list[Tag], Meta(min_length=1, extra_json_schema={"uniqueItems": True})]

# Bodies -----------------------------------------------------------------------------------------------------


class CommandBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the body of each command may hold."""

    group: Text | None = None
    settle_s: Seconds | None = None
    wait_s: Seconds | None = None

    def keywords(self) -> dict[str, Any]:
        """Return what it says, as keywords of the command."""
        said = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        said.pop("group", None)  # this one, as was seen
        if "tags" in said:
            said["tags"] = checked_tags(said["tags"])
        return said


class ReleaseBody(CommandBody):
    """Of ``release``. `surface`: whose the hold is; missing: the native API's own."""

    surface: Text | None = None
    deadline_s: Seconds | None = None
    hold: Text | None = None
    force: bool | None = None


class HoldBody(CommandBody):
    """Of ``hold``. `surface`: as of ``release``. `closed`: why it is to be a closed one."""

    surface: Text | None = None
    closed: ClosedHold | None = None
    deadline_s: Seconds | None = None
    in_flight: InFlightPolicy | None = None
    kv_policy: KVPolicy | None = None
    lease_s: Seconds | None = None
    on_lease: OnLease | None = None


class ClearBody(CommandBody):
    """Of ``clear``."""

    deadline_s: Seconds | None = None
    tags: _Tags | None = None
    in_flight: InFlightPolicy | None = None
    kv_policy: KVPolicy | None = None
    hold: Text | None = None


class UpdateBody(ClearBody):
    """Of ``update``."""

    version: Label | None = None
    directory: Text | None = None
    hot: bool | None = None
    hot_fallback: HotFallback | None = None
    force: bool | None = None
    partial: bool | None = None
    transfer_mode: TransferMode | None = None
    unknown_tensors: UnknownTensors | None = None
    verify_checksum: bool | None = None
    rsync_config: dict[str, Any] | None = None
    after: After | None = None
    on_failure: OnFailure | None = None
    restore_s: Seconds | None = None


class PrepareBody(UpdateBody):
    """Of ``prepare``."""

    lease_s: Seconds | None = None


class CommitBody(CommandBody):
    """Of ``commit``: under which request id that was prepared."""

    request_id: Text


class AbortBody(CommandBody):
    """Of ``abort``: what was prepared under that request id; missing: whatever was."""

    request_id: Text | None = None


BODIES: Final[Mapping[str, type[CommandBody]]] = {
    "clear": ClearBody,
    "update": UpdateBody,
    "hold": HoldBody,
    "release": ReleaseBody,
    "prepare": PrepareBody,
    "commit": CommitBody,
    "abort": AbortBody,
}


# Answers ----------------------------------------------------------------------------------------------------


class ReceiptAnswer(msgspec.Struct):
    """A command that ended well."""

    receipt: Receipt


class BegunAnswer(msgspec.Struct):
    """A command that goes on, and where its end will be."""

    request_id: str
    location: str


class ReadyAnswer(msgspec.Struct):
    """Whether the group serves."""

    serving: bool
    headline: str


class ClosedAnswer(msgspec.Struct):
    """Why a hold is closed."""

    surface: str
    verb: str
    reason: str
    by: str


class ToldRank(msgspec.Struct):
    """One participant, as ``wsm status --json`` prints it."""

    rank: int
    life: str
    pid: int | None
    pid_namespace: int | None
    weights: str
    kv: str
    code: str
    epoch: int
    sequence: int
    step: int
    heartbeat: int
    doing: str | None
    since_s: float | None
    staged_bytes: int
    action: int
    step_kind: str


class FleetAnswer(msgspec.Struct):
    """What a replica of a fleet counts as, by the newest target that its server has read.

    `unread_since`: since when the store could not be read, in seconds of the epoch.
    """

    state: FleetState
    admits: bool
    generation: int | None
    unread_since: float | None


class StatusAnswer(msgspec.Struct):
    """A group, as ``wsm status --json`` prints it."""

    name: str
    run_id: str
    epoch: int
    sequence: int
    operation: str
    over: bool
    version: str | None
    content_digest: str | None
    manifest_digest: str | None
    request_id: str | None
    controller_pid: int | None
    controller_stopped: bool
    controller_unanswered_s: float | None
    controller_hung: bool
    owner_pid: int | None
    supervisor_pid: int | None
    headline: str
    because: str
    advice: list[str]
    decision_left_s: float | None
    serving: bool
    state: str
    ranks: list[ToldRank]
    hold: Hold | None
    missing: list[Tag]
    closed: ClosedAnswer | None
    fleet: FleetAnswer | None


class ExplainedRank(msgspec.Struct):
    """One participant, as ``wsm explain --json`` prints it."""

    rank: int
    life: str
    pid: int | None
    pid_namespace: int | None
    weights: str
    kv: str
    step_kind: str | None
    staged_bytes: int
    plan: str | None
    code: str | None
    epoch: int | None
    step: int | None
    since_s: float | None
    action: ActionFacts | None


class TransitionAnswer(msgspec.Struct):
    """A line of a journal."""

    kind: str
    at_ns: int
    wall_ns: int
    rank: int
    epoch: int
    sequence: int
    facts: dict[str, Any]


class ExplanationAnswer(msgspec.Struct):
    """What ``wsm explain --json`` prints, without the tracebacks, which stay on the host."""

    group: str
    serving: bool
    headline: str
    finding: str
    sentences: list[str]
    waits: list[Wait]
    errors: list[FailureFacts]
    earlier: list[FailureFacts]
    repairs: list[str]
    advice: list[str]
    commands: list[str]
    transitions: list[TransitionAnswer]
    epoch: int | None
    sequence: int | None
    operation: str | None
    version: str | None
    request_id: str | None
    controller_pid: int | None
    owner_pid: int | None
    supervisor_pid: int | None
    damaged: list[str]
    ranks: list[ExplainedRank]


class RequestAnswer(msgspec.Struct):
    """What became of a request."""

    request_id: str
    operation: str
    surface: str
    state: Literal["running", "succeeded", "failed", "lost"]
    asked: dict[str, Any]
    run_id: str
    at: float
    traceparent: str | None = None
    receipt: Receipt | None = None
    error: ToldError | None = None


class HealthAnswer(msgspec.Struct):
    """Whether the group can be commanded."""

    status: Literal["ok", "unfit"]
    headline: str
