"""What outlives its command: the record of what a group has committed, and what ranks said of the load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from living_group import eventually
from msgspec import structs
from recovered_group import recovered

from tests.labels import labels
from tests.raising import raising
from tests.segment_bytes import damage_records
from wsm import Outcome, Tag
from wsm.command import LABEL_MEANT, WITHOUT_WEIGHTS, RankReport
from wsm.committed_record import (
    CommittedRecord,
    CommittedRecordError,
    commit_report,
    committed_record,
    content_digest,
    named_by,
    place_to_write,
    write_record,
)
from wsm.controller.errors import CommandRefusedError
from wsm.signals.segment import Segment
from wsm.states.holding import Hold
from wsm.status import explain, read_facts

named = st.none() | labels()
holds = st.none() | st.builds(Hold, st.text(max_size=8), st.text(max_size=8))
records = st.builds(CommittedRecord, st.integers(1, 2**24 - 1), named, named, st.integers(0, 99), holds)


@pytest.fixture
def segment(tmp_path):
    with Segment.create_or_adopt(
        "records", world_size=1, run_id="r", configuration_digest=1, directory=tmp_path
    ) as segment:
        yield segment
        segment.unlink()


def commit(segment: Segment, record: CommittedRecord) -> CommittedRecord:
    written = write_record(segment, 1, record)
    segment.words[segment.layout.committed] = record.word.pack()
    return written


@given(records)
def test_a_record_is_read_as_it_was_written(record):
    assert CommittedRecord.from_bytes(record.sequence, record.revision, record.to_bytes()) == record


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"version": 7, "digest": null, "load_sequence": 1, "hold": null}']
)
def test_what_is_no_record_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        CommittedRecord.from_bytes(1, 1, data)


@given(st.lists(records, min_size=1, max_size=6))
def test_a_death_before_the_word_leaves_what_was_committed(commits):
    """The next record is never written where the present one stands."""
    slots: list[CommittedRecord | None] = [None, None]
    word = CommittedRecord(0).word
    for revision, commit in enumerate(commits):
        record = structs.replace(commit, revision=revision)
        before = named_by(word, slots)
        kept = None if before is None else slots[before]
        slots[place_to_write(word, slots)] = record
        if before is not None:
            assert slots[before] == kept
        word = record.word
        assert slots[named_by(word, slots)] == record


def test_a_new_segment_has_committed_nothing(segment):
    assert committed_record(segment).version is None


def test_a_revision_of_the_same_commit_counts_from_its_writing_on_and_a_torn_one_does_not(segment):
    first = commit(segment, CommittedRecord(5, "7", load_sequence=5, hold=Hold("h", "o", renewed_ns=1)))
    for renewed in (2, 3, 4):
        write_record(segment, 1, structs.replace(first, hold=Hold("h", "o", renewed_ns=renewed)))
        assert committed_record(segment).hold == Hold("h", "o", renewed_ns=renewed)
    assert committed_record(segment).revision == first.revision + 3
    place = next(place for place, slot in enumerate(segment.records) if slot.last()[0][2] == 4)
    damage_records(segment, place)
    assert committed_record(segment).hold == Hold("h", "o", renewed_ns=3)


def test_a_word_without_its_record_is_an_error_that_names_a_way_on(segment):
    commit(segment, CommittedRecord(5, "7", load_sequence=5))
    damage_records(segment)
    with raising(CommittedRecordError, match=r"command 5 .*wsm update --version"):
        committed_record(segment)
    commit(segment, CommittedRecord(6, "8", load_sequence=6))
    assert committed_record(segment).version == "8"


def test_what_the_ranks_said_of_a_load_outlives_every_command_that_loads_nothing(make_group):
    group = make_group()
    with group.boot() as controller:
        group.publish(2)
        controller.clear(tags={Tag.KV_CACHE})
        with raising(CommandRefusedError, match="no snapshot found"):
            controller.update(99)
        receipt = controller.update(tags={Tag.KV_CACHE})
        assert receipt.sequence == 4
        with Segment.attach(group.name, directory=group.directory) as segment:
            record = committed_record(segment)
            assert (record.sequence, record.version, record.load_sequence) == (4, "1", 1)
            found = [commit_report(segment, rank, 1) for rank in range(2)]
        digests = {rank: report.digest for rank, report in enumerate(found)}
        assert digests == dict(group.published[1].digests)
        again = controller.update(1)
        assert (again.outcome, again.sequence) == (Outcome.ALREADY_SERVED, 1)
        assert {report.rank: report.digest for report in again.ranks} == digests
    group.stop()
    group.assert_journals_are_possible()


def test_a_group_whose_record_is_lost_says_so_serves_on_and_is_healed_by_a_load(make_group):
    group = make_group(load=0.3)
    with group.boot() as controller, Segment.attach(group.name, directory=group.directory) as segment:
        group.publish(2)
        damage_records(segment)
        told = explain(read_facts(group.name, segment, lock_file=segment.lock_file))
        assert "does not know any more which version" in told.headline
        assert "--version" in " ".join(told.advice)
        group.await_steps()
        controller.clear(tags={Tag.KV_CACHE})
        with raising(CommittedRecordError):
            controller.update(tags={Tag.KV_CACHE})
        assert controller.update(2).version == "2"
        assert committed_record(segment).version == "2"
        group.await_steps()
    group.stop()
    group.assert_journals_are_possible()


def test_an_epoch_begins_without_the_record_and_the_group_stays_cleared_until_it_is_updated(make_group):
    group = make_group()
    with recovered(group) as kept:
        group.boot()
        group.publish(2)
        with Segment.attach(group.name, directory=group.directory) as segment:
            damage_records(segment)
        kept.kill(1)
        assert kept.recover(1) is None
        controller = group.controllers[0]
        eventually(lambda: controller.status().over)
        assert controller.status().state == "CLEARED"
        assert controller.update(2).version == "2"


def loaded(rank: int, digest: str, meant: str | None, manifest: str | None = None) -> RankReport:
    scope = {} if manifest is None else {"manifest_scope": "group"}
    facts = {} if meant is None else {LABEL_MEANT: meant}
    return RankReport(rank, version="a", manifest_digest=manifest, digest=digest, facts={**facts, **scope})


def test_the_content_of_a_label_has_a_digest_once_the_label_has_meant_another():
    new, same = CommittedRecord(1), CommittedRecord(1, "a")
    reports = [loaded(0, "x", "x"), loaded(1, "y", "z")]
    assert content_digest([loaded(0, "x", None), loaded(1, "y", None)], "a", new) is None
    assert content_digest([loaded(0, "x", "x"), loaded(1, "y", "y")], "a", same) is None
    digest = content_digest(reports, "a", same)
    assert digest is not None
    helper = RankReport(2, facts={WITHOUT_WEIGHTS: True})
    assert content_digest([*reports, helper], "a", same) == digest
    assert content_digest([loaded(0, "x", None), loaded(1, "w", "z")], "a", same) != digest
    known = structs.replace(same, content_digest=digest)
    assert content_digest([loaded(0, "x", None), loaded(1, "y", None)], "a", known) == digest
    assert content_digest([loaded(0, "x", None), loaded(1, "y", None)], "b", known) is None
    assert content_digest([loaded(0, "x", "w", "m"), loaded(1, "y", "y", "m")], "a", same) == "m"
