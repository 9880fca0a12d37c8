"""The trace file against the rules of the trace event format that Perfetto relies on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wsm.demo.timeline import TimelineSpan, extent, lanes, tracks, within
from wsm.demo.trace import chrome_trace, write_trace

MS = 1_000_000
SPANS = [
    TimelineSpan("rank 1", "weights", "NORMAL", 0, 10 * MS),
    TimelineSpan("rank 0", "weights", "NORMAL", 0, 11 * MS),
    TimelineSpan("rank 0", "actions", "release_weights", 12 * MS, 14 * MS, {"sequence": 3}),
    TimelineSpan("rank 10", "weights", "NORMAL", 0, 9 * MS),
    TimelineSpan("trainer", "training", "train", 15 * MS, 30 * MS, {"step": 1}),
    TimelineSpan("controller", "commands", "clear", 11 * MS, 15 * MS, {"step": 1}),
]


def names_of(kind: str) -> dict[tuple[int, int], str]:
    events = chrome_trace(SPANS)["traceEvents"]
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == kind
    }


def test_there_is_one_process_per_track_in_reading_order() -> None:
    processes = names_of("process_name")
    in_order = [name for (process, _), name in sorted(processes.items())]
    assert in_order == ["controller", "trainer", "rank 0", "rank 1", "rank 10"]


def test_every_slice_is_on_a_named_thread_of_a_named_process() -> None:
    processes = {process for process, _ in names_of("process_name")}
    threads = names_of("thread_name")
    for event in chrome_trace(SPANS)["traceEvents"]:
        if event["ph"] == "X":
            assert event["pid"] in processes
            assert threads[event["pid"], event["tid"]] == event["cat"]


def test_times_are_microseconds_since_the_first_span() -> None:
    late = [TimelineSpan("rank 0", "weights", "NORMAL", 7_000 * MS, 7_001 * MS)]
    (event,) = [event for event in chrome_trace(late)["traceEvents"] if event["ph"] == "X"]
    assert (event["ts"], event["dur"]) == (0.0, 1000.0)


def test_every_span_becomes_exactly_one_slice_with_its_facts() -> None:
    slices = [event for event in chrome_trace(SPANS)["traceEvents"] if event["ph"] == "X"]
    assert sorted(event["name"] for event in slices) == sorted(span.name for span in SPANS)
    (release,) = [event for event in slices if event["name"] == "release_weights"]
    assert release["args"] == {"sequence": 3}


def test_the_file_is_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(path, SPANS)
    assert json.loads(path.read_text()) == chrome_trace(SPANS)


def test_an_empty_timeline_is_an_empty_trace() -> None:
    assert chrome_trace([])["traceEvents"] == []


def test_lanes_and_tracks_and_extents_are_those_of_the_spans() -> None:
    assert tracks(SPANS)[0] == "controller"
    assert lanes(SPANS, "rank 0") == ["weights", "actions"]
    assert extent(SPANS) == (0, 30 * MS)


@pytest.mark.parametrize(("start", "end", "count"), [(14, 15, 1), (0, 1, 3), (30, 40, 0)])
def test_a_span_that_only_touches_an_interval_is_not_within_it(start: int, end: int, count: int) -> None:
    assert len(within(SPANS, start * MS, end * MS)) == count
