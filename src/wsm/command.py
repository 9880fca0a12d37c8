"""What travels with a command: its arguments, in the segment's argument slot."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import to_builtins

from wsm.errors import BadInputError, RefusedError, coded
from wsm.labels import Label
from wsm.payload import PayloadError, convert, decode, encode
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

#: Codes that other processes look for in a rank's report.
VERSION_HELD: Final = "version-held"
PART_NOT_RESTORABLE: Final = "part-not-restorable"
SOURCE_OVERWRITTEN: Final = "source-overwritten"

#: Codes of errors that say that a version which is asked for is not there.
VERSION_GONE: Final = frozenset(
    ("snapshot-not-found", "version-mismatch", "version-unknown", "metas-not-found", "delta-not-found")
)
OTHER_CONTENT: Final = "other-content"


class CommandArgumentsError(BadInputError):
    """The arguments of a command are not what a controller of this build writes."""

    def __init__(self, *, problem: str) -> None:
        super().__init__(
            f"the command's arguments are unusable: {problem}; "
            "command the group with the same version of wsm as its workers run",
            problem=problem,
        )


@coded("partial-update-refused")
def partial_update_refused(*, why: str) -> RefusedError:
    """A partial update relies on weights that are not there whole, or are somewhere else."""
    return RefusedError(
        f"a partial update keeps the tensors that it does not bring, and {why}; nothing was changed: "
        "update with a whole version"
    )


def checked_request_id(request_id: str) -> str:
    """Return `request_id`; BadInputError (``request-id``) if it is empty, too long or not printable."""
    fits = 0 < len(request_id) <= MAX_REQUEST_ID
    if fits and request_id.isprintable():
        return request_id
    problem = "holds what cannot be printed" if fits else f"has {len(request_id)} characters"
    raise BadInputError(
        f"the request id {request_id[:40]!r} {problem}; give 1 to {MAX_REQUEST_ID} printable characters, "
        "or none, and one is drawn",
        code="request-id",
        request_id=request_id,
        problem=problem,
    )


def parse_tags(text: str) -> frozenset[Tag]:
    """Read tags from text, for example ``weights,kv_cache``, as :func:`checked_tags`."""
    return checked_tags([part.strip() for part in text.split(",")])


def checked_tags(tags: Collection[Tag | str]) -> frozenset[Tag]:
    """Return tags as a set.

    Raises
    ------
    BadInputError (``tags``)
        If there is none, one twice, or one that is no tag, nor the value of one: a part of a name is no name.
    """
    with contextlib.suppress(ValueError):
        found = frozenset(map(Tag, tags))
        if found and len(found) == len(tags):
            return found
    raise BadInputError(
        f"the tags are {tags!r}; name one or several of {', '.join(tag.value for tag in Tag)}, each once",
        code="tags",
        tags=repr(tags),
    )


class CommandArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything about a command that is not in its word.

    Parameters
    ----------
    version : str or None
        The version to load; None for a clear.
    before : WeightState or None
        Where all ranks were when the command was admitted, which is what a new epoch restores if it does not
        come to its end; None: not known. NORMAL only if they served.
    hot_fallback : HotFallback
        What the controller does if a hot update finds no room; the ranks only refuse it.
    tags : frozenset of Tag
        What a clear gives back, or an update brings back; empty of a hold or a release alone.
    reload : bool
        Whether an update loads weights again that are held in that version, where only the KV cache lacks.
    clears, of_admission : bool
        Whether this is a clear, or a hold or release. The command word says so too, until a decision stands
        there: a participant that looks only then must know what the others have given back.
    restores : bool
        Whether this update restores what the group served before it lost a rank, or an update failed: if it
        is aborted, the group is owed that still. Of a clear: whether it repairs a rank of such a group.
    partial : bool
        Whether tensors may be missing in the version, which then keep what they hold.
    transfer_mode, unknown_tensors, verify_checksum, rsync_config : optional
        As of :meth:`wsm.Controller.update`; None: as configured.
    deadline_s, restore_s : float or None
        Seconds after which an undecided command is aborted, by its controller or else by the group, and those
        that the restore of what it owes may take. None: not known; as many as itself.
    lease_s, leased : float or None, bool
        Seconds that a caller may take for its decision once all are PREPARED, and whether that lease holds
        the decision while no process has the controller role. None: its controller decides.
    after, hold : After, Hold or None
        What it leaves of the group's admission once it is committed, and the hold that the group stands under
        then. None: the one that it stands under.
    traceparent : str or None
        The trace that its request belongs to, as W3C's header of that name has it.
    issued_ns : int
        When its word was written, by the host's monotonic clock; 0: not known.
    """

    request_id: str
    version: Label | None = None
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
    restore_s: float | None = None
    lease_s: float | None = None
    leased: bool = False
    after: After = After.AS_BEFORE
    hold: Hold | None = None
    of_admission: bool = False
    traceparent: str | None = None
    issued_ns: int = 0

    def load_options(self) -> dict[str, Any]:
        """Return how the version is loaded where the command says so, not the configuration; plain values."""
        return {name: value for name, value in to_builtins(self).items() if name in _LOAD_OPTIONS}

    def loading_as(self, options: Mapping[str, Any]) -> CommandArguments:
        """Return arguments that load as :meth:`load_options` of another command says."""
        said = {name: value for name, value in options.items() if name in _LOAD_OPTIONS}
        try:
            return convert(CommandArguments, {**to_builtins(self), **said})
        except PayloadError as error:
            raise CommandArgumentsError(problem=str(error)) from error

    def to_bytes(self) -> bytes:
        """Return the JSON text that goes into the slot: the fields that are not as by default."""
        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> CommandArguments:
        """Read them back; a CommandArgumentsError says why the text is none."""
        try:
            found = decode(cls, data)
        except PayloadError as error:
            raise CommandArgumentsError(problem=str(error)) from error
        if bool(found.tags) is found.of_admission:
            raise CommandArgumentsError(problem="its tags are those of another kind of command - at `$.tags`")
        return found
