from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from examples.demo.progress import RunProgress
from examples.demo.report import Report, StepRecord


def record(step: int) -> StepRecord:
    return StepRecord(
        step, step, step - 1, 0.125 * step, {step - 1: 512}, False, 210.0, 11.2, 140.4, 9.0, 24.0, 190.0
    )


def run_on(console: Console, steps: int = 3) -> None:
    records = [record(step) for step in range(1, steps + 1)]
    with RunProgress("wsm demo: 2 ranks learn to copy", steps, console) as progress:
        for one in records:
            progress.phase("generate")
            progress.finished(one)
    progress.summary(Report({}, records, 12.0), ["demo-out/report.json"])


def test_without_a_terminal_every_step_is_one_plain_line_within_80_columns() -> None:
    stream = io.StringIO()
    run_on(Console(file=stream, width=80, highlight=False))
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert [line for line in lines if line.startswith("step ")] == [
        "step 1/3  version 1  reward 0.12  clear 11  train 140  update 24  pause 190 ms",
        "step 2/3  version 2  reward 0.25  clear 11  train 140  update 24  pause 190 ms",
        "step 3/3  version 3  reward 0.38  clear 11  train 140  update 24  pause 190 ms",
    ]
    assert max(map(len, lines)) <= 80


def hot_record(step: int) -> StepRecord:
    return replace(
        record(step), clear_ms=0.0, update_ms=90.0, pause_ms=0.84, staging_ms=71.3, served_meanwhile=30
    )


def test_of_hot_updates_staging_and_the_pause_are_shown_and_what_was_served_meanwhile() -> None:
    stream = io.StringIO()
    records = [hot_record(step) for step in (1, 2)]
    with RunProgress("hot", 2, Console(file=stream, width=80, highlight=False), hot=True) as progress:
        for one in records:
            progress.finished(one)
    progress.summary(Report({}, records, 12.0), [])
    lines = stream.getvalue().splitlines()
    assert "step 1/2  version 1  reward 0.12  train 140  update 90  staging 71  pause 0.8 ms" in lines
    assert "60 tokens for others while it trained, staged and switched; median staging 71 ms" in lines
    assert any(line.endswith("median pause 0.84 ms") for line in lines)
    assert max(map(len, lines)) <= 80


def test_on_a_terminal_the_last_display_stays_and_fits_80_columns() -> None:
    stream = io.StringIO()
    console = Console(
        file=stream, width=80, height=30, force_terminal=True, color_system=None, legacy_windows=False
    )
    run_on(console)
    shown = stream.getvalue()
    assert "step 3/3: done" in shown
    assert "190 ms" in shown
    assert "…" not in shown, "a column was cut"
