"""Replay: what a rank really did is accepted, and the first thing that it cannot have done is named."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from wsm.journal.entry import CONTROLLER, JournalEntry, transition_entry
from wsm.journal.replay import replay
from wsm.states.joint import START, JointState
from wsm.states.machine import LifeCycle, TransitionRecord
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState


class Rank:
    """A rank that journals what its real life cycle does."""

    def __init__(self, rank: int = 0, *, clock: itertools.count[int] | None = None) -> None:
        self.rank = rank
        self.clock = clock or itertools.count(1)
        self.entries: list[JournalEntry] = []
        self.epoch, self.sequence = 1, 0
        self.life = LifeCycle()

    def note(self, kind: str, **facts: Any) -> None:
        now = next(self.clock)
        self.entries.append(JournalEntry(kind, now, now, self.rank, self.epoch, self.sequence, facts))

    def fire(self, *events: WeightEvent | KVEvent, **flags: bool) -> None:
        for event in events:
            now = next(self.clock)
            record = self.life.fire(event, at_ns=now, epoch=self.epoch, sequence=self.sequence, **flags)
            self.entries.append(transition_entry(record, rank=self.rank, wall_ns=now))

    def act(self, name: str, **facts: Any) -> None:
        self.note("action_started", name=name)
        self.note("action_finished", name=name, seconds=0.0, **facts)

    def say(self, code: str, *, action: int = 0, **facts: Any) -> None:
        """Write the status word."""
        claims = {"weights": self.life.weights.name, "kv": self.life.kv.name}
        self.note("word_written", word="status", code=code, action=action, ready=0, **claims, **facts)

    def stand(self, operation: str, version: str | None, *events: WeightEvent | KVEvent) -> None:
        """Begin a command, up to where all stand."""
        self.sequence += 1
        self.note("command_seen", operation=operation)
        self.note("command_admitted", plan=operation.lower(), version=version)
        self.say("DRAINING")
        self.say("PARKING", step=self.sequence)
        self.fire(*events)
        self.say("ACCEPTED")
        self.say("RUNNING")

    def update(self) -> None:
        self.stand("UPDATE", str(self.sequence + 1), WeightEvent.UPDATE)
        self.act("load_weights", version=str(self.sequence))
        self.fire(KVEvent.UPDATE)
        self.say("RUNNING", action=1)
        self.act("rebuild_kv_cache")
        self.fire(KVEvent.REBUILT, WeightEvent.PREPARED)
        self.say("PREPARED", action=2)
        self.fire(WeightEvent.COMMIT)
        self.say("DONE_COMMITTED", action=2)
        self.note("served_version", version=str(self.sequence))

    def clear(self) -> None:
        self.stand("CLEAR", None, WeightEvent.CLEAR, KVEvent.CLEAR)
        self.act("release_weights")
        self.fire(KVEvent.CLEARED, WeightEvent.CLEARED)
        self.say("DONE_CLEARED", action=1)

    def fail_an_update_in_place(self) -> None:
        self.stand("UPDATE", str(self.sequence + 1), WeightEvent.UPDATE)
        self.note("action_started", name="load_weights")
        self.note("action_failed", name="load_weights", error="OSError", message="gone")
        self.note("command_failed", action="load_weights", error="OSError", message="gone")
        self.say("FAILED")
        self.note("action_failed", name="undo_load_weights", error="OSError", message="gone too")
        self.say("STOPPED_UNTOUCHED")
        self.fire(WeightEvent.ABORT, kept=True)
        self.say("DONE_KEPT")

    def join(self) -> None:
        self.note("word_written", word="status", code="ATTACHED", step=0)

    def be_lost(self) -> None:
        self.fire(WeightEvent.CLEAR, KVEvent.CLEAR, KVEvent.CLEARED, WeightEvent.CLEARED)
        self.fire(KVEvent.LOST, WeightEvent.LOST)
        self.epoch += 1
        self.join()


def lived() -> Rank:
    rank = Rank()
    rank.note("started", pid=1)
    rank.join()
    rank.update()
    rank.fail_an_update_in_place()
    rank.clear()
    rank.update()
    rank.be_lost()
    rank.update()
    rank.note("ended")
    return rank


def test_a_real_life_is_accepted_to_its_end() -> None:
    rank = lived()
    result = replay(rank.entries)
    assert result.impossible is None
    assert result.entries == len(rank.entries)
    assert result.states == {0: rank.life.joint}


@pytest.mark.parametrize("begin", range(1, 104))
def test_what_a_ring_kept_of_a_real_life_is_accepted_wherever_it_begins(begin: int) -> None:
    rank = lived()
    result = replay(rank.entries[begin:])
    assert result.impossible is None, str(result.impossible)


def test_journals_of_several_ranks_may_be_interleaved_or_follow_each_other() -> None:
    clock = itertools.count(1)
    ranks = [Rank(0, clock=clock), Rank(1, clock=clock)]
    for rank in ranks:
        rank.update()
    for rank in ranks:
        rank.clear()
    one_after_the_other = [entry for rank in ranks for entry in rank.entries]
    interleaved = sorted(one_after_the_other, key=lambda entry: entry.at_ns)
    for entries in (one_after_the_other, interleaved):
        result = replay(entries)
        assert result.impossible is None
        assert result.states == {0: START, 1: START}


def test_a_process_that_takes_a_dead_ones_place_starts_with_nothing() -> None:
    first = Rank()
    first.update()  # killed while it serves
    second = Rank(clock=first.clock)
    second.epoch, second.sequence = 2, 1
    second.join()
    second.update()
    assert replay(first.entries + second.entries).impossible is None


def test_an_interruption_is_told_by_another_thread_and_may_stand_a_little_late() -> None:
    rank = Rank()
    rank.update()
    earlier = rank.entries[3].at_ns
    told = JournalEntry("interrupted", earlier, earlier, 0, 1, 1, {"message": "rank 1 is gone"})
    rank.entries[-1:] = [told, rank.entries[-1], told]  # between the commit and what it serves, too
    rank.clear()
    assert replay(rank.entries).impossible is None


def test_a_ring_that_never_tells_of_the_kv_cache_knows_what_an_update_began_with() -> None:
    rank = Rank()
    rank.fire(WeightEvent.UPDATE, WeightEvent.PREPARED, WeightEvent.COMMIT, WeightEvent.UPDATE)
    rank.fire(KVEvent.UPDATE, KVEvent.REBUILT, WeightEvent.PREPARED)
    rank.fire(WeightEvent.ABORT, kept=True)
    assert replay(rank.entries).impossible is None


def test_a_process_that_says_so_may_begin_its_numbers_anew() -> None:
    first, second = Rank(), Rank()
    first.update()
    first.clear()
    second.note("started", pid=2)
    second.join()
    second.update()
    assert replay(first.entries + second.entries).impossible is None


def spoil(index: int, **changes: Any) -> list[JournalEntry]:
    """A real life with one entry changed."""
    entries = lived().entries
    facts = {**entries[index].facts, **changes.pop("facts", {})}
    entries[index] = msgspec.structs.replace(entries[index], facts=facts, **changes)
    return entries


def index_of(kind: str, nth: int = 0, **facts: Any) -> int:
    found = [
        index
        for index, entry in enumerate(lived().entries)
        if entry.kind == kind and facts.items() <= entry.facts.items()
    ]
    return found[nth]


@pytest.mark.parametrize(
    ("index", "changes", "reason"),
    [
        (
            index_of("transition", event="commit"),
            {"facts": {"dest": "CLEARED"}},
            "no row PREPARED commit CLEARED",
        ),
        (index_of("transition", event="commit"), {"facts": {"source": "UPDATING"}}, "weights was PREPARED"),
        (
            index_of("transition", event="commit"),
            {"facts": {"event": "explode"}},
            "names what weights has not",
        ),
        (index_of("transition", event="commit"), {"facts": {"machine": "brakes"}}, "no machine 'brakes'"),
        (index_of("transition", event="commit"), {"facts": {"machine": ["kv"]}}, "no machine"),
        (
            index_of("transition", event="abort"),
            {"facts": {"guard": "dropped"}},
            "no row UPDATING abort NORMAL",
        ),
        (index_of("transition", event="abort"), {"facts": {"guard": None}}, "no row UPDATING abort NORMAL"),
        (index_of("command_seen", 1), {"at_ns": 1}, "before the entry before it"),
        (index_of("command_seen", 1), {"epoch": 0}, "epoch went back from 1 to 0"),
        (index_of("served_version", 1), {"sequence": 1}, "sequence went back from 4 to 1"),
        (index_of("action_finished"), {"facts": {"name": "other"}}, "'load_weights' was running"),
        (index_of("action_finished"), {"kind": "action_started"}, "started while 'load_weights' was running"),
        (index_of("action_started", 1), {"kind": "action_finished"}, "and none was running"),
        (index_of("action_failed"), {"facts": {"name": "undo_it"}}, "'load_weights' was running"),
        (index_of("action_failed", 1), {"kind": "action_finished"}, "and none was running"),
        (
            index_of("action_started", name="release_weights"),
            {"kind": "served_version", "facts": {"version": "7"}},
            "version 7 was served with weights CLEARING, KV cache CLEARING",
        ),
        (
            index_of("action_started", name="release_weights"),
            {"kind": "word_written", "facts": {"word": "step", "code": "RUNNING"}},
            "a step was entered with weights CLEARING",
        ),
        (
            index_of("word_written", code="PREPARED"),
            {"facts": {"weights": "NORMAL"}},
            "claims weights NORMAL, and it was PREPARED",
        ),
        (index_of("word_written", code="PREPARED"), {"facts": {"kv": "CLEARED"}}, "claims kv CLEARED"),
        (index_of("command_seen"), {"kind": "gossip"}, "no kind 'gossip'"),
    ],
)
def test_the_first_impossible_entry_is_named_with_its_reason(
    index: int, changes: dict[str, Any], reason: str
) -> None:
    entries = spoil(index, **changes)
    result = replay(entries)
    assert result.impossible is not None
    assert result.impossible.index == index
    assert result.impossible.entry == entries[index]
    assert reason in result.impossible.reason
    assert f"entry {index} (" in str(result.impossible)


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        (index_of("command_seen"), "DRAINING of a command that was not seen"),
        (index_of("command_admitted"), "it was not admitted"),
    ],
)
def test_a_command_that_was_neither_seen_nor_admitted_is_noticed(gone: int, reason: str) -> None:
    entries = lived().entries
    del entries[gone]
    impossible = replay(entries).impossible
    assert impossible is not None
    assert reason in impossible.reason


def test_a_line_of_no_command_hides_no_sequence_that_goes_back() -> None:
    entries = lived().entries
    of_none = msgspec.structs.replace(entries[-1], kind="shortage_met", sequence=0)
    back = msgspec.structs.replace(entries[-1], sequence=1)
    assert [found.index for found in replay([*entries[:-1], of_none, back]).findings] == [len(entries)]


def test_an_entry_that_is_missing_is_noticed_at_the_next_one() -> None:
    gone = index_of("transition", event="prepared")
    entries = lived().entries
    del entries[gone]
    impossible = replay(entries).impossible
    assert impossible is not None
    assert impossible.reason == "the word claims weights PREPARED, and it was UPDATING"


def test_a_transition_that_its_table_has_and_the_joint_rules_refuse_is_impossible() -> None:
    rank = Rank()
    rank.note("started", pid=1)
    rank.fire(WeightEvent.UPDATE)
    rank.fire(KVEvent.UPDATE)
    prepared = transition_entry(
        TransitionRecord("weights", "UPDATING", "prepared", "PREPARED", None, 99, 1, 1, ""),
        rank=0,
        wall_ns=99,
    )
    impossible = replay([*rank.entries, prepared]).impossible
    assert impossible is not None
    assert "the KV cache is still at work" in impossible.reason


def test_blocks_of_old_weights_that_reached_new_ones_are_found_in_the_journal() -> None:
    rank = Rank()
    rank.note("started", pid=1)
    rank.join()
    rank.update()
    rank.sequence += 1
    rank.fire(WeightEvent.UPDATE, kv_kept=True)
    rank.fire(WeightEvent.PREPARED)
    assert replay(rank.entries).impossible is None
    update = rank.entries[-2]
    rank.entries[-2] = msgspec.structs.replace(update, facts={**update.facts, "kv_kept": False})
    impossible = replay(rank.entries).impossible
    assert impossible is not None
    assert "computed by the weights that are replaced" in impossible.reason


def test_a_life_that_kept_something_through_a_new_epoch_is_impossible() -> None:
    rank = Rank()
    rank.update()
    rank.epoch += 1
    rank.join()
    rank.clear()
    impossible = replay(rank.entries).impossible
    assert impossible is not None
    assert "claims weights NORMAL, and it was CLEARED" in impossible.reason


def test_a_command_is_decided_once() -> None:
    decided = [JournalEntry("decision", at, at, -1, 1, 3, {"operation": "COMMIT"}) for at in (1, 2)]
    impossible = replay(decided).impossible
    assert impossible is not None
    assert impossible.index == 1
    assert "a decision is final" in impossible.reason


@pytest.mark.parametrize("fact", ["machine", "source", "dest", "event"])
def test_an_entry_that_lacks_a_fact_is_impossible_and_no_crash(fact: str) -> None:
    entries = lived().entries
    index = index_of("transition")
    facts = {key: value for key, value in entries[index].facts.items() if key != fact}
    entries[index] = msgspec.structs.replace(entries[index], facts=facts)
    impossible = replay(entries).impossible
    assert impossible is not None
    assert impossible.reason == f"it lacks the fact '{fact}'"


def test_only_the_states_that_a_journal_tells_are_reported() -> None:
    rank = Rank()
    rank.fire(WeightEvent.UPDATE)
    rank.fire(KVEvent.UPDATE)
    assert replay(rank.entries).states == {}
    rank.fire(KVEvent.REBUILT, WeightEvent.PREPARED, WeightEvent.COMMIT)
    rank.say("DONE_COMMITTED")
    assert replay(rank.entries).states == {0: JointState(WeightState.NORMAL, KVState.NORMAL)}


def test_nothing_is_no_contradiction() -> None:
    assert replay([]).impossible is None


def of_controllers(kind: str, at_ns: int, sequence: int, *, epoch: int = 1, **facts: Any) -> JournalEntry:
    return JournalEntry(kind, at_ns, at_ns, CONTROLLER, epoch, sequence, facts)


def test_a_controller_that_wrote_to_the_file_once_another_had_the_role_is_possible():
    entries = [
        of_controllers("command_issued", 1, 1, operation="UPDATE"),
        of_controllers("command_issued", 9, 2, operation="UPDATE"),
        of_controllers("decision", 5, 1, operation="ABORT"),
        of_controllers("decision", 10, 2, operation="COMMIT"),
    ]
    assert not replay(entries).findings


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (of_controllers("decision", 5, 3, operation="ABORT"), "4 ns before the entry before it"),
        (of_controllers("decision", 5, 1, operation="ABORT", epoch=2), "4 ns before the entry before it"),
        (of_controllers("decision", 6, 1, operation="COMMIT"), "a decision is final"),
    ],
)
def test_a_late_line_of_a_controller_is_of_an_earlier_command_that_nobody_had_decided(late, reason):
    entries = [
        of_controllers("decision", 4, 1, operation="ABORT"),
        of_controllers("command_issued", 9, 2, operation="UPDATE"),
        late,
    ]
    [found] = replay(entries).findings
    assert reason in found.reason
