"""What is known about a group at one moment, as plain values, and what its participants are called. Pure.

:class:`GroupFacts` is everything that can be read; :class:`GroupStatus` is the part of it that programs get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from wsm.command import VERSION_HELD, CommandArguments
from wsm.committed_record import NOTHING_COMMITTED, CommittedRecord
from wsm.report import FailureReport
from wsm.states.decide import Resident, resident_on_all
from wsm.states.journal import JournalEntry
from wsm.states.vocabulary import KVState, Tag, WeightState
from wsm.states.words import CommandWord, Decider, Operation, StatusCode, StatusWord, StepKind, StepWord

#: What can be known of a process.
ALIVE, STOPPED, DEAD, NEVER, UNKNOWN = "alive", "stopped", "dead", "never", "unknown"


@dataclass(frozen=True)
class ActionFacts:
    """The action that a rank is inside of, or has voted for.

    Parameters
    ----------
    name : str
        Which.
    deadline_s : float
        How long it may take.
    seconds : float or None
        How long the rank has been inside; None if it is not.
    """

    name: str
    deadline_s: float
    seconds: float | None = None


@dataclass(frozen=True)
class FailureFacts:
    """What stands in a rank's error slot.

    Parameters
    ----------
    epoch, sequence : int
        The command that it was.
    refused : bool
        Whether the rank refused it.
    report : FailureReport
        Why.
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
class RankFacts:
    """One participant.

    Parameters
    ----------
    rank : int
        Which; helpers follow the ranks.
    helper : bool
        Whether it is a participant without steps.
    life : str
        ``alive``, ``stopped`` (by SIGSTOP or a debugger), ``dead``, ``never`` (none ever attached there) or
        ``unknown`` (another pid namespace, or a damaged record).
    pid : int or None
        Of the process that is or was this rank.
    status : StatusWord or None
        What it says of itself; None if the word is damaged or was never written.
    step : StepWord or None
        Its last step; None for a helper, and for a damaged word.
    weights, kv : str
        Names of the states in the status word.
    heartbeat : int
        A counter that grows with every turn that is not the quiet path.
    told_s : float or None
        Seconds since the status word was stored.
    beat_s : float or None
        Seconds since its heartbeat grew; tells something only while a command is under way.
    plan : str or None
        The plan at hand.
    action : ActionFacts or None
        The action that it is inside of, or that its status word names.
    failure : FailureFacts or None
        Its last failure.
    staged_bytes : int
        What it has prepared of a command that waits for a decision which its controller does not make.
    """

    rank: int
    helper: bool = False
    life: str = ALIVE
    pid: int | None = None
    status: StatusWord | None = None
    step: StepWord | None = None
    weights: str = "CLEARED"
    kv: str = "CLEARED"
    heartbeat: int = 0
    told_s: float | None = None
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
    def is_broken(self) -> bool:
        """Whether its last step raised, in the epoch that it is in: a rank that joins another begins anew."""
        step, status = self.step, self.status
        broke = step is not None and step.kind is StepKind.BROKEN
        return broke and (status is None or step is None or step.epoch == status.epoch)

    @property
    def step_kind(self) -> str | None:
        """Name of the kind of its last step; None for a helper, and for a damaged word."""
        if self.step is None:
            return None
        ended = self.step.kind is StepKind.BROKEN and not self.is_broken
        return (StepKind.RUNNING if ended else self.step.kind).name.lower()

    def code(self, command: CommandWord) -> StatusCode | None:
        """How far it is with a command; None if it has not answered."""
        if self.status is None or (self.status.epoch, self.status.sequence) != command[:2]:
            return None
        return self.status.code


class Awaited(NamedTuple):
    """Ranks for which all others wait between two commands, as the group's owner says.

    Parameters
    ----------
    ranks : tuple of int
        Which.
    where : str
        What they are to come to.
    seen : str
        When they were last seen at work; empty where nothing says it.
    """

    ranks: tuple[int, ...]
    where: str
    seen: str = ""


@dataclass(frozen=True)
class GroupFacts:
    """A whole group.

    Parameters
    ----------
    name : str
        What it is called.
    problem : str
        Why nothing else could be read; empty if it could.
    damaged : tuple of str
        Words that say what no word can say.
    run_id : str
        This start of the group.
    command : CommandWord or None
        The last command; None if its word is damaged.
    arguments : CommandArguments or None
        Of the last command, where they can still be read.
    asked_version : str or None
        The version that the last command brings, also where rank 0 looked for it.
    committed : CommittedRecord
        What the whole group committed last.
    record_lost : str
        Why that is not known; empty if it is.
    lease_left_s : float or None
        Seconds until the lease of the hold runs out, negative if that is past; None: it has none.
    served_version : str or None
        The version that served last, where it can be known.
    served_bases : tuple of str
        What that version, a part, was put on; empty for a whole one. By its number a part is not loaded.
    role_known : bool
        Whether it can be known which process has the controller role; not so of a copy.
    controller_pid : int or None
        The process that has the controller role now (0: in another pid namespace); None: none, or not known.
    controller_stopped : bool
        Whether that process lives and is stopped.
    owner_pid : int or None
        The process that owns the segment.
    owner_lives : bool
        Whether that process lives.
    supervisor_pid : int or None
        The process that replaces ranks that are lost; None: none does.
    supervisor_life : str
        As :attr:`RankFacts.life`.
    ranks : tuple of RankFacts
        The participants.
    awaited : Awaited or None
        Ranks for which all others wait, beside commands; None: none.
    obeys_engine_alone : bool
        Whether the ranks' loops look at no command but their engine's (FastDeploy's), which builds its first
        KV cache itself.
    journal : tuple of JournalEntry
        The last entries of all of them and of the controllers, oldest first; empty where not asked for.
    """

    name: str
    problem: str = ""
    damaged: tuple[str, ...] = ()
    run_id: str = ""
    command: CommandWord | None = None
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
    owner_pid: int | None = None
    owner_lives: bool = False
    supervisor_pid: int | None = None
    supervisor_life: str = NEVER
    ranks: tuple[RankFacts, ...] = ()
    awaited: Awaited | None = None
    obeys_engine_alone: bool = False
    journal: tuple[JournalEntry, ...] = ()

    @property
    def hold(self) -> Mapping[str, Any] | None:
        """The hold that the group stands under; empty where its record is lost; None: the group is open."""
        return self.committed.hold

    @property
    def decision_left_s(self) -> float | None:
        """Seconds until a caller's lease of its decision is over, negative if that is past; None: none.

        It counts from the moment all were PREPARED, so from the last rank that said so.
        """
        command, lease_s = self.command, None if self.arguments is None else self.arguments.lease_s
        if command is None or command.decider is not Decider.CALLER or command.operation.is_decision:
            return None
        told = [rank.told_s for rank in self.ranks if rank.code(command) is StatusCode.PREPARED]
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
        command = self.command
        return (
            not self.problem
            and not self.damaged
            and self.hold is None
            and bool(self.ranks)
            and command is not None
            and all(
                rank.life in (ALIVE, UNKNOWN)
                and (rank.weights, rank.kv) == ("NORMAL", "NORMAL")
                and rank.status is not None
                and rank.status.epoch == command.epoch
                and not rank.is_broken
                for rank in self.ranks
            )
        )

    def without_times(self) -> GroupFacts:
        """Return it without what changes by itself as time passes."""
        ranks = tuple(
            replace(
                rank,
                told_s=None,
                beat_s=None,
                heartbeat=0,
                action=None if rank.action is None else ActionFacts(rank.action.name, rank.action.deadline_s),
            )
            for rank in self.ranks
        )
        return replace(self, ranks=ranks, lease_left_s=None)


@dataclass(frozen=True)
class RankStatus:
    """One participant.

    Parameters
    ----------
    rank : int
        Which; a KV-cache process follows the ranks.
    life : str
        ``alive``, ``stopped`` (by SIGSTOP or a debugger), ``dead``, ``never`` or ``unknown``.
    pid : int or None
        Of the process that is or was this rank.
    weights, kv : str
        Names of the states.
    code : str
        How far it is with `sequence`.
    epoch, sequence : int
        What its status word belongs to.
    action : int
        Index of the action in its plan.
    step_kind : str
        ``running``, ``parked`` or ``broken``; ``none`` of a KV-cache process.
    step : int
        The last step that it entered.
    heartbeat : int
        A counter that grows with every turn that is not the quiet path.
    doing : str or None
        The action that it is inside of.
    since_s : float or None
        Seconds since it said `code`; None where it never said when.
    staged_bytes : int
        What it keeps prepared of a command whose decision its caller, or a system outside, still has to make.
    """

    rank: int
    life: str
    pid: int | None
    weights: str
    kv: str
    code: str
    epoch: int
    sequence: int
    action: int
    step_kind: str
    step: int
    heartbeat: int
    doing: str | None = None
    since_s: float | None = None
    staged_bytes: int = 0

    @property
    def held(self) -> Resident:
        """What it holds."""
        return Resident(WeightState[self.weights], KVState[self.kv])

    @property
    def serving(self) -> bool:
        """Whether it may step."""
        return self.life in (ALIVE, UNKNOWN) and self.held.serving and self.step_kind != "broken"


@dataclass(frozen=True)
class GroupStatus:
    """A whole group, as ``wsm status --json`` and :meth:`wsm.Controller.status` tell it.

    Parameters
    ----------
    name, run_id : str
        The group, and this start of it.
    epoch, sequence : int
        Of the last command.
    operation : str
        What it asks, or what was decided.
    over : bool
        Whether every participant is done with it.
    version : str or None
        The committed version.
    controller_pid, owner_pid : int or None
        The processes that have the controller role now, and own the segment.
    controller_stopped : bool
        Whether the process that has the controller role lives and is stopped.
    supervisor_pid : int or None
        The process that replaces ranks that are lost, if one does and lives.
    ranks : tuple of RankStatus
        The participants.
    hold : mapping or None
        The hold that the group stands under: ``id``, ``owner``, ``in_flight``, ``kv_policy``, ``lease_s``,
        ``on_lease``, ``renewed_ns`` of the host's monotonic clock; empty if only the committed word says that
        there is one; None: the group is open.
    decision_left_s : float or None
        Seconds until the lease of a prepared command's caller is over; None: no caller is asked for one.
    headline : str
        What the group does or holds, as ``wsm explain`` says it.
    because : str
        Why that is so; empty where there is nothing to say.
    advice : tuple of str
        What to do next.
    """

    name: str
    run_id: str
    epoch: int
    sequence: int
    operation: str
    over: bool
    version: str | None
    controller_pid: int | None
    owner_pid: int | None
    ranks: tuple[RankStatus, ...]
    controller_stopped: bool = False
    supervisor_pid: int | None = None
    headline: str = ""
    because: str = ""
    advice: tuple[str, ...] = ()
    hold: Mapping[str, Any] | None = None
    decision_left_s: float | None = None

    @property
    def serving(self) -> bool:
        """Whether every rank may step."""
        return self.hold is None and bool(self.ranks) and all(rank.serving for rank in self.ranks)

    @property
    def state(self) -> str:
        """The weights' state if all ranks agree, else ``MIXED``."""
        states = {rank.weights for rank in self.ranks}
        return states.pop() if len(states) == 1 else "MIXED"

    @property
    def engine_state(self) -> WeightState | None:
        """What FastDeploy's weights word can truly say of the whole group.

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
        held = resident_on_all(rank.held for rank in self.ranks)
        lacks = held is not None and held.missing and held.as_whole is WeightState.CLEARED
        return WeightState.CLEARED if lacks else None

    @property
    def has_cache_process(self) -> bool:
        """Whether a KV-cache process takes part; it comes last among the ranks."""
        return any(rank.step_kind == "none" for rank in self.ranks)

    @property
    def missing(self) -> frozenset[Tag]:
        """What some rank lacks for serving."""
        return frozenset(tag for rank in self.ranks for tag in rank.held.missing)

    @property
    def holds_half(self) -> bool:
        """Whether all ranks hold the weights and no KV cache, or the other way round."""
        held = resident_on_all(rank.held for rank in self.ranks)
        return held is not None and self.engine_state is WeightState.CLEARED and len(held.missing) == 1

    def to_mapping(self) -> Mapping[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **asdict(self),
            "serving": self.serving,
            "state": self.state,
            "missing": tuple(sorted(tag.value for tag in self.missing)),
        }

    def without_times(self) -> GroupStatus:
        """Return it without what changes by itself as time passes."""
        ranks = tuple(replace(rank, since_s=None, heartbeat=0) for rank in self.ranks)
        return replace(self, ranks=ranks, decision_left_s=None)

    def sentence(self) -> str:
        """Say in a few words what the group does and holds; what errors quote."""
        is_open = not self.over and self.operation != Operation.NONE.name  # else an epoch is being entered
        still = f"; command {self.sequence} ({self.operation}) is still open" if is_open else ""
        return f"the group {self.headline}{still}"


class CacheProcess(int):
    """The number of the participant without steps, as errors and logs carry it."""

    __slots__ = ()


def who(participant: int) -> str:
    """Name one participant in a sentence."""
    return "the KV-cache process" if isinstance(participant, CacheProcess) else f"rank {participant}"


def whose_processes(participants: Iterable[int]) -> str:
    """Name the processes of several participants: ``the processes of ranks 0, 1``."""
    found = list(participants)
    ranks = ", ".join(str(each) for each in found if not isinstance(each, CacheProcess))
    several = "es of ranks" if "," in ranks else " of rank"
    names = [f"the process{several} {ranks}"] if ranks else []
    return " and ".join([*names, *(who(each) for each in found if isinstance(each, CacheProcess))])


def named(ranks: Sequence[int]) -> str:
    """List ranks as in a sentence."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
