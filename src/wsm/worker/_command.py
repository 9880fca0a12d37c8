"""From the words and arguments of a command to the run that it means on this rank.

Responsible for what a rank can know before it begins: where the arguments stand, which version a command
means that names none, what is resident already. Refuses what this rank cannot even begin, and runs nothing.

**A version that no command names is found once.** If each rank looked for itself, a publication between two
looks would make them load different versions, and the update would end in a cleared group. Rank 0 looks when
it begins the command, and says so in its report slot; the others begin when they have read that.

**Where it finds that its source names none**, the command's own number is the version, and every rank looks
at its files before it says that it has begun: none reads before all have. Each looks again before PREPARED.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from wsm.actions.base import ActionContext, Loaded, LoadFunction, Plans, WorkDone
from wsm.actions.surfaces import Runner, processing_of
from wsm.command import (
    ARGUMENTS_KIND,
    LABEL_MEANT,
    OTHER_CONTENT,
    PART_NOT_RESTORABLE,
    VERSION_HELD,
    CommandArguments,
    CommandArgumentsError,
    RankReport,
    partial_update_refused,
)
from wsm.committed_record import (
    NOTHING_COMMITTED,
    CommittedRecord,
    CommittedRecordError,
    commit_report,
    committed_record,
    content_digest,
)
from wsm.errors import BadInputError, GroupError, RefusedError, UnfitError
from wsm.labels import is_unnamed, recorded_version, unnamed_version, version_id
from wsm.states import command_events, epochs
from wsm.states.machine import LifeCycle
from wsm.states.phases import RankState
from wsm.states.vocabulary import Admission, After, KVState, Tag, UnknownTensors, WeightState
from wsm.states.words import Operation, StatusCode
from wsm.strategies.errors import source_changed
from wsm.strategies.files.atomic_file import FileLook, first_changed
from wsm.strategies.tensor import WeightTarget
from wsm.worker import errors
from wsm.worker._group_words import GroupWords
from wsm.worker._hot_run import HotRun, Staging
from wsm.worker._run import RankTools, Run

if TYPE_CHECKING:
    from wsm.strategies.files.snapshot_directory import VersionPins


class Found(NamedTuple):
    """What a rank found in its source when it looked for the version that is announced.

    `version`: the version; None: nothing there names one. `files`: where none is named: the files, as they
    are now.
    """

    version: str | None
    files: tuple[FileLook, ...] = ()


#: Looks for what the source of a rank announces now, where a command says that it loads from.
Find = Callable[[int, CommandArguments], Found]

#: Whose look for an announced version counts.
FINDER = 0

#: Under which codes rank 0's report may stand while another rank still begins: a hot update does not wait.
_CODES = (StatusCode.DRAINING, StatusCode.PREPARED)

#: The most versions that a part may be put on: each is pinned, which takes a descriptor.
MAX_BASES = 64

#: How long a command waits for memory that a hot update is about to let go, in seconds.
_REST_S = 1.0

#: How often a rank looks for the report of another, which that one moves meanwhile to where it stays.
_LOOKS = 1000


class ResidentFacts:
    """What one rank remembers of its weights and KV cache between commands.

    A command about one half reports the other half's facts from here. Which half is resident, the machines
    say.

    `weights`: ``version``, ``manifest_digest``, ``manifest_scope`` and ``digest`` of the weights that are
    resident; ``bases`` and ``restorable`` where they are a part that was put on others; ``content_digest``
    where their label has meant other content before. `kept_digest`: digest of the weights that computed the
    blocks in a KV cache that outlived them. `set_aside`: whether the group is held and requests were set
    aside for that.
    """

    def __init__(self) -> None:
        self.weights: Mapping[str, Any] = {}
        self.kept_digest: str | None = None
        self.set_aside = False
        self._absent: Mapping[str, frozenset[str]] = {}  # what each part that is held did not bring

    @property
    def version(self) -> str | None:
        """The version that is held; None while there are no weights."""
        version: str | None = self.weights.get("version")
        return version

    def bases_of_part(self, version: str | None, absent: Collection[str] | None) -> tuple[str, ...]:
        """Return what would have to be loaded before the part `version`, for it to be what it is here.

        `version`: the part, which is put on what is held. `absent`: the tensors that it did not bring; None:
        not known, and every part before it is needed.

        Returns
        -------
        tuple of str
            The whole version, then the parts on it that brought a tensor which none has brought since.
        """
        if self.version is None:
            return ()
        bases: tuple[str, ...] = self.weights.get("bases", ())
        whole, *parts = (*bases, self.version)
        needed: list[str] = []
        since = None if absent is None else frozenset(absent)  # tensors that no part has brought since
        for part in reversed(parts):
            own = self._absent.get(part)
            if part != version and (own is None or since is None or since - own):
                needed.append(part)
            if own is not None:
                since = own if since is None else since & own
        return (whole, *reversed(needed))

    def committed(self, report: RankReport, content_digest: str | None = None) -> None:
        """Take in what a commit has brought; `content_digest`: of a label that meant other content."""
        held = (*report.bases, report.version)
        if self._absent:
            self._absent = {part: names for part, names in self._absent.items() if part in held}
        if report.version is not None and report.facts.get("partial") and "not_loaded" in report.facts:
            self._absent = {**self._absent, report.version: frozenset(report.facts["not_loaded"])}
        self.weights = {
            "version": report.version,
            "manifest_digest": report.manifest_digest,
            "manifest_scope": report.facts.get("manifest_scope"),
            **({} if report.digest is None else {"digest": report.digest}),  # a KV-cache process has none
            **({} if content_digest is None else {"content_digest": content_digest}),
            **({"bases": report.bases, "restorable": report.facts.get("restorable")} if report.bases else {}),
        }
        if report.version is not None:
            self.kept_digest = None  # what is in the cache now is these weights' own, or was kept for them

    def settled(self, life: LifeCycle, *, blocks_kept: bool = False) -> None:
        """Take in what the end of any other command has left.

        `blocks_kept`: whether the command took the weights from a KV cache that it left as it was.
        """
        if blocks_kept and life.kv is KVState.NORMAL:
            self.kept_digest = self.weights.get("digest")  # a KV-cache process has none, and forgets
        if life.kv is not KVState.NORMAL:
            self.kept_digest = None
        if life.weights is not WeightState.NORMAL:
            self.weights = {}


@dataclass(frozen=True)
class Work:
    """What a participant does in a command, whatever its words.

    `find`: says which version an update means that names none; None where only the load itself can tell.
    `require`: raises if a version that a command names is not there; None where only the load can tell.
    `facts`: what every report of it says besides.
    `pins`: keeps a version from the moment when a command names it; None: nothing is published that it could.
    """

    runner: Runner
    plans: Plans
    load: LoadFunction
    find: Find | None = None
    require: Callable[[int, CommandArguments], object] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    pins: VersionPins | None = None


class CommandReader:
    """Makes the runs of one rank.

    `booted`: whether weights were committed in this epoch already. A commit is the group's, so this is the
    same on every rank, and so is what follows from it.
    """

    def __init__(self, words: GroupWords, work: Work, tools: RankTools) -> None:
        self.resident = ResidentFacts()
        self.pins = work.pins
        self.booted = False
        self.loads = False
        self._words = words
        self._work = work
        self._tools = tools
        self._life = tools.life
        self._staging: tuple[Staging, ...] = ()
        self._found: Found | None = None  # by rank 0, for the command at hand

    # -- what a command means ----------------------------------------------------------------------

    def arguments(self, state: RankState) -> bytes | None:
        """Return the arguments of the command at hand; None while what it means cannot be known (yet)."""
        data = self._argument_bytes(state)
        known = self._work.find is None or state.rank == FINDER or self._told_version(state) is not None
        if data is None or state.operation is Operation.CLEAR or known:
            return data
        try:
            arguments = CommandArguments.from_bytes(data)
        except CommandArgumentsError:
            return data  # they are refused when the command begins
        return None if arguments.version is None and Tag.WEIGHTS in arguments.tags else data

    def commanded(self, state: RankState, data: bytes) -> Run:
        """Make the work of the command at hand; on rank 0 this decides which version it means.

        Raises
        ------
        CommandArgumentsError, GroupError (``step-broken``)
            If this rank cannot begin it. Nothing was changed.
        WsmError
            If it names no version and none is announced. Nothing was changed.
        RefusedError
            If it restores a part, and what that was put on was not kept. Nothing was changed.
        RefusedError
            If a part would be put on more parts than a rank keeps. Nothing was changed.
        RefusedError
            If the announced one is resident, and nothing else is asked for that is missing.
        BadInputError
            If the version that it names is not there. No request was ended for it.
        """
        asked = arguments = CommandArguments.from_bytes(data)
        self.loads = Tag.WEIGHTS in arguments.tags and not state.operation.is_of_admission
        if state.broken:
            raise GroupError(
                f"step {state.step} raised on rank {state.rank}; its peers may wait in a collective of it: "
                "restart the group, which begins a new epoch",
                code="step-broken",
                rank=state.rank,
                step=state.step,
            )
        request = state.operation
        if arguments.version is None and request is not Operation.CLEAR and Tag.WEIGHTS in arguments.tags:
            arguments = structs.replace(arguments, version=self._announced_version(state, arguments))
        meant = None if arguments.version is None else self._digest_meant(state, arguments.version)
        promised, meant = (None, meant) if arguments.reload else (meant, None)
        looked = self._looked(state, arguments, promised)
        if arguments.partial and len(self.resident.weights.get("bases", ())) >= MAX_BASES:
            why = f"rank {state.rank} has put {MAX_BASES} parts on a whole version already"
            raise partial_update_refused(why=why)
        restored = self._to_restore(state, arguments.version) if arguments.restores else None
        is_there = True  # as far as can be known
        for version in (*(() if restored is None else restored.bases), arguments.version):
            if version is not None and self.pins is not None:
                is_there = self.pins.add(version)
        same = arguments.version is not None and arguments.version == self.resident.version
        tags = command_events.narrowed(
            request, asked.tags, self._life.joint, same_version=same, reload=arguments.reload
        )
        arguments = structs.replace(arguments, tags=tags)
        named = asked.version is not None and Tag.WEIGHTS in tags and not asked.restores
        if named and not is_there and self._work.require is not None:
            self._work.require(state.rank, asked)
        return self._make(state, request, arguments, restored, promised=promised, meant=meant, looked=looked)

    def ending(self, state: RankState) -> Run:
        """Make what brings a rank to the group's outcome that had not begun: to keep, or to give back.

        What the others give back the arguments say; where they cannot be read, it is unknown.
        """
        data, asked, named = self._argument_bytes(state), CommandArguments("unreadable"), None
        with suppress(CommandArgumentsError):
            if data is not None:
                asked = CommandArguments.from_bytes(data)
                named = asked.tags
        request, tags = command_events.called_off(named, clears=asked.clears, of_admission=asked.of_admission)
        ended = structs.replace(asked, version=None, tags=tags, after=After.AS_BEFORE)
        return self._make(state, request, ended)

    def leaving(self, state: RankState) -> Run:
        """Make what gives back all that a rank holds, since its epoch has ended."""
        return self._make(state, Operation.CLEAR, CommandArguments("its epoch has ended"))

    # -- how a command ended -----------------------------------------------------------------------

    def committed(self, report: RankReport, sequence: int, *, set_aside: bool) -> None:
        """Take in what a commit has brought; `set_aside`: whether requests wait for the end of a hold."""
        self.booted |= self._life.weights is WeightState.NORMAL
        before = self.resident.weights.get("content_digest")
        self.resident.committed(report, self._content_digest(report, sequence) if self.loads else before)
        self.resident.set_aside = set_aside

    def lost(self) -> None:
        """Take in that a new epoch begins, with nothing."""
        self.booted = self.resident.set_aside = False
        self.resident.settled(self._life)
        self.keep_committed()

    def keep_committed(self) -> None:
        """Pin what the group has committed, and what that was put on, and nothing else."""
        if self.pins is None:
            return
        with suppress(CommittedRecordError):  # what may be loaded again is not known: nothing is let go
            committed = committed_record(self._words.segment)
            report = commit_report(self._words.segment, self._words.rank, committed.load_sequence)
            self.pins.keep((committed.version, *(() if report is None else report.bases)))

    # -- parts of these ----------------------------------------------------------------------------

    def _argument_bytes(self, state: RankState) -> bytes | None:
        slot = self._words.segment.arguments(state.sequence)
        return slot.read(state.epoch, state.sequence, ARGUMENTS_KIND)

    def _announced_version(self, state: RankState, arguments: CommandArguments) -> str | None:
        """Return the version that the command means; rank 0 finds it, and tells the others."""
        if self._work.find is None:
            return None
        unnamed = unnamed_version(self._words.segment.run_id, state.epoch, state.sequence)
        if state.rank != FINDER:
            told = self._told_version(state)
            return unnamed if told is not None and is_unnamed(told) else told
        self._found = self._work.find(state.rank, arguments)
        version = unnamed if self._found.version is None else self._found.version
        same = version == self.resident.version
        if not arguments.reload and command_events.holds(arguments.tags, self._life.joint, same_version=same):
            raise RefusedError(
                f"rank {state.rank} already holds version {version}, the newest; "
                "use --force to load it again",
                code=VERSION_HELD,
                rank=state.rank,
                version=version,
            )
        found = RankReport(rank=state.rank, version=version)
        self._words.reached(state, StatusCode.DRAINING, found, loads=self.loads)
        return version

    def _told_version(self, state: RankState) -> str | None:
        slot = self._words.segment.reports[FINDER]
        for code in _CODES:
            data = slot.read(state.epoch, state.sequence, code)
            if data is not None:
                return RankReport.from_bytes(FINDER, data).version
        return None

    def _content_digest(self, report: RankReport, sequence: int) -> str | None:
        """Return the digest of what all ranks have loaded, where the label has meant other content before.

        The controller's record may be written later; every rank has said what it prepared.
        """
        segment, before = self._words.segment, self._committed()
        if LABEL_MEANT not in report.facts and before.content_digest is None:
            return None
        reports = [report]
        for other in set(range(segment.participants)) - {report.rank}:
            looks = (commit_report(segment, other, sequence) for _ in range(_LOOKS))
            reports += next(([found] for found in looks if found is not None), [])
        return content_digest(sorted(reports, key=lambda one: one.rank), report.version, before)

    def _digest_meant(self, state: RankState, version: str) -> str | None:
        """Return the digest that a label has meant on this rank since it was committed; None: not known.

        Raises
        ------
        RefusedError
            If another label has the committed one's number in words. Nothing was changed.
        """
        committed = self._committed()
        if committed.version is None:
            return None
        if version == committed.version:
            report = commit_report(self._words.segment, state.rank, committed.load_sequence)
            return None if report is None else report.digest
        if version_id(version) == version_id(committed.version):
            raise RefusedError(
                f"rank {state.rank} cannot load version {version}: the words of the group have the same "
                f"number for it as for the committed version {committed.version}; publish it under another "
                "label",
                code="labels-alike",
                rank=state.rank,
                version=version,
                committed=committed.version,
            )
        return None

    def _looked(
        self, state: RankState, arguments: CommandArguments, promised: str | None
    ) -> tuple[FileLook, ...]:
        """Look at the files of a version that its source does not name, unless rank 0 has just seen them.

        Raises
        ------
        BadInputError
            If this rank's source names a version, or it is not known what is to be restored. Nothing was
            changed.
        """
        rank, restores, version = state.rank, arguments.restores, arguments.version or ""
        find, found, self._found = self._work.find, self._found, None
        if find is None or not is_unnamed(version):
            return ()
        if epochs.is_other_content(promised=promised, found=None, named=False, restores=restores):
            problem = "what was loaded is not known any more"
            raise errors.source_overwritten(rank=rank, version=version, problem=problem)
        if found is None:
            found = find(rank, arguments)
        if found.version is not None and restores:
            problem = f"it says now that it is version {found.version}"
            raise errors.source_overwritten(rank=rank, version=version, problem=problem)
        if found.version is not None:
            raise UnfitError(
                f"the source of rank {rank} says that it is version {found.version}, and that of rank 0 "
                "names no version; let all ranks read what one trainer wrote, or name the version in the "
                "command",
                code="named-on-one",
                rank=rank,
                version=found.version,
            )
        return found.files

    def _to_restore(self, state: RankState, version: str | None) -> RankReport | None:
        """Return what was reported of the part that is to be restored; None where it is no part."""
        committed = committed_record(self._words.segment)
        report = commit_report(self._words.segment, state.rank, committed.load_sequence)
        if report is None or not report.bases or report.version != version:
            return None
        if not report.facts.get("restorable"):
            raise RefusedError(
                f"rank {state.rank} cannot load version {version} again: it is a part, put on version "
                f"{', '.join(report.bases)}, which is kept nowhere; update to a whole version",
                code=PART_NOT_RESTORABLE,
                rank=state.rank,
                version=version,
                bases=report.bases,
            )
        return report

    def _load_and_note(self, context: ActionContext, target: WeightTarget) -> Loaded:
        """Load, and say of a part what it was put on, and whether that is kept for a restore.

        Everything later (the agreement of the ranks, the committed word, the receipt, the version of each
        token) goes by what the load says, so one that brings something else must not get as far as PREPARED.
        """
        loaded = Loaded.of(self._work.load(context, target))
        rank, asked, promised = context.rank, context.version, context.promised_digest
        version = None
        with suppress(BadInputError):
            version = recorded_version(loaded.version)
        if version is None or asked not in (None, version):
            wanted = "the newest version" if asked is None else f"version {asked}"
            raise GroupError(
                f"{wanted} was asked for, and the load function of rank {rank} says that it loaded "
                f"{loaded.version!r}; let it return what it really loaded as facts['version'], or raise",
                code="other-version",
                rank=rank,
                asked=asked,
                said=loaded.version,
            )
        named = not is_unnamed(version)
        if loaded.through_models and processing_of(context.runner) is not None:
            promised = None  # what comes of the processing is compared, not what was loaded
        if epochs.is_other_content(promised=promised, found=loaded.digest, named=named, restores=False):
            digest = loaded.digest
            if named:
                raise UnfitError(
                    f"version {version} is on rank {rank} not what the group committed under this label: "
                    f"digest {digest} instead of {promised}; its source was overwritten. A label means one "
                    "content: publish under another label, or load it all the same with force",
                    code=OTHER_CONTENT,
                    rank=rank,
                    version=version,
                    digest=str(digest),
                    committed=str(promised),
                )
            problem = f"digest {digest} instead of {promised}"
            raise errors.source_overwritten(rank=rank, version=version, problem=problem)
        bases = context.bases
        if context.partial:
            bases = self.resident.bases_of_part(version, loaded.not_loaded)
        if bases:
            restorable = self.pins is not None and all(self.pins.add(base) for base in bases)
            loaded = replace(loaded, bases=bases, restorable=restorable)
        return replace(loaded, version=version)

    def _make(
        self,
        state: RankState,
        request: Operation,
        arguments: CommandArguments,
        restored: RankReport | None = None,
        *,
        promised: str | None = None,
        meant: str | None = None,
        looked: tuple[FileLook, ...] = (),
    ) -> Run:
        facts = dict(self._work.facts) | ({} if meant is None else {LABEL_MEANT: meant})
        if Tag.WEIGHTS not in arguments.tags:
            # What is not loaded now is reported as it was when it was loaded.
            facts = {"bytes": 0, "tensors": 0, **self.resident.weights, **facts}
        done = WorkDone(facts=facts)
        # What a hot update replaced is to be let go by now, or measuring would still find it.
        hot = request is Operation.HOT_UPDATE
        before = tuple(one for one in self._staging if not one.rest(0 if hot else _REST_S))
        staging = Staging(state.rank, self._tools.clock) if hot else None
        self._staging = before if staging is None else (*before, staging)
        version = arguments.version or ""
        context = ActionContext(
            runner=self._work.runner,
            rank=state.rank,
            world_size=len(self._words.steps),
            epoch=state.epoch,
            sequence=state.sequence,
            version=arguments.version,
            in_flight=arguments.in_flight,
            kv_policy=arguments.kv_policy,
            transfer_mode=arguments.transfer_mode,
            # What was served once had its extra names then; what is restored has the digest of that.
            unknown_tensors=UnknownTensors.IGNORE if arguments.restores else arguments.unknown_tensors,
            verify_checksum=arguments.verify_checksum,
            rsync_config=arguments.rsync_config,
            from_normal=self._life.whole,
            held=self._life.admission is Admission.HELD,
            set_aside=self.resident.set_aside,
            boots=not self.booted,
            kept_digest=self.resident.kept_digest,
            partial=arguments.partial,
            looked=tuple(look.path for look in looked),
            look_again=partial(_require_unchanged, looked, version, done),
            load=self._load_and_note,
            # A heartbeat from another thread would hide a loop that hangs; the deadline is the loop's to see.
            progress=_no_progress if hot else self._tools.watch.check,
            cancelled=lambda: (staging is not None and staging.cancelled) or self._called_off(state),
            promised_digest=promised if restored is None else restored.digest,
            before=self._committed().tensor_set,
            anew=arguments.reload,
            bases=() if restored is None else restored.bases,
            done=done,
        )
        if staging is not None:
            return HotRun(arguments, context, self._tools, staging=staging, before=before)
        return Run(request, arguments, context, self._tools)

    def _committed(self) -> CommittedRecord:
        """Return what the group has committed; a record of nothing where that is not known."""
        with suppress(CommittedRecordError):
            return committed_record(self._words.segment)
        return NOTHING_COMMITTED

    def _called_off(self, state: RankState) -> bool:
        """Whether a load may end: the group has decided against it, or can decide nothing else any more."""
        stalled = self._tools.watch.stalled_in(state.sequence) is not None
        return stalled or self._words.called_off(state.epoch)


def _require_unchanged(looked: tuple[FileLook, ...], version: str, done: WorkDone) -> None:
    """See that files which name no version are those that every rank has looked at (``source-changed``)."""
    changed = first_changed(looked)
    if changed is not None:
        found = "is gone, another file, or has other bytes than when the command began"
        raise source_changed(version=version, file=changed, found=found, touched=done.weights_touched)


def _no_progress() -> None:
    """Stand in for the heartbeat where the work is not the loop's."""
