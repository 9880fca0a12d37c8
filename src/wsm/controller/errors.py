"""What a caller of the controller can be told.

Errors of a command that was begun quote what the group holds now; where nothing was begun, nothing changed.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from wsm.errors import GroupError, RefusedError
from wsm.states.holding import ClosedHold
from wsm.status.facts import who


class CommandRefusedError(RefusedError):
    """A rank refused the command; the group is as it was before."""


class RankFailedError(GroupError):
    """A rank failed in an action of the command; the group has agreed on one outcome."""


class ActionOverdueError(RankFailedError):
    """A rank was in an action for longer than it may be; the command was aborted because of that."""


class CommandTimeoutError(GroupError):
    """The caller's patience ended before anything was decided; the command was aborted."""


class CommandWithdrawnError(RefusedError):
    """When it was the controller's turn, the command was no longer wanted; nothing was written."""


class UnsettledError(GroupError):
    """The command is decided, but not every rank has said that it is done."""


class RankLostError(GroupError):
    """The process of a rank is gone; the group needs it to go on. A supervisor replaces it."""

    retryable = True


class EpochEndedError(GroupError):
    """The epoch in which the command was given has ended: a rank was lost and is being replaced."""

    retryable = True


class DecisionHeldError(RefusedError):
    """The open command waits for the one that decides it; no other process may, nor is a command taken."""

    retryable = True


class MixedGroupError(RefusedError):
    """A rank is FAULTED, or the ranks hold different things, so nothing but a whole clear has one meaning."""


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


@dataclass(frozen=True)
class Death:
    """The end of one participant's process.

    `rank`, `pid`, `epoch`: who (the KV-cache process has a number, too), and in which epoch. `code`: exit
    code of the process, or minus the signal that ended it. `why`: why the keeper ended it; empty if it ended
    by itself. `log`: the last lines that it wrote, if they are known.
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


def hold_closed(*, closed: ClosedHold) -> RefusedError:
    """A held group would serve weights of before an update that was refused, or failed."""
    return RefusedError(
        f"the group stays held, since {closed}, and no update came after it; update the group, or release it "
        "by force (wsm release NAME --force, or POST /wsm/v1/release with force)",
        code="hold-closed",
        surface=closed.surface,
        verb=closed.verb,
        reason=closed.reason,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def withdrawn(operation: str, request_id: str) -> CommandWithdrawnError:
    """A command is no longer wanted."""
    return CommandWithdrawnError(
        f"{operation} {request_id} was withdrawn by its caller before it began; ask again if it is "
        "still wanted",
        operation=operation,
        request_id=request_id,
    )
