"""Who a process is, in a way that survives the reuse of its pid, and how that is kept in a segment.

A pid alone names no process: it is reused, and in another pid namespace it means another process. Pid, start
time and namespace together do. The record is several words, so unlike a word it can be read half
written; its checksum tells, and then only the byte lock knows.
"""

from __future__ import annotations

import functools
import os
import struct
import zlib
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
    """Return the record at `index`; None if none was ever written.

    The identity is :data:`UNREADABLE` if the record is not whole.
    """
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
