"""The picture, as a file that really is one; what it looks like is for eyes."""

from __future__ import annotations

import struct
from pathlib import Path

from examples.demo.picture import draw
from examples.demo.report import Report, StepRecord
from wsm.journal.spans import TimelineSpan

MS = 1_000_000


def a_run(*, updated: bool) -> tuple[Report, list[TimelineSpan]]:
    spans, steps = [], []
    for step in range(1, 4):
        start = step * 100 * MS
        spans.append(
            TimelineSpan("controller", "commands", "generate", start, start + 40 * MS, {"step": step})
        )
        spans += [
            TimelineSpan(rank, "weights", "NORMAL", start, start + 40 * MS) for rank in ("rank 0", "rank 1")
        ]
        if updated:
            spans.append(
                TimelineSpan(
                    "controller", "commands", "clear", start + 40 * MS, start + 50 * MS, {"step": step}
                )
            )
            spans.append(
                TimelineSpan(
                    "controller", "commands", "update", start + 80 * MS, start + 95 * MS, {"step": step}
                )
            )
            for rank in ("rank 0", "rank 1"):
                spans.append(
                    TimelineSpan(rank, "actions", "release_weights", start + 42 * MS, start + 48 * MS)
                )
                spans.append(TimelineSpan(rank, "actions", "load_weights", start + 82 * MS, start + 90 * MS))
                spans.append(TimelineSpan(rank, "weights", "CLEARED", start + 50 * MS, start + 80 * MS))
        steps.append(
            StepRecord(
                step, step if updated else None, step - 1, 0.1 * step, {step - 1: 8}, False, pause_ms=50.0
            )
        )
    return Report({}, steps, 0.3), spans


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_run_with_updates_is_drawn(tmp_path: Path) -> None:
    report, spans = a_run(updated=True)
    draw(tmp_path / "run.png", report, spans, chance=0.125)
    assert size_of(tmp_path / "run.png") == (1200, 1100)


def test_a_run_of_hot_updates_shows_the_whole_and_the_switch_from_near(tmp_path: Path) -> None:
    report, spans = a_run(updated=True)
    spans = [span for span in spans if span.name not in ("clear", "CLEARED", "release_weights")]
    draw(tmp_path / "whole.png", report, spans, chance=0.125)
    for step in range(1, 4):
        flip = step * 100 * MS + 91 * MS
        spans += [TimelineSpan(rank, "weights", "UPDATING", flip, flip + MS) for rank in ("rank 0", "rank 1")]
        spans += [
            TimelineSpan(rank, "actions", "flip_weights", flip, flip + MS) for rank in ("rank 0", "rank 1")
        ]
    draw(tmp_path / "run.png", report, spans, chance=0.125)
    assert size_of(tmp_path / "run.png") == (1200, 1100)
    assert (tmp_path / "run.png").read_bytes() != (tmp_path / "whole.png").read_bytes()


def test_a_run_without_updates_has_no_actions_to_show(tmp_path: Path) -> None:
    report, spans = a_run(updated=False)
    draw(tmp_path / "run.png", report, spans, chance=0.125)
    assert size_of(tmp_path / "run.png") == (1200, 700)
