from __future__ import annotations

import json
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


def test_totals_of_a_short_run_use_what_there_is() -> None:
    totals = Report({}, [record(1, reward=0.25)], 1.0).totals()
    assert totals["reward_first_five"] == totals["reward_last_five"] == 0.25


def test_tokens_are_counted_per_version_over_all_steps() -> None:
    steps = [record(1, tokens={0: 512}), record(2, tokens={0: 2, 1: 510}, mixed_versions=True)]
    totals = Report({}, steps, 1.0).totals()
    assert totals["tokens_per_version"] == {"0": 514, "1": 510}
    assert totals["mixed_version_steps"] == 1


def test_a_run_without_updates_serves_no_version_of_its_own() -> None:
    steps = [record(step, version=None, tokens={0: 8}) for step in (1, 2)]
    assert Report({}, steps, 1.0).totals()["versions_served"] == 0


def test_medians_are_over_the_steps() -> None:
    steps = [record(1, pause_ms=10.0), record(2, pause_ms=30.0), record(3, pause_ms=500.0)]
    assert Report({}, steps, 1.0).totals()["median_ms"]["pause"] == 30.0


def test_the_file_holds_settings_totals_and_every_step(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    steps = [record(1, digests={"0": "ab", "1": "cd"}, manifest_digest="ef", bytes=100, pause_ms=12.3456789)]
    Report({"ranks": 2}, steps, 3.0).write(path)
    content = json.loads(path.read_text())
    assert content["schema"] == 1
    assert content["settings"] == {"ranks": 2}
    assert content["totals"]["steps"] == 1
    (step,) = content["steps"]
    assert step["digests"] == {"0": "ab", "1": "cd"}
    assert step["tokens"] == {"0": 512}
    assert step["pause_ms"] == 12.345679
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_json_cannot_hold_are_refused_before_the_old_report_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    Report({}, [record(1)], 1.0).write(path)
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON compliant"):
        Report({}, [record(1, loss=float("nan"))], 1.0).write(path)
    assert path.read_text() == before
