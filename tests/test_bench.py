"""The bench itself, on few samples: that it measures what it says, on real ranks, and leaves nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.__main__ import Row, show
from bench.acceptance import measure_acceptance
from bench.cycle import measure_cycles
from bench.measure import Distribution


def test_percentiles_are_samples_by_nearest_rank() -> None:
    found = Distribution.of([float(value) for value in range(1, 201)])
    assert (found.p50, found.p99, found.least, found.most, found.samples) == (100.0, 198.0, 1.0, 200.0, 200)
    assert Distribution.of([7.0]) == Distribution(7.0, 7.0, 7.0, 7.0, 1)


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["idle", "serving"])
def test_every_clear_of_a_real_group_is_accepted_after_its_call(mode: str) -> None:
    found = measure_acceptance(3, ranks=2, mode=mode)
    assert found.samples == 3
    assert found.least > 0


@pytest.mark.processes
def test_a_cycle_is_measured_on_a_real_group() -> None:
    assert measure_cycles(2).samples == 2


def test_the_table_fits_80_columns_and_says_which_aims_are_missed() -> None:
    stream = io.StringIO()
    rows = [
        Row("the same, FastDeploy's legacy sleeps", "ms", 6001.2, 6001.9, note="1827 times ours"),
        Row("call to all accepted, 4 serving ranks", "us", 150.0, 2950.0, aim=200.0),
        Row("poll() and step()", "ns", 303.0, 328.0, aim=250.0),
    ]
    show(rows, Console(file=stream, width=80))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert len(lines) == len(rows) + 1
    assert lines[2].endswith("aim 200")
    assert lines[3].endswith("aim 250, missed")
