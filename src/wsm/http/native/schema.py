"""The bodies and answers of the native API as structs; its OpenAPI document is made of them. Pure.

Bodies are made of the keywords of the controller's methods, answers of what the status prints: each stands
once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from wsm.command import checked_tags
from wsm.controller._command_request import (
    ClearKeywords,
    HoldKeywords,
    PrepareKeywords,
    ReleaseKeywords,
    UpdateKeywords,
)
from wsm.http.answers import ToldError
from wsm.http.bodies import Label, Text
from wsm.journal.entry import JournalEntry
from wsm.receipt import Receipt
from wsm.states.fleet import FleetState
from wsm.states.holding import ClosedHold, Hold
from wsm.states.vocabulary import Tag
from wsm.status import Explanation, GroupStatus
from wsm.status.facts import TOLD_OF_GROUPS, TOLD_OF_RANKS, RankStatus
from wsm.status.text import EXPLAINED_OF_COMMANDS, EXPLAINED_OF_GROUPS, EXPLAINED_OF_RANKS
from wsm.typed import Wait, annotations_of

_Tags: TypeAlias = Annotated[list[Tag], Meta(min_length=1, extra_json_schema={"uniqueItems": True})]

# Bodies -----------------------------------------------------------------------------------------------------


class CommandBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the body of each command may hold."""

    group: Text | None = None
    settle_s: Wait | None = None
    wait_s: Wait | None = None

    def keywords(self) -> dict[str, Any]:
        """Return what it says, as keywords of the command."""
        said = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        said.pop("group", None)  # this one, as was seen
        if "tags" in said:
            said["tags"] = checked_tags(said["tags"])
        return said


class CommitBody(CommandBody):
    """Of ``commit``: under which request id that was prepared."""

    request_id: Text


class AbortBody(CommandBody):
    """Of ``abort``: what was prepared under that request id; missing: whatever was."""

    request_id: Text | None = None


#: Of the controller's keywords: what only a program can say, or a header says.
_NOT_SAID: Final = frozenset(("request_id", "still_wanted", "owner"))


def _body(name: str, keywords: type, **own: Any) -> type[CommandBody]:
    """Return the body of a command that takes the keywords of a controller's method, and `own`."""
    known = {each: _in_json(kind) for each, kind in annotations_of(keywords).items() if each not in _NOT_SAID}
    fields = [(each, Union[kind, None], None) for each, kind in {**known, **own}.items()]  # noqa: UP007 - of values
    made = msgspec.defstruct(
        name, fields, bases=(CommandBody,), module=__name__, kw_only=True, forbid_unknown_fields=True
    )
    assert issubclass(made, CommandBody)  # noqa: S101 - for type checkers
    return made


def _in_json(kind: Any) -> Any:
    """Return an annotation as JSON says it: a member of an enumeration by its value alone."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any(isinstance(each, enum.EnumMeta) for each in members):
        members = tuple(each for each in members if each is not str)
    return Union[tuple(Text if each is str else each for each in members)]  # noqa: UP007 - of values


_WEIGHTS: Final = {"tags": _Tags, "version": Label, "directory": Text}

BODIES: Final[Mapping[str, type[CommandBody]]] = {
    "clear": _body("ClearBody", ClearKeywords, tags=_Tags),
    "update": _body("UpdateBody", UpdateKeywords, **_WEIGHTS),
    # `surface`: whose the hold is; missing: the native API's own. `closed`: why it is to be a closed one.
    "hold": _body("HoldBody", HoldKeywords, surface=Text, closed=ClosedHold),
    "release": _body("ReleaseBody", ReleaseKeywords, surface=Text),
    "prepare": _body("PrepareBody", PrepareKeywords, **_WEIGHTS),
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


class HealthAnswer(msgspec.Struct):
    """Whether the group can be commanded."""

    status: Literal["ok", "unfit"]
    headline: str


class FleetAnswer(msgspec.Struct):
    """What a replica of a fleet counts as, by the newest target that its server has read.

    `unread_since`: since when the store could not be read, in seconds of the epoch.
    """

    state: FleetState
    admits: bool
    generation: int | None
    unread_since: float | None


class ClosedAnswer(msgspec.Struct):
    """Why a hold is closed."""

    surface: str
    verb: str
    reason: str
    by: str


def _kinds(source: type, names: Iterable[str]) -> dict[str, Any]:
    """Return of what types the attributes of a class are that are told under their names."""
    known = get_type_hints(source)
    return {
        name: known[name] if name in known else get_type_hints(getattr(source, name).fget)["return"]
        for name in names
    }


def _told(name: str, kinds: Mapping[str, Any], **own: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, [*{**kinds, **own}.items()], module=__name__)


_ToldRank: Final = _told("ToldRank", _kinds(RankStatus, TOLD_OF_RANKS), action=int, step_kind=str)

#: As ``wsm status --json`` prints it, and whether its hold is closed.
StatusAnswer: Final = _told(
    "StatusAnswer",
    _kinds(GroupStatus, TOLD_OF_GROUPS),
    ranks=list[_ToldRank],  # type: ignore[valid-type] # made above
    hold=Hold | None,
    missing=list[Tag],
    closed=ClosedAnswer | None,
    fleet=FleetAnswer | None,
)

_ExplainedRank: Final = _told(
    "ExplainedRank",
    _kinds(RankStatus, EXPLAINED_OF_RANKS),
    code=str | None,
    epoch=int | None,
    step=int | None,
)


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


#: A line of a journal.
_Transition: Final = _told("TransitionAnswer", get_type_hints(JournalEntry))
_OF_COMMANDS: Final = _kinds(GroupStatus, EXPLAINED_OF_COMMANDS)

#: As ``wsm explain --json`` prints it, without the tracebacks, which stay on the host.
ExplanationAnswer: Final = _told(
    "ExplanationAnswer",
    {name: kind for name, kind in get_type_hints(Explanation).items() if name != "facts"},
    **{name: kind | None for name, kind in _OF_COMMANDS.items()},
    **_kinds(GroupStatus, (*EXPLAINED_OF_GROUPS, "damaged")),
    transitions=list[_Transition],  # type: ignore[valid-type] # made above
    ranks=list[_ExplainedRank],  # type: ignore[valid-type] # made above
)
