"""Whether the process behind a participant lives. Knows processes and locks, and nothing of progress.

A pidfd is the fast path (a look costs a quarter of a microsecond and it wakes a selector); it is
trusted only after the start time agreed, so a reused pid is nobody. Where there is none (another pid
namespace, an old kernel, seccomp), the byte lock that each participant holds tells. A stopped process
is alive in both: that is a hang, and a hang is for the heartbeat to show.
"""

from __future__ import annotations

import enum
import os
import select
import threading
from types import TracebackType
from typing import final

from wsm.shortage import shortage_of
from wsm.signals.errors import SegmentReplacedError, SlotTakenError
from wsm.signals.identity import Occupant, ProcessIdentity, read_occupant, start_time_of, write_occupant
from wsm.signals.lock_file import LockHold
from wsm.signals.ownership import FIRST_PARTICIPANT_BYTE
from wsm.signals.segment import Segment


class Life(enum.Enum):
    """What is known about a participant's process."""

    NEVER = "never"  # nobody ever registered
    ALIVE = "alive"  # running or stopped
    DEAD = "dead"  # gone, or left in good order: nobody writes its words now


@final
class Registration:
    """A participant's place, held by this process until it releases it, ends the ``with``, or dies."""

    def __init__(self, segment: Segment, participant: int, hold: LockHold, occupant: Occupant) -> None:
        self.participant = participant
        self._segment = segment
        self._hold = hold
        self._occupant = occupant

    @property
    def is_held(self) -> bool:
        """Whether the calling process stands for the participant; false in a forked child."""
        return self._hold.is_held

    def release(self) -> None:
        """Leave the place in good order. Does nothing the second time, and nothing in a forked child."""
        if self._hold.is_held and not self._segment.is_closed and not self._segment.is_truncated():
            index = self._segment.layout.occupant[self.participant]
            write_occupant(self._segment.words, index, self._occupant._replace(present=False))
        self._hold.release()

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def register(segment: Segment, participant: int, timeout_s: float = 0.1) -> Registration:
    """Stand for `participant` from now on: record who this process is, and hold its byte lock.

    Parameters
    ----------
    segment : Segment
        The group's segment.
    participant : int
        Rank, or world size plus the helper's number.
    timeout_s : float
        How long to wait for a predecessor that is just dying, in seconds. Blocks that long at most. (The
        kernel takes about 2 ms from SIGKILL until it gives the lock back.)

    Raises
    ------
    BadInputError
        If the segment has no such place.
    SlotTakenError
        If a live process, a stopped one included, stands there.
    SegmentReplacedError
        If the segment was removed or created anew since this process attached.
    """
    segment.check_participant(participant)
    index = segment.layout.occupant[participant]
    byte = FIRST_PARTICIPANT_BYTE + participant
    hold = segment.lock_file.acquire(byte, timeout_s)
    if segment.inode_changed() or not segment.lock_file.is_current():
        if hold is not None:
            hold.release()
        raise SegmentReplacedError(path=str(segment.path))
    if hold is None:
        pid = segment.lock_file.holder(byte) or 0
        raise SlotTakenError(path=str(segment.path), participant=participant, pid=pid)
    predecessor = read_occupant(segment.words, index)
    me = ProcessIdentity.current()
    if (
        predecessor is not None
        and predecessor.present
        and predecessor.identity != me
        and predecessor.identity.is_known_alive
    ):
        # It lives without its lock: something in it closed another descriptor of the lock file.
        hold.release()
        raise SlotTakenError(path=str(segment.path), participant=participant, pid=predecessor.identity.pid)
    occupant = Occupant(me, present=True)
    write_occupant(segment.words, index, occupant)
    return Registration(segment, participant, hold, occupant)


class Liveness:
    """Watches the participants of one segment; one per process that cares. Safe for threads.

    Parameters
    ----------
    segment : Segment
        The group's segment.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._watched: dict[int, _Watched] = {}
        # A poll object refuses a second thread, and a look may replace what another one is looking at.
        self._mutex = threading.RLock()

    def look(self, participant: int) -> Life:
        """Whether the process that stands for `participant` lives now. Never blocks."""
        with self._mutex:
            watched = self._watch(participant)
            if watched is None:
                return Life.NEVER
            if not watched.occupant.present or watched.is_surely_dead():
                return Life.DEAD
            if watched.fd is not None:
                return Life.ALIVE
        holder = self._segment.lock_file.holder(FIRST_PARTICIPANT_BYTE + participant)
        return Life.DEAD if holder is None else Life.ALIVE

    def fd(self, participant: int) -> int | None:
        """A descriptor that becomes readable when the process that stands there now dies.

        Returns
        -------
        int or None
            None where there is no such descriptor: ask :meth:`look` now and then. It belongs to this
            object, and is another one once the participant was replaced.
        """
        with self._mutex:
            watched = self._watch(participant)
        return watched.fd if watched is not None else None

    def pid(self, participant: int) -> int | None:
        """Pid in the recorder's own pid namespace of who stands or stood there last; None if nobody did."""
        with self._mutex:
            watched = self._watch(participant)
        return watched.occupant.identity.pid or None if watched is not None else None

    def identity(self, participant: int) -> ProcessIdentity | None:
        """Who stands there now, dead or alive; None if nobody ever did, or it left in good order."""
        with self._mutex:
            watched = self._watch(participant)
        if watched is None or not watched.occupant.present:
            return None
        return watched.occupant.identity

    def is_stopped(self, participant: int) -> bool:
        """Whether the process that stands there lives and is stopped; False where that cannot be seen."""
        identity = self.identity(participant)
        return identity is not None and identity.is_stopped

    def close(self) -> None:
        """Close the descriptors."""
        with self._mutex:
            for watched in self._watched.values():
                watched.close()
            self._watched.clear()

    def _watch(self, participant: int) -> _Watched | None:
        self._segment.check_participant(participant)
        self._segment.require_whole()
        occupant = read_occupant(self._segment.words, self._segment.layout.occupant[participant])
        if occupant is None:
            return None
        watched = self._watched.get(participant)
        if watched is None or watched.occupant != occupant or watched.lacked_descriptor:
            if watched is not None:
                watched.close()
            watched = self._watched[participant] = _Watched(occupant)
        return watched


class _Watched:
    """One process under observation: by a pidfd if there can be one, else with no means of its own."""

    def __init__(self, occupant: Occupant) -> None:
        self.occupant = occupant
        self.fd: int | None = None
        self._poll = select.poll()
        self._was_never_there = False
        self.lacked_descriptor = False
        if occupant.present and occupant.identity.is_visible:
            self._open(occupant.identity)

    def is_surely_dead(self) -> bool:
        """Whether the process is known to be gone; a zombie is."""
        return self._was_never_there or (self.fd is not None and bool(self._poll.poll(0)))

    def close(self) -> None:
        """Close the pidfd."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def _open(self, identity: ProcessIdentity) -> None:
        try:
            self.fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            self._was_never_there = True
            return
        except OSError as error:
            # An old kernel, or seccomp: the byte lock tells. So it does until there are descriptors again.
            self.lacked_descriptor = shortage_of(error) is not None
            return
        self._poll.register(self.fd, select.POLLIN)
        # Asked after opening: from here on the descriptor names one process, whatever becomes of the pid.
        started = start_time_of(identity.pid)
        if started != identity.start_time and not self._poll.poll(0):
            self.close()
            self._was_never_there = started is not None  # someone else has the pid
            self.lacked_descriptor = started is None  # or nobody may look
