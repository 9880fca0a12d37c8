"""Who stands at a place of a segment, and what it is doing right now: a process, its action, and since when.

A pid is reused, and in another pid namespace it means another process; pid, start time and namespace together
name one. The record is several words, so it can be read half written; its checksum tells, and then only the
byte lock knows.

What a participant is doing stands in words beside its heartbeat, for status and errors alone. The action is
named in a slot (:class:`wsm.command.AtHand`). Times are the writer's monotonic clock in ns, which all
processes of one boot share. A reader may see the time of one action beside the name of the next, for the
microsecond in which both are stored.

==========  ==================================================================================
word        says
==========  ==================================================================================
heartbeat   a counter that grows with every turn that is not the quiet path
+1          when it grew last
+2          when the status word was stored last
+3          since when it is inside of an action; 0: it is inside of none
==========  ==================================================================================
"""

from __future__ import annotations

import functools
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<3Q")
_PRESENT = 1
_GONE_STATES = frozenset("ZXx")
_STOPPED_STATES = frozenset("Tt")


class ProcessIdentity(NamedTuple):
    """One process of this host.

    ``start_time`` is field 22 of ``/proc/{pid}/stat`` (clock ticks since boot), ``pid_namespace`` the
    inode of its pid namespace; 0 where ``/proc`` does not tell.
    """

    pid: int
    start_time: int
    pid_namespace: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of the calling process."""
        pid = os.getpid()
        return cls(pid, start_time_of(pid) or 0, own_pid_namespace())

    @property
    def is_visible(self) -> bool:
        """Whether the record means to this process what it meant to its writer."""
        return self.pid > 0 and self.start_time > 0 and self.pid_namespace == own_pid_namespace()

    @property
    def is_known_alive(self) -> bool:
        """Whether this very process surely lives; false also where that cannot be seen from here."""
        return self.is_visible and start_time_of(self.pid) == self.start_time

    @property
    def is_stopped(self) -> bool:
        """Whether this very process lives and is stopped: by SIGSTOP, a terminal, or a debugger."""
        fields = _stat_of(self.pid) if self.is_visible else None
        return fields is not None and fields[0] in _STOPPED_STATES and int(fields[19]) == self.start_time


#: Stands for a record that is being written, or was torn by the death of its writer.
UNREADABLE = ProcessIdentity(0, 0, 0)


class Occupant(NamedTuple):
    """Which process has a place of the segment, and whether it has left it in good order."""

    identity: ProcessIdentity
    present: bool


def write_occupant(words: memoryview[int], index: int, occupant: Occupant) -> None:
    """Store the record at `index`. Only the holder of the place's byte lock does that."""
    words[index + 3] = 0
    for place, value in enumerate(occupant.identity):
        words[index + place] = value
    words[index + 3] = _seal(occupant)


def read_occupant(words: memoryview[int], index: int) -> Occupant | None:
    """Return the record at `index`, with :data:`UNREADABLE` if it is not whole; None if there was none."""
    pid, start_time, pid_namespace, seal = words[index : index + 4].tolist()
    if not (pid or seal):
        return None
    occupant = Occupant(ProcessIdentity(pid, start_time, pid_namespace), bool(seal & _PRESENT))
    return occupant if seal == _seal(occupant) else Occupant(UNREADABLE, present=True)


def is_stopped(pid: int) -> bool:
    """Whether the process lives and is stopped: by SIGSTOP, a terminal, or a debugger."""
    fields = _stat_of(pid)
    return fields is not None and fields[0] in _STOPPED_STATES


def start_time_of(pid: int) -> int | None:
    """Start time of the process in clock ticks since boot; None if it is gone, a zombie, or hidden."""
    fields = _stat_of(pid)
    return None if fields is None or fields[0] in _GONE_STATES else int(fields[19])


def _stat_of(pid: int) -> list[str] | None:
    """Fields of the process' line in ``/proc`` from the third on, its state; None if it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may hold spaces and parentheses itself.
    return stat.rpartition(")")[2].split() or None


@functools.cache
def own_pid_namespace() -> int:
    """Inode of the pid namespace of this process; a process keeps its own, but its child may get another."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


os.register_at_fork(after_in_child=own_pid_namespace.cache_clear)


def _seal(occupant: Occupant) -> int:
    flags = _PRESENT if occupant.present else 0
    return zlib.crc32(_RECORD.pack(*occupant.identity), flags) << 1 | flags


_BEAT_AT = 1
_TOLD_AT = 2
_SINCE = 3


class Presence(NamedTuple):
    """All of it, as it was read; a time of 0 was never stored."""

    heartbeat: int
    beat_at_ns: int
    told_at_ns: int
    since_ns: int


def read_presence(words: memoryview[int], heartbeat: int) -> Presence:
    """Read what stands beside the heartbeat at index `heartbeat`."""
    return Presence(*words[heartbeat : heartbeat + _SINCE + 1].tolist())


class PresenceWords:
    """The words of one participant from its `heartbeat` on, in its own hands; each beat calls `beside`."""

    def __init__(self, words: memoryview[int], heartbeat: int) -> None:
        self.beside: Callable[[], None] | None = None
        self._words = words
        self._heartbeat = heartbeat

    def beat(self, now_ns: int) -> None:
        """Show progress."""
        self._words[self._heartbeat + _BEAT_AT] = now_ns
        self._words[self._heartbeat] += 1
        if self.beside is not None:
            self.beside()

    def told(self, now_ns: int) -> None:
        """Say that the status word was stored just now."""
        self._words[self._heartbeat + _TOLD_AT] = now_ns

    def inside(self, since_ns: int) -> None:
        """Say since when the participant is inside of an action; 0: of none."""
        self._words[self._heartbeat + _SINCE] = since_ns
