"""What travels with a command: its arguments, as the controller writes them and every rank reads them.

JSON in the segment's argument slot, checked on arrival like any input. Knows nothing of words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from types import NoneType
from typing import Any, Final

from wsm.errors import BadInputError, RefusedError
from wsm.labels import is_label
from wsm.states.holding import Hold
from wsm.states.vocabulary import (
    ALL_TAGS,
    After,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    Tag,
    TransferMode,
    UnknownTensors,
    WeightState,
)

#: Characters of the longest request id.
MAX_REQUEST_ID = 200

#: Kind under which arguments stand in their payload slot.
ARGUMENTS_KIND = 1

#: What a command says, besides the configuration, of how its version is loaded.
_LOAD_OPTIONS = ("transfer_mode", "verify_checksum", "rsync_config")
#: Of which type a field is that a caller sets as it stands.
_KINDS = {
    "in_flight": (InFlightPolicy,),
    "kv_policy": (KVPolicy,),
    "reload": (bool,),
    "partial": (bool,),
    "verify_checksum": (bool, type(None)),
}

#: Codes that other processes look for in a rank's report.
VERSION_HELD: Final = "version-held"
PART_NOT_RESTORABLE: Final = "part-not-restorable"
SOURCE_OVERWRITTEN: Final = "source-overwritten"


class CommandArgumentsError(BadInputError):
    """The arguments of a command are not what a controller of this build writes."""

    def __init__(self, *, problem: str) -> None:
        super().__init__(
            f"the command's arguments are unusable: {problem}; "
            "command the group with the same version of wsm as its workers run",
            problem=problem,
        )


class RequestIdError(BadInputError):
    """The name of a request does not fit into logs, journals and receipts."""

    def __init__(self, *, request_id: str, problem: str) -> None:
        super().__init__(
            f"the request id {request_id[:40]!r} {problem}; give 1 to {MAX_REQUEST_ID} printable characters, "
            "or none, and one is drawn",
            request_id=request_id,
            problem=problem,
        )


class TagsError(BadInputError):
    """What a command is to be about is nothing, or none of what there is."""

    def __init__(self, *, tags: str) -> None:
        known = ", ".join(tag.value for tag in Tag)
        super().__init__(f"the tags are {tags}; name one or several of {known}, each once", tags=tags)


def partial_update_refused(*, why: str) -> RefusedError:
    """A partial update relies on weights that are not there whole, or are somewhere else."""
    return RefusedError(
        f"a partial update keeps the tensors that it does not bring, and {why}; nothing was changed: "
        "update with a whole version",
        code="partial-update-refused",
        why=why,
    )


def part_not_restorable(*, rank: int, version: str | None, bases: Sequence[str]) -> RefusedError:
    """A group that served a part is to be restored, and what the part was put on is kept nowhere."""
    return RefusedError(
        f"rank {rank} cannot load version {version} again: it is a part, put on version "
        f"{', '.join(map(str, bases))}, which is kept nowhere; update to a whole version",
        code=PART_NOT_RESTORABLE,
        rank=rank,
        version=version,
        bases=tuple(bases),
    )


def version_held(*, rank: int, version: str) -> RefusedError:
    """The version that is announced is the one that is held: a command that names none has nothing to do."""
    return RefusedError(
        f"rank {rank} already holds version {version}, the newest; use --force to load it again",
        code=VERSION_HELD,
        rank=rank,
        version=version,
    )


def checked_request_id(request_id: str) -> str:
    """Return `request_id` if it can name a request.

    Raises
    ------
    RequestIdError
        If it is empty, too long, or holds what cannot be printed.
    """
    if not request_id or len(request_id) > MAX_REQUEST_ID:
        raise RequestIdError(request_id=request_id, problem=f"has {len(request_id)} characters")
    if not request_id.isprintable():
        raise RequestIdError(request_id=request_id, problem="holds what cannot be printed")
    return request_id


def parse_tags(text: str) -> frozenset[Tag]:
    """Read tags from text, for example ``weights,kv_cache``.

    Whole names, separated by commas: a part of a name is no name.

    Raises
    ------
    TagsError
        If there is none, an unknown one, or one twice.
    """
    try:
        return checked_tags([Tag(part.strip()) for part in text.split(",")])
    except ValueError:
        raise TagsError(tags=repr(text)) from None


def checked_tags(tags: Collection[Tag], *, none: bool = False) -> frozenset[Tag]:
    """Return tags as a set; `none`: there may, and must, be none.

    Raises
    ------
    TagsError
        If there is none, one twice, or something that is no tag: a string, for instance.
    """
    found = frozenset(tags)
    if bool(found) is none or len(found) != len(tags) or not found <= ALL_TAGS:
        raise TagsError(tags=repr(tags))
    return found


@dataclass(frozen=True)
class CommandArguments:
    """Everything about a command that is not in its word.

    Parameters
    ----------
    request_id : str
        Names the request in logs, receipts and journals.
    version : str or None
        The version to load; None for a clear.
    in_flight : InFlightPolicy
        What becomes of running requests.
    kv_policy : KVPolicy
        What becomes of KV blocks that older weights computed.
    before : WeightState or None
        Where all ranks were when the command was admitted, which is what a new epoch restores if the command
        does not come to its end; None: not known. NORMAL only if they served: of a group that held one half,
        nothing is restored.
    hot_fallback : HotFallback
        What the controller does if a hot update finds no room; the ranks only refuse it.
    tags : frozenset of Tag
        What a clear gives back, or an update brings back; never empty.
    reload : bool
        Whether an update loads weights again that are held already in the version that it means, where only
        the KV cache is missing.
    clears : bool
        Whether this is a clear. The command word says so too, until ABORT stands there: a participant that
        looks only then must know which half the others have given back.
    restores : bool
        Whether this update restores what the group served before it lost a rank. If it is aborted, the group
        is owed that still, until another command is given. Of a clear: whether it repairs a rank of such a
        group, which is owed that version afterwards, too.
    partial : bool
        Whether tensors may be missing in the version, which then keep what they hold. Only for a group that
        serves: what was let go or half written, only a whole version brings back.
    transfer_mode : TransferMode or None
        By which way the version travels; None: as configured.
    unknown_tensors : UnknownTensors or None
        What becomes of tensors that the model does not have; None: as configured.
    verify_checksum : bool or None
        Whether a stream must promise digests; None: as configured.
    rsync_config : mapping or None
        Options of the transport for this command alone, besides those that are configured.
    lease_s : float or None
        Seconds that a caller may take for its decision, from the moment all are PREPARED; None: its
        controller decides.
    leased : bool
        Whether that lease holds the decision while no process has the controller role.
    deadline_s : float or None
        Seconds after which an undecided command is aborted. Its controller counts them; the group itself does
        where that is stopped. None: not known.
    after : After
        What it leaves of the group's admission once it is committed.
    hold : Hold or None
        The hold that the group stands under then, where it is held; None: the one that it stands under.
    of_admission : bool
        Whether this is a hold or a release, which are about neither half. The command word says so too, until
        a decision stands there.
    traceparent : str or None
        The trace that its request belongs to, as W3C's header of that name has it.
    """

    request_id: str
    version: str | None = None
    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    kv_policy: KVPolicy = KVPolicy.DROP
    before: WeightState | None = None
    hot_fallback: HotFallback = HotFallback.REFUSE
    tags: frozenset[Tag] = ALL_TAGS
    reload: bool = False
    clears: bool = False
    restores: bool = False
    partial: bool = False
    transfer_mode: TransferMode | None = None
    unknown_tensors: UnknownTensors | None = None
    verify_checksum: bool | None = None
    rsync_config: Mapping[str, Any] | None = None
    deadline_s: float | None = None
    lease_s: float | None = None
    leased: bool = False
    after: After = After.AS_BEFORE
    hold: Hold | None = None
    of_admission: bool = False
    traceparent: str | None = None

    def require_kinds(self) -> None:
        """See that the fields which a caller has set are such as every rank will read.

        Raises
        ------
        CommandArgumentsError
            If one is not.
        """
        for name, kinds in _KINDS.items():
            if type(getattr(self, name)) not in kinds:
                raise CommandArgumentsError(problem=f"{name} {getattr(self, name)!r}")

    def load_options(self) -> dict[str, Any]:
        """Return how the version is loaded where the command says so, not the configuration; plain values."""
        said: dict[str, Any] = {}
        if self.transfer_mode is not None:
            said["transfer_mode"] = self.transfer_mode.value
        if self.verify_checksum is not None:
            said["verify_checksum"] = self.verify_checksum
        if self.rsync_config is not None:
            said["rsync_config"] = dict(self.rsync_config)
        return said

    def loading_as(self, options: Mapping[str, Any]) -> CommandArguments:
        """Return arguments that load as :meth:`load_options` of another command says.

        Raises
        ------
        CommandArgumentsError
            If these are no such options.
        """
        said = {name: value for name, value in options.items() if name in _LOAD_OPTIONS}
        return CommandArguments.from_bytes(json.dumps({**json.loads(self.to_bytes()), **said}).encode())

    def to_bytes(self) -> bytes:
        """Return the JSON text that goes into the slot: the fields that are not as by default."""
        said = {
            name: _written(value)
            for name, value in vars(self).items()
            if name not in _DEFAULTS or value != _DEFAULTS[name]
        }
        return json.dumps(said).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CommandArguments:
        """Read them back.

        Raises
        ------
        CommandArgumentsError
            If the text is not such a JSON object.
        """
        try:
            said = {name: _READERS[name](value) for name, value in json.loads(data).items()}
            if "tags" in said or "of_admission" in said:
                said["tags"] = checked_tags(said.get("tags", ALL_TAGS), none=said.get("of_admission", False))
            return cls(**said)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, TagsError) as error:
            raise CommandArgumentsError(problem=f"{type(error).__name__}: {error}") from error


_DEFAULTS = {field.name: field.default for field in fields(CommandArguments) if field.default is not MISSING}


def _written(value: Any) -> Any:
    """Return a field as JSON has it."""
    if isinstance(value, WeightState):
        return value.name
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(tag.value for tag in value)
    if isinstance(value, Hold):
        return value.facts()
    return dict(value) if isinstance(value, Mapping) else value


def _is(*kinds: type) -> Callable[[Any], Any]:
    """Return what passes a value of just one of these types."""

    def checked(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{value!r} is a {type(value).__name__}")
        return value

    return checked


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _label(value: Any) -> str:
    if not is_label(value):
        raise ValueError(f"{value!r} is no label")
    return str(value)


#: How each field is read; None where a build says what is so by default.
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "request_id": _is(str),
    "version": _or_none(_label),
    "in_flight": InFlightPolicy,
    "kv_policy": KVPolicy,
    "before": _or_none(lambda name: WeightState[name]),
    "hot_fallback": HotFallback,
    "tags": lambda tags: [Tag(tag) for tag in _is(list)(tags)],
    **dict.fromkeys(("reload", "clears", "restores", "partial", "of_admission", "leased"), _is(bool)),
    "transfer_mode": _or_none(TransferMode),
    "unknown_tensors": _or_none(UnknownTensors),
    "verify_checksum": _is(bool, NoneType),
    "rsync_config": _is(dict, NoneType),
    "deadline_s": _is(int, float, NoneType),
    "lease_s": _is(int, float, NoneType),
    "after": After,
    "hold": _or_none(Hold.of),
    "traceparent": _is(str, NoneType),
}
