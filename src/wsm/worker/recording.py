"""What a worker writes down: one journal entry and one log line for each thing that happens to a command.

Knows the shapes of journal and log, and decides nothing. The last lines, words aside, stand in the group's
segment too: there they survive this process even where no file was configured. A file that cannot be
written any more, or lacks a line for want of memory, ends there: the worker goes on, and the file with the
next command, which says that lines are missing.

An entry is kept when it happens, with its time, and written as a line by :meth:`Recorder.write`: before the
rank waits, enters work of the engine, or goes back to its loop. So no word waits for a line.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import wsm
from wsm import log
from wsm.clock import Clock
from wsm.command import VERSION_HELD
from wsm.errors import WsmError, error_name
from wsm.report import FailureReport
from wsm.shared_directory import ForeignPathError, open_ours, open_to_append, trusted_in
from wsm.shortage import described
from wsm.signals.slot import LineRing
from wsm.states import journal as kinds
from wsm.states.journal import Journal, JournalEntry, TransitionRecord, transition_entry
from wsm.states.phases import Happened, Move, RankState
from wsm.states.rerun import InputLog, MakeFacts, own_tables
from wsm.states.view import View
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import StepKind

#: Characters of an error's message; an engine's own errors may quote whole tensors.
_MAX_MESSAGE = 2 * 1024

#: What the segment has no line of: the words stand there themselves, and inputs are for a replay.
_FILE_ALONE = frozenset({kinds.WORD_WRITTEN, kinds.INPUT})

#: No line of a journal is longer, in bytes.
_MAX_LINE_BYTES = 64 * 1024

_P = ParamSpec("_P")

#: Refusals that only say that there is nothing to do.
_NO_FAULTS = frozenset({VERSION_HELD})


def _never_raises(
    write: Callable[Concatenate[Recorder, _P], None],
) -> Callable[Concatenate[Recorder, _P], None]:
    """Let a shortage cost the journal its rest, and never the worker its command."""

    @functools.wraps(write)
    def kept(recorder: Recorder, /, *arguments: _P.args, **facts: _P.kwargs) -> None:
        try:
            write(recorder, *arguments, **facts)
        except (MemoryError, OSError) as error:
            recorder.lost(error)

    return kept


class Recorder:
    """Journal and log of one rank.

    Parameters
    ----------
    rank : int
        Who.
    clock : Clock
        For the times.
    directory : str or None
        Where ``rank{rank}.ndjson`` is appended to; None keeps the journal in memory only.
    """

    def __init__(self, *, rank: int, clock: Clock, directory: str | None = None) -> None:
        self._rank = rank
        self._clock = clock
        self._epoch = self._sequence = 0
        self._log = log.logger("worker", rank=rank)
        self._path: Path | None = None
        self._file: io.FileIO | None = None
        self._ring: LineRing | None = None
        self._closed, self._last = False, ""
        self._told_short: tuple[int, int, type[BaseException]] | None = None
        self._writing = threading.RLock()  # the watchdog's thread reports what it cannot end
        self._unwritten: list[tuple[JournalEntry, MakeFacts | None]] = []  # what makes an input's facts
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._path = Path(directory) / f"rank{rank}.ndjson"
        self._inputs: InputLog | None = None
        self._open_file()
        self.journal = Journal()
        self._note(kinds.STARTED, pid=os.getpid(), version=wsm.__version__, tables=own_tables())
        self.write()

    def keep_in(self, ring: LineRing) -> None:
        """From now on keep the last entries in the segment, those of this process so far included."""
        self._ring = ring
        for one in self.journal:
            ring.append(one.to_line())

    @_never_raises
    def command_seen(self, epoch: int, sequence: int, operation: str) -> None:
        """A new command was read."""
        self._epoch, self._sequence = epoch, sequence
        if self._file is None and self._path is not None:
            self._go_on()
        self._note(kinds.COMMAND_SEEN, operation=operation)
        self._log.info(log.COMMAND_SEEN, epoch=epoch, sequence=sequence, operation=operation)

    @_never_raises
    def command_admitted(self, plan: str, version: str | None) -> None:
        """The command at hand is legal here, and means this version; None: it loads none."""
        self._note(kinds.COMMAND_ADMITTED, plan=plan, version=version)

    @_never_raises
    def transition(self, record: TransitionRecord) -> None:
        """A state machine took a step."""
        self._epoch, self._sequence = record.epoch, record.sequence
        self._keep(transition_entry(record, rank=self._rank, wall_ns=self._clock.wall_ns()))
        self._log.info(
            log.TRANSITION_COMMITTED,
            epoch=record.epoch,
            sequence=record.sequence,
            machine=record.machine,
            source=record.source,
            dest=record.dest,
        )

    @_never_raises
    def action_started(self, name: str) -> None:
        """An action begins."""
        self._note(kinds.ACTION_STARTED, name=name)
        self._log.debug(log.ACTION_STARTED, action=name)

    @_never_raises
    def action_finished(self, name: str, seconds: float, version: str | None = None) -> None:
        """An action is done, and probed; `version`: what it has loaded."""
        loaded = {} if version is None else {"version": version}
        self._note(kinds.ACTION_FINISHED, name=name, seconds=seconds, **loaded)
        self._log.info(log.ACTION_FINISHED, action=name, seconds=seconds)

    @_never_raises
    def action_failed(self, name: str, error: BaseException) -> None:
        """An action, its probe or its undo raised."""
        message = (str(error) or described(error))[:_MAX_MESSAGE]
        self._note(kinds.ACTION_FAILED, name=name, error=error_name(error), message=message)
        self._log.error(log.ACTION_FAILED, action=name, error=message)

    @_never_raises
    def action_undone(self, name: str) -> None:
        """An action was taken back."""
        self._note(kinds.ACTION_UNDONE, name=name)
        self._log.info(log.ACTION_UNDONE, action=name)

    @_never_raises
    def served(self, epoch: int, sequence: int, version: str) -> None:
        """From here on steps run with this version."""
        self._epoch, self._sequence = epoch, sequence
        self._note(kinds.SERVED_VERSION, version=version)

    @_never_raises
    def command_failed(self, epoch: int, sequence: int, failure: FailureReport) -> None:
        """The rank says FAILED or REFUSED."""
        self._epoch, self._sequence = epoch, sequence
        self._note(kinds.COMMAND_FAILED, action=failure.action, error=failure.error, message=failure.message)
        told = {"epoch": epoch, "sequence": sequence}
        if failure.error in _NO_FAULTS:
            self._log.info(log.COMMAND_FINISHED, **told, outcome=f"nothing to do: {failure.message}")
        else:
            self._log.error(log.COMMAND_FAILED, **told, action=failure.action, error=failure.message)

    @_never_raises
    def wait_expired(self, epoch: int, sequence: int, error: WsmError) -> None:
        """A wait has passed its deadline."""
        self._epoch, self._sequence = epoch, sequence
        self._note(kinds.WAIT_EXPIRED, message=str(error))
        self.write()  # the loop may be blocked
        self._log.warning(log.DEADLINE_EXPIRED, epoch=epoch, sequence=sequence, error=str(error))

    @_never_raises
    def interrupted(self, epoch: int, sequence: int, why: str) -> None:
        """The communicators were broken, to call the loop out of a collective that cannot end.

        Called by another thread, so it leaves alone what the loop's own entries belong to.
        """
        clock, facts = self._clock, {"message": why}
        now = clock.monotonic_ns(), clock.wall_ns()
        self._keep(JournalEntry(kinds.INTERRUPTED, *now, self._rank, epoch, sequence, facts))
        self.write()
        self._log.warning(log.GROUPS_INTERRUPTED, epoch=epoch, sequence=sequence, why=why)

    @_never_raises
    def step_raised(self, epoch: int, step: int, error: BaseException) -> None:
        """A step raised; told before its word says so, since a keeper ends the process then."""
        where, last = "unknown", error.__traceback__
        while last is not None:  # no source is read: the word waits for this
            code = last.tb_frame.f_code
            where, last = f"{code.co_filename}:{last.tb_lineno} in {code.co_name}", last.tb_next
        told = f"{error_name(error)}: {_text_of(error)}"
        self._log.error(log.STEP_BROKEN, epoch=epoch, step=step, error=told, where=where)

    @_never_raises
    def step_broken(self, epoch: int, step: int, error: BaseException) -> None:
        """The word says that a step raised."""
        self._epoch = epoch
        message = _text_of(error) or described(error)[:_MAX_MESSAGE]
        self._note(kinds.STEP_BROKEN, step=step, error=error_name(error), message=message)

    @_never_raises
    def took(self, before: RankState, source: View | Happened, move: Move) -> None:
        """The rank has taken in what it read, or what came of its work, and has written the words of `move`.

        Inputs are kept for the file alone; the last entries in memory and segment are for people.
        """
        inputs = self._inputs  # another thread may end the file
        if inputs is not None:
            state = before
            if isinstance(source, Happened):
                found = inputs.happened(source, move)
            elif before.epoch == move.state.epoch:
                found = inputs.looked(before, source, move)
            else:
                state, found = move.state, inputs.joined(move, source)
            if found:
                now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
                sequence = state.sequence or self._sequence
                entry = JournalEntry(kinds.INPUT, now_ns, wall_ns, self._rank, state.epoch, sequence)
                with self._writing:
                    self._unwritten += [(entry, make) for make in found]
        status, step = move.status, move.step
        if status is None:
            if step is not None and step.kind is not StepKind.RUNNING:
                self._note(kinds.WORD_WRITTEN, word="step", code=step.kind.name, step=step.step)
            return
        self._epoch, self._sequence = status.epoch, status.sequence
        self._note(
            kinds.WORD_WRITTEN,
            word="status",
            code=status.code.name,
            action=status.action,
            ready=status.ready,
            weights=WeightState(status.weights).name,
            kv=KVState(status.kv).name,
            **({} if step is None else {"step": step.step}),
        )

    @_never_raises
    def cut_short(self, error: BaseException) -> None:
        """A shortage has cut short what this rank did; logged once per command and kind."""
        if self._last != kinds.SHORTAGE_MET:  # it may be met again a thousand times a second
            self._note(kinds.SHORTAGE_MET, error=described(error)[:_MAX_MESSAGE])
        told = self._epoch, self._sequence, type(error)
        if told != self._told_short:
            self._told_short = told
            self._log.warning(log.SHORTAGE_MET, error=described(error))

    def lost(self, error: BaseException) -> None:
        """A line could not be written: the journal ends with the one before it, and begins anew in memory."""
        self.journal, self._unwritten = Journal(), []
        if self._file is not None:
            with contextlib.suppress(MemoryError, OSError):
                self._log.error(log.JOURNAL_ENDED, error=described(error))
            self._end_file()

    def close(self) -> None:
        """Say that the process leaves, and close the file; the journal in memory stays. Idempotent."""
        if self._closed:
            return
        self.write()
        self._closed, self._ring = True, None
        self._say_the_end()
        self._end_file()

    @_never_raises
    def _say_the_end(self) -> None:
        self._note(kinds.ENDED)
        self.write()

    def _open_file(self) -> None:
        """Open the file, if there is one."""
        if self._path is None:
            return
        _cut_torn_line(self._path)
        # Unbuffered: a line is in the kernel's hands, and survives this process, once it is written.
        self._file = os.fdopen(open_to_append(self._path), "ab", buffering=0)
        self._inputs = InputLog()

    def _go_on(self) -> None:
        """Open the file anew that had ended, if there is room for a line; it says that lines are missing."""
        now = self._clock.monotonic_ns(), self._clock.wall_ns()
        told = {"error": "the file could not be written", "lines_lost": True}
        gap = JournalEntry(kinds.SHORTAGE_MET, *now, self._rank, self._epoch, self._sequence, told)
        data = f"{gap.to_line()}\n".encode()
        try:
            self._open_file()
            if self._file is not None and self._file.write(data) != len(data):
                self._end_file()
        except (OSError, ForeignPathError):
            self._end_file()

    def _end_file(self) -> None:
        """Close the file."""
        file, self._file, self._inputs = self._file, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _note(self, kind: str, **facts: Any) -> None:
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        self._keep(JournalEntry(kind, now_ns, wall_ns, self._rank, self._epoch, self._sequence, facts))

    def _keep(self, new: JournalEntry) -> None:
        with self._writing:
            self.journal.append(new)
            self._last = new.kind
            self._unwritten.append((new, None))

    @_never_raises
    def write(self) -> None:
        """Write the lines of what was kept since the last call; costs nothing where there is none."""
        if not self._unwritten:
            return
        with self._writing:
            entries, self._unwritten = self._unwritten, []
            written: list[str] = []
            told: list[str] = []
            for entry, make in entries:
                alone = entry.kind in _FILE_ALONE
                if alone and self._file is None:
                    continue
                line = (entry if make is None else entry._replace(facts=make())).to_line()
                written.append(line)
                if not alone:
                    told.append(line)
            if self._file is not None:
                data = "\n".join([*written, ""]).encode()
                try:
                    short = self._file.write(data) != len(data)  # one call of the kernel
                    problem = os.strerror(errno.ENOSPC) if short else ""
                except OSError as error:
                    problem = str(error)
                if problem:
                    self._log.error(log.JOURNAL_ENDED, error=problem)
                    self._end_file()
            if self._ring is not None and told:
                self._ring.append(*told)


def _cut_torn_line(path: Path) -> None:
    """Cut off what a killed predecessor left of its last line: no reader could make sense of what follows."""
    with contextlib.suppress(OSError, ForeignPathError), os.fdopen(_to_cut(path), "rb+") as journal:
        end = journal.seek(0, os.SEEK_END)
        begin = max(end - _MAX_LINE_BYTES, 0)
        journal.seek(begin)
        tail = journal.read(_MAX_LINE_BYTES)  # what is no regular file may have no end
        if tail and not tail.endswith(b"\n"):
            journal.truncate(begin + tail.rfind(b"\n") + 1)


def _to_cut(path: Path) -> int:
    return open_ours(path, also=trusted_in(path.parent))


def _text_of(error: BaseException) -> str:
    """Return what an error says; the word that a step broke must follow, whatever an engine's str() does."""
    try:
        return str(error)[:_MAX_MESSAGE]
    except Exception as raised:  # noqa: BLE001 - another's code, of which anything may come
        return f"its text cannot be had ({type(raised).__name__})"
