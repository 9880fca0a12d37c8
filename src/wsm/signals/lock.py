"""The controller role: who may command a group now. A kernel lock, taken per command.

The kernel gives it back when its holder dies, so whoever has it knows that no other controller writes:
a successor never guesses by a timeout. It also excludes two threads of one process from each other.
"""

from __future__ import annotations

from wsm.signals.errors import RoleBusyError, SegmentReplacedError
from wsm.signals.lock_file import LockHold
from wsm.signals.ownership import CONTROLLER_BYTE
from wsm.signals.segment import Segment


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
            If the segment was removed or created anew meanwhile: a role over a dead group commands nobody.
        """
        lock_file = self._segment.lock_file
        hold = lock_file.acquire(CONTROLLER_BYTE, timeout_s)
        if hold is None:
            raise RoleBusyError(path=str(self._segment.path), pid=self.holder() or 0, waited_s=timeout_s)
        if self._segment.inode_changed() or not lock_file.is_current():
            hold.release()
            raise SegmentReplacedError(path=str(self._segment.path))
        return hold

    def holder(self) -> int | None:
        """Pid of the process that has the role; None if nobody, 0 if one of another pid namespace."""
        return self._segment.lock_file.holder(CONTROLLER_BYTE)
