"""What a controller writes down: what it asked, decided, and found; whom it lost; how it ended.

The last lines of all holders of the role stand in the group's segment, in the order of their writing; with a
directory they go to ``controller.ndjson`` in it, too, which all controllers of the group append to. A file
that cannot be written any more ends the file, never the command; what is torn then, the next writer ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.shared_directory import ForeignPathError, open_to_append
from wsm.signals.ring import LineRing
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, CONTROLLERS_FILE, JournalEntry
from wsm.states.rerun import asked
from wsm.states.view import View
from wsm.states.words import CommandWord

_MAX_TEXT = 2 * 1024


class ControllerJournal:
    """The journal of the process that has the controller role.

    Parameters
    ----------
    ring : LineRing
        In the segment; only written while the role is held.
    directory : path or None
        Where the file is; None: nowhere.
    clock : Clock or None
        For the times; None is the host's, which the ranks' journals share.
    begins : bool
        Whether the file says first that a process begins here: in a directory where no owner says when its
        group begins, and with it the numbers of commands.
    """

    def __init__(
        self,
        ring: LineRing,
        directory: str | Path | None = None,
        clock: Clock | None = None,
        *,
        begins: bool = False,
    ) -> None:
        self._ring = ring
        self._path = None if directory is None else Path(directory) / CONTROLLERS_FILE
        self._clock = clock or SystemClock()
        self._begins = begins
        self._waits = False
        self._lines: list[str] = []
        self._keeps_open = False
        self._descriptor: int | None = None

    def moment(self) -> tuple[int, int]:
        """Return the time now, for an entry that is written once what it tells of can be seen by others."""
        return self._clock.monotonic_ns(), self._clock.wall_ns()

    def note(self, kind: str, command: CommandWord, at: tuple[int, int] | None = None, **facts: Any) -> None:
        """Write one entry; `at` is its :meth:`moment`, by default now."""
        shown = {key: fact[:_MAX_TEXT] if isinstance(fact, str) else fact for key, fact in facts.items()}
        at = at or self.moment()
        line = self._kept(kind, command, at, shown)
        with contextlib.suppress(ValueError):  # the segment was closed under a command that outlived it
            self._ring.append(line)
        self.write()

    def asked(
        self, function: str, view: View, answer: object, at: tuple[int, int] | None = None, **known: object
    ) -> None:
        """Keep what the core was asked and what it answered, for the file alone; written with the next entry.

        To be called behind the word that says the answer, with the moment before it, so that a word waits for
        no file; without an entry that follows lines would pile up. Parameters as of
        :func:`wsm.states.rerun.asked`.
        """
        if self._path is not None:
            at = at or self.moment()
            self._kept(kinds.INPUT, view.command, at, asked(function, view, answer, **known))

    @contextlib.contextmanager
    def words_first(self) -> Iterator[None]:
        """Write nothing to the file before the block ends: of several words none waits for a file."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
            self.write()

    @contextlib.contextmanager
    def open_for_a_command(self) -> Iterator[None]:
        """Open the file once until the block ends, with the first line that is written in it.

        Not for longer: controllers come and go, and the file may be moved away between two commands.
        """
        self._keeps_open = True
        try:
            yield
        finally:
            self._keeps_open = False
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def write(self) -> None:
        """Write to the file what is kept for it, all in one write."""
        lines, path = self._lines, self._path
        if self._waits or path is None or not lines:
            return
        self._lines = []
        try:
            self._append(path, "\n".join(lines).encode())
        except (OSError, ForeignPathError) as error:
            self._path = None
            log.logger("controller").error(log.JOURNAL_ENDED, error=str(error))
            self._close()
        if not self._keeps_open:
            self._close()

    def _append(self, path: Path, lines: bytes) -> None:
        if self._descriptor is None:
            try:
                self._descriptor = open_to_append(path, reads=True)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = open_to_append(path, reads=True)
        # A full disk or a kill may have cut its last writer short, within a line.
        size = os.fstat(self._descriptor).st_size
        torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        data = b"\n" * torn + lines + b"\n"
        if os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _kept(self, kind: str, command: CommandWord, at: tuple[int, int], facts: dict[str, Any]) -> str:
        """Make a line, keep it for the file if there is one, and return it."""
        if self._begins and self._path is not None:
            self._begins = False
            self._kept(kinds.STARTED, command._replace(sequence=0), at, {"pid": os.getpid()})
        line = JournalEntry(kind, *at, CONTROLLER, command.epoch, command.sequence, facts).to_line()
        if self._path is not None:
            self._lines.append(line)
        return line
