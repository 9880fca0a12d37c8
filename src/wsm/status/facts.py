"""The status of a group at one moment, as plain values, and the names of its participants. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wsm.command import VERSION_HELD, CommandArguments, FailureReport
from wsm.committed_record import NOTHING_COMMITTED, CommittedRecord
from wsm.journal.entry import JournalEntry
from wsm.signals.owner_settings import Awaited
from wsm.states.decide import Resident, resident_on_all
from wsm.states.holding import ClosedHold, Hold
from wsm.states.vocabulary import ALL_TAGS, After, KVState, Tag, WeightState, sentence_of
from wsm.states.words import CommandWord, Decider, Operation, StatusCode, StatusWord, StepKind, StepWord

#: Words that say nothing: of a new segment, or in place of a word that is damaged.
NO_COMMAND = CommandWord(0, 0, Operation.NONE)
NO_STATUS = StatusWord(0, 0, StatusCode.NONE)
NO_STEP = StepWord(0, 0, StepKind.PARKED, 0)

#: The lives of a process, as far as they are known.
ALIVE, STOPPED, DEAD, NEVER, UNKNOWN = "alive", "stopped", "dead", "never", "unknown"


@dataclass(frozen=True)
class ActionFacts:
    """The action that a rank is inside of, or has voted for.

    Parameters
    ----------
    name : str
        Its name.
    deadline_s : float
        The longest time that it may take.
    seconds : float or None
        The time that the rank has been inside; None if it is not.
    collective : bool
        Whether no rank leaves it before all are in.
    """

    name: str
    deadline_s: float
    seconds: float | None = None
    collective: bool = False


@dataclass(frozen=True)
class FailureFacts:
    """The content of a rank's error slot.

    Parameters
    ----------
    epoch, sequence : int
        The command that it was.
    refused : bool
        Whether the rank refused it.
    report : FailureReport
        The failure, as the rank reported it.
    age_s : float or None
        Seconds since then; None where no journal says it any more.
    """

    epoch: int
    sequence: int
    refused: bool
    report: FailureReport
    age_s: float | None = None

    @property
    def is_no_fault(self) -> bool:
        """Whether the rank only found that there is nothing to do."""
        return self.refused and self.report.error == VERSION_HELD


@dataclass(frozen=True)
class RankStatus:
    """One participant.

    Parameters
    ----------
    rank : int
        Its number; helpers follow the ranks.
    helper : bool
        Whether it is a participant without steps.
    life : str
        ``alive``, ``stopped`` (by SIGSTOP or a debugger), ``dead``, ``never`` (none ever attached there) or
        ``unknown`` (another pid namespace, or a damaged record).
    pid : int or None
        The process that is or was this rank.
    status : StatusWord
        Its status word.
    step_word : StepWord
        Its step word; :data:`NO_STEP` for a helper.
    code : str
        Name of the status word's code; ``STAGING`` of a rank that still steps behind a hot update.
    weights, kv : str
        Names of the states in the status word.
    heartbeat : int
        A counter that grows with every turn that is not the quiet path.
    since_s : float or None
        Seconds since the status word was stored; None where it never said when.
    beat_s : float or None
        Seconds since its heartbeat grew; tells something only while a command is under way.
    plan : str or None
        The plan at hand.
    action : ActionFacts or None
        The action that it is inside of, or that its status word names.
    failure : FailureFacts or None
        Its last failure.
    staged_bytes : int
        Bytes that it keeps prepared while the caller of the command has still to decide.
    """

    rank: int
    helper: bool = False
    life: str = ALIVE
    pid: int | None = None
    status: StatusWord = NO_STATUS
    step_word: StepWord = NO_STEP
    code: str = StatusCode.NONE.name
    weights: str = "CLEARED"
    kv: str = "CLEARED"
    heartbeat: int = 0
    since_s: float | None = None
    beat_s: float | None = None
    plan: str | None = None
    action: ActionFacts | None = None
    failure: FailureFacts | None = None
    staged_bytes: int = 0

    @property
    def number(self) -> int:
        """The rank's number; that of a KV-cache process says what it is."""
        return CacheProcess(self.rank) if self.helper else self.rank

    @property
    def pid_namespace(self) -> int | None:
        """The pid namespace of its process, where that is another container's; None: this one's."""
        return self.pid.namespace if isinstance(self.pid, ForeignPid) else None

    @property
    def is_inside(self) -> bool:
        """Whether it is inside of an action."""
        return self.action is not None and self.action.seconds is not None

    @property
    def is_broken(self) -> bool:
        """Whether its last step raised, in the epoch that it is in: a rank that joins another begins anew."""
        step = self.step_word
        return step.kind is StepKind.BROKEN and self.epoch in (0, step.epoch)

    @property
    def step_kind(self) -> str | None:
        """Name of the kind of its last step; None for a helper, and where its word says nothing."""
        if self.step_word == NO_STEP:
            return None
        ended = self.step_word.kind is StepKind.BROKEN and not self.is_broken
        return (StepKind.RUNNING if ended else self.step_word.kind).name.lower()

    @property
    def epoch(self) -> int:
        """The epoch that it has joined; 0: none."""
        return self.status.epoch

    @property
    def sequence(self) -> int:
        """The last command that it has answered; 0: none."""
        return self.status.sequence

    @property
    def step(self) -> int:
        """The last step that it entered; 0: none."""
        return self.step_word.step

    @property
    def doing(self) -> str | None:
        """The action that it is inside of."""
        return self.action.name if self.action is not None and self.is_inside else None

    @property
    def resident(self) -> Resident:
        """The weights and the KV cache that it holds."""
        return Resident(WeightState[self.weights], KVState[self.kv])

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **{name: getattr(self, name) for name in TOLD_OF_RANKS},
            "action": self.status.action,
            "step_kind": self.step_kind or "none",
        }


@dataclass(frozen=True)
class GroupStatus:
    """A whole group, as :meth:`wsm.Controller.status` returns it and ``wsm status --json`` prints it.

    Parameters
    ----------
    name : str
        Its name.
    problem : str
        The reason for which nothing else could be read; empty if it could.
    damaged : tuple of str
        Words that say what no word can say.
    run_id : str
        This start of the group.
    command : CommandWord
        The last command.
    arguments : CommandArguments or None
        The arguments of the last command, where they can still be read.
    asked_version : str or None
        The version that the last command brings, also where rank 0 looked for it.
    committed : CommittedRecord
        The record of the last commit of the whole group.
    record_lost : str
        The reason for which that is not known; empty if it is.
    lease_left_s : float or None
        Seconds until the lease of the hold runs out, negative if that is past; None: it has none.
    served_version : str or None
        The version that served last, where it can be known.
    served_bases : tuple of str
        The versions that this one, a part, was put on; empty for a whole one. A part is not loaded by its
        number.
    role_known : bool
        Whether it can be known which process has the controller role; not so of a copy.
    controller_pid : int or None
        The process that has the controller role now (0: in another pid namespace); None: none, or not known.
    controller_stopped : bool
        Whether that process lives and is stopped.
    controller_unanswered_s : float or None
        Seconds for which the command has waited for a word of that process; None: it waits for none.
    controller_hung : bool
        Whether that is longer than a working controller takes.
    owner_pid : int or None
        The process that owns the segment.
    owner_lives : bool
        Whether that process lives.
    supervisor_pid : int or None
        The process that replaces ranks that are lost; None: none does, or it is not known to live.
    supervisor_life : str
        As :attr:`RankStatus.life`.
    ranks : tuple of RankStatus
        The participants.
    awaited : Awaited or None
        Ranks for which all others wait, beside commands; None: none.
    logs : str
        The directory of the ranks' logs; empty where the owner says none.
    obeys_engine_alone : bool
        Whether the ranks' loops look at no command but their engine's (FastDeploy's), which builds its first
        KV cache itself.
    read_at_ns : int
        The moment of the reading, by the host's monotonic clock.
    journal : tuple of JournalEntry
        The last entries of all of them and of the controllers, oldest first; empty where not asked for.
    headline : str
        A sentence about what the group does or holds, as ``wsm explain`` says it. This, `because` and
        `advice` are empty until :func:`wsm.status.text.status_of` adds them.
    because : str
        The cause; empty where there is nothing to say.
    advice : tuple of str
        The next things to do.
    """

    name: str
    problem: str = ""
    damaged: tuple[str, ...] = ()
    run_id: str = ""
    command: CommandWord = NO_COMMAND
    arguments: CommandArguments | None = None
    asked_version: str | None = None
    committed: CommittedRecord = NOTHING_COMMITTED
    record_lost: str = ""
    lease_left_s: float | None = None
    served_version: str | None = None
    served_bases: tuple[str, ...] = ()
    role_known: bool = True
    controller_pid: int | None = None
    controller_stopped: bool = False
    controller_unanswered_s: float | None = None
    controller_hung: bool = False
    owner_pid: int | None = None
    owner_lives: bool = False
    supervisor_pid: int | None = None
    supervisor_life: str = NEVER
    ranks: tuple[RankStatus, ...] = ()
    awaited: Awaited | None = None
    logs: str = ""
    obeys_engine_alone: bool = False
    read_at_ns: int = 0
    journal: tuple[JournalEntry, ...] = ()
    headline: str = ""
    because: str = ""
    advice: tuple[str, ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch that the last command belongs to; 0: its word is damaged."""
        return self.command.epoch

    @property
    def sequence(self) -> int:
        """The number of the last command."""
        return self.command.sequence

    @property
    def operation(self) -> str:
        """The operation of the last command, or the decision on it."""
        return self.command.operation.name

    @property
    def over(self) -> bool:
        """Whether every participant is done with the last command, and a commit has its version written."""
        return self.is_over and not self.is_unwritten

    @property
    def is_unwritten(self) -> bool:
        """Whether the last command is decided to be committed and no process has written its version yet."""
        return self.command.operation.is_commit and self.committed.sequence != self.sequence

    @property
    def version(self) -> str | None:
        """The committed version."""
        return self.committed.version

    @property
    def manifest_digest(self) -> str | None:
        """The digest of that version's manifest, where one speaks for the whole group."""
        return self.committed.digest

    @property
    def content_digest(self) -> str | None:
        """The digest of that version, where its label has meant other content before."""
        return self.committed.content_digest

    @property
    def hold(self) -> Hold | None:
        """The hold that the group stands under, without a name where its record is lost; None: it is open."""
        return self.committed.hold

    @property
    def closed(self) -> ClosedHold | None:
        """The reason for which force alone releases that hold; None: there is none."""
        hold = Hold.known(self.committed.hold)
        return None if hold is None else hold.closed

    @property
    def decision_left_s(self) -> float | None:
        """Seconds until a caller's lease of its decision is over, negative if that is past; None: none.

        It counts from the moment all were PREPARED, so from the last rank that said so.
        """
        command, lease_s = self.command, None if self.arguments is None else self.arguments.lease_s
        if command.decider is not Decider.CALLER or command.operation.is_decision:
            return None
        told = [rank.since_s for rank in self.ranks if self.answer(rank) is StatusCode.PREPARED]
        ages = [age_s for age_s in told if age_s is not None]
        all_told = bool(ages) and len(ages) == len(self.ranks)
        return lease_s - min(ages) if lease_s is not None and all_told else None

    @property
    def request_id(self) -> str | None:
        """The caller's name for the last command."""
        return None if self.arguments is None else self.arguments.request_id

    @property
    def starter_pid(self) -> int | None:
        """The process that owns the group and is none of its ranks, if it lives: it starts them."""
        owns = self.owner_lives and self.owner_pid not in {rank.pid for rank in self.ranks}
        return self.owner_pid if owns else None

    @property
    def serving(self) -> bool:
        """Whether every rank may step."""
        if self.problem or self.damaged or self.hold is not None:
            return False
        return bool(self.ranks) and all(
            rank.life in (ALIVE, UNKNOWN)
            and (rank.weights, rank.kv) == ("NORMAL", "NORMAL")
            and rank.epoch == self.epoch
            and not rank.is_broken
            for rank in self.ranks
        )

    @property
    def version_before(self) -> str | None:
        """The version that is known to be good: that was committed last, or served last."""
        return self.committed.version if self.committed.version is not None else self.served_version

    def __repr__(self) -> str:
        told = f"epoch {self.epoch}, sequence {self.sequence}, {len(self.ranks)} participants"
        return f"<GroupStatus {self.name} {self.headline or self.state}: {told}; to_mapping() has the rest>"

    @property
    def is_over(self) -> bool:
        """Whether every rank is done with the last command."""
        return all(map(self.is_done, self.ranks))

    @property
    def failures(self) -> list[FailureFacts]:
        """The failures of the last command, by rank."""
        found = [rank.failure for rank in self.ranks if rank.failure is not None]
        return [one for one in found if self.is_current(one) and not one.is_no_fault]

    @property
    def earlier(self) -> list[FailureFacts]:
        """The last failures of ranks in older commands, the latest first."""
        found = [rank.failure for rank in self.ranks if rank.failure is not None]
        older = [one for one in found if not (one.is_no_fault or self.is_current(one))]
        return sorted(older, key=lambda one: (one.epoch, one.sequence), reverse=True)

    @property
    def found_nothing_to_do(self) -> bool:
        """Whether the last command ended since a rank has what it names already."""
        found = [rank.failure for rank in self.ranks if rank.failure is not None]
        return any(self.is_current(one) and one.is_no_fault for one in found)

    @property
    def halted(self) -> str:
        """A verb phrase: the process with the controller role does not go on; empty where it seems to."""
        if self.controller_stopped:
            return "is stopped"
        return "does not go on" if self.controller_hung else ""

    @property
    def unanswered(self) -> str:
        """A verb phrase: for how long the controller has not answered."""
        if self.controller_unanswered_s is None or self.controller_unanswered_s < 0:
            return "does not answer"
        return f"has not answered for {self.controller_unanswered_s:.0f} s"

    @property
    def asked_operation(self) -> Operation:
        """The operation of the last command; of a decision, the operation that it decides."""
        command, arguments = self.command, self.arguments
        if arguments is None or not command.operation.is_decision:
            return command.operation
        if arguments.of_admission:
            return Operation.HOLD if arguments.after is After.HELD else Operation.RELEASE
        if arguments.clears:
            return Operation.CLEAR
        return Operation.HOT_UPDATE if command.operation.is_hot else Operation.UPDATE

    @property
    def asked(self) -> str:
        """The last command by name: ``update to version 7``, ``clear of the KV cache``, ``release``."""
        arguments, operation = self.arguments, self.asked_operation
        if operation is Operation.NONE:
            return "last command"
        tags = ALL_TAGS if arguments is None else arguments.tags
        half = "" if tags == ALL_TAGS else f" of {sentence_of(tags)}"
        if operation.is_of_admission:
            return operation.name.lower()
        if operation is Operation.CLEAR:
            return f"clear{half}"
        version = "" if self.asked_version is None else f" to version {self.asked_version}"
        if arguments is not None and arguments.restores:
            return f"restore of version {self.asked_version}"
        kind = "hot update" if self.command.operation.is_hot else "update"
        return f"{kind}{half}" if tags == {Tag.KV_CACHE} else f"{kind}{half}{version}"

    def answer(self, rank: RankStatus) -> StatusCode | None:
        """Return the code of a rank's answer to the last command; None if it has not answered."""
        same = self.epoch and (rank.epoch, rank.sequence) == self.command[:2]
        return rank.status.code if same else None

    def is_done(self, rank: RankStatus) -> bool:
        """Whether a rank is done with the last command; without one, whether it has joined the epoch."""
        if self.command.operation is Operation.NONE:
            return rank.epoch == self.epoch
        code = self.answer(rank)
        return code is not None and code.is_terminal

    def has_failed(self, rank: RankStatus) -> bool:
        """Whether the rank has failed, or refused, the last command."""
        code = self.answer(rank)
        return code is not None and code.is_failure

    def is_current(self, told: FailureFacts | JournalEntry) -> bool:
        """Whether a failure, or an entry of a journal, belongs to the last command."""
        return (told.epoch, told.sequence) == self.command[:2]

    def controller_in_words(self) -> str:
        """Say of the process that has the controller role which one it is and what it commands."""
        pid, command = self.controller_pid, self.command
        role = "which "
        if pid is not None and pid == self.supervisor_pid:
            role = "the supervisor, which "
        elif pid is not None and pid == self.starter_pid:
            role = "which started the group and "
        if command.operation is Operation.NONE:
            return f"{role}{'is about to command it' if role == 'which ' else 'waits for the ranks'}"
        return f"{role}{'has ended' if self.is_over else 'carries out'} the {self.asked}"

    def without_times(self) -> GroupStatus:
        """Return it without what changes by itself as time passes."""
        ranks = [replace(rank, since_s=None, beat_s=None, heartbeat=0) for rank in self.ranks]
        for place, rank in enumerate(ranks):
            if rank.action is not None:
                ranks[place] = replace(rank, action=replace(rank.action, seconds=None))
        return replace(self, ranks=tuple(ranks), lease_left_s=None, controller_unanswered_s=None)

    @property
    def state(self) -> str:
        """The weights' state if all ranks agree, else ``MIXED``."""
        states = {rank.weights for rank in self.ranks}
        return states.pop() if len(states) == 1 else "MIXED"

    @property
    def engine_state(self) -> WeightState | None:
        """The state of the whole group in FastDeploy's weights word.

        NORMAL if it serves, CLEARED if weights or KV cache are away on every rank, FAULTED (to an engine:
        CLEARING) if a teardown failed; None while a command is open or no single word fits.
        """
        if not self.over:
            return None
        if self.serving:
            return WeightState.NORMAL
        if WeightState.FAULTED.name in {rank.weights for rank in self.ranks}:
            return WeightState.FAULTED
        if self.hold is not None:
            return WeightState.CLEARED
        everywhere = resident_on_all(rank.resident for rank in self.ranks)
        lacks = everywhere is not None and everywhere.missing and everywhere.as_whole is WeightState.CLEARED
        return WeightState.CLEARED if lacks else None

    @property
    def has_cache_process(self) -> bool:
        """Whether a KV-cache process takes part; it comes last among the ranks."""
        return any(rank.helper for rank in self.ranks)

    @property
    def missing(self) -> frozenset[Tag]:
        """The tags that some rank lacks for serving."""
        return frozenset(tag for rank in self.ranks for tag in rank.resident.missing)

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **{name: getattr(self, name) for name in TOLD_OF_GROUPS},
            "ranks": [rank.to_mapping() for rank in self.ranks],
            "hold": None if self.hold is None else self.hold.facts(),
            "missing": tuple(sorted(tag.value for tag in self.missing)),
        }

    def sentence(self) -> str:
        """Say in a few words what the group does and holds; what errors quote."""
        is_open = not self.over and self.operation != Operation.NONE.name  # else an epoch is being entered
        still = f"; command {self.sequence} ({self.operation}) is still open" if is_open else ""
        return f"the group {self.headline}{still}"


#: The attributes of a rank and of a group that ``wsm status --json`` prints under their names.
TOLD_OF_RANKS = (
    *("rank", "life", "pid", "pid_namespace", "weights", "kv", "code", "epoch", "sequence"),
    *("step", "heartbeat", "doing", "since_s", "staged_bytes"),
)
TOLD_OF_GROUPS = (
    *("name", "run_id", "epoch", "sequence", "operation", "over", "version", "content_digest"),
    *("manifest_digest", "request_id"),
    *("controller_pid", "controller_stopped", "controller_unanswered_s", "controller_hung"),
    *("owner_pid", "supervisor_pid", "headline", "because", "advice", "decision_left_s", "serving", "state"),
)


class ForeignPid(int):
    """The pid of a process in another pid namespace: here that number is another process, or none."""

    namespace: int = 0


def process(pid: int | None) -> str:
    """Name a process in a sentence."""
    if not isinstance(pid, ForeignPid):
        return f"process {pid}"
    where = f" (pid namespace {pid.namespace})" if pid.namespace else ""
    return f"{f'process {int(pid)}' if pid else 'a process'} of another container{where}"


def kill(option: str, *pids: int | None) -> tuple[str, ...]:
    """Return the command that sends processes a signal; none where a pid is not one of this namespace."""
    known = all(pids) and not any(isinstance(pid, ForeignPid) for pid in pids)
    return (f"kill {option} {' '.join(map(str, pids))}",) if pids and known else ()


class CacheProcess(int):
    """The number of the participant without steps, as errors and logs carry it."""

    __slots__ = ()


def who(participant: int) -> str:
    """Name one participant in a sentence."""
    return "the KV-cache process" if isinstance(participant, CacheProcess) else f"rank {participant}"


def whose_processes(participants: Iterable[int]) -> str:
    """Name the processes of several participants: ``the processes of ranks 0, 1``."""
    found = list(participants)
    ranks = [each for each in found if not isinstance(each, CacheProcess)]
    names = [f"the process{'es' * (len(ranks) > 1)} of {named(ranks)}"] if ranks else []
    return " and ".join([*names, *(who(each) for each in found if isinstance(each, CacheProcess))])


def named(participants: Sequence[int]) -> str:
    """List participants as in a sentence: ``ranks 0, 1 and the KV-cache process``."""
    ranks = [str(each) for each in participants if not isinstance(each, CacheProcess)]
    others = [who(each) for each in participants if isinstance(each, CacheProcess)]
    listed = [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
    return " and ".join([*listed, *others])
