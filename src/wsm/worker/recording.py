"""What a worker writes down: one journal entry and one log line for each thing that happens to a command.

Knows the shapes of journal and log, and decides nothing. The last lines, words aside, stand in the group's
segment too: there they survive this process even where no file was configured. A file that cannot be
written any more ends there: the worker goes on, and the file with the next command, which says that lines are
missing.

An entry is kept when it happens, with its time, and written as a line by :meth:`Recorder.write`: before the
rank waits, enters work of the engine, or goes back to its loop. So no word waits for a line.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec

import wsm
from wsm import log
from wsm.clock import Clock
from wsm.command import VERSION_HELD, FailureReport
from wsm.errors import WsmError, described, error_name
from wsm.journal import entry as kinds
from wsm.journal.entry import Journal, JournalEntry, LineFile, LineRing, transition_entry
from wsm.journal.inputs import RankInputs, own_tables, word_facts
from wsm.shared_directory import ForeignPathError
from wsm.states.machine import TransitionRecord
from wsm.states.phases import Happened, Move, RankState
from wsm.states.view import View

#: Characters of an error's message; an engine's own errors may quote whole tensors.
_MAX_MESSAGE = 2 * 1024

#: Kinds of entries that the segment has no line of: the words stand there themselves.
_FILE_ALONE = frozenset({kinds.WORD_WRITTEN, kinds.INPUT})


class Recorder:
    """Journal and log of one rank.

    Raises
    ------
    wsm.shared_directory.ForeignPathError
        If what lies in the place of that file must not be written.
    """

    def __init__(self, *, rank: int, clock: Clock, directory: Path | str | None = None) -> None:
        self.journal = Journal()
        self._rank = rank
        self.clock = clock
        self._epoch = self._sequence = 0
        self._log = log.logger("worker", rank=rank)
        self._inputs = RankInputs()
        self._file = None if directory is None else LineFile(Path(directory) / f"rank{rank}.ndjson")
        self._file_rests = self._file_lacks_lines = self._closed = False
        self._ring: LineRing | None = None
        self._writing = threading.RLock()  # the watchdog's thread reports what it cannot end
        self._unwritten: list[JournalEntry] = []
        self._failures: set[tuple[str, str, str]] = set()  # that were logged since a version was served
        if self._file is not None:
            self._file.open()
        self.note(kinds.STARTED, pid=os.getpid(), version=wsm.__version__, tables=own_tables())
        self.write()

    def keep_in(self, ring: LineRing) -> None:
        """From now on keep the last entries in the segment, those of this process so far included."""
        self._ring = ring
        ring.append(*(one.to_line() for one in self.journal))

    def command_seen(self, epoch: int, sequence: int, operation: str) -> None:
        """A new command was read."""
        self._epoch, self._sequence = epoch, sequence
        self._file_rests = False
        self.note(kinds.COMMAND_SEEN, operation=operation)
        self._log.info("command.seen", epoch=epoch, sequence=sequence, operation=operation)

    def transition(self, record: TransitionRecord) -> None:
        """A state machine took a step."""
        self._epoch, self._sequence = record.epoch, record.sequence
        self._keep(transition_entry(record, rank=self._rank, wall_ns=self.clock.wall_ns()))
        self._log.info(
            "transition.committed",
            epoch=record.epoch,
            sequence=record.sequence,
            machine=record.machine,
            source=record.source,
            dest=record.dest,
        )

    def action_started(self, name: str) -> None:
        """An action begins."""
        self.note(kinds.ACTION_STARTED, name=name)
        self._log.debug("action.started", action=name)

    def action_finished(self, name: str, seconds: float, version: str | None = None) -> None:
        """An action is done, and probed; `version`: what it has loaded."""
        loaded = {} if version is None else {"version": version}
        self.note(kinds.ACTION_FINISHED, name=name, seconds=seconds, **loaded)
        self._log.info("action.finished", action=name, seconds=seconds)

    def action_failed(self, name: str, error: BaseException) -> None:
        """An action, its probe or its undo raised."""
        message = _text_of(error)
        self.note(kinds.ACTION_FAILED, name=name, error=error_name(error), message=message)
        tell = self._log.error if self._is_new(log.ACTION_FAILED, name, message) else self._log.info
        tell(log.ACTION_FAILED, action=name, error=message)

    def action_undone(self, name: str) -> None:
        """An action was taken back."""
        self.note(kinds.ACTION_UNDONE, name=name)
        self._log.info("action.undone", action=name)

    def served(self, epoch: int, sequence: int, version: str, content_digest: str | None = None) -> None:
        """From here on steps run with this version; `content_digest`: of a label that meant other content."""
        self._epoch, self._sequence = epoch, sequence
        told = {} if content_digest is None else {"content_digest": content_digest}
        self.note(kinds.SERVED_VERSION, version=version, **told)
        self._failures.clear()

    def command_failed(self, epoch: int, sequence: int, failure: FailureReport) -> None:
        """The rank says FAILED or REFUSED."""
        self._epoch, self._sequence = epoch, sequence
        self.note(kinds.COMMAND_FAILED, action=failure.action, error=failure.error, message=failure.message)
        told = {"epoch": epoch, "sequence": sequence}
        if failure.error == VERSION_HELD:  # there is nothing to do
            self._log.info(log.COMMAND_FINISHED, **told, outcome=f"nothing to do: {failure.message}")
        else:
            new = self._is_new(log.COMMAND_FAILED, failure.action, failure.message)
            tell = self._log.error if new else self._log.info  # a wish of FastDeploy's is tried for hours
            tell(log.COMMAND_FAILED, **told, action=failure.action, error=failure.message)

    def _is_new(self, event: str, action: str, message: str) -> bool:
        known = len(self._failures)
        self._failures.add((event, action, message))
        return len(self._failures) > known

    def wait_expired(self, epoch: int, sequence: int, error: WsmError) -> None:
        """A wait has passed its deadline."""
        self._epoch, self._sequence = epoch, sequence
        self.note(kinds.WAIT_EXPIRED, message=str(error))
        self.write()  # the loop may be blocked
        self._log.warning(log.DEADLINE_EXPIRED, epoch=epoch, sequence=sequence, error=str(error))

    def interrupted(self, epoch: int, sequence: int, why: str) -> None:
        """The communicators were broken, to call the loop out of a collective that cannot end.

        Called by another thread, so it leaves alone what the loop's own entries belong to.
        """
        now = self.clock.monotonic_ns(), self.clock.wall_ns()
        self._keep(JournalEntry(kinds.INTERRUPTED, *now, self._rank, epoch, sequence, {"message": why}))
        self.write()
        self._log.warning("groups.interrupted", epoch=epoch, sequence=sequence, why=why)

    def step_raised(self, epoch: int, step: int, error: BaseException) -> None:
        """A step raised; told before its word says so, since a keeper ends the process then."""
        where, last = "unknown", error.__traceback__
        while last is not None:  # no source is read: the word waits for this
            code = last.tb_frame.f_code
            where, last = f"{code.co_filename}:{last.tb_lineno} in {code.co_name}", last.tb_next
        told = f"{error_name(error)}: {_text_of(error)}"
        self._log.error("step.broken", epoch=epoch, step=step, error=told, where=where)

    def step_broken(self, epoch: int, step: int, error: BaseException) -> None:
        """The word says that a step raised."""
        self._epoch = epoch
        message = _text_of(error)
        self.note(kinds.STEP_BROKEN, step=step, error=error_name(error), message=message)

    def took(self, before: RankState, source: View | Happened, move: Move) -> None:
        """The rank has taken in what it read, or how its work ended, and has written the words of `move`."""
        asked, told = self._inputs.facts(before, source, move), word_facts(move)
        status = move.status
        if status is not None:
            self._epoch, self._sequence = status.epoch, status.sequence
        if told or asked:
            self.note(kinds.WORD_WRITTEN if told else kinds.INPUT, **told, **asked)

    def close(self) -> None:
        """Say that the process leaves, and close the file; the journal in memory stays. Idempotent."""
        if self._closed:
            return
        self.write()
        self._closed, self._ring = True, None
        self.note(kinds.ENDED)
        self.write()
        if self._file is not None:
            self._file.close()

    def note(self, kind: str, **facts: Any) -> None:
        """Write down something of the command at hand, and log nothing."""
        now_ns, wall_ns = self.clock.monotonic_ns(), self.clock.wall_ns()
        self._keep(JournalEntry(kind, now_ns, wall_ns, self._rank, self._epoch, self._sequence, facts))

    def _keep(self, new: JournalEntry) -> None:
        with self._writing:
            self.journal.append(new)
            self._unwritten.append(new)

    def write(self) -> None:
        """Write the lines of what was kept since the last call; costs nothing where there is none."""
        if not self._unwritten:
            return
        with self._writing:
            entries, self._unwritten = self._unwritten, []
            file = None if self._file_rests else self._file
            every = file is not None
            lines = [(one.kind, one.to_line()) for one in entries if every or one.kind not in _FILE_ALONE]
            if file is not None:
                try:
                    file.append([*self._gap(entries[0]), *(line for _, line in lines)])
                    self._file_lacks_lines = False
                except (OSError, ForeignPathError) as error:
                    self._file_rests = self._file_lacks_lines = True
                    self._log.error(log.JOURNAL_ENDED, error=str(error))
            told = [line for kind, line in lines if kind not in _FILE_ALONE]
            if self._ring is not None and told:
                self._ring.append(*told)

    def _gap(self, following: JournalEntry) -> list[str]:
        """Return the line that says that lines are missing, where some are."""
        if not self._file_lacks_lines:
            return []
        facts = {"error": "the file could not be written", "lines_lost": True}
        return [msgspec.structs.replace(following, kind=kinds.SHORTAGE_MET, facts=facts).to_line()]


def _text_of(error: BaseException) -> str:
    """Return what an error says; the word that a step broke must follow, whatever an engine's str() does."""
    try:
        return (str(error) or described(error))[:_MAX_MESSAGE]
    except Exception as raised:  # noqa: BLE001 - another's code, of which anything may come
        return f"its text cannot be had ({type(raised).__name__})"
