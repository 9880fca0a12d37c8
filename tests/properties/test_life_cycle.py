"""Any sequence of events, against a model that knows versions instead of states.

The model never looks at the tables: it remembers which version the weights hold and which one computed the
KV blocks. Whatever is fired in whatever order, the rank must serve only one version with its own blocks.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wsm.journal.entry import Journal, JournalEntry, read_ndjson, transition_entry
from wsm.journal.replay import replay
from wsm.states import command_events
from wsm.states.command_events import Course
from wsm.states.errors import IllegalTransitionError
from wsm.states.machine import LifeCycle, TransitionRecord
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState

EVENTS = (*WeightEvent, *KVEvent)

#: How an update may end, with the outcome; None: it does not.
ENDS = (None, (WeightEvent.COMMIT, False), (WeightEvent.ABORT, True), (WeightEvent.ABORT, False))


class AnyOrderOfEvents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.records: list[TransitionRecord] = []
        self.life = LifeCycle()
        self.now = itertools.count(1)
        self.versions = itertools.count(1)
        self.epoch = self.sequence = 1
        self.serves: int | None = None  # version that a committed rank serves
        self.loads: int | None = None  # version that the update under way brings
        self.blocks: set[int] = set()  # versions that the KV blocks are valid for

    @rule(event=st.sampled_from(EVENTS), kept=st.booleans(), kv_kept=st.booleans())
    def anything(self, event: WeightEvent | KVEvent, kept: bool, kv_kept: bool) -> None:
        before, told = self.life.joint, self.life.view().records
        could = self.life.can(event, kept=kept)
        try:
            record = self.life.fire(
                event,
                at_ns=next(self.now),
                epoch=self.epoch,
                sequence=self.sequence,
                kept=kept,
                kv_kept=kv_kept,
            )
        except IllegalTransitionError:
            assert not could
            assert self.life.joint == before
            assert self.life.view().records == told
            return
        assert could
        assert self.life.view().records[-1] == record
        self.records.append(record)
        self.journal.append(transition_entry(record, rank=0, wall_ns=record.at_ns))
        self.take_into_the_model(record)

    @rule()
    def the_next_command_comes(self) -> None:
        self.sequence += 1

    @precondition(lambda self: self.epoch < 50)
    @rule()
    def a_new_epoch_begins(self) -> None:
        moments = command_events.leave, command_events.freed, command_events.lose
        for event, _ in Course.led(self.life.joint, *moments).fired:
            self.anything(event, kept=False, kv_kept=True)
        self.epoch += 1
        self.serves = self.loads = None
        self.blocks = set()

    @rule(
        keeps=st.booleans(),
        rebuilds=st.booleans(),
        ends=st.sampled_from(
            [None, (WeightEvent.COMMIT, False), (WeightEvent.ABORT, True), (WeightEvent.ABORT, False)]
        ),
    )
    def an_update(self, keeps: bool, rebuilds: bool, ends: tuple[WeightEvent, bool] | None) -> None:
        """Deep states are rare among random events, so some walks try to be a whole update."""
        self.anything(WeightEvent.UPDATE, kept=False, kv_kept=keeps)
        if rebuilds:
            self.anything(KVEvent.UPDATE, kept=False, kv_kept=True)
            self.anything(KVEvent.REBUILT, kept=False, kv_kept=True)
        self.anything(WeightEvent.PREPARED, kept=False, kv_kept=True)
        if ends is not None:
            self.anything(ends[0], kept=ends[1], kv_kept=True)

    def take_into_the_model(self, record: TransitionRecord) -> None:
        if record.machine == "kv":
            if record.dest != "NORMAL":
                self.blocks = set()
            return
        if record.event == "update":
            self.loads = next(self.versions)
            if record.kv_kept and self.blocks:
                self.blocks.add(self.loads)
        elif record.event == "commit":
            self.serves, self.loads = self.loads, None
        elif record.dest == "NORMAL":
            self.loads = None
        elif record.dest in {"CLEARED", "CLEARING", "FAULTED"}:
            self.serves = self.loads = None

    @invariant()
    def who_serves_holds_one_version_and_blocks_of_no_other(self) -> None:
        if self.life.serving:
            assert self.serves is not None
            assert not self.blocks or self.serves in self.blocks
            self.blocks.add(self.serves)  # and now it computes more of them

    @invariant()
    def who_is_prepared_has_nothing_under_way(self) -> None:
        if self.life.weights is WeightState.PREPARED and self.life.can(WeightEvent.COMMIT):
            assert self.life.kv in (KVState.NORMAL, KVState.CLEARED)  # CLEARED: it will not serve without
            assert self.loads is not None

    @invariant()
    def who_has_no_weights_serves_nothing(self) -> None:
        if self.life.weights is WeightState.CLEARED:  # its KV cache may be back before the weights are
            assert not self.life.serving
            assert self.serves is None

    def teardown(self) -> None:
        entries = read_ndjson([f"{entry.to_line()}\n" for entry in self.journal])
        assert entries == list(self.journal)
        assert [entry.facts["dest"] for entry in entries] == [record.dest for record in self.records]
        result = replay([JournalEntry("started", 0, 0, 0, 0, 0), *entries])
        assert result.impossible is None, str(result.impossible)


TestAnyOrderOfEvents = pytest.mark.slow(AnyOrderOfEvents.TestCase)
