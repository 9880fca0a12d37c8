"""Damage to the journal of a real rank, a line at a time: each gets the one finding that is expected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

# The lone rank is shared with the tests of the worker, and pytest finds it by itself only there.
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from lone_rank import LoneRank

from wsm.controller.errors import RankFailedError
from wsm.journal import entry as kinds
from wsm.journal.entry import JournalEntry
from wsm.journal.replay import replay
from wsm.states.phases import Todo
from wsm.states.vocabulary import Tag
from wsm.states.words import StatusCode

Entries = list[JournalEntry]

#: What no other entry depends on, so that its absence is not noticed.
_UNTOLD = (kinds.COMMAND_SEEN, kinds.COMMAND_ADMITTED, kinds.ENDED, kinds.ACTION_UNDONE)


def lived(directory: Path) -> Entries:
    """What a rank writes that is loaded, updated in place and hot, cleared by halves, and fails once."""
    lone = LoneRank(directory)
    for version in (1, 2):
        lone.update(version)
    lone.update(3, hot=True)
    lone.clear(tags=[Tag.KV_CACHE])
    lone.update(None, tags=[Tag.KV_CACHE])
    working = lone.runner.weights.writable
    lone.runner.weights.writable = _broken
    with pytest.raises(RankFailedError):
        lone.update(4)
    lone.runner.weights.writable = working
    lone.update(5)
    lone.clear()
    lone.close()
    return list(lone.worker.journal)


def _broken(name: str) -> memoryview:
    raise OSError(f"{name} cannot be written")


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Entries:
    return lived(tmp_path_factory.mktemp("life"))


def place(entries: Sequence[JournalEntry], kind: str, nth: int = 0, **facts: Any) -> int:
    found = [
        index
        for index, entry in enumerate(entries)
        if entry.kind == kind and facts.items() <= entry.facts.items()
    ]
    return found[nth]


def with_facts(entries: Entries, index: int, **facts: Any) -> Entries:
    changed = msgspec.structs.replace(entries[index], facts={**entries[index].facts, **facts})
    return [*entries[:index], changed, *entries[index + 1 :]]


def reasons(entries: Sequence[JournalEntry]) -> list[str]:
    return [finding.reason for finding in replay(entries).findings]


def test_what_the_rank_wrote_has_no_finding_and_an_end(life: Entries) -> None:
    result = replay(life)
    assert (result.findings, result.gaps, result.open_ends) == ([], [], {})


def test_a_word_that_says_where_a_rank_stands_has_the_step(life: Entries) -> None:
    assert {entry.facts["code"] for entry in life if _is_word(entry) and entry.facts.get("step") == 0} == {
        "ATTACHED",
        "PARKING",
    }


def test_a_line_that_is_missing_is_found_whichever_it_is(life: Entries) -> None:
    last_word = max(index for index, entry in enumerate(life) if entry.kind == kinds.WORD_WRITTEN)
    unfound = [
        f"{index}: {entry}"
        for index, entry in enumerate(life)
        if index not in (0, last_word)
        and entry.kind not in _UNTOLD
        and not _changes_nothing(entry)
        and len(reasons(life[:index] + life[index + 1 :])) != 1
    ]
    assert unfound == []
    (end,) = replay(life[:last_word] + life[last_word + 1 :]).open_ends.values()
    assert "leaves in RUNNING of command" in end


@pytest.mark.slow
def test_a_line_that_stands_twice_is_found_whichever_it_is(life: Entries) -> None:
    untold = (kinds.COMMAND_ADMITTED, kinds.STARTED, kinds.COMMAND_FAILED, kinds.ACTION_UNDONE)
    twice = [
        f"{index}: {entry}"
        for index, entry in enumerate(life)
        if entry.kind not in untold
        and len(reasons([*life[: index + 1], *life[index:]])) != 1
        and not (entry.kind == kinds.TRANSITION and _changes_nothing(entry))
        and index != len(life) - 1
    ]
    assert twice == []


def _changes_nothing(entry: JournalEntry) -> bool:
    """Whether neither state nor word follows from an entry: a look tells then what is to be done."""
    facts = entry.facts
    if entry.kind == kinds.INPUT:
        return facts["todo"] in (Todo.DRAIN, Todo.ACCEPT, Todo.FINISH, Todo.STAGE)
    return entry.kind == kinds.TRANSITION and facts["source"] == facts["dest"]


def test_a_word_with_another_code_is_found(life: Entries) -> None:
    words = {
        entry.facts["code"]: index for index, entry in reversed(list(enumerate(life))) if _is_word(entry)
    }
    unfound = {
        (said, code)
        for said, index in words.items()
        for code in StatusCode.__members__
        if code != said and len(reasons(with_facts(life, index, code=code))) != 1
    }
    # How an abort ends depends on the other ranks too, which the journal of one rank does not know.
    aborted = {"STOPPED_TOUCHED", "STOPPED_UNTOUCHED", "DONE_KEPT"}
    assert {pair for pair in unfound if not aborted & set(pair)} == set()


def _is_word(entry: JournalEntry) -> bool:
    return entry.kind == kinds.WORD_WRITTEN and entry.facts["word"] == "status"


DAMAGE: dict[str, tuple[Callable[[Entries], Entries], str]] = {
    "another version is served": (
        lambda life: with_facts(life, place(life, kinds.SERVED_VERSION, 1), version="7"),
        "version 7 was served, and version 2 was loaded",
    ),
    "another version is loaded": (
        lambda life: with_facts(life, place(life, kinds.ACTION_FINISHED, name="load_weights"), version="7"),
        "version 7 was loaded, and the command asks for version 1",
    ),
    "another version is asked for": (
        lambda life: with_facts(life, place(life, kinds.COMMAND_ADMITTED, 1), version="7"),
        "version 2 was loaded, and the command asks for version 7",
    ),
    "a version is served that no commit brought": (
        lambda life: [
            *life[:-1],
            msgspec.structs.replace(life[place(life, kinds.SERVED_VERSION)], at_ns=life[-1].at_ns),
        ],
        "the sequence went back",
    ),
    "another operation is seen": (
        lambda life: with_facts(life, place(life, kinds.COMMAND_SEEN), operation="CLEAR"),
        "CLEAR was seen, and the core took in ('UPDATE', 1)",
    ),
    "no operation is seen": (
        lambda life: with_facts(life, place(life, kinds.COMMAND_SEEN), operation="DANCE"),
        "DANCE was seen",
    ),
    "the word names another action": (
        lambda life: with_facts(life, place(life, kinds.WORD_WRITTEN, code="RUNNING"), action=3),
        "the core answers",
    ),
    "the word claims another state": (
        lambda life: with_facts(life, place(life, kinds.WORD_WRITTEN, code="ACCEPTED"), weights="NORMAL"),
        "the word claims weights NORMAL, and it was UPDATING",
    ),
    "a failure is told as none": (
        lambda life: with_facts(life, place(life, kinds.WORD_WRITTEN, code="FAILED"), code="DONE_KEPT"),
        "the word says DONE_KEPT, and a failure was written down",
    ),
    "an input is of nothing": (
        lambda life: [
            *life[: place(life, kinds.INPUT, 1)],
            msgspec.structs.replace(
                life[place(life, kinds.INPUT, 1)], facts={"todo": "wait", "phase": "serving"}
            ),
            *life[place(life, kinds.INPUT, 1) + 1 :],
        ],
        "it is no input that this build writes",
    ),
    "an action without its word": (
        lambda life: [
            entry
            for index, entry in enumerate(life)
            if index != place(life, kinds.WORD_WRITTEN, code="RUNNING")
        ],
        "began, and the core did not say so",
    ),
    "a line behind the end": (
        lambda life: [*life, life[-1]],
        "the process had said that it ends",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(life: Entries, damage: str) -> None:
    spoil, expected = DAMAGE[damage]
    (reason,) = reasons(spoil(life))
    assert expected in reason


def test_a_journal_that_breaks_off_is_said_to_have_no_end(life: Entries) -> None:
    inside = place(life, kinds.ACTION_STARTED, 1, name="load_weights") + 1
    result = replay(life[:inside])
    assert result.findings == []
    (end,) = result.open_ends.values()
    assert "ends in load_weights of command 2, epoch 1; it runs still, was killed" in end


def test_a_process_that_another_one_followed_without_an_end_is_named_in_order(life: Entries) -> None:
    inside = place(life, kinds.WORD_WRITTEN, code="PREPARED") + 1
    result = replay([*life[:inside], *life])
    assert result.findings == []
    assert [gap.partition(" ends ")[2] for gap in result.gaps] == [
        f"in PREPARED of command 1, epoch 1, and another process took its place (entry {inside})"
    ]


def test_findings_of_two_processes_are_told_in_order(life: Entries) -> None:
    spoilt = DAMAGE["another version is served"][0](life)
    assert len(reasons([*spoilt, *spoilt])) == 2
