from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.report import Report, StepRecord


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
