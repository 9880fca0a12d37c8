"""What a caller of the controller can be told.

Errors of a command that was begun quote what the group holds now; where nothing was begun, nothing changed.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wsm.errors import BadInputError, GroupError, RefusedError
from wsm.signals.errors import go_on_or_end
from wsm.status.blame import Late
from wsm.status.facts import who, whose_processes
from wsm.status.rank_progress import in_sentence


def _then(advice: str) -> str:
    """Put what to do behind a sentence."""
    return f"; {advice}" if advice else ""


class CommandRefusedError(RefusedError):
    """A rank refused the command; the group is as it was before."""

    def __init__(
        self,
        *,
        request_id: str,
        operation: str,
        rank: int,
        error: str,
        cause: str,
        no_room: bool,
        unfit: bool,
        group: str,
    ) -> None:
        super().__init__(
            f"{operation} was refused by {who(rank)}: {cause} [{group}]",
            request_id=request_id,
            operation=operation,
            rank=rank,
            error=error,
            cause=cause,
            no_room=no_room,
            unfit=unfit,
            group=group,
        )


class RankFailedError(GroupError):
    """A rank failed in an action of the command; the group has agreed on one outcome."""

    def __init__(
        self,
        *,
        request_id: str,
        operation: str,
        rank: int,
        action: str,
        error: str,
        cause: str,
        no_room: bool,
        unfit: bool,
        remote_traceback: str,
        others: Mapping[int, str],
        group: str,
    ) -> None:
        super().__init__(
            f"{operation} failed on {who(rank)} in {action}: {cause} [{group}]",
            request_id=request_id,
            operation=operation,
            rank=rank,
            action=action,
            error=error,
            cause=cause,
            no_room=no_room,
            unfit=unfit,
            remote_traceback=remote_traceback,
            others=dict(others),
            group=group,
        )


class ActionOverdueError(RankFailedError):
    """A rank was in an action for longer than it may be; the command was aborted because of that."""

    def __init__(
        self,
        *,
        request_id: str,
        operation: str,
        rank: int,
        action: str,
        seconds: float,
        deadline_s: float,
        stopped: bool,
        waiting: Mapping[int, str],
        remote_traceback: str,
        others: Mapping[int, str],
        group: str,
        advice: str = "",
    ) -> None:
        state = "; its process is stopped" if stopped else ""
        also = "".join(f"; {who(other)} {what}" for other, what in others.items())
        waits = f"; waiting for it: {in_sentence(waiting)}" if waiting else ""
        cause = f"{seconds:.1f} s in {action}, whose deadline is {deadline_s:.3g} s"
        GroupError.__init__(
            self,
            f"{operation} was aborted because {who(rank)} was {cause}{state}{also}{waits} [{group}]"
            f"{_then(advice)}",
            request_id=request_id,
            operation=operation,
            rank=rank,
            action=action,
            error="action-overdue",
            cause=cause,
            no_room=False,
            seconds=seconds,
            deadline_s=deadline_s,
            stopped=stopped,
            waiting=dict(waiting),
            remote_traceback=remote_traceback,
            others=dict(others),
            group=group,
        )


class CommandTimeoutError(GroupError):
    """The caller's patience ended before anything was decided; the command was aborted."""

    def __init__(
        self,
        *,
        request_id: str,
        operation: str,
        deadline_s: float,
        gave_up: bool,
        late: Late,
        group: str,
        advice: str = "",
    ) -> None:
        why = "because its caller gave up" if gave_up else f"after {deadline_s:.3g} s without a decision"
        fix = (
            ""
            if gave_up
            else _then(f"{advice or 'look at the late rank.'} If it is only slow, give a longer deadline.")
        )
        super().__init__(
            f"{operation} was aborted {why}, waiting for {late.sentence()} [{group}]{fix}",
            request_id=request_id,
            operation=operation,
            deadline_s=deadline_s,
            gave_up=gave_up,
            waiting=dict(late.doing),
            group=group,
        )


class CommandWithdrawnError(RefusedError):
    """When it was the controller's turn, the command was no longer wanted; nothing was written."""

    def __init__(self, *, operation: str, request_id: str) -> None:
        super().__init__(
            f"{operation} {request_id} was withdrawn by its caller before it began; "
            "ask again if it is still wanted",
            operation=operation,
            request_id=request_id,
        )


def manifest_mismatch(*, request_id: str, operation: str, found: Mapping[int, str], group: str) -> GroupError:
    """All ranks prepared, but not the same version of the same publication; the command was aborted."""
    ranks = ", ".join(f"rank {rank}: {what}" for rank, what in found.items())
    return GroupError(
        f"{operation} was aborted because the ranks prepared different weights ({ranks}) [{group}]; "
        "publish the version again, for all ranks at once",
        code="manifest-mismatch",
        unfit=True,
        request_id=request_id,
        operation=operation,
        found=dict(found),
        group=group,
    )


class UnsettledError(GroupError):
    """The command is decided, but not every rank has said that it is done."""

    def __init__(self, *, request_id: str, decision: str, late: Late, waited_s: float) -> None:
        super().__init__(
            f"decided to {decision}, which is final; after {waited_s:.3g} s more, still waiting for "
            f"{late.sentence()}; see 'wsm explain', no other command is taken until it is over",
            request_id=request_id,
            decision=decision,
            waiting=dict(late.doing),
            waited_s=waited_s,
        )


class RankLostError(GroupError):
    """The process of a rank is gone; the group needs it to go on. A supervisor replaces it."""

    retryable = True

    def __init__(self, *, operation: str, ranks: Sequence[int], group: str, advice: str = "") -> None:
        again = advice or "ask again once it is replaced; without a supervisor, start the group again"
        verb = "is" if len(ranks) == 1 else "are"
        super().__init__(
            f"{operation} cannot go on: {whose_processes(ranks)} {verb} gone [{group}]{_then(again)}",
            operation=operation,
            ranks=tuple(ranks),
            group=group,
        )


class EpochEndedError(GroupError):
    """The epoch in which the command was given has ended: a rank was lost and is being replaced."""

    retryable = True

    def __init__(self, *, operation: str, epoch: int, sequence: int, group: str) -> None:
        super().__init__(
            f"{operation} (epoch {epoch}, sequence {sequence}) was cut short by the end of its epoch: a rank "
            f"was lost [{group}]; ask again, the group restores what it was before",
            operation=operation,
            epoch=epoch,
            sequence=sequence,
            group=group,
        )


class DecisionHeldError(RefusedError):
    """The open command waits for the one that decides it; no other process may, nor is a command taken."""

    retryable = True

    def __init__(self, *, sequence: int, request_id: str, by: str, fix: str) -> None:
        super().__init__(
            f"command {sequence} ({request_id}) is prepared, and its decision is {by}; {fix}",
            sequence=sequence,
            request_id=request_id,
            by=by,
        )


def lease_over(*, request_id: str, operation: str, lease_s: float, group: str) -> GroupError:
    """A caller was told that all are PREPARED, and did not decide within its lease; it was aborted."""
    return GroupError(
        f"{operation} was aborted, since its caller neither committed nor aborted it within {lease_s:g} s "
        f"from the moment when all ranks were prepared [{group}]; prepare it again, with a longer lease",
        code="lease-over",
        request_id=request_id,
        operation=operation,
        lease_s=lease_s,
        group=group,
    )


def decided_otherwise(*, request_id: str, committed: bool) -> RefusedError:
    """A decision is final, and the other one was asked for."""
    was = "committed" if committed else "aborted"
    return RefusedError(
        f"{request_id} was {was} before, and a decision is final; ask for a new update",
        code="decided-otherwise",
        request_id=request_id,
        committed=committed,
    )


def not_prepared(*, request_id: str, found: str) -> RefusedError:
    """There is no prepared command of that request to be decided now."""
    return RefusedError(
        f"{request_id or 'any request'} cannot be decided: {found}; nothing was changed. Prepare it again",
        code="not-prepared",
        request_id=request_id,
        found=found,
    )


def lease_and_words(*, words: str) -> RefusedError:
    """No process is left that could answer an engine's words while a lease holds the decision."""
    return RefusedError(
        f"a lease cannot hold an update in place of an engine that waits at its words {words}; nothing was "
        "changed: prepare it hot, or in a process that lives until the decision",
        code="lease-and-words",
        words=words,
    )


def rank_alive(*, rank: int, pid: int) -> RefusedError:
    """An epoch was to be ended because of a process that still lives and may still write its words."""
    return RefusedError(
        f"the process {pid} of rank {rank} lives; kill and reap it before it is replaced",
        code="rank-alive",
        rank=rank,
        pid=pid,
    )


@dataclass(frozen=True)
class Death:
    """The end of one participant's process.

    Parameters
    ----------
    rank, pid, epoch : int
        Who (the KV-cache process has a number, too), and in which epoch.
    code : int
        Exit code of the process, or minus the signal that ended it.
    why : str
        Why the keeper ended it; empty if it ended by itself.
    log : str
        The last lines that it wrote, if they are known.
    """

    rank: int
    pid: int
    epoch: int
    code: int
    why: str
    log: str

    @property
    def cause(self) -> str:
        """How it ended, in a few words."""
        if self.why:
            return f"was ended because {self.why}"
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        return f"ended with code {self.code}"

    def sentence(self) -> str:
        """Say it in one line, with the last line of the log where it ended by itself."""
        lines = self.log.splitlines() if not self.why and self.code >= 0 else []
        said = f"; the last it wrote: {lines[-1]}" if lines else ""
        return f"{who(self.rank)} (process {self.pid}) {self.cause} in epoch {self.epoch}{said}"


class RestartLimitError(GroupError):
    """Ranks died too often within a short time; their keeper has given up.

    Attributes
    ----------
    deaths : tuple of Death
        All of them, oldest first, each with its cause and the end of its log.
    log : str
        The end of the last one's log.
    directory : str
        Where the logs of all ranks are; empty if the keeper was not told.
    """

    def __init__(
        self, *, group: str, limit: int, within_s: float, deaths: Sequence[Death], directory: str
    ) -> None:
        last = deaths[-1]
        logs = f"; the logs stay in {directory}" if directory else ""
        super().__init__(
            f"group {group!r} gives up after {len(deaths)} deaths, more than {limit} restarts within "
            f"{within_s:g} s; the last one: {last.sentence()}{logs}",
            group=group,
            limit=limit,
            within_s=within_s,
            deaths=tuple(deaths),
            rank=last.rank,
            log=last.log,
            directory=directory,
        )


class MixedGroupError(RefusedError):
    """A rank is FAULTED, or the ranks hold different things, so nothing but a whole clear has one meaning."""

    def __init__(self, *, states: Mapping[int, str]) -> None:
        ranks = "; ".join(f"{who(rank)} {state}" for rank, state in states.items())
        super().__init__(
            f"the ranks cannot be commanded together as they are ({ranks}); clear the group first, weights "
            "and KV cache together, which repairs faulted ranks",
            states=dict(states),
        )


def held_by_another(*, operation: str, owner: str, hold_id: str) -> RefusedError:
    """A hold is its owner's: another asks for it, or for its end."""
    fix = "release it as its owner, or force it" if operation == "release" else "wait for its release"
    return RefusedError(
        f"the group is held by {owner!r} (hold {hold_id}), and another owner asks for the {operation}; "
        f"nothing was changed: {fix}",
        code="held-by-another",
        operation=operation,
        owner=owner,
        hold=hold_id,
    )


def hold_not_in_force(*, hold: str, now: str | None) -> RefusedError:
    """A command names a hold that the group does not stand under any more."""
    found = "the group is open" if now is None else f"the group stands under hold {now}"
    return RefusedError(
        f"hold {hold} is no longer in force: {found}; nothing was changed: "
        "hold the group anew before you command it",
        code="hold-not-in-force",
        hold=hold,
        now=now,
    )


def cannot_be_released(*, missing: Sequence[str], told: str) -> RefusedError:
    """A group that lacks what a step needs is not let go: its memory may be in use elsewhere."""
    return RefusedError(
        f"the group does not serve without {told}, and stays held; "
        "bring that with an update, then release it",
        code="cannot-serve",
        missing=tuple(missing),
    )


def loop_does_not_poll(*, operation: str, place: str) -> RefusedError:
    """The ranks are inside an engine's loop, which looks at the engine's own words alone."""
    return RefusedError(
        f"{operation} was not written: the ranks look at the words of their engine only, and would never see "
        f"it; put manager.poll() at the top of the engine's loop ({place}), or command through the engine",
        code="loop-does-not-poll",
        operation=operation,
        place=place,
    )


def bad_hold(*, argument: str, value: object, problem: str) -> BadInputError:
    """What is asked of a hold cannot be."""
    return BadInputError(
        f"{argument} is {value!r:.300}: {problem}", code="bad-hold", argument=argument, value=value
    )


def bad_keyword(*, problem: str) -> BadInputError:
    """A keyword of a command has a value that no rank would take."""
    return BadInputError(
        f"a keyword of the command has a value that it cannot have: {problem}; no rank was asked",
        code="bad-keyword",
        problem=problem,
    )


def nothing_served(*, state: str) -> RefusedError:
    """A hot update was asked of a group that serves nothing."""
    return RefusedError(
        f"a hot update stages beside a version that serves, and every rank is {state}; nothing was "
        "changed: ask for an ordinary update, or allow it with the fallback in_place",
        code="nothing-served",
        state=state,
    )


def recovery_limit(*, option: str, value: int, least: int) -> BadInputError:
    """A keeper was given a limit that means nothing."""
    return BadInputError(
        f"the recovery option {option} is {value}, which is too small; give at least {least}",
        code="recovery-limit",
        option=option,
        value=value,
        least=least,
    )


def _unknown_choice(argument: str, code: str, value: object, allowed: Sequence[str]) -> BadInputError:
    """An argument is none of the few words that it may be."""
    return BadInputError(
        f"{argument} is {value!r}; say one of {', '.join(allowed)}",
        code=code,
        value=value,
        allowed=tuple(allowed),
    )


def hot_fallback(*, value: object, allowed: Sequence[str]) -> BadInputError:
    """The fallback of a hot update is none of those that there are."""
    return _unknown_choice("hot_fallback", "hot-fallback", value, allowed)


def unknown_transfer_mode(*, value: object, allowed: Sequence[str]) -> BadInputError:
    """A transfer mode is none of those that there are."""
    return _unknown_choice("transfer_mode", "unknown-transfer-mode", value, allowed)


def bad_unknown_tensors(*, value: object, allowed: Sequence[str]) -> BadInputError:
    """What becomes of tensors that the model does not have is one of two things."""
    return _unknown_choice("unknown_tensors", "bad-unknown-tensors", value, allowed)


def unknown_lease_end(*, value: object, allowed: Sequence[str]) -> BadInputError:
    """What becomes of a hold whose lease has run out is one of a few things."""
    return _unknown_choice("on_lease", "unknown-lease-end", value, allowed)


def unknown_after(*, value: object, allowed: Sequence[str]) -> BadInputError:
    """What an update leaves of admission is one of a few things."""
    return _unknown_choice("after", "unknown-after", value, allowed)


def bad_rsync_config(*, problem: str) -> BadInputError:
    """The options of a transport cannot travel with a command."""
    return BadInputError(
        f"rsync_config is no mapping of plain values: {problem}; give FastDeploy's options as JSON has them",
        code="bad-rsync-config",
        problem=problem,
    )


def tags_contradict(*, tags: Sequence[str], argument: str, why: str) -> BadInputError:
    """The tags of a command and another argument of it do not go together."""
    return BadInputError(
        f"{argument!r} says nothing for the tags {', '.join(tags)}: {why}; leave one of the two away",
        code="tags-contradict",
        tags=tuple(tags),
        argument=argument,
        why=why,
    )


def not_given_back(*, request_id: str, ranks: Sequence[int], group: str, advice: str) -> GroupError:
    """A prepared command was taken back, and a rank could not release what it held of it."""
    told = ", ".join(who(rank) for rank in ranks)
    return GroupError(
        f"{request_id} was taken back, but {told} could not release its memory (its journal names the "
        f"action): {group}. {advice}",
        code="not-given-back",
        request_id=request_id,
        rank=ranks[0],
        ranks=tuple(ranks),
        group=group,
    )


def plans_differ(*, ranks: Sequence[int]) -> RefusedError:
    """The ranks would not do the same collective work for a command."""
    return RefusedError(
        f"rank {', '.join(map(str, ranks))} derived other plans than rank 0; "
        "give every rank a runner with the same surfaces and the same options",
        code="plans-differ",
        ranks=tuple(ranks),
    )


def commands_used_up(*, sequence: int) -> RefusedError:
    """The segment of a group has no number left for a caller's command."""
    return RefusedError(
        f"command {sequence} was the last one that this group can number. It serves on, and is restored "
        "where a rank is lost. End all of its processes and start it again: its new segment counts from 0",
        code="commands-used-up",
        sequence=sequence,
    )


def engine_word_busy(*, word: str, value: int, expected: int) -> RefusedError:
    """An engine is using one of its own status words for a command right now."""
    return RefusedError(
        f"the engine's word {word} holds {value}, not {expected}: the engine commands the group itself; "
        "wait until it is done",
        code="engine-word-busy",
        word=word,
        value=value,
        expected=expected,
    )


def controller_stopped(
    *, sequence: int, pid: int, deadline_s: float, stopped: bool, supervisor: bool
) -> GroupError:
    """A command's deadline has passed, and its controller, which still has the role, has not decided it.

    A rank that has not prepared says so in the command's report; the group aborts the command then.
    """
    process = f"process {pid}" if pid else "a process in another pid namespace"
    fix = go_on_or_end(pid, supervisor=supervisor) if pid else "let it go on, or end it"
    return GroupError(
        f"the deadline of command {sequence} ({deadline_s:g} s) has passed without a decision, since its "
        f"controller, {process}, {'is stopped' if stopped else 'does nothing'}; {fix}",
        code="controller-stopped",
        sequence=sequence,
        pid=pid,
        deadline_s=deadline_s,
        stopped=stopped,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
