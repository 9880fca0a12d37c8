from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsm.states.errors import FieldOverflowError, WordFormatError
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import (
    MAX_ACTION,
    MAX_EPOCH,
    MAX_SEQUENCE,
    MAX_STEP,
    MAX_VERSION_ID,
    CommandWord,
    CommittedWord,
    Decider,
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
)

epochs = st.integers(0, MAX_EPOCH)
sequences = st.integers(0, MAX_SEQUENCE)
words_64 = st.integers(0, 2**64 - 1)

commands = st.builds(
    CommandWord, epochs, sequences, st.sampled_from(Operation), st.sampled_from(Decider), st.booleans()
)
committed = st.builds(CommittedWord, sequences, st.none() | st.integers(0, MAX_VERSION_ID), st.booleans())
statuses = st.builds(
    StatusWord,
    epochs,
    sequences,
    st.sampled_from(StatusCode),
    st.integers(0, MAX_ACTION),
    st.integers(0, MAX_ACTION + 1),
    st.sampled_from(WeightState),
    st.sampled_from(KVState),
)
steps = st.builds(StepWord, epochs, sequences, st.sampled_from(StepKind), st.integers(0, MAX_STEP))
any_word = st.one_of(commands, committed, statuses, steps)


@given(any_word)
def test_what_is_packed_fits_64_bits_and_is_unpacked_unchanged(word):
    packed = word.pack()
    assert 0 <= packed < 2**64
    assert type(word).unpack(packed) == word


@given(words_64, st.sampled_from([CommandWord, CommittedWord, StatusWord]))
def test_bits_that_no_build_writes_are_refused_and_all_others_survive(bits, kind):
    try:
        word = kind.unpack(bits)
    except WordFormatError:
        return
    assert word.pack() == bits
    if isinstance(word, StatusWord):
        assert (WeightState(word.weights), KVState(word.kv)) == (word.weights, word.kv)


@given(words_64)
def test_a_step_word_has_no_bits_to_spare(bits):
    try:
        assert StepWord.unpack(bits).pack() == bits
    except WordFormatError:
        assert bits >> 38 & 3 == 3


def test_a_word_that_was_never_written_is_read_as_nothing():
    assert CommandWord.unpack(0) == CommandWord(0, 0, Operation.NONE)
    assert CommittedWord.unpack(0) == CommittedWord(0, None)
    assert StatusWord.unpack(0).code is StatusCode.NONE
    assert StepWord.unpack(0) == StepWord(0, 0, StepKind.PARKED, 0)


def test_version_zero_is_another_thing_than_no_version():
    assert CommittedWord(3, 0).pack() != CommittedWord(3, None).pack()


@pytest.mark.parametrize(
    ("word", "field"),
    [
        (CommandWord(MAX_EPOCH + 1, 0, Operation.CLEAR), "epoch"),
        (CommandWord(1, MAX_SEQUENCE + 1, Operation.CLEAR), "sequence"),
        (CommandWord(-1, 0, Operation.CLEAR), "epoch"),
        (CommittedWord(MAX_SEQUENCE + 1, None), "sequence"),
        (CommittedWord(0, MAX_VERSION_ID + 1), "version id"),
        (StatusWord(MAX_EPOCH + 1, 0, StatusCode.ATTACHED), "epoch"),
        (StatusWord(1, MAX_SEQUENCE + 1, StatusCode.ATTACHED), "sequence"),
        (StatusWord(1, 0, StatusCode.RUNNING, action=MAX_ACTION + 1), "action"),
        (StatusWord(1, 0, StatusCode.RUNNING, ready=MAX_ACTION + 2), "ready"),
        (StatusWord(1, 0, StatusCode.RUNNING, weights=4), "state code"),
        (StatusWord(1, 0, StatusCode.RUNNING, kv=-3), "state code"),
        (StepWord(1, 0, StepKind.RUNNING, MAX_STEP + 1), "step"),
        (StepWord(1, MAX_SEQUENCE + 1, StepKind.RUNNING, 0), "sequence"),
        (StepWord(MAX_EPOCH + 1, 0, StepKind.RUNNING, 0), "epoch"),
    ],
)
def test_a_field_that_has_grown_past_its_width_is_refused_and_never_wraps(word, field):
    with pytest.raises(FieldOverflowError) as caught:
        word.pack()
    assert caught.value.field == field
    assert "restart the group" in str(caught.value)


@given(statuses, statuses)
def test_within_32_sequences_of_an_epoch_every_change_of_a_status_shows_in_its_low_half(one, other):
    other = other._replace(epoch=one.epoch)
    if one != other and abs(one.sequence - other.sequence) < 32:
        assert one.pack() & 0xFFFFFFFF != other.pack() & 0xFFFFFFFF


@given(commands, commands)
def test_every_change_of_a_command_within_an_epoch_and_the_next_shows_in_its_low_half(one, other):
    if abs(one.epoch - other.epoch) <= 1:
        assert (one == other) == (one.pack() & 0xFFFFFFFF == other.pack() & 0xFFFFFFFF)


@given(epochs, sequences, st.integers(0, MAX_STEP))
def test_parking_and_breaking_show_in_the_high_half_of_a_step_word(epoch, sequence, step):
    highs = {StepWord(epoch, sequence, kind, step).pack() >> 32 for kind in StepKind}
    assert len(highs) == len(StepKind)


@given(epochs, epochs, st.sampled_from(StepKind))
def test_a_new_epoch_shows_in_the_high_half_of_a_step_word(one, other, kind):
    if 0 < abs(one - other) < 64:
        highs = {StepWord(epoch, 7, kind, 0).pack() >> 32 for epoch in (one, other)}
        assert len(highs) == 2


@given(epochs, sequences, st.lists(st.integers(0, MAX_STEP), min_size=2, max_size=2, unique=True))
def test_step_words_of_one_epoch_sequence_and_kind_compare_as_their_steps(epoch, sequence, numbers):
    low, high = sorted(numbers)
    assert (
        StepWord(epoch, sequence, StepKind.RUNNING, low).pack()
        < StepWord(epoch, sequence, StepKind.RUNNING, high).pack()
    )


def test_operations_and_codes_say_what_they_are():
    assert {op for op in Operation if op.is_decision} == {
        op for op in Operation if op.is_commit or op.is_abort
    }
    assert {op for op in Operation if op.is_hot} == {
        Operation.HOT_UPDATE,
        Operation.HOT_COMMIT,
        Operation.HOT_ABORT,
    }
    assert not any(code.is_terminal and code.is_failure for code in StatusCode)
    assert {code for code in StatusCode if code.is_terminal} == {
        StatusCode.DONE_KEPT,
        StatusCode.DONE_CLEARED,
        StatusCode.DONE_COMMITTED,
        StatusCode.DONE_FAULTED,
    }
