from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.report import Report, StepRecord, step_line, summary_lines


def record(step: int, *, reward: float = 0.5, **fields: object) -> StepRecord:
    facts: dict[str, object] = {
        "version": step,
        "served_version": step - 1,
        "tokens": {step - 1: 512},
        "mixed_versions": False,
        **fields,
    }
    return StepRecord(step=step, reward=reward, **facts)  # type: ignore[arg-type] # facts by name


def test_totals_compare_the_first_five_steps_with_the_last_five() -> None:
    steps = [record(step, reward=step / 20) for step in range(1, 21)]
    totals = Report({}, steps, 12.0).totals()
    assert totals["reward_first_five"] == pytest.approx(0.15)
    assert totals["reward_last_five"] == pytest.approx(0.9)


def test_medians_are_over_the_steps() -> None:
    steps = [record(1, pause_ms=10.0), record(2, pause_ms=30.0), record(3, pause_ms=500.0)]
    assert Report({}, steps, 1.0).totals()["median_ms"]["pause"] == 30.0


def test_numbers_that_json_cannot_hold_are_refused_before_the_old_report_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    Report({}, [record(1)], 1.0).write(path)
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON compliant"):
        Report({}, [record(1, loss=float("nan"))], 1.0).write(path)
    assert path.read_text() == before


TIMES = {"generate_ms": 210.0, "clear_ms": 11.2, "train_ms": 140.4, "publish_ms": 9.0}


def test_a_step_is_one_line_within_80_columns() -> None:
    line = step_line(record(2, reward=0.25, update_ms=24.0, pause_ms=190.0, **TIMES), 3, hot=False)
    assert line == "step 2/3  version 2  reward 0.25  clear 11  train 140  update 24  pause 190 ms"
    assert len(line) <= 80


def test_of_hot_updates_staging_and_the_pause_are_shown_and_what_was_served_meanwhile() -> None:
    hot = {"update_ms": 90.0, "pause_ms": 0.84, "staging_ms": 71.3, "served_meanwhile": 30}
    steps = [record(step, reward=0.125 * step, **{**TIMES, **hot}) for step in (1, 2)]
    lines = [step_line(steps[0], 2, hot=True), *summary_lines(Report({}, steps, 12.0), hot=True)]
    assert lines[0] == "step 1/2  version 1  reward 0.12  train 140  update 90  staging 71  pause 0.8 ms"
    assert lines[-1] == "60 tokens for others while it trained, staged and switched; median staging 71 ms"
    assert any(line.endswith("median pause 0.84 ms") for line in lines)
    assert max(map(len, lines)) <= 80
