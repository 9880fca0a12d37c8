"""Lines in files: appended in one write, torn ones ended, none longer than readers take."""

from __future__ import annotations

from pathlib import Path

import pytest

from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, LONGEST_LINE_BYTES, JournalEntry, LineFile
from wsm.journal.inputs import moved
from wsm.signals.layout import MAX_HELPERS, MAX_WORLD_SIZE
from wsm.states.epochs import Cause
from wsm.states.group import GroupState, Known, May, advance
from wsm.states.view import View
from wsm.states.words import (
    MAX_ACTION,
    MAX_EPOCH,
    MAX_SEQUENCE,
    MAX_STEP,
    CommandWord,
    CommittedWord,
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
)


def test_a_line_that_the_last_writer_left_torn_is_ended_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "made" / "rank0.ndjson"
    first, second = LineFile(path), LineFile(path)
    first.append(["one", "two"])
    with path.open("a") as torn:
        torn.write("thr")
    second.append(["four"])
    second.close()
    assert path.read_text() == "one\ntwo\nthr\nfour\n"


def test_a_file_that_cannot_be_written_is_closed_and_opened_again_with_the_next_lines(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ndjson"
    path.symlink_to("/dev/full")
    file = LineFile(path)
    with pytest.raises(OSError, match="No space left"):
        file.append(["lost"])
    path.unlink()
    file.append(["kept"])
    assert path.read_text() == "kept\n"
    file.close()
    file.close()


def test_the_input_of_the_largest_group_fits_into_a_line() -> None:
    status = StatusWord(MAX_EPOCH, MAX_SEQUENCE, StatusCode.DONE_COMMITTED, MAX_ACTION, MAX_ACTION, -2, -2)
    view = View(
        CommandWord(MAX_EPOCH - 1, MAX_SEQUENCE, Operation.COMMIT),
        [StepWord(MAX_EPOCH, MAX_SEQUENCE, StepKind.BROKEN, MAX_STEP)] * MAX_WORLD_SIZE,
        [status] * (MAX_WORLD_SIZE + MAX_HELPERS),
        CommittedWord(MAX_SEQUENCE, 1 << 37),
    )
    every = dict.fromkeys(range(MAX_WORLD_SIZE + MAX_HELPERS), Cause.ENDED)
    known, state = Known(May.KEEP, replaced=every, version="v" * 128), GroupState.of(view)
    facts = moved(view, state, known, advance(state, view, known))
    line = JournalEntry(kinds.INPUT, 1, 1, CONTROLLER, MAX_EPOCH, MAX_SEQUENCE, facts).to_line()
    assert len(line) < LONGEST_LINE_BYTES
