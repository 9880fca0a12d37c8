"""What a caller of the controller can be told.

Errors of a command that was begun quote what the group holds now; where nothing was begun, nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wsm.errors import BadInputError, GroupError, RefusedError
from wsm.status.blame import Late
from wsm.status.facts import who, whose_processes
from wsm.status.rules import in_sentence


def _then(advice: str) -> str:
    """Put what to do behind a sentence."""
    return f"; {advice}" if advice else ""


if TYPE_CHECKING:
    from wsm.controller.keeper import Death


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
            f"{operation} {request_id} was withdrawn before it began: whoever asked for it asks no more; "
            "ask again if it is still wanted",
            operation=operation,
            request_id=request_id,
        )


class ManifestMismatchError(GroupError):
    """All ranks prepared, but not the same version of the same publication; the command was aborted."""

    def __init__(self, *, request_id: str, operation: str, found: Mapping[int, str], group: str) -> None:
        ranks = ", ".join(f"rank {rank}: {what}" for rank, what in found.items())
        super().__init__(
            f"{operation} was aborted because the ranks prepared different weights ({ranks}) [{group}]; "
            "publish the version again, for all ranks at once",
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


class RankAliveError(RefusedError):
    """An epoch was to be ended because of a process that still lives and may still write its words."""

    def __init__(self, *, rank: int, pid: int) -> None:
        super().__init__(
            f"the process {pid} of rank {rank} lives; kill and reap it before it is replaced",
            rank=rank,
            pid=pid,
        )


class RestartLimitError(GroupError):
    """Ranks died too often within a short time; their keeper has given up.

    Attributes
    ----------
    deaths : tuple of wsm.controller.keeper.Death
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


class NothingServedError(RefusedError):
    """A hot update was asked of a group that serves nothing."""

    def __init__(self, *, state: str) -> None:
        super().__init__(
            f"a hot update stages beside a version that serves, and every rank is {state}; nothing was "
            "changed: ask for an ordinary update, or allow it with the fallback in_place",
            state=state,
        )


class HotFallbackError(BadInputError):
    """The fallback of a hot update is none of those that there are."""

    def __init__(self, *, value: object, allowed: Sequence[str]) -> None:
        super().__init__(
            f"hot_fallback is {value!r}; say one of {', '.join(allowed)}", value=value, allowed=tuple(allowed)
        )


class UnknownTransferModeError(BadInputError):
    """A transfer mode is none of those that there are."""

    def __init__(self, *, value: object, allowed: Sequence[str]) -> None:
        super().__init__(
            f"transfer_mode is {value!r}; say one of {', '.join(allowed)}",
            value=value,
            allowed=tuple(allowed),
        )


class TagsContradictError(BadInputError):
    """The tags of a command and another argument of it do not go together."""

    def __init__(self, *, tags: Sequence[str], argument: str, why: str) -> None:
        super().__init__(
            f"{argument!r} says nothing for the tags {', '.join(tags)}: {why}; leave one of the two away",
            tags=tuple(tags),
            argument=argument,
            why=why,
        )


class PlansDifferError(RefusedError):
    """The ranks would not do the same collective work for a command."""

    def __init__(self, *, ranks: Sequence[int]) -> None:
        super().__init__(
            f"rank {', '.join(map(str, ranks))} derived other plans than rank 0; "
            "give every rank a runner with the same surfaces and the same options",
            ranks=tuple(ranks),
        )


class EngineWordBusyError(RefusedError):
    """An engine is using one of its own status words for a command right now."""

    def __init__(self, *, word: str, value: int, expected: int) -> None:
        super().__init__(
            f"the engine's word {word} holds {value}, not {expected}: the engine commands the group itself; "
            "wait until it is done",
            word=word,
            value=value,
            expected=expected,
        )


class ControllerStoppedError(GroupError):
    """A command's deadline has passed, and its controller, which still has the role, has not decided it.

    A rank that has not prepared says so in the command's report; the group aborts the command then.
    """

    def __init__(self, *, sequence: int, pid: int, deadline_s: float, stopped: bool) -> None:
        process = f"process {pid}" if pid else "a process in another pid namespace"
        fix = f"end it (kill -9 {pid}), or let it go on (kill -CONT {pid})" if pid else "end it"
        super().__init__(
            f"the deadline of command {sequence} ({deadline_s:g} s) has passed without a decision, since its "
            f"controller, {process}, {'is stopped' if stopped else 'does nothing'}; {fix}",
            sequence=sequence,
            pid=pid,
            deadline_s=deadline_s,
            stopped=stopped,
        )
