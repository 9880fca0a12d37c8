"""What may be the label of a version, and the number that stands for it in a word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labels import FIRST, REST, is_allowed, labels
from tests.raising import raising
from wsm.labels import (
    VERSION_ID_BITS,
    bad_version,
    checked_version,
    is_unnamed,
    recorded_version,
    unnamed_version,
    version_id,
)


@given(labels())
def test_a_label_is_itself(label):
    assert checked_version(label) == label


@given(st.text(max_size=6) | st.text(REST, max_size=140))
def test_every_text_is_a_label_or_refused(text):
    fits = 1 <= len(text) <= 128 and text[0] in FIRST and set(text) <= set(REST) and is_allowed(text)
    if fits:
        assert checked_version(text) == text
    else:
        with raising(bad_version, match="give 1 to 128 of"):
            checked_version(text)


@given(st.integers(0, 10**128 - 1))
def test_a_number_is_its_digits(number):
    assert checked_version(number) == str(number)


@pytest.mark.parametrize("value", [True, False, 7.0, None, b"7", -1, 10**128, "-7", " 7", "7\n"])
def test_what_is_no_label_is_refused(value):
    with raising(bad_version):
        checked_version(value)


def test_a_message_quotes_the_beginning_of_what_is_no_label():
    with raising(bad_version) as caught:
        checked_version("a" * 60_000)
    assert len(str(caught.value)) < 500


def test_zeros_count_as_names_of_steps_are_often_padded():
    assert (checked_version("0100"), checked_version("00"), checked_version(100)) == ("0100", "00", "100")


def test_case_counts():
    assert checked_version("Step") != checked_version("step")


def test_the_names_that_wsm_gives_are_refused_from_callers_and_read_from_records():
    label = unnamed_version("abc", 3, 12)
    assert (label, is_unnamed(label), recorded_version(label)) == ("unnamed-abc.3.12", True, label)
    for reserved in (label, "unnamed-", "latest", "newest"):
        with raising(bad_version, match="reserved"):
            checked_version(reserved)


@given(labels(), labels())
def test_the_number_in_a_word_has_its_width_and_depends_on_every_character(one, other):
    assert 0 <= version_id(one) < 1 << VERSION_ID_BITS
    assert (version_id(one) == version_id(other)) == (one == other)  # 2**38 are enough for a few hundred


def test_the_number_in_a_word_stays_the_same_from_release_to_release():
    assert (version_id("7"), version_id("global_step_1200")) == (248370295475, 64180360257)
