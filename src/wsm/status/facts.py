"""What is known about a group at one moment, as plain values, and what its participants are called. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wsm.report import FailureReport
from wsm.states.journal import JournalEntry
from wsm.states.vocabulary import ALL_TAGS, Tag, sentence_of
from wsm.states.words import CommandWord, CommittedWord, StatusCode, StatusWord, StepWord


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
    """

    epoch: int
    sequence: int
    refused: bool
    report: FailureReport


@dataclass(frozen=True)
class RankFacts:
    """One participant.

    Parameters
    ----------
    rank : int
        Who; helpers follow the ranks.
    helper : bool
        Whether it is a participant without steps.
    life : str
        ``alive``, ``stopped``, ``dead``, ``never`` (nobody ever stood there) or ``unknown`` (another pid
        namespace, or a damaged record).
    pid : int or None
        Of the process that stands or stood there.
    status : StatusWord or None
        What it says of itself; None if the word is damaged or was never written.
    step : StepWord or None
        Where it stands between steps; None for a helper, and for a damaged word.
    weights, kv : str
        Names of the states in the status word.
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
    """

    rank: int
    helper: bool = False
    life: str = "alive"
    pid: int | None = None
    status: StatusWord | None = None
    step: StepWord | None = None
    weights: str = "CLEARED"
    kv: str = "CLEARED"
    told_s: float | None = None
    beat_s: float | None = None
    plan: str | None = None
    action: ActionFacts | None = None
    failure: FailureFacts | None = None

    def code(self, command: CommandWord) -> StatusCode | None:
        """How far it is with a command; None if it has not answered."""
        if self.status is None or (self.status.epoch, self.status.sequence) != command[:2]:
            return None
        return self.status.code


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
    committed : CommittedWord
        The version that the whole group committed last.
    request_id : str or None
        The caller's name for the last command.
    controller_pid : int or None
        Who has the controller role now; None: nobody, or it cannot be known.
    controller_stopped : bool
        Whether that process lives and is stopped.
    owner_pid : int or None
        Who owns the segment.
    owner_lives : bool
        Whether that process lives.
    ranks : tuple of RankFacts
        The participants.
    journal : tuple of JournalEntry
        The last entries of all of them and of the controllers, oldest first.
    """

    name: str
    problem: str = ""
    damaged: tuple[str, ...] = ()
    run_id: str = ""
    command: CommandWord | None = None
    committed: CommittedWord = field(default_factory=lambda: CommittedWord(0, None))
    request_id: str | None = None
    controller_pid: int | None = None
    controller_stopped: bool = False
    owner_pid: int | None = None
    owner_lives: bool = False
    ranks: tuple[RankFacts, ...] = ()
    journal: tuple[JournalEntry, ...] = ()


def words_for(missing: frozenset[Tag], version: int | None) -> str:
    """Say what is held where something is missing, as the end of a sentence about a group."""
    if missing == ALL_TAGS:
        return "holds nothing, and does not serve"
    held = sentence_of(ALL_TAGS - missing)
    of_version = f" of version {version}" if Tag.WEIGHTS not in missing else ""
    return f"holds {held}{of_version}, and does not serve without {sentence_of(missing)}"


class CacheProcess(int):
    """The number of the participant without steps, as errors and logs carry it."""

    __slots__ = ()


def who(participant: int) -> str:
    """Name one participant in a sentence."""
    return "the KV-cache process" if isinstance(participant, CacheProcess) else f"rank {participant}"


def whose_processes(participants: Iterable[int]) -> str:
    """Name the processes of several participants: ``the process of rank 0, 1``, ``the KV-cache process``."""
    found = list(participants)
    ranks = ", ".join(str(each) for each in found if not isinstance(each, CacheProcess))
    names = [f"the process of rank {ranks}"] if ranks else []
    return " and ".join([*names, *(who(each) for each in found if isinstance(each, CacheProcess))])


def named(ranks: Sequence[int]) -> str:
    """List ranks as in a sentence."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
