"""The controller role: who may command a group now. A kernel lock, taken per command.

The kernel gives it back when its holder dies, so its holder knows that no other controller writes: a
successor never guesses by a timeout. It also excludes two threads of one process from each other.
"""

from __future__ import annotations

from wsm.signals.errors import RoleBusyError, SegmentReplacedError
from wsm.signals.identity import is_stopped
from wsm.signals.lock_file import LockHold
from wsm.signals.ownership import CONTROLLER_BYTE, STAND_IN_BYTE
from wsm.signals.segment import Segment

#: Seconds to wait for a process that writes one word in the place of a stopped controller.
_STAND_IN_S = 1.0


class ControllerRole:
    """The right to write the command word of `segment`.

    Parameters
    ----------
    segment : Segment
        The group's segment; must stay open while the role is held.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def acquire(self, timeout_s: float) -> LockHold:
        """Take the role; use the result in ``with``, or call its ``release()``.

        Parameters
        ----------
        timeout_s : float
            How long to wait for another controller to end its command, in seconds; 0 to be refused at
            once. Blocks that long at most.

        Raises
        ------
        RoleBusyError
            If another process or thread has the role still; names its pid.
        SegmentReplacedError
            If the segment was removed or created anew meanwhile: a role over a dead group commands no
            process.
        """
        lock_file = self._segment.lock_file
        hold = lock_file.acquire(CONTROLLER_BYTE, timeout_s)
        if hold is None:
            raise self._busy(self.holder() or 0, timeout_s)
        if self._segment.inode_changed() or not lock_file.is_current():
            hold.release()
            raise SegmentReplacedError(path=str(self._segment.path))
        return hold

    def holder(self) -> int | None:
        """Pid of the role's holder; None if it is free, 0 if one of another pid namespace."""
        return self._segment.lock_file.holder(CONTROLLER_BYTE)

    def stopped_holder(self) -> int | None:
        """Pid of the role's holder, if it is stopped; None if it is not, or cannot be seen."""
        pid = self.holder()
        return pid if pid and is_stopped(pid) else None

    def is_supervisor(self, pid: int) -> bool:
        """Whether a process is the one that replaces the group's ranks."""
        supervisor = self._segment.supervisor
        return supervisor is not None and pid != 0 and supervisor.pid == pid

    def try_to_stand_in(self) -> LockHold | None:
        """Take the right to write one decision while the role's holder is stopped; None if another has it.

        While it is held no next command and no next epoch is written (:meth:`await_stand_in`), so the
        command that is read now is the one at hand until the word stands there.
        """
        return self._segment.lock_file.try_acquire(STAND_IN_BYTE)

    def await_stand_in(self) -> None:
        """Wait until no process is about to write in the place of the role's holder; blocks 1 s at most.

        To be asked, with the role, before a word is written that begins a command or an epoch: a decision
        that another process writes late must find the command that it is about.

        Raises
        ------
        RoleBusyError
            If a process does not come to its end there; it is named.
        """
        hold = self._segment.lock_file.acquire(STAND_IN_BYTE, _STAND_IN_S)
        if hold is None:
            raise self._busy(self._segment.lock_file.holder(STAND_IN_BYTE) or 0, _STAND_IN_S)
        hold.release()

    def _busy(self, pid: int, waited_s: float) -> RoleBusyError:
        stopped = bool(pid) and is_stopped(pid)
        return RoleBusyError(
            path=str(self._segment.path),
            pid=pid,
            waited_s=waited_s,
            stopped=stopped,
            supervisor=self.is_supervisor(pid),
        )
