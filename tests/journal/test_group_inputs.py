"""What a process that looks after a group was told to do is asked again, with all that it knew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry, read_ndjson
from wsm.journal.inputs import ViewFacts, moved
from wsm.journal.replay import replay
from wsm.states.decide import Role
from wsm.states.epochs import Cause
from wsm.states.group import GroupState, GroupTodo, Known, May, Opens, advance
from wsm.states.holding import Hold
from wsm.states.view import View
from wsm.states.vocabulary import OnLease
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

SERVED = View(
    CommandWord(1, 1, Operation.COMMIT),
    [StepWord(1, 1, StepKind.RUNNING, 7)] * 2,
    [StatusWord(1, 1, StatusCode.DONE_COMMITTED, weights=0, kv=0)] * 2,
    CommittedWord(1, 5),
)
STATE = GroupState.of(SERVED)
KEEPER = Known(May.KEEP, Role.FREE, version="7", committed="7", dead=frozenset({1}))
DRIVER = Known(May.DRIVE, wanted=Opens(Operation.UPDATE), committed="7", now_ns=17)
HELD = replace(SERVED, committed=CommittedWord(1, 5, held=True))
HOLD = Hold("h", "its owner", lease_s=2.0, on_lease=OnLease.SERVE)
LAPSED = Known(May.KEEP, committed="7", hold=HOLD, now_ns=3_000_000_000)
ENDS = Known(May.KEEP, Role.FREE, replaced={1: Cause.ENDED}, committed="7")


PLAIN_HOLD = msgspec.to_builtins(HOLD)


def entry_of(known: Known, view: View = SERVED, state: GroupState = STATE) -> JournalEntry:
    facts = moved(view, state, known, advance(state, view, known))
    written = JournalEntry(kinds.INPUT, 1, 1, CONTROLLER, view.command.epoch, view.command.sequence, facts)
    (read,) = read_ndjson([written.to_line() + "\n"])
    return read


@pytest.mark.parametrize("known", [KEEPER, DRIVER, ENDS])
def test_what_was_answered_is_answered_again(known: Known) -> None:
    found = replay([entry_of(known)])
    assert (found.findings, found.inputs) == ([], 1)


def test_what_is_as_by_default_is_not_written() -> None:
    assert set(entry_of(ENDS).facts["known"]) == {"may", "role", "replaced", "committed"}


def test_of_a_view_only_what_is_another_than_in_the_last_one_is_written() -> None:
    step = StepWord(1, 1, StepKind.RUNNING, 8)
    view = replace(SERVED, steps=[SERVED.steps[0], step])
    assert ViewFacts.of(view, SERVED) == ViewFacts(steps={1: step})


CHANGES: dict[str, tuple[Known, dict[str, Any]]] = {
    "a death": (KEEPER, {"known": {"may": "keep", "role": "free"}}),
    "the process that is replaced": (ENDS, {"known": {"may": "keep", "role": "free"}}),
    "the role": (DRIVER, {"known": {"may": "drive", "role": "stalled"}}),
    "the words": (DRIVER, {"look": {"command": [1, 2, 1, 0, False]}}),
    "the answer": (KEEPER, {"answer": {"todo": GroupTodo.WAIT.value}}),
    "the kind of process": (ENDS, {"known": {"may": "observe"}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_input_differs_at_its_line(change: str) -> None:
    known, changed = CHANGES[change]
    written = entry_of(known)
    entries = [written, msgspec.structs.replace(written, facts={**written.facts, **changed}), written]
    (found,) = replay(entries).findings
    assert (found.index, found.of_core) == (1, True)


@pytest.mark.parametrize("changed", [{"now_ns": 1_000_000_000}, {"hold": {**PLAIN_HOLD, "lease_s": 5.0}}])
def test_another_time_or_another_lease_keeps_the_hold(changed: dict[str, Any]) -> None:
    written = entry_of(LAPSED, HELD)
    assert written.facts["answer"]["command"][2] == Operation.RELEASE
    assert replay([written]).findings == []
    known = {**written.facts["known"], **changed}
    (found,) = replay([msgspec.structs.replace(written, facts={**written.facts, "known": known})]).findings
    assert found.of_core
