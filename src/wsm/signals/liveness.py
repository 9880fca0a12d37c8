"""Which process stands for a participant or is the controller, and whether it lives.

A pidfd is the fast path (a look costs a quarter of a microsecond, and a death wakes a thread that sleeps on
it); it is trusted only after the start time agreed, so a reused pid is no participant. Where there is none
(another pid or time namespace, an old kernel, seccomp), the byte lock that each participant holds tells. A
stopped process is alive in both: that is a hang, and a hang is for the heartbeat to show.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import final

from wsm.errors import shortage_of
from wsm.signals.errors import RoleBusyError, SegmentReplacedError, SlotTakenError
from wsm.signals.lock_file import LockHold
from wsm.signals.ownership import CONTROLLER_BYTE, FIRST_PARTICIPANT_BYTE, STAND_IN_BYTE
from wsm.signals.presence import (
    Occupant,
    ProcessIdentity,
    is_stopped,
    read_occupant,
    start_time_of,
    write_occupant,
)
from wsm.signals.segment import Segment
from wsm.signals.waiting import AlarmClock

#: How long a process that lost its locks may take to end, and the pause between two looks, in seconds.
_DYING_S, _DYING_PAUSE_S = 1.0, 0.001

#: Seconds to wait for a process that writes one word in the place of a stopped controller.
_STAND_IN_S = 1.0


class Life(enum.Enum):
    """What is known about a participant's process."""

    NEVER = "never"  # no process ever registered
    ALIVE = "alive"  # running or stopped
    DEAD = "dead"  # gone, or left in good order: its words do not change now


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

    def __exit__(self, *_error: object) -> None:
        self.release()


def register(segment: Segment, participant: int, timeout_s: float = 0.1) -> Registration:
    """Stand for `participant` from now on: record who this process is, and hold its byte lock.

    Blocks up to `timeout_s` seconds for a predecessor that is just dying: the kernel takes about 2 ms from
    SIGKILL until it gives the lock back.

    Raises
    ------
    BadInputError, SlotTakenError
        If the segment has no such place, or a live process, a stopped one included, stands there.
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
        and _stays_alive(predecessor.identity, min(timeout_s, _DYING_S))
    ):
        # It lives without its lock: something in it closed another descriptor of the lock file.
        hold.release()
        raise SlotTakenError(path=str(segment.path), participant=participant, pid=predecessor.identity.pid)
    occupant = Occupant(me, present=True)
    write_occupant(segment.words, index, occupant)
    return Registration(segment, participant, hold, occupant)


def _stays_alive(identity: ProcessIdentity, timeout_s: float) -> bool:
    """Whether a process is alive for that long: a dying one loses its locks before it has ended."""
    deadline = time.monotonic() + timeout_s
    while identity.is_known_alive:
        if time.monotonic() >= deadline:
            return True
        time.sleep(_DYING_PAUSE_S)
    return False


class ControllerRole:
    """The controller role: the right to write the command word of a segment. Taken per command.

    The kernel gives it back when its holder dies: a successor never guesses by a timeout. It also excludes
    two threads of one process from each other. The segment must stay open while the role is held.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def acquire(self, timeout_s: float) -> LockHold:
        """Take the role; use the result in ``with``, or call its ``release()``.

        Blocks up to `timeout_s` seconds while another controller ends its command; 0 to be refused at once.

        Raises
        ------
        RoleBusyError
            If another process or thread has the role still; names its pid.
        SegmentReplacedError
            If the segment was removed or created anew meanwhile: such a role commands no process.
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

    def end_holder(self, pid: int) -> bool:
        """End the process that holds the role (SIGKILL), if it is `pid` still; return whether it was.

        By a descriptor of the process, opened before the holder is asked for: the number may be another's.
        """
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if self.holder() != pid:
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except OSError:  # it has ended, or it is another user's
            return False
        finally:
            os.close(process)
        return True

    def is_supervisor(self, pid: int) -> bool:
        """Whether a process is the one that replaces the group's ranks."""
        supervisor = self._segment.supervisor
        return supervisor is not None and pid != 0 and supervisor.pid == pid

    def try_to_stand_in(self) -> LockHold | None:
        """Take the right to write one decision while the role's holder is stopped; None if another has it.

        While it is held no next command and no next epoch is written (:meth:`await_stand_in`).
        """
        return self._segment.lock_file.try_acquire(STAND_IN_BYTE)

    def await_stand_in(self) -> None:
        """Wait until no process is about to write in the place of the role's holder; blocks 1 s at most.

        The role's holder asks before a word that begins a command or an epoch: a decision that another
        process writes late must find its command. Raises RoleBusyError, naming a process that does not come
        to its end.
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


class Liveness:
    """Watches the participants of one segment; one per process that cares. Safe for threads."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._watched: dict[int, _WatchedParticipant] = {}
        # A poll object refuses a second thread, and a look may replace what another one is looking at.
        self._mutex = threading.RLock()

    def look(self, participant: int) -> Life:
        """Whether the process of `participant` lives now. Never blocks."""
        with self._mutex:
            watched = self._watch(participant)
            if watched is None:
                return Life.NEVER
            if watched.is_gone or (watched.fd is not None and watched.ends.poll(0)):  # a zombie has ended
                return Life.DEAD
            if watched.fd is not None:
                return Life.ALIVE
        holder = self._segment.lock_file.holder(FIRST_PARTICIPANT_BYTE + participant)
        return Life.DEAD if holder is None else Life.ALIVE

    def has_place(self, participant: int) -> bool:
        """Whether a process holds the place of `participant`: its byte lock. Never blocks.

        The kernel takes the locks of a dying process before it closes the sockets, and can be asked for its
        exit code only after that: a peer may see the end of a connection while :meth:`look` says ALIVE.
        """
        return self._segment.lock_file.holder(FIRST_PARTICIPANT_BYTE + participant) is not None

    def fd(self, participant: int) -> int | None:
        """A descriptor, owned by this object, that becomes readable when the present `participant` dies.

        None where there can be none: ask :meth:`look` now and then. A replaced participant has another one.
        """
        watched = self._watch(participant)
        return watched.fd if watched is not None else None

    def pid(self, participant: int) -> int | None:
        """Pid of the participant's last process, in its recorder's pid namespace; None if there was none."""
        watched = self._watch(participant)
        return watched.occupant.identity.pid or None if watched is not None else None

    def identity(self, participant: int) -> ProcessIdentity | None:
        """The participant's process, dead or alive; None if there never was one, or it left in good order."""
        watched = self._watch(participant)
        if watched is None or not watched.occupant.present:
            return None
        return watched.occupant.identity

    def is_stopped(self, participant: int) -> bool:
        """Whether the process of `participant` lives and is stopped; False where that cannot be seen."""
        identity = self.identity(participant)
        return identity is not None and identity.is_stopped

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        with self._mutex:
            for watched in self._watched.values():
                watched.close()
            self._watched.clear()

    def _watch(self, participant: int) -> _WatchedParticipant | None:
        self._segment.check_participant(participant)
        self._segment.require_whole()
        with self._mutex:
            occupant = read_occupant(self._segment.words, self._segment.layout.occupant[participant])
            if occupant is None:
                return None
            watched = self._watched.get(participant)
            if watched is None or watched.occupant != occupant or watched.lacked_descriptor:
                if watched is not None:
                    watched.close()
                watched = self._watched[participant] = _WatchedParticipant(occupant)
            return watched


class _WatchedParticipant:
    def __init__(self, occupant: Occupant) -> None:
        self.occupant = occupant
        self.fd: int | None = None
        self.ends = select.poll()
        self.is_gone = not occupant.present
        self.lacked_descriptor = False
        if occupant.present and occupant.identity.is_visible:
            self._open(occupant.identity)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def _open(self, identity: ProcessIdentity) -> None:
        try:
            self.fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            self.is_gone = True
            return
        except OSError as error:
            # An old kernel, or seccomp: the byte lock tells. So it does until there are descriptors again.
            self.lacked_descriptor = shortage_of(error) is not None
            return
        self.ends.register(self.fd, select.POLLIN)
        # Asked after opening: from here on the descriptor names one process, whatever becomes of the pid.
        started = start_time_of(identity.pid)
        if started != identity.start_time and not self.ends.poll(0):
            # Another process has the pid, or this one may not look, or counts its time from another moment (a
            # time namespace): the byte lock tells.
            self.close()
            self.lacked_descriptor = started is None


class DeathWatch:
    """A thread that sleeps until one of the `participants` dies, and then calls `on_death`.

    `on_turn` is called after every wake-up; it returns the seconds after which it wants to be called again,
    or None. `turn_after_s` seconds pass from :meth:`refresh` to a turn: a thread that runs at once would cost
    its caller time. Raises OSError or RuntimeError if no descriptor, or no thread, is left.
    """

    def __init__(
        self,
        liveness: Liveness,
        participants: Sequence[int],
        on_death: Callable[[], object],
        on_turn: Callable[[], float | None] | None = None,
        turn_after_s: float = 0.02,
    ) -> None:
        self._liveness = liveness
        self._participants = participants
        self._on_death = on_death
        self._on_turn = on_turn
        self._changing = threading.Lock()
        self._known: dict[int, ProcessIdentity | None] = {}
        self._new: list[int] = []
        self._closing = False
        self._turn_after_s = turn_after_s
        self._bell = AlarmClock()
        self._thread = threading.Thread(target=self._watch, name="wsm-death-watch", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._closing = True
            self._bell.close()
            raise

    def turn_soon(self) -> None:
        """Have a turn, `turn_after_s` from now."""
        with self._changing:
            if not self._closing:
                self._bell.set(0.0 if self._new else self._turn_after_s)

    def refresh(self) -> bool:
        """Watch the processes that are there now, and have a turn soon; return whether each is watched."""
        all_watched = True
        with self._changing:
            for participant in self._participants:
                identity = self._liveness.identity(participant)
                if identity != self._known.get(participant):
                    self._known[participant] = identity
                    self._take_up(participant)
                all_watched = all_watched and self._known.get(participant) is not None
            if (self._new or self._on_turn is not None) and not self._closing:
                self._bell.set(0.0 if self._new else self._turn_after_s)
        return all_watched

    def _take_up(self, participant: int) -> None:
        try:
            descriptor = self._liveness.fd(participant)
            if descriptor is not None:
                self._new.append(os.dup(descriptor))
        except OSError:
            del self._known[participant]  # no descriptor is left: the next refresh tries again

    def close(self) -> None:
        """End the thread. Does nothing the second time."""
        with self._changing:
            if self._closing:
                return
            self._closing = True
            self._bell.set(0.0)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        poller, watched = select.poll(), set[int]()
        poller.register(self._bell, select.POLLIN)
        timeout_s: float | None = None
        while not self._closing:
            timeout_ms = None if timeout_s is None else timeout_s * 1e3
            ready = [descriptor for descriptor, _ in poller.poll(timeout_ms)]
            dead = watched.intersection(ready)
            for descriptor in dead:
                poller.unregister(descriptor)
                os.close(descriptor)
            watched -= dead
            if self._bell.fileno() in ready:
                self._bell.clear()
                for descriptor in self._taken():
                    poller.register(descriptor, select.POLLIN)
                    watched.add(descriptor)
            if self._closing:
                break
            if dead:
                self._on_death()
            timeout_s = None if self._on_turn is None else self._on_turn()
        for descriptor in (*watched, *self._taken()):
            os.close(descriptor)
        self._bell.close()

    def _taken(self) -> list[int]:
        with self._changing:
            new, self._new = self._new, []
            return new
