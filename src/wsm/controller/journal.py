"""What a controller writes down: what it asked, decided, and found; whom it lost; how it ended.

The last lines of all holders of the role stand in the group's segment, in the order of their writing; with a
directory they go to ``controller.ndjson`` in it, too, which all controllers of the group append to. A file
that cannot be written any more ends the file, never the command.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.shared_directory import ForeignPathError, open_to_append
from wsm.signals.ring import LineRing
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, JournalEntry
from wsm.states.rerun import asked
from wsm.states.view import View
from wsm.states.words import CommandWord

#: Name of the file in the journal directory.
FILE_NAME = "controller.ndjson"

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
    """

    def __init__(
        self, ring: LineRing, directory: str | Path | None = None, clock: Clock | None = None
    ) -> None:
        self._ring = ring
        self._path = None if directory is None else Path(directory) / FILE_NAME
        self._clock = clock or SystemClock()
        self._inputs: list[str] = []

    def moment(self) -> tuple[int, int]:
        """Return the time now, for an entry that is written once what it tells of can be seen by others."""
        return self._clock.monotonic_ns(), self._clock.wall_ns()

    def note(self, kind: str, command: CommandWord, at: tuple[int, int] | None = None, **facts: Any) -> None:
        """Write one entry; `at` is its :meth:`moment`, by default now."""
        shown = {key: fact[:_MAX_TEXT] if isinstance(fact, str) else fact for key, fact in facts.items()}
        line = self._line(kind, command, at or self.moment(), shown)
        with contextlib.suppress(ValueError):  # the segment was closed under a command that outlived it
            self._ring.append(line)
        self.write_inputs(line)

    def asked(self, function: str, view: View, answer: object, **known: object) -> None:
        """Keep what the core was asked and what it answered, for the file alone; written with the next word.

        So a word waits for no file. Parameters as of :func:`wsm.states.rerun.asked`.
        """
        if self._path is not None:
            facts = asked(function, view, answer, **known)
            self._inputs.append(self._line(kinds.INPUT, view.command, self.moment(), facts))

    def write_inputs(self, *more: str) -> None:
        """Write what was asked since the last time, and `more` lines behind it."""
        lines, self._inputs = [*self._inputs, *more], []
        if self._path is not None and lines:
            self._append(self._path, "\n".join(lines))

    def _line(self, kind: str, command: CommandWord, at: tuple[int, int], facts: dict[str, Any]) -> str:
        at_ns, wall_ns = at
        return JournalEntry(
            kind=kind,
            at_ns=at_ns,
            wall_ns=wall_ns,
            rank=CONTROLLER,
            epoch=command.epoch,
            sequence=command.sequence,
            facts=facts,
        ).to_line()

    def _append(self, path: Path, line: str) -> None:
        try:
            # Opened each time: controllers come and go, and what is written together is one write.
            try:
                descriptor = open_to_append(path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = open_to_append(path)
            with os.fdopen(descriptor, "ab", buffering=0) as file:
                file.write(line.encode() + b"\n")
        except (OSError, ForeignPathError) as error:
            self._path = None
            log.logger("controller").error(log.JOURNAL_ENDED, error=str(error))
