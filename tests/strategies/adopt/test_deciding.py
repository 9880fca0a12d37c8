"""What an adopted directory is called, and whether there is anything to do: the rules alone."""

from __future__ import annotations

import pytest

from tests.raising import raising
from wsm.labels import MAX_LENGTH, bad_version
from wsm.strategies.adopt.record import Decision, KnownLabel, Relabel, asked_label, decide, label_for

ONE, TWO, LIKE_TWO = "1" * 32, "2" * 32, "2" * 8 + "3" * 24


@pytest.mark.parametrize(
    ("directory", "label"),
    [
        ("weight_v000012", "12"),
        ("weight_update_v7", "7"),
        ("step_7", "7"),
        ("global_step_1200", "1200"),
        ("weight_v000000", "0"),
        ("1200", "1200"),
        ("weights.7", "7"),
        ("policy-v2.5", "policy-v2.5"),
        ("best", "best"),
        ("global_step_40/actor/huggingface", "40"),
        ("run_3/global_step_60/actor", "60"),
        ("run_3/policy-v2.5", "policy-v2.5"),
        ("exchange/best", "best"),
    ],
)
def test_a_label_is_the_number_at_the_end_of_the_name_or_the_name(directory: str, label: str) -> None:
    assert label_for(directory) == label
    assert label_for(directory, 12) == label_for(directory, "12") == "12"
    assert label_for(directory, "000012") == "000012", "a label that is given stays as it is"


@pytest.mark.parametrize(("directory", "asked"), [("latest", None), ("a b", None), ("step_7", "")])
def test_what_is_no_label_is_refused(directory: str, asked: str | None) -> None:
    with raising(bad_version):
        label_for(directory, asked)


def test_what_is_there_already_is_decided_by_the_digest_and_never_by_the_label_alone() -> None:
    def decided(known: dict[str, KnownLabel], relabel: Relabel = Relabel.MARK) -> Decision:
        return decide("1", TWO, known, relabel)

    assert decided({}) == Decision("1", already=False, replace=False)
    assert decided({"1": KnownLabel(TWO, stands=True)}).already
    # Retired, or its files changed since: the same content comes back under its own label.
    again = decided({"1": KnownLabel(TWO, stands=False)})
    assert again == Decision("1", already=False, replace=True)
    other = {"1": KnownLabel(ONE, stands=True)}
    marked = decided(other)
    assert marked == Decision("1.reused-22222222", already=False, replace=False)
    assert decided({**other, marked.label: KnownLabel(TWO, stands=True)}).already
    with raising("label-reused", match=f"digest {ONE}, now {TWO}"):
        decided(other, Relabel.REFUSE)


def test_a_marked_label_tells_its_digest_apart_has_room_and_gives_the_trainers_own_word_back() -> None:
    known = {"1": KnownLabel(ONE, stands=True), "1.reused-22222222": KnownLabel(LIKE_TWO, stands=True)}
    assert decide("1", TWO, known, Relabel.MARK).label == "1.reused-" + "2" * 16
    long = "v" * MAX_LENGTH
    marked = decide(long, TWO, {long: KnownLabel(ONE, stands=False)}, Relabel.MARK).label
    assert len(marked) == MAX_LENGTH
    assert label_for("x", marked) == marked
    assert asked_label("1.reused-22222222") == asked_label("1.reused-" + "2" * 16) == asked_label("1") == "1"
