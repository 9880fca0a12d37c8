"""What travels with a command: its arguments, and what each rank reports of it.

Arguments stand in the segment's argument slots before the command word. A report, the facts of a success or
the cause of a failure, stands in the rank's payload slots before the status word that it belongs to. All are
bounded.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import traceback
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import to_builtins

from wsm.errors import (
    BadInputError,
    NoRoomError,
    RefusedError,
    WsmError,
    coded,
    described,
    error_name,
    remedy,
)
from wsm.labels import Label
from wsm.payload import PayloadError, convert, decode, encode, json_bytes
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

#: Fact of a participant that holds a KV cache and no weights; its report says nothing about a version.
WITHOUT_WEIGHTS = "without_weights"

#: Fact of a rank that was told to load whatever lies there: the digest that the label meant on it before.
LABEL_MEANT = "label_meant"

#: What stands in the place of an action where it was a serving step that raised.
STEP = "step"

#: Kind under which :class:`AtHand` stands in its slot.
AT_HAND_KIND = 1

#: Bytes that a report may take; a payload slot holds 16 KiB with its header.
MAX_REPORT_BYTES = 15 * 1024
_MAX_TRACEBACK = 8 * 1024
_MAX_MESSAGE = 2 * 1024

_Kind = TypeVar("_Kind", bound="_Report")


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


# -- what a rank reports -----------------------------------------------------------------------------


class ReportFormatError(BadInputError):
    """A rank's report is not what a worker of this build writes."""


class _Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int

    @classmethod
    def from_bytes(cls: type[_Kind], rank: int, data: bytes) -> _Kind:  # noqa: PYI019 - typing has no Self on 3.10
        """Read it back; a ReportFormatError is raised for what is no such JSON object."""
        try:
            return decode(cls, data)
        except PayloadError as error:
            raise ReportFormatError(
                f"the report of rank {rank} is unusable: {error}; run the same version of wsm everywhere",
                rank=rank,
                problem=str(error),
            ) from error


class ActionSeconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long an action took: its run and its probe, without the wait for votes."""

    name: str
    seconds: float


class AtHand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The action that a rank is inside of, or comes to next; it stands in a slot of the rank's own.

    Parameters
    ----------
    plans : str
        Digest of what must be equal in the plans of all ranks: which actions, and which of them are
        collective. Deadlines may differ.
    plan, action : str or None
        The plan, as diagrams call it. No action: the rank is between two plans, or has begun none of this
        one.
    deadline_s : float
        Seconds that it may take, and that ranks may wait for each other's votes before it.
    """

    plans: str
    plan: str | None = None
    action: str | None = None
    deadline_s: float = 0.0
    collective: bool = False

    @classmethod
    @functools.lru_cache(maxsize=256)
    def from_bytes(cls, data: builtins.bytes) -> AtHand | None:
        """Read it; None: another build of wsm wrote it. Equal on most ranks, and in every command."""
        with contextlib.suppress(PayloadError):
            return decode(cls, data)
        return None


class RankReport(_Report, frozen=True, forbid_unknown_fields=True):
    """What one rank did for a command.

    Parameters
    ----------
    manifest_digest, digest : str or None
        Of the manifest that was loaded, and of the bytes that are resident; hexadecimal.
    pause_s : float
        Seconds since this rank last could serve; 0 if it never could.
    facts : mapping
        What else actions declared.
    bases : tuple of str
        The versions that this one, a part, was put on: the whole one, then other parts in their order. Empty
        for a whole version.
    held, loads : bool or None
        Whether the group is held once the command is committed, and whether the command loads weights: for a
        process that has to complete it, and finds its arguments damaged. None: not said.
    """

    version: str | None = None
    manifest_digest: str | None = None
    digest: str | None = None
    bytes: int = 0
    tensors: int = 0
    actions: tuple[ActionSeconds, ...] = ()
    pause_s: float = 0.0
    facts: Mapping[str, Any] = {}
    bases: tuple[str, ...] = ()
    held: bool | None = None
    loads: bool | None = None

    def to_bytes(self) -> builtins.bytes:
        """Return the JSON text; the largest facts are left out, by name, where all of them do not fit."""
        facts, left_out = dict(self.facts), []
        data = encode(self)
        while len(data) > MAX_REPORT_BYTES and facts:
            left_out.append(max(facts, key=lambda name: len(json_bytes(facts[name]))))
            del facts[left_out[-1]]
            data = encode(msgspec.structs.replace(self, facts={**facts, "left_out": left_out}))
        return data


class FailureReport(_Report, frozen=True, forbid_unknown_fields=True):
    """Why one rank failed or refused a command.

    Parameters
    ----------
    action : str
        The action or the stage (``begin``, ``drain``, ``park`` ...) that failed.
    error, message, traceback : str
        Code (of an error of wsm) or type, text and remote traceback of the cause; its end where it was too
        long.
    no_room : bool
        Whether it lacked room for a second version beside the one that serves, and for nothing else.
    unfit : bool
        Whether it says something of the weights that were to be loaded, and not of this rank.
    """

    action: str
    error: str
    message: str
    traceback: str = ""
    no_room: bool = False
    unfit: bool = False

    @classmethod
    def of(cls, rank: int, action: str, error: BaseException) -> FailureReport:
        """Describe an exception; errors of wsm carry their own fix and need no traceback to be understood."""
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        message = " ".join(described(error).split())
        if isinstance(error, WsmError):
            fix = (
                None if isinstance(error, NoRoomError) else remedy(error)
            )  # the other says what to do itself
            message = str(error) if fix is None or fix in str(error) else f"{error}; {fix}"
        return cls(
            rank,
            action,
            error_name(error),
            message[:_MAX_MESSAGE],
            lines[-_MAX_TRACEBACK:],
            no_room=isinstance(error, NoRoomError),
            unfit=isinstance(error, WsmError) and error.unfit,
        )

    def to_bytes(self) -> builtins.bytes:
        """Return the JSON text: the end of a traceback, the beginning of a message, as far as they fit."""
        kept, data = self, encode(self)
        while len(data) > MAX_REPORT_BYTES and (kept.traceback or kept.message):
            shorter = (
                {"traceback": kept.traceback[len(kept.traceback) // 2 + 1 :]}
                if kept.traceback
                else {"message": kept.message[: len(kept.message) // 2]}
            )
            kept = msgspec.structs.replace(kept, **shorter)
            data = encode(kept)
        return data
