"""Reports fit their slots whatever is in them, and arrive as what they were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsm.command import MAX_REPORT_BYTES, ActionSeconds, FailureReport, RankReport, ReportFormatError
from wsm.controller.errors import RankFailedError
from wsm.signals.layout import SLOT_CAPACITY


def test_what_a_report_may_take_fits_into_a_slot():
    assert MAX_REPORT_BYTES <= SLOT_CAPACITY


@given(st.text(max_size=40_000), st.integers(1, 6000))
def test_every_failure_fits_and_keeps_its_type_and_its_beginning(text, repeat):
    error = RuntimeError(text * repeat if len(text) * repeat < 200_000 else text)
    data = FailureReport.of(3, "load_weights", error).to_bytes()
    assert len(data) <= MAX_REPORT_BYTES
    back = FailureReport.from_bytes(3, data)
    assert (back.rank, back.action, back.error) == (3, "load_weights", "RuntimeError")
    assert back.message.startswith("RuntimeError")


@pytest.mark.parametrize("character", ["错", "\x00", '"', "\ud800", "😀", "\\"])
def test_a_message_and_a_traceback_of_expensive_characters_fit(character):
    report = FailureReport(0, "a", "E", character * 2048, character * 8192)
    data = report.to_bytes()
    assert len(data) <= MAX_REPORT_BYTES
    assert FailureReport.from_bytes(0, data).message[:1] == character


def test_a_traceback_that_does_not_fit_keeps_its_end():
    report = FailureReport(0, "a", "E", "m", "错" * 8000 + "the last frame")
    assert FailureReport.from_bytes(0, report.to_bytes()).traceback.endswith("the last frame")


def test_the_largest_facts_are_left_out_by_name_and_the_small_ones_stay():
    """The scope of the manifest decides whether ranks may be committed together: it must not be lost."""
    files = [f"/models/policy/versions/12/model_state.tp0.0.part{n}.pdparams" for n in range(500)]
    report = RankReport(1, "12", "digest", facts={"files": files, "manifest_scope": "group", "kv_bytes": 5})
    data = report.to_bytes()
    assert len(data) <= MAX_REPORT_BYTES
    assert RankReport.from_bytes(1, data).facts == {
        "manifest_scope": "group",
        "kv_bytes": 5,
        "left_out": ["files"],
    }


def test_a_report_arrives_as_it_was():
    report = RankReport(
        1,
        "2",
        "m",
        "d",
        3,
        4,
        (ActionSeconds("load_weights", 0.5),),
        0.25,
        {"manifest_scope": "group"},
        ("1", "7"),
    )
    assert RankReport.from_bytes(1, report.to_bytes()) == report


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b'{"rank": "1"}', json.dumps({"x": 1}).encode()])
def test_what_is_no_report_is_refused_by_name(data):
    with pytest.raises(ReportFormatError, match="rank 7"):
        FailureReport.from_bytes(7, data)
    with pytest.raises(ReportFormatError, match="rank 7"):
        RankReport.from_bytes(7, data)


def test_a_failing_action_is_reported_whatever_its_traceback_looks_like(make_lone):
    """The worker's loop must survive the report of a failure."""

    def fail(context, target):
        raise ValueError("权重文件已损坏 " * 1500)

    lone = make_lone(load=fail)
    with pytest.raises(RankFailedError, match="ValueError: 权重文件已损坏") as caught:
        lone.update(1)
    assert caught.value.action == "load_weights"
    assert len(caught.value.cause) <= 2048
    assert lone.worker.weights.name == "CLEARED"


def test_the_pause_of_each_command_begins_when_its_rank_serves_no_more(lone):
    assert lone.update(2).pause_s < 50.0
    lone.group.clock.advance(100.0)
    assert lone.update(3).pause_s < 50.0
    assert lone.update(4, hot=True).pause_s < 50.0
    lone.clear()
    lone.group.clock.advance(100.0)
    assert 100.0 <= lone.update(5).pause_s < 150.0
