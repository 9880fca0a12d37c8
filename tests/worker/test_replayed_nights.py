"""What real ranks and controllers have read is run through the core again, and it answers as it did."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from lone_rank import LoneRank
from recovered_group import recovered

import wsm
from wsm.controller.errors import RankFailedError, RankLostError
from wsm.journal import entry as kinds
from wsm.journal import inputs as core
from wsm.journal import replay
from wsm.journal.entry import INPUT, SCHEMA, JournalEntry, iterate_ndjson
from wsm.journal.replay import Replay
from wsm.states import joint, phases, rank
from wsm.states.phases import LookRow, Phase, Todo
from wsm.states.words import WORDS_VERSION, StatusCode


def entries_of(path: Path) -> list[JournalEntry]:
    with path.open() as lines:
        return list(iterate_ndjson(lines))


def replayed(path: Path, *, version: str = wsm.__version__) -> Replay:
    found = Replay(version)
    for entry in entries_of(path):
        found.take(entry)
    return found


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """The journal of a rank that is loaded, updated in place and hot, and cleared."""
    lone = LoneRank(tmp_path, journal_directory=tmp_path / "journals")
    lone.update(1)
    for _ in range(50):
        lone.worker.poll()
        with lone.worker.step():
            pass
    lone.update(2)
    lone.update(3, hot=True)
    lone.clear()
    lone.close()
    return tmp_path / "journals" / "rank0.ndjson"


def test_a_night_of_one_rank_is_answered_as_it_was(night: Path) -> None:
    found = replayed(night)
    assert found.inputs > 40
    assert (found.findings, found.gaps, found.other_builds) == ([], [], [])


def test_the_schema_of_lines_changes_with_the_fields_of_words() -> None:
    """Inputs are lists of these fields: another build's would be read wrongly."""
    assert (SCHEMA, WORDS_VERSION) == (2, 3), "a change of the second is one of the first"


def test_steps_and_looks_that_change_nothing_are_not_written(tmp_path: Path) -> None:
    lone = LoneRank(tmp_path, journal_directory=tmp_path / "journals")
    lone.update(1)
    path = tmp_path / "journals" / "rank0.ndjson"
    before = path.stat().st_size
    for _ in range(1000):
        lone.worker.poll()
        with lone.worker.step():
            pass
    assert path.stat().st_size == before
    lone.close()
    assert replayed(path).findings == []


def test_the_segment_has_no_line_of_inputs_and_the_journal_in_memory_is_replayed_as_well(
    tmp_path: Path,
) -> None:
    lone = LoneRank(tmp_path, journal_directory=tmp_path / "journals")
    lone.update(1)
    kept = {entry.kind for entry in lone.segment.journals[0].entries()}
    assert not kept & {kinds.INPUT, kinds.WORD_WRITTEN}
    lone.close()
    found = replay.replay(lone.worker.journal)
    assert (found.findings, found.inputs) == ([], replayed(tmp_path / "journals" / "rank0.ndjson").inputs)


def changed(todo: Todo) -> tuple[LookRow, ...]:
    """The table with another thing to do behind PREPARED, once the group has committed."""
    return tuple(
        dataclasses.replace(row, todo=todo) if row.phase is Phase.PREPARED and row.to is not None else row
        for row in phases.LOOKS
    )


def test_a_changed_row_of_the_core_is_found_at_the_first_input_that_takes_it(
    night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = changed(Todo.UNDO)
    monkeypatch.setattr(phases, "LOOKS", rows)
    monkeypatch.setattr(rank, "ROWS", rank.by_phase(rows))
    monkeypatch.setattr(replay, "own_tables", core.tables_digest)
    found = replayed(night)
    (finding,) = found.findings
    assert finding.entry.facts["todo"] == Todo.COMMIT.value
    assert "undo" in finding.reason
    first = next(
        index for index, entry in enumerate(entries_of(night)) if entry.facts.get("todo") == Todo.COMMIT.value
    )
    assert finding.index == first
    assert len(found.other_builds) == 1, "the other table is named, too"


def test_a_changed_rule_between_the_machines_is_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {core.tables_digest()}
    for name, changed_rules in (("NEEDS", joint.NEEDS[1:]), ("FORBIDDEN", {})):
        monkeypatch.setattr(joint, name, changed_rules)
        digest = core.tables_digest()
        assert digest not in known
        known.add(digest)


def test_another_version_is_named_although_it_answers_alike(night: Path) -> None:
    found = replayed(night, version="9.9")
    assert found.findings == []
    assert "and this is version 9.9" in found.other_builds[0]


@pytest.mark.slow_but
@pytest.mark.parametrize(
    "facts", [{}, {"look": {}}, {"look": {"command": "zz"}}, {"happened": {"event": "DANCE"}}]
)
def test_an_input_that_no_build_writes_is_a_difference_and_no_crash(
    night: Path, facts: dict[str, object]
) -> None:
    entries = entries_of(night)
    place = [index for index, entry in enumerate(entries) if entry.kind == INPUT][3]
    entries[place] = msgspec.structs.replace(entries[place], facts=facts)
    found = Replay(wsm.__version__)
    for entry in entries:
        found.take(entry)
    assert [one.index for one in found.findings] == [place]


def test_a_journal_without_inputs_has_none() -> None:
    found = Replay(wsm.__version__)
    found.take(JournalEntry("started", 1, 1, 0, 0, 0, {"pid": 1}))
    assert (found.inputs, found.gaps, found.other_builds) == (0, [], [])


@pytest.mark.processes
def test_a_night_of_a_group_with_an_abort_a_killed_rank_and_a_restore_is_answered_as_it_was(
    make_group,
) -> None:
    group = make_group(load=0.5)
    journals = group.directory / "journals"
    group.publish(1)
    group.publish(2)
    with recovered(group) as kept:
        group.start()
        controller = group.controller(journal_directory=journals)
        controller.update(1)
        group.await_steps()
        group.order(1, "write", "raise once")
        with pytest.raises(RankFailedError):
            controller.update(2)
        controller.update(2)
        controller.update(1, hot=True)
        controller.clear()
        controller.update(2)
        group.order(1, "release", "hold")
        pending = controller.begin_clear()
        pending.written(10)
        group.await_held(1, "release")
        kept.kill(1)
        with pytest.raises(RankLostError):
            pending.result(60)
        group.revoke(1, "release")
        controller.close()
        kept.recover(1)
    first, second = (replayed(journals / f"rank{rank}.ndjson") for rank in range(2))
    assert min(first.inputs, second.inputs) > 60
    assert (first.findings, second.findings, first.gaps) == ([], [], [])
    (gap,) = second.gaps
    assert "another process took its place" in gap
    assert replayed(journals / "controller.ndjson").findings == []
    answers = [one.facts["answer"] for one in entries_of(journals / "controller.ndjson") if one.kind == INPUT]
    assert {name for answer in answers for name in answer} >= {"arguments", "committed", "command"}


def test_what_a_kill_took_away_is_a_gap(night: Path) -> None:
    lines = night.read_text().splitlines(keepends=True)
    prepared = next(
        index for index, line in enumerate(lines) if f'"code":"{StatusCode.PREPARED.name}"' in line
    )
    night.write_text("".join(lines[:prepared] + lines))
    found = replayed(night)
    assert found.findings == []
    (gap,) = found.gaps
    assert gap.endswith(f"another process took its place (entry {prepared})")
